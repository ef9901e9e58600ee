"""Answers of a target, looked at before a layer computes with them.

A layer that gets a list of three where it asked for a table would fail in the middle of its own code, and the audit
would end with an error of ours. Whatever breaks the form that :mod:`mrv2.stats.targets` declares is the target's fault.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .errors import ArgumentError
from .targets import SpeculativeDraws

_INTEGERS, _NUMBERS, _TRUTHS = "iu", "f", "b"
_MOST_BITS = 64
# Attributes and methods whose answers are passed on as they are.
_PASSED = (
    *("name", "keyed", "noise_bits", "processed_logprobs", "block", "serial"),
    *("own_acceptance", "peak_bytes", "identity"),
)


class AnswerError(ArgumentError):
    """A target answered in a form that its protocol does not allow."""


class Checked:
    """A target whose answers have the form that its protocols declare; it has the same parts.

    The parts are attributes of the object, not found by ``__getattr__``: from Python 3.12 on ``isinstance`` with a
    protocol does not see the latter.

    Args:
        target: fulfils the protocols of :mod:`mrv2.stats.targets` that it can.
    """

    def __init__(self, target: object) -> None:
        for name in _PASSED:
            if hasattr(target, name):
                setattr(self, name, getattr(target, name))
        for name, check in _CHECKS.items():
            method = getattr(target, name, None)
            if callable(method):
                setattr(self, name, partial(_asked, method, check))
        if hasattr(self, "words") and hasattr(self, "noise_bits"):
            _require_bits(self.noise_bits)


def _asked(method: Callable[..., object], check: Callable[..., object], *arguments: object, **named: object) -> object:
    return check(method(*arguments, **named), *arguments, *named.values())


def _require_bits(bits: object) -> None:
    if not isinstance(bits, int | np.integer) or not 1 <= bits <= _MOST_BITS:
        raise AnswerError(
            f"noise_bits = {bits!r}", "a whole number from 1 to 64", "words are enumerated", "the bits behind a token"
        )


def _array(answer: object, what: str, shape: tuple[int, ...], kinds: str) -> Any:
    found = np.asarray(answer)
    if found.shape != shape or found.dtype.kind not in kinds:
        wanted = {_INTEGERS: "integers", _NUMBERS: "floats", _TRUTHS: "booleans"}[kinds]
        raise AnswerError(
            f"{what} that answers {type(answer).__name__} of shape {list(found.shape)}, dtype {found.dtype}",
            f"{wanted} of shape {list(shape)} were asked for",
            "another form cannot be compared with what is right",
            "what mrv2.stats.targets says of this method",
        )
    return found


def _tokens(answer: object, logits: Any, temperature: Any, seeds: Any, *others: object) -> object:
    return _array(answer, "a draw", (len(seeds),), _INTEGERS).astype(np.int64)


def _counts(answer: object, logits: Any, temperature: float, seed: int, first_position: int, draws: int) -> object:
    counts = _array(answer, "count()", (len(logits) + 1,), _INTEGERS).astype(np.int64)
    if counts.min() < 0 or counts.sum() != draws:
        raise AnswerError(
            f"count() with {counts.sum():,} draws in all, the least {counts.min():,}",
            f"{draws:,} draws were asked for, and no count is below 0",
            "a draw that is not counted cannot be judged",
            "count each draw once; ids outside the vocabulary are the last entry",
        )
    return counts


def _words(answer: object, seeds: Any, positions: Any, tokens: Any, *purpose: object) -> object:
    shape = np.broadcast_shapes(np.shape(seeds), np.shape(positions), np.shape(tokens))
    return _array(answer, "words()", shape, _INTEGERS).astype(np.uint64)


def _noise(answer: object, words: Any) -> object:
    return _array(answer, "noise()", np.shape(words), _NUMBERS).astype(np.float64)


def _kept(answer: object, logits: Any, *others: object) -> object:
    return _array(answer, "kept()", np.shape(logits), _TRUTHS)


def _logprobs(answer: object, logits: Any, *others: object) -> object:
    return _array(answer, "logprobs()", np.shape(logits), _NUMBERS)


def _ranks(answer: object, logits: Any, tokens: Any) -> object:
    return _array(answer, "ranks()", np.shape(tokens), _INTEGERS)


def _prompt(answer: object, logits: Any, tokens: Any) -> object:
    return _array(answer, "prompt_logprobs()", (len(tokens) - 1,), _NUMBERS)


def _speculated(answer: object, target_logits: Any, draft_logits: Any, temperature: Any, *keys: object) -> object:
    count, k = len(temperature), len(draft_logits)
    drafts, emitted = getattr(answer, "drafts", None), getattr(answer, "emitted", None)
    return SpeculativeDraws(
        _array(drafts, "drafts of speculate()", (count, k), _INTEGERS).astype(np.int64),
        _array(emitted, "tokens of speculate()", (count, k + 1), _INTEGERS).astype(np.int64),
    )


_CHECKS: dict[str, Callable[..., object]] = {
    "sample": _tokens,
    "sample_filtered": _tokens,
    "count": _counts,
    "words": _words,
    "noise": _noise,
    "kept": _kept,
    "logprobs": _logprobs,
    "ranks": _ranks,
    "prompt_logprobs": _prompt,
    "speculate": _speculated,
}
