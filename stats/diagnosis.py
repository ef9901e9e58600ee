"""Names the likely cause of a wrong sampler from its draws.

A cause is named only if the data single it out: an alternative that explains the draws as well as chance allows, or an
event that a correct sampler shows less than once in a million runs. Otherwise there is none, and the numbers speak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from .gof import TestResult, rank_test, surprisal_test
from .replay import ExactScores, Mismatch
from .strata import Stratum, log_softmax

_RARE = math.log(1e-6)  # a correct sampler shows the event less often than this
_FITS = 1e-3  # p-value from which on an alternative counts as explaining the draws
_FACTORS = (0.02, 50.0)  # range of fitted temperature over nominal temperature
_CASES = 32  # mismatches examined; each costs about ten exact rows
_BLOCKS = (128, 256, 512, 1024, 2048, 4096, 8192)  # tokens per program of usual kernels
_HITS = 0.9  # share of them that a hypothesis must predict


@dataclass(frozen=True)
class Cause:
    """Why a sampler is probably wrong.

    Attributes:
        kind: short and without numbers, e.g. ``"wrong temperature"``.
        detail: what the data say, with numbers.
        remedy: where to look.
    """

    kind: str
    detail: str
    remedy: str


@dataclass(frozen=True, eq=False)
class Case:
    """A mismatch together with the inputs of its draw.

    Attributes:
        logits: float32 [V].
        temperature: above 0.
        mismatch: what was drawn, and what should have been.
    """

    logits: NDArray[np.float32]
    temperature: float
    mismatch: Mismatch


def distribution_cause(strata: Mapping[float, Sequence[Stratum]]) -> Cause | None:
    """Explain draws that do not follow their distribution.

    Args:
        strata: nominal temperature to the draws taken at it.
    """
    every = [stratum for group in strata.values() for stratum in group if stratum.draws]
    return _always_argmax(every) or _wrong_temperature(strata) or shape_cause(strata)


def shape_cause(strata: Mapping[float, Sequence[Stratum]]) -> Cause | None:
    """As :func:`distribution_cause`, for draws that no temperature explains."""
    every = [stratum for group in strata.values() for stratum in group if stratum.draws]
    return _always_argmax(every) or _shifted_ids(strata) or _top_missing(every) or _hole(every) or _tail_missing(every)


def fit_temperature(strata: Sequence[Stratum]) -> tuple[float, float]:
    """Maximum likelihood of a factor f such that draws follow softmax(log p / f), i.e. temperature f * nominal.

    One-dimensional exponential family in 1/f: at the maximum, the mean of log p over the draws equals its expectation.

    Args:
        strata: draws taken at one nominal temperature.

    Returns:
        f within 0.02 to 50, and the likelihood ratio statistic against f = 1 (chi-square, 1 degree of freedom).
    """
    observed = sum(float(stratum.log_probabilities[stratum.tokens].sum()) for stratum in strata)

    def likelihood(log_factor: float) -> tuple[float, float]:
        inverse = math.exp(-log_factor)
        normaliser = expected = 0.0
        for stratum in strata:
            inside = stratum.log_probabilities[~np.isneginf(stratum.log_probabilities)]
            weights = np.exp(inverse * (inside - inside.max()))
            normaliser += stratum.draws * (math.log(weights.sum()) + inverse * float(inside.max()))
            expected += stratum.draws * float(weights @ inside) / float(weights.sum())
        return inverse * observed - normaliser, observed - expected

    low, high = (math.log(factor) for factor in _FACTORS)
    # The slope falls with 1/f, so it rises from low to high factors.
    if likelihood(low)[1] >= 0:
        best = low
    elif likelihood(high)[1] <= 0:
        best = high
    else:
        best = float(brentq(lambda value: likelihood(value)[1], low, high, xtol=1e-9))
    return math.exp(best), 2.0 * (likelihood(best)[0] - likelihood(0.0)[0])


def reuse_cause(result: TestResult, what: str, idle_seed_bits: Sequence[int]) -> Cause:
    """The cause for too many agreeing pairs.

    Args:
        result: of :func:`mrv2.stats.gof.pair_agreement_test`, failed on the high side.
        what: the part of the key that varied: ``"seeds"`` or ``"positions"``.
        idle_seed_bits: seed bits whose flip changed no token.
    """
    count = result.groups[0]
    text = f"{count.observed:.0f} of {result.draws} pairs agree, {count.expected:.1f} expected"
    bits = f"; no effect of seed bits {_ranges(idle_seed_bits)}" if idle_seed_bits else ""
    return Cause(
        f"noise is shared between different {what}",
        text + bits,
        f"feed every bit of the key into the noise: here, draws that differ only in their {what} got the same noise",
    )


def replay_cause(cases: Sequence[Case], exact_scores: ExactScores, replayed: int) -> Cause | None:
    """Explain draws that differ from their exact replay: which wrong computation gives just these tokens?

    Args:
        cases: the mismatches, at least one.
        exact_scores: the computation that the draws should have followed.
        replayed: number of draws replayed, mismatches included.
    """
    some = cases[:_CASES]
    best: tuple[float, Cause] | None = None
    for cause, predict in _HYPOTHESES:
        hits = sum(case.mismatch.drawn in predict(case, exact_scores) for case in some) / len(some)
        if hits >= _HITS and (best is None or hits > best[0]):
            best = hits, cause
    if best is None:
        return _near_ties(cases, replayed)
    hits, cause = best
    return Cause(cause.kind, f"{cause.detail} gives {hits:.0%} of the {len(some)} mismatches examined", cause.remedy)


def _always_argmax(strata: Sequence[Stratum]) -> Cause | None:
    chance = sum(stratum.draws * float(stratum.log_probabilities.max()) for stratum in strata)
    if chance > _RARE or any((stratum.tokens != stratum.log_probabilities.argmax()).any() for stratum in strata):
        return None
    draws = sum(stratum.draws for stratum in strata)
    return Cause(
        "always the argmax",
        f"all {draws} draws took the most likely token of their row",
        "add the noise before the argmax, and check that a temperature above 0 does not take the greedy path",
    )


def _wrong_temperature(strata: Mapping[float, Sequence[Stratum]]) -> Cause | None:
    fits = {nominal: fit_temperature(group) for nominal, group in strata.items()}
    # A temperature whose draws show no difference (less than about 4 standard errors) keeps its nominal value.
    wrong = {nominal: factor for nominal, (factor, gain) in fits.items() if gain > 16.0}
    if not wrong:
        return None
    for nominal, group in strata.items():
        refit = [
            Stratum(log_softmax(stratum.log_probabilities, wrong.get(nominal, 1.0)), stratum.tokens)
            for stratum in group
        ]
        if rank_test(refit).p_value < _FITS:
            return None
    parts = [f"{nominal * factor:.2f} instead of {nominal:.2f}" for nominal, factor in sorted(wrong.items())]
    return Cause(
        "wrong temperature",
        f"drawn as if temperature were {', '.join(parts)}",
        "divide each row's logits by that row's own temperature, once, in float32",
    )


def _shifted_ids(strata: Mapping[float, Sequence[Stratum]]) -> Cause | None:
    for shift in (1, -1):
        moved = [
            [Stratum(s.log_probabilities, (s.tokens - shift) % s.log_probabilities.size) for s in group if s.draws]
            for group in strata.values()
        ]
        if all(min(rank_test(group).p_value, surprisal_test(group).p_value) >= _FITS for group in moved if group):
            return _shift_cause(shift)
    return None


def _shift_cause(shift: int) -> Cause:
    return Cause(
        "token ids off by one",
        f"adding {shift} to the right token",
        "check the base of the index: the first token of a block, and the offset of the row",
    )


def _top_missing(strata: Sequence[Stratum]) -> Cause | None:
    tops = [(stratum, int(stratum.log_probabilities.argmax())) for stratum in strata]
    probabilities = [min(float(stratum.probabilities[top]), 1.0 - 1e-16) for stratum, top in tops]
    chance = sum(stratum.draws * math.log1p(-p) for (stratum, _), p in zip(tops, probabilities, strict=True))
    if chance > _RARE or any((stratum.tokens == top).any() for stratum, top in tops):
        return None
    expected = sum(stratum.draws * p for (stratum, _), p in zip(tops, probabilities, strict=True))
    return Cause(_TOP.kind, f"the most likely token of a row never, {expected:.0f} times expected", _TOP.remedy)


def _hole(strata: Sequence[Stratum]) -> Cause | None:
    """The range of ids between two drawn ones that expects most draws, if its emptiness cannot be chance."""
    draws = sum(stratum.draws for stratum in strata)
    expected = sum(stratum.draws * stratum.probabilities for stratum in strata)
    cumulative = np.concatenate([[0.0], np.cumsum(expected)])
    drawn = np.unique(np.concatenate([stratum.tokens for stratum in strata]))
    starts, ends = np.concatenate([[0], drawn + 1]), np.concatenate([drawn, [cumulative.size - 1]])
    widest = int((cumulative[ends] - cumulative[starts]).argmax())
    first, last = int(starts[widest]), int(ends[widest]) - 1
    mass = [min(float(stratum.probabilities[first : last + 1].sum()), 1.0 - 1e-16) for stratum in strata]
    chance = sum(stratum.draws * math.log1p(-part) for stratum, part in zip(strata, mass, strict=True))
    if chance + math.log(starts.size) > _RARE:
        return None
    return Cause(
        "a range of ids is never drawn",
        f"no id of {first} to {last} in {draws} draws, {cumulative[last + 1] - cumulative[first]:.0f} expected",
        "check the mask of the last block, the grid that covers the vocabulary, and the merge of the blocks",
    )


def _tail_missing(strata: Sequence[Stratum]) -> Cause | None:
    """The farthest that any drawn token trails the most likely one of its row, if more of the tail should show."""
    gaps = [stratum.log_probabilities.max() - stratum.log_probabilities for stratum in strata]
    reach = max(float(gap[stratum.tokens].max()) for gap, stratum in zip(gaps, strata, strict=True))
    mass = [float(s.probabilities[gap > reach].sum()) for gap, s in zip(gaps, strata, strict=True)]
    if sum(stratum.draws * math.log1p(-part) for stratum, part in zip(strata, mass, strict=True)) > _RARE:
        return None
    expected = sum(stratum.draws * part for stratum, part in zip(strata, mass, strict=True))
    return Cause(
        "the tail is never drawn",
        f"no token that trails the most likely one by more than {reach:.1f} nats, {expected:.0f} expected",
        "look for a bound on the noise (too few random bits, a uniform rounded near 1) or a filter left on",
    )


def _ranges(values: Sequence[int]) -> str:
    """``[0, 2, 3, 4]`` as ``"0, 2-4"``."""
    starts = [value for value in values if value - 1 not in values]
    ends = [value for value in values if value + 1 not in values]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _near_ties(cases: Sequence[Case], replayed: int) -> Cause | None:
    """Few mismatches, all between tokens that nearly tie: the keys are right and the arithmetic is coarse."""
    gaps = np.array([case.mismatch.gap for case in cases])
    if len(cases) > replayed / 2 or float(np.quantile(gaps, 0.9)) > 0.25:
        return None
    return Cause(
        "coarse arithmetic",
        f"{len(cases)} of {replayed} draws differ, and the scores of the two tokens differ by {gaps.max():.1e} at most",
        "keep uniforms, noise and scores in float32 or better, and give each token more than 32 random bits",
    )


Predict = Callable[[Case, ExactScores], tuple[int, ...]]


def _with(temperature: float | None = None, seed: Callable[[int], int] = int, shift: int = 0) -> Predict:
    """Prediction of a draw made with another temperature, seed or position."""

    def predict(case: Case, exact_scores: ExactScores) -> tuple[int, ...]:
        key = seed(case.mismatch.seed), case.mismatch.position + shift
        # A position below 0 has no noise.
        if key[1] < 0:
            return ()
        return (int(exact_scores(case.logits, temperature or case.temperature, *key).argmax()),)

    return predict


def _by_rank(case: Case, exact_scores: ExactScores) -> tuple[int, ...]:
    order = np.argsort(-case.logits, kind="stable")
    key = case.mismatch.seed, case.mismatch.position
    return (int(order[exact_scores(case.logits[order], case.temperature, *key).argmax()]),)


def _without_top(case: Case, exact_scores: ExactScores) -> tuple[int, ...]:
    scores = exact_scores(case.logits, case.temperature, case.mismatch.seed, case.mismatch.position).copy()
    scores[case.logits.argmax()] = -np.inf
    return (int(scores.argmax()),)


def _rounded_temperature(case: Case, exact_scores: ExactScores) -> tuple[int, ...]:
    """Without an answer where bfloat16 holds the temperature exactly."""
    bits = int(np.float32(case.temperature).view(np.uint32))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    temperature = float(np.uint32(rounded).view(np.float32))
    if temperature == float(np.float32(case.temperature)):
        return ()
    key = case.mismatch.seed, case.mismatch.position
    return (int(exact_scores(case.logits, temperature, *key).argmax()),)


def _without_last_block(case: Case, exact_scores: ExactScores) -> tuple[int, ...]:
    """The winner of the whole blocks, for usual sizes of blocks."""
    scores = exact_scores(case.logits, case.temperature, case.mismatch.seed, case.mismatch.position)
    ends = [scores.size // block * block for block in _BLOCKS]
    return tuple(int(scores[:end].argmax()) for end in ends if 0 < end <= case.mismatch.exact)


def _shifted(shift: int) -> Predict:
    return lambda case, _: ((case.mismatch.exact + shift) % case.logits.size,)


_TOP = Cause(
    "the most likely token is never drawn",
    "leaving out the most likely token",
    "check comparisons with the maximum: > and >= differ for the token that is the maximum",
)
_KEY = "hand seed and position of the token being drawn to the noise, all 64 bits of the seed"
_HYPOTHESES: tuple[tuple[Cause, Predict], ...] = (
    (
        Cause(
            "temperature rounded to bfloat16",
            "the temperature in bfloat16",
            "keep temperatures in float32: bfloat16 has three significant digits",
        ),
        _rounded_temperature,
    ),
    (
        Cause(
            "last block is never drawn",
            "leaving out a last, partial block",
            "launch a program for the partial block too (round the number of blocks up), and mask within it",
        ),
        _without_last_block,
    ),
    (_shift_cause(1), _shifted(1)),
    (_shift_cause(-1), _shifted(-1)),
    (
        Cause("wrong temperature", "temperature 1 in place of the row's own", "divide by the row's own temperature"),
        _with(temperature=1.0),
    ),
    (_TOP, _without_top),
    (
        Cause(
            "noise is keyed by rank",
            "numbering the tokens by falling logit for the noise",
            "key the noise by token id: a rank changes with the other logits of the row",
        ),
        _by_rank,
    ),
    (Cause("wrong position in the noise key", "position + 1", _KEY), _with(shift=1)),
    (Cause("wrong position in the noise key", "position - 1", _KEY), _with(shift=-1)),
    (Cause("seed cut to 32 bits", "the low 32 bits of the seed", _KEY), _with(seed=lambda seed: seed & 0xFFFFFFFF)),
    (Cause("seed ignored", "seed 0", _KEY), _with(seed=lambda _: 0)),
)
