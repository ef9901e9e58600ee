"""What top-k, top-p and min-p must keep, in float64, and rows whose threshold lies where mistakes show.

On a natural row the token at the threshold is one of thousands and rarely drawn, so a mask that keeps one too many is
invisible. On a row made for it, with four tokens that matter, it shows in twenty draws or at one look at the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError
from .strata import log_softmax

# What float32 cannot decide: a share of probability closer to top-p than this (exponentials and their sum over any
# vocabulary), a logit closer to the line of min-p than this many nats per unit of size.
TOP_P_GUARD = 2e-5
MIN_P_GUARD = 1e-6
ABSENT = -30.0  # logit of the tokens that do not matter: together below 1e-7 of the probability


@dataclass(frozen=True, eq=False)
class Kept:
    """Which tokens a filter keeps.

    Attributes:
        surely: bool [V], kept by every correct float32 computation.
        possibly: bool [V], kept by some; contains ``surely``.
    """

    surely: NDArray[np.bool_]
    possibly: NDArray[np.bool_]

    @property
    def ambiguous(self) -> int:
        """Number of tokens that rounding decides."""
        return int((self.possibly & ~self.surely).sum())


@dataclass(frozen=True, eq=False)
class FilterCase:
    """A row with filters.

    Attributes:
        name: what it shows.
        logits: float32 [V].
        temperature: representable in float32.
        top_k: 0 for none.
        top_p: 1 for none.
        min_p: 0 for none.
    """

    name: str
    logits: NDArray[np.float32]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def kept(self) -> Kept:
        """See :func:`kept_tokens`."""
        return kept_tokens(self.logits, self.temperature, self.top_k, self.top_p, self.min_p)


def kept_tokens(logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float) -> Kept:
    """Min-p, then top-k, then top-p, each on what is left; equal logits stay or go together.

    Min-p keeps logits of at least the largest plus log(min_p), top-k those of at least the k-th largest, top-p those
    with a share below p strictly above them, of the probability that is left.

    Args:
        logits: float32 [V].
        temperature: above 0; divides the logits first.
        top_k: 0 keeps all.
        top_p: in [0, 1]; 1 keeps all, and the largest logit is always kept.
        min_p: in [0, 1]; 0 keeps all.

    Raises:
        ArgumentError: a parameter is out of range.
    """
    if top_k < 0 or not 0.0 <= top_p <= 1.0 or not 0.0 <= min_p <= 1.0:
        raise ArgumentError(
            f"top_k={top_k}, top_p={top_p}, min_p={min_p}",
            "top_k is 0 or above, the others are in [0, 1]",
            "other values keep nothing or have no meaning",
            "0, 1.0 and 0.0 for no filter",
        )
    log_p = log_softmax(logits, temperature)
    surely = possibly = ~np.isneginf(log_p)
    if min_p > 0.0:
        distance = log_p - log_p.max() - np.log(float(np.float32(min_p)))
        guard = MIN_P_GUARD * (1.0 + np.abs(np.where(possibly, logits / temperature, 0.0)))
        exactly = (min_p == 1.0) & (logits == logits.max())
        surely, possibly = surely & ((distance > guard) | exactly), possibly & (distance > -guard)
    if top_k > 0:
        surely, possibly = surely & _top_k(logits, possibly, top_k), possibly & _top_k(logits, surely, top_k)
    if top_p < 1.0:
        return _top_p(log_p, Kept(surely, possibly), float(np.float32(top_p)))
    return Kept(surely, possibly)


def _top_k(logits: NDArray[np.float32], among: NDArray[np.bool_], top_k: int) -> NDArray[np.bool_]:
    """Which logits reach the k-th largest of some."""
    some = logits[among]
    if some.size <= top_k:
        return np.ones(logits.shape, np.bool_)
    return np.asarray(logits >= np.partition(some, some.size - top_k)[some.size - top_k])


def _top_p(log_p: NDArray[np.float64], kept: Kept, share: float) -> Kept:
    """The sums above each token are largest over what is possibly left and relative to what is surely left."""
    most = _mass_above(log_p, kept.possibly) / np.exp(log_p[kept.surely]).sum()
    least = _mass_above(log_p, kept.surely) / np.exp(log_p[kept.possibly]).sum()
    first = log_p == log_p.max()
    return Kept(
        kept.surely & (first | (most < share - TOP_P_GUARD)), kept.possibly & (first | (least < share + TOP_P_GUARD))
    )


def _mass_above(log_p: NDArray[np.float64], among: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Probability of the masked tokens that lie strictly above each token, float64 [V]."""
    values = np.sort(log_p[among])
    sums = np.concatenate([[0.0], np.cumsum(np.exp(values)[::-1])])
    return np.asarray(sums[values.size - np.searchsorted(values, log_p, side="right")])


