"""Causes of faulty filters, log-probabilities and speculative decoding, found by asking the sampler once more.

Each question has one right answer, and other answers that each belong to one known fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..decision import JudgedTest
from ..diagnosis import Cause
from ..planted.clean import CleanSampler
from ..planted.faults import RecoveryFromTarget, SharedDraftNoise, bfloat16
from ..strata import log_softmax
from ..targets import (
    FilteringTarget,
    Filters,
    LogprobTarget,
    MaskTarget,
    PromptLogprobTarget,
    SpeculativeDraws,
    SpeculativeTarget,
)

_DRAWS = 600  # of each question to the filters: a token with a share of 0.05 is missed once in 1e13
_SPECULATIONS = 100_000
_CLOSE = 1e-3  # nats within which reported log-probabilities are those of a formula

_SHARES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def filter_causes(failed: Sequence[JudgedTest], target: object) -> list[Cause]:
    """Which tokens are kept of five, or of four equal ones."""
    if not any(test.layer == "filters" for test in failed) or not isinstance(target, FilteringTarget | MaskTarget):
        return []
    kept = _kept_counts(target)
    return [cause for cause in (_top_p_cause(kept), _top_k_cause(kept), _min_p_cause(kept)) if cause] or [
        Cause(
            "filters",
            f"{_first_names(failed)} failed; small rows are filtered rightly",
            "compare with a sort in float64; equal logits are kept or left together",
        )
    ]


def _kept_counts(target: object) -> dict[str, int]:
    """How many of the tokens are kept: by top-p 0.8 (three), top-k among ties (four), min-p 0.25 (four)."""
    row = np.log(_SHARES).astype(np.float32)
    tied = np.array([1, 1, 1, 1, 0, -1], np.float32)
    return {
        "top-p 0.8": _kept(target, row, Filters.same(1, top_p=0.8), 1),
        "top-k 2 of four equal": _kept(target, tied, Filters.same(1, top_k=2), 1),
        "top-k 2 of four equal, batch of 16": _kept(target, tied, Filters.same(16, top_k=2), 16),
        "top-k 3": _kept(target, row, Filters.same(1, top_k=3), 1),
        "min-p 0.25": _kept(target, row, Filters.same(1, min_p=0.25), 1),
    }


def _kept(target: object, row: NDArray[np.float32], filters: Filters, batch: int) -> int:
    if isinstance(target, MaskTarget):
        return int(target.kept(np.tile(row, (batch, 1)), np.ones(batch, np.float32), filters)[0].sum())
    assert isinstance(target, FilteringTarget)
    drawn: set[int] = set()
    for start in range(0, _DRAWS, batch):
        keys = np.arange(start, start + batch, dtype=np.uint64), np.arange(batch)
        drawn |= set(target.sample_filtered(row, np.ones(batch, np.float32), *keys, filters).tolist())
    return len(drawn)


def _top_p_cause(kept: Mapping[str, int]) -> Cause | None:
    found = kept["top-p 0.8"]
    told = f"top-p 0.8 of shares 0.4, 0.3, 0.15, 0.1, 0.05 keeps {found} tokens; the third reaches 0.85"
    if found > 3:
        return Cause(
            "top-p keeps one more",
            told,
            "keep a token if the sum before it is below p: the one with which the sum reaches p is the last",
        )
    if found < 3:
        return Cause(
            "top-p drops the boundary", told, "compare the sum before a token with p, not the sum with the token"
        )
    return None


def _first_names(failed: Sequence[JudgedTest]) -> str:
    names = [test.first.name for test in failed if test.layer == "filters"]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more tests" if len(names) > 2 else "")


def _top_k_cause(kept: Mapping[str, int]) -> Cause | None:
    alone, batch = kept["top-k 2 of four equal"], kept["top-k 2 of four equal, batch of 16"]
    if alone == batch == 4:
        found = kept["top-k 3"]
        return None if found == 3 else Cause("top-k keeps a wrong number", f"top-k 3 keeps {found}", "check >= and >")
    return Cause(
        "top-k cuts ties",
        f"of four equal largest logits top-k 2 keeps {alone} alone and {batch} in a batch of 16",
        "keep every logit that equals the k-th largest, on every path: equal logits are equally likely",
    )


def _min_p_cause(kept: Mapping[str, int]) -> Cause | None:
    found = kept["min-p 0.25"]
    if found in (3, 4):  # the fourth share is 0.25 of the first but for rounding
        return None
    return Cause(
        "min-p has another threshold",
        f"min-p 0.25 of shares 0.4, 0.3, 0.15, 0.1, 0.05 keeps {found}",
        "compare with min_p times the largest probability, after the temperature",
    )


def logprob_causes(failed: Sequence[JudgedTest], target: object) -> list[Cause]:
    """Which formula gives the reported values."""
    names = [test.first.name for test in failed if test.layer == "logprobs"]
    causes: list[Cause] = []
    if names and isinstance(target, LogprobTarget):
        causes += _value_causes(target)
    if names and isinstance(target, PromptLogprobTarget) and not causes:
        causes += _prompt_causes(target)
    if names and not causes:
        causes.append(Cause("log-probabilities", f"first failed test: {names[0]}", "compare with float64"))
    return causes


def _telltale_rows() -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(0.0, 3.0, (6, 50)).astype(np.float32)


def _value_causes(target: LogprobTarget) -> list[Cause]:
    rows, temperature = _telltale_rows(), 0.7
    given = target.logprobs(rows, np.full(len(rows), temperature, np.float32)).astype(np.float64)
    raw = np.stack([log_softmax(row, 1.0) for row in rows])
    divided = np.stack([log_softmax(row, float(np.float32(temperature))) for row in rows])
    right, other = (divided, raw) if target.processed_logprobs else (raw, divided)
    asked = "after" if target.processed_logprobs else "before"
    if _same(given, right):
        return []
    formulas: list[tuple[NDArray[np.float64], str, str]] = [
        (other, _WHEN[not target.processed_logprobs], f"those {asked} the temperature were asked for"),
        (np.roll(right, 1, axis=0), "log-probability of another row", "each row holds the values of the row before it"),
        (np.roll(right, -1, axis=0), "log-probability of another row", "each row holds the values of the next one"),
        (right / np.log(2.0), "logarithm to base 2", "values are 1.44 times too large"),
        (rows.astype(np.float64), "logits in place of log-probabilities", "the values are the logits"),
    ]
    for values, kind, detail in formulas:
        if _same(given, values):
            return [Cause(kind, detail, _WHERE)]
    if (given.astype(np.float32) == bfloat16(given.astype(np.float32))).all():
        return [Cause("log-probabilities in bfloat16", "every value has only 8 significant bits", "compute in float32")]
    return []


_WHEN = {True: "log-probability after temperature", False: "log-probability before temperature"}
_WHERE = "take log-probabilities of the row, at the stage and in the row that the request asked for"


def _prompt_causes(target: PromptLogprobTarget) -> list[Cause]:
    rows = _telltale_rows()
    tokens = np.array([3, 14, 15, 9, 2, 6])
    raw = np.stack([log_softmax(row, 1.0) for row in rows])
    given, places = target.prompt_logprobs(rows, tokens), np.arange(len(tokens) - 1)
    for row, token, detail in (
        (places + 1, tokens[1:], "each token is looked up in its own logits, which predict the next one"),
        (places, tokens[:-1], "the token before is looked up in each row"),
        (np.maximum(places - 1, 0), tokens[1:], "each token is looked up one row too early"),
    ):
        if _same(given.astype(np.float64), raw[row, token]):
            return [
                Cause(
                    "log-probability of another position",
                    detail,
                    "logits at position t predict the token at t + 1: pair row t with token t + 1",
                )
            ]
    return []


def _same(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    return first.shape == second.shape and bool(np.abs(first - second).max() < _CLOSE)


def speculation_causes(failed: Sequence[JudgedTest], target: object) -> list[Cause]:
    """Whose table of drafts and outcomes looks like the target's: each known fault is run beside it."""
    if not any(test.layer == "speculative" for test in failed) or not isinstance(target, SpeculativeTarget):
        return []
    table = _joint_table(target.speculate)
    distances = {
        cause.kind: float(np.abs(table - _joint_table(model.speculate)).sum()) for cause, model in _SPECULATION
    }
    nearest = min(distances, key=lambda kind: distances[kind])
    own = float(np.abs(table - _joint_table(CleanSampler().speculate)).sum())
    # Two tables of the same law differ by about the root of cells / draws.
    if distances[nearest] < min(own / 2, 4.0 * np.sqrt(table.size / _SPECULATIONS)):
        return [cause for cause, _ in _SPECULATION if cause.kind == nearest]
    return [
        Cause(
            "speculative decoding",
            "the joint table of draft and outcome is not that of rejection sampling, nor of a known fault",
            "accept with probability min(1, p / q), and draw from the positive part of p - q otherwise",
        )
    ]


