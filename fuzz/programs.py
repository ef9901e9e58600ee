"""A runner at work as a program for the virtual device: data in, data out, the same every time.

A program is named by a target and a workload, both of which fit into a JSON file; see ``checks.virtual.replay``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON, Finding
from mrv2.checks.virtual.streams import active_runtime
from mrv2.fuzz.targets.protocols import Runner, RunnerTarget
from mrv2.fuzz.workload import Driver, Trace, Workload, WorkloadRequest, close
from mrv2.refrunner.api import Grammar, Handle, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import RequestError

MODEL = "tiny"
#: What a field of a type may hold in a file.
JSON_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"int": (int,), "str": (str,), "bool": (bool,), "float": (float, int), "None": (NoneType,)}
)


def number_virtual(step: int) -> None:
    """Tell the virtual device which step of the runner begins."""
    active_runtime().step = step


class NumberedRunner:
    """A runner whose steps are numbered for a device; it shows no snapshots, since each one synchronises.

    Args:
        runner: does the work.
        number: is called with the number of each step before it.
    """

    def __init__(self, runner: Runner, number: Callable[[int], None] = number_virtual) -> None:
        self._runner = runner
        self._number = number
        self._steps = 0

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        self._number(self._steps)
        self._steps += 1
        return self._runner.execute(step)

    def invariants(self) -> list[Finding]:
        """See :class:`Runner`."""
        return self._runner.invariants()

    def close(self) -> None:
        """See :class:`Runner`."""
        self._runner.close()


class RunnerProgram:
    """Builds a runner on device ``"cuda"`` and drives a workload through it.

    Called inside ``virtual_device``, or on a real device with a ``number`` of its own.

    Attributes:
        target: what is built; always on the tiny model, because this is about order, and weights do not matter to it.
        workload: what it does.
        number: is called with the number of each step before it.
        runner: of the last call; None if it could not be built.
        trace: what the last call saw; None likewise.
    """

    def __init__(self, target: RunnerTarget, workload: Workload) -> None:
        self.target = target
        self.workload = workload
        self.number: Callable[[int], None] = number_virtual
        self.runner: NumberedRunner | None = None
        self.trace: Trace | None = None

    def __call__(self) -> dict[str, object]:
        """Tokens and log-probabilities of each request, and the crash if there was one."""
        self.runner = self.trace = None
        runner = self.target.build({"model": MODEL, "device": "cuda", **self.workload.capacities})
        self.runner = NumberedRunner(runner, self.number)
        self.trace = Driver(self.runner, self.workload).run()
        close(self.runner, self.trace)
        crash = self.trace.crash
        return {"results": self.trace.results, "crash": crash.error if crash else None}


def random_workload(vocab_size: int, seed: int, steps: int) -> Workload:
    """Requests that keep a small runner busy for a number of steps: short, overlapping, some preempted, some aborted.

    Args:
        vocab_size: token ids are drawn below it.
        seed: of everything.
        steps: how many to execute at least, at least 1.
    """
    random = np.random.default_rng(seed)
    requests: list[WorkloadRequest] = []
    arrival = 0
    while not requests or requests[-1].arrival < steps:
        requests.append(_random_request(random, f"r{len(requests)}", vocab_size, arrival))
        arrival += int(random.integers(1, 7))
    capacities = {
        "max_num_reqs": 3,
        "max_num_batched_tokens": 16,
        "max_model_len": 32,
        "block_size": 8,
        "num_kv_blocks": 10,
    }
    return Workload(tuple(requests), capacities, vocab_size)


def _random_request(random: np.random.Generator, name: str, vocab_size: int, arrival: int) -> WorkloadRequest:
    length, new_tokens, fate = int(random.integers(1, 21)), int(random.integers(1, 10)), random.integers(8)
    temperature = float(random.choice((0.0, 0.7, 1.3)))
    prompt = tuple(int(token) for token in random.integers(0, vocab_size, length))
    seed = int(random.integers(0, 2**63)) if temperature else None
    return WorkloadRequest(
        request_id=name,
        prompt=prompt,
        sampling=SamplingParams(temperature=temperature, seed=seed, max_tokens=new_tokens),
        arrival=arrival,
        preempt_after=(1,) if fate < 2 else (),
        abort_after=1 if fate == 7 else None,
    )


def workload_as_json(workload: Workload) -> dict[str, JSON]:
    """A workload as JSON values."""
    content: dict[str, JSON] = dataclasses.asdict(workload)
    return content


def workload_from_json(content: Mapping[str, JSON]) -> Workload:
    """The inverse of ``workload_as_json``; a number is no text, and a truth is no number.

    Raises:
        CheckError: it is no workload.
    """
    try:
        return Workload(**_fields(Workload, content, requests=_requests, capacities=partial(_fields, RunnerConfig)))
    except (KeyError, TypeError, ValueError, AttributeError, RequestError) as error:
        raise CheckError(
            "the workload of a replay file",
            f"it must have the fields of Workload; reading it failed with {type(error).__name__}: {error}",
            "another workload would be another run",
            "a file that mrv2 wrote, unchanged",
        ) from error


def _requests(contents: Sequence[Mapping[str, JSON]]) -> tuple[WorkloadRequest, ...]:
    return tuple(WorkloadRequest(**_fields(WorkloadRequest, content, sampling=_sampling)) for content in contents)


def _sampling(content: Mapping[str, JSON]) -> SamplingParams:
    """Parameters check themselves; their lists are tuples, which JSON does not know."""
    values: dict[str, Any] = {name: _tuples(value) for name, value in content.items()}
    if values.get("grammar") is not None:
        values["grammar"] = Grammar(**values["grammar"])
    return SamplingParams(**values)


def _fields(kind: Any, content: Mapping[str, JSON], **readers: Callable[[Any], Any]) -> dict[str, Any]:
    """Values of a dataclass, each of its field's own type or as its reader makes it.

    Raises:
        TypeError: a value is of another type.
        ValueError: there is no such field.
    """
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if unknown := content.keys() - types.keys():
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return {
        name: readers[name](value) if name in readers else _checked(name, types[name], _tuples(value))
        for name, value in content.items()
    }


def _checked(name: str, annotation: str, value: Any) -> Any:
    if not any(_is(value, kind.strip()) for kind in annotation.split("|")):
        raise TypeError(f"{name}={value!r} is no {annotation}")
    return value


def _is(value: Any, kind: str) -> bool:
    if kind == "tuple[int, ...]":
        return isinstance(value, tuple) and all(type(item) is int for item in value)
    return type(value) in JSON_TYPES[kind]


def _tuples(value: Any) -> Any:
    """JSON knows lists only; fields are tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