# Rows


def threshold_cases(vocab_size: int) -> tuple[FilterCase, ...]:
    """Rows for every filter with its threshold just beside a token, on both sides; V at least 256.

    Raises:
        ArgumentError: the vocabulary is too small.
    """
    if vocab_size < 256:
        raise ArgumentError(
            f"vocab_size={vocab_size}", "at least 256 tokens", "the rows have groups of a hundred ties", "256 or more"
        )
    return (*_top_p_cases(vocab_size), *_top_k_cases(vocab_size), *_min_p_cases(vocab_size), *_joint(vocab_size))


def _top_p_cases(vocab_size: int) -> list[FilterCase]:
    row = _row_of(vocab_size, (0.31, 0.30, 0.29, 0.10))
    tied = _row_of(vocab_size, (0.4, *(0.1,) * 6))
    return [
        FilterCase("top-p between two tokens", row, top_p=0.85),
        FilterCase("top-p just below a sum", row, top_p=0.9 - 1e-4),
        FilterCase("top-p just above a sum", row, top_p=0.9 + 1e-4),
        FilterCase("top-p below the first token", row, top_p=0.01),
        FilterCase("top-p inside a group of ties", tied, top_p=0.45),
        FilterCase("top-p of a long ramp", np.linspace(0.0, -8.0, vocab_size).astype(np.float32), top_p=0.5),
        FilterCase("top-p after the temperature", _row_of(vocab_size, (0.6, 0.25, 0.1, 0.05)), 2.0, top_p=0.55),
    ]


def _top_k_cases(vocab_size: int) -> list[FilterCase]:
    falling = np.full(vocab_size, ABSENT, np.float32)
    falling[_places(vocab_size, 8)] = np.linspace(0.0, -1.4, 8)
    close = falling.copy()
    place = _places(vocab_size, 8)
    close[place[3]] = np.nextafter(close[place[2]], np.float32(-np.inf))  # one unit in the last place below the third
    pair, hundred = falling.copy(), np.full(vocab_size, ABSENT, np.float32)
    pair[place[3]] = pair[place[2]]
    # A hundred ties around the middle, where the blocks of a kernel meet.
    hundred[vocab_size // 2 - 50 : vocab_size // 2 + 50] = 1.0
    return [
        FilterCase("top-k of 1", falling, top_k=1),
        FilterCase("top-k of 3", falling, top_k=3),
        FilterCase("top-k of 3 with a fourth one unit below", close, top_k=3),
        FilterCase("top-k of 3 with a tie of two", pair, top_k=3),
        FilterCase("top-k of 3 with a tie of a hundred", hundred, top_k=3),
        FilterCase("top-k of all", falling, top_k=vocab_size),
    ]


def _min_p_cases(vocab_size: int) -> list[FilterCase]:
    line = float(np.log(np.float32(0.1)))
    row = np.full(vocab_size, ABSENT, np.float32)
    row[_places(vocab_size, 4)] = [0.0, -0.5, line + 1e-4, line - 1e-4]
    equal = np.full(vocab_size, ABSENT, np.float32)
    equal[_places(vocab_size, 3)] = [2.0, 2.0, 1.99]
    return [
        FilterCase("min-p beside two tokens", row, min_p=0.1),
        FilterCase("min-p after the temperature", row, 0.5, min_p=0.3),
        FilterCase("min-p of 1", equal, min_p=1.0),
    ]


def _joint(vocab_size: int) -> list[FilterCase]:
    row = _row_of(vocab_size, (0.4, 0.3, 0.2, 0.1))
    return [
        FilterCase("top-p of what top-k left", row, top_k=2, top_p=0.5),
        FilterCase("top-p of what min-p left", row, top_p=0.5, min_p=0.6),
        FilterCase("all three filters", row, top_k=3, top_p=0.75, min_p=0.3),
    ]


def _row_of(vocab_size: int, probabilities: Sequence[float]) -> NDArray[np.float32]:
    row = np.full(vocab_size, ABSENT, np.float32)
    row[_places(vocab_size, len(probabilities))] = np.log(probabilities)
    return row


def _places(vocab_size: int, count: int) -> NDArray[np.int64]:
    """Ids spread over the vocabulary, in no order, so that neither ids nor blocks follow the ranks."""
    spread = np.linspace(1, vocab_size - 2, count).astype(np.int64)
    return spread[np.argsort(np.arange(count) * 5 % max(1, count - 1 + count % 2), kind="stable")]