_SPECULATION: Sequence[tuple[Cause, CleanSampler]] = (
    (
        Cause(
            "draft and recovered token share noise",
            "after a rejected draft, the token drawn depends on which draft it was",
            "draw the recovered token with noise of its own purpose, not with the noise that drew the draft",
        ),
        SharedDraftNoise(),
    ),
    (
        Cause(
            "recovered from p",
            "after a rejection the draft itself, or another token that the draft model prefers, comes out",
            "draw from the positive part of p - q, not from p",
        ),
        RecoveryFromTarget(),
    ),
)


def _joint_table(speculate: Callable[..., SpeculativeDraws]) -> NDArray[np.float64]:
    """Shares of (draft, accepted or outcome), float64 [V * (V + 1)], for a draft model with the opposite logits."""
    target_p = np.array([0.1, 0.6, 0.3])
    target = np.log(np.stack([target_p, target_p])).astype(np.float32)
    draft = -target[:1]
    random = np.random.default_rng(2)
    keys = random.integers(0, 2**64, _SPECULATIONS, dtype=np.uint64), random.integers(0, 2**30, _SPECULATIONS)
    drawn = speculate(target, draft, np.ones(_SPECULATIONS, np.float32), *keys)
    size = target_p.size
    accepted = drawn.emitted[:, 1] >= 0
    cells = drawn.drafts[:, 0] * (size + 1) + np.where(accepted, size, drawn.emitted[:, 0])
    return np.bincount(cells, minlength=size * (size + 1)) / _SPECULATIONS
