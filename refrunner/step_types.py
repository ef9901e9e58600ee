"""The types of a step: what a caller passes becomes plain Python values, or is refused before any rule is checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, NoReturn, cast

import numpy as np

from .api import NewRequest, SamplingParams, Step, whole_number
from .errors import RequestError, StepError, shown

LARGEST = 2**63 - 1


def plain_step(step: object) -> Step:
    """The same step of plain values: tuples, dicts, ``str`` and ``int``.

    By shape and not by class, so that a step may come from another copy of this package. NumPy integers are fine.

    Raises:
        StepError: a part is missing or of the wrong type. A float would be cut to a whole number somewhere below, and
            a text taken for the sequence of its characters.
    """
    finished, preempted, new, scheduled, new_blocks, drafts, copies, arrived, tokens, verified = _parts(
        step, Step, "step"
    )
    return Step(
        finished=tuple(_request_id(name, "Step.finished") for name in _sequence(finished, "Step.finished")),
        preempted=tuple(_request_id(name, "Step.preempted") for name in _sequence(preempted, "Step.preempted")),
        new=tuple(plain_request(request) for request in _sequence(new, "Step.new")),
        scheduled=_counts(scheduled, "Step.scheduled"),
        new_blocks=_block_groups(new_blocks),
        drafts=_counts(drafts, "Step.drafts"),
        block_copies=tuple(_pair(copy, "Step.block_copies") for copy in _sequence(copies, "Step.block_copies")),
        arrived=_tokens(arrived, "Step.arrived"),
        draft_tokens=_tokens(tokens, "Step.draft_tokens"),
        verified={
            name: _pair(outcome, f"Step.verified[{shown(name)}]")
            for name, outcome in _mapping(verified, "Step.verified").items()
        },
    )


def plain_request(request: object) -> NewRequest:
    """The same request of plain values; see ``plain_step``.

    Raises:
        StepError: a part is missing or of the wrong type.
    """
    name, token_ids, prompt_len, sampling, computed = _parts(request, NewRequest, "new request")
    name = _request_id(name, "NewRequest.request_id")
    return NewRequest(
        name,
        _whole_numbers(token_ids, f"token ids of request {shown(name)}"),
        _whole(prompt_len, f"prompt_len of request {shown(name)}"),
        _plain_sampling(sampling, f"sampling of request {shown(name)}"),
        _whole(computed, f"num_computed_tokens of request {shown(name)}"),
    )


def _plain_sampling(sampling: object, place: str) -> SamplingParams:
    try:
        return SamplingParams(*_parts(sampling, SamplingParams, place))
    except RequestError as error:
        raise StepError(f"{place}, {error.subject}", error.rule, error.reason, error.remedy) from error


def _parts(value: object, kind: type[Step | NewRequest | SamplingParams], place: str) -> list[Any]:
    """The fields of a value that has the shape of ``kind``, in order."""
    names = [field.name for field in fields(kind)]
    if not all(hasattr(value, name) for name in names):
        _refuse(place, value, f"it must be a {kind.__name__}", f"mrv2.refrunner.api.{kind.__name__}(...)")
    return [getattr(value, name) for name in names]


def _mapping(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(place, value, "it must be a mapping by request id", "a dict such as {'a': ...}")
    if set(map(type, value)) <= {str}:  # as nearly always, and every request of every step passes here
        return dict(value)
    return {_request_id(name, place): item for name, item in value.items()}


def _counts(value: object, place: str) -> dict[str, int]:
    counts = _mapping(value, place)
    if _are_plain(counts.values()):
        return counts
    return {name: _whole(count, f"{place}[{shown(name)}]") for name, count in counts.items()}


def _tokens(value: object, place: str) -> dict[str, tuple[int, ...]]:
    return {name: _whole_numbers(ids, place, name) for name, ids in _mapping(value, place).items()}


def _block_groups(value: object) -> dict[str, tuple[tuple[int, ...], ...]]:
    place = "Step.new_blocks"
    by_name = _mapping(value, place)
    if set(map(type, by_name.values())) <= {tuple}:
        groups = [*chain.from_iterable(by_name.values())]
        if set(map(type, groups)) <= {tuple} and _are_plain([*chain.from_iterable(groups)]):
            return by_name
    return {
        name: tuple(_whole_numbers(group, place, name) for group in _sequence(groups, f"{place}[{shown(name)}]"))
        for name, groups in by_name.items()
    }


def _pair(value: object, place: str) -> tuple[int, int]:
    numbers = _whole_numbers(value, place)
    if len(numbers) != 2:
        _refuse(place, value, "it must be a pair", "two whole numbers, see mrv2.refrunner.api.Step")
    return numbers[0], numbers[1]


def _request_id(value: object, place: str) -> str:
    if not isinstance(value, str):
        _refuse(place, value, "request ids must be strings", "the id with which the request entered")
    return value


def _sequence(value: object, place: str) -> Sequence[Any]:
    ordered = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes | bytearray | memoryview)
    if not ordered:
        _refuse(place, value, "it must be a sequence", "a tuple")
    return value  # type: ignore[return-value]


def _whole_numbers(values: object, place: str, name: str | None = None) -> tuple[int, ...]:
    """The numbers of a sequence; ``name`` says whose they are."""
    if type(values) is tuple and _are_plain(values):
        return values
    place = place if name is None else f"{place}[{shown(name)}]"
    return tuple(_whole(value, place) for value in _sequence(values, place))


def _are_plain(values: Collection[object]) -> bool:
    """Whether nothing is to be done for whole numbers: they are Python's own, and fit into 64 bits."""
    if not set(map(type, values)) <= {int}:
        return False
    numbers = cast(Collection[int], values)
    return not numbers or (min(numbers) >= -LARGEST - 1 and max(numbers) <= LARGEST)


def _whole(value: object, place: str) -> int:
    try:
        number = whole_number(value)
    except TypeError:
        number = None
    if number is None or number.bit_length() > 63:
        _refuse(place, value, "it must be a whole number of 64 bits", "an int")
    return number


def _refuse(place: str, value: object, rule: str, remedy: str) -> NoReturn:
    raise StepError(
        f"{place}: {shown(value)}",
        rule,
        "anything else would be taken for something near it, or fail half way with the state changed",
        remedy,
    )
