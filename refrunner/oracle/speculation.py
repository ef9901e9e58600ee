"""Speculative decoding as formulas: what a step with drafts emits, for one request, in float64.

Given the same keys every decision has one answer. The draft at offset j of a step stands at position n + j, where n is
the number of known tokens, and its noise is that of (seed, position, token, purpose) with j beside the purpose. What
the target draws itself has the noise that it has without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose, gumbel, words

Row = NDArray[np.float64]


@dataclass(frozen=True)
class Emitted:
    """What a step emits.

    Attributes:
        token_ids: accepted drafts, then one more token.
        margin: how far the closest decision was from falling the other way: a probability, or a difference of scores. A
            computation with errors of about this size may rightly answer otherwise.
    """

    token_ids: tuple[int, ...]
    margin: float


def draw_draft(logits: Row, seed: int, position: int, offset: int) -> int:
    """The draft that is drawn from logits [V], temperature included, behind ``offset`` other drafts."""
    return int(np.argmax(logits + gumbel(seed, position, len(logits), Purpose.DRAFT, offset)))


def accept_equal(draws: Sequence[int], drafts: Sequence[int]) -> tuple[int, ...]:
    """Drafts that are no draws: the target's draws up to the first that is not its draft.

    Args:
        draws: k + 1 tokens, what the target draws after 0, 1, ..., k drafts.
        drafts: k tokens.
    """
    pairs = enumerate(zip(draws, drafts, strict=False))
    accepted = next((place for place, (drawn, draft) in pairs if drawn != draft), len(drafts))
    return tuple(draws[: accepted + 1])


def verify(target: Row, draft: Row, drafts: Sequence[int], seed: int, position: int, *, in_blocks: bool) -> Emitted:
    """Rejection sampling of k drafts.

    Args:
        target: [k + 1, V], logits of the target after 0, 1, ..., k drafts, through all stages, temperature and filters
            included.
        draft: [k, V], logits that the drafts were drawn from, temperature included.
        drafts: k tokens.
        seed: of the request.
        position: number of known tokens.
        in_blocks: verify the drafts together (Sun et al. 2024, algorithm 2), not one by one.
    """
    p, q = _softmax(target), _softmax(draft)
    weights = _weights(p, q, drafts) if in_blocks else np.ones(len(drafts) + 1)
    rests = [np.maximum(weights[j] * p[j] - q[j], 0) for j in range(len(drafts))]
    chances = _block_chances(weights, rests) if in_blocks else _ratios(p, q, drafts)
    luck = [_uniform(seed, position + j, j) for j in range(len(drafts))]
    acceptable = [u < chance for u, chance in zip(luck, chances, strict=True)]
    margins = [abs(u - chance) for u, chance in zip(luck, chances, strict=True) if chance < 1]
    if in_blocks:
        accepted = max((j + 1 for j, good in enumerate(acceptable) if good), default=0)
    else:
        accepted = next((j for j, good in enumerate(acceptable) if not good), len(drafts))
    with np.errstate(divide="ignore"):
        if accepted == len(drafts):
            scores = np.log(p[-1]) + gumbel(seed, position + accepted, p.shape[1], Purpose.TARGET)
        else:
            noise = gumbel(seed, position + accepted, p.shape[1], Purpose.RECOVER, accepted)
            scores = np.log(rests[accepted]) + noise
    best, second = np.sort(scores)[::-1][:2]
    return Emitted((*drafts[:accepted], int(scores.argmax())), float(min([*margins, best - second])))


def _softmax(logits: Row) -> Row:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Row = weights / weights.sum(axis=-1, keepdims=True)
    return result


def _ratios(p: Row, q: Row, drafts: Sequence[int]) -> list[float]:
    return [float(p[j, token] / q[j, token]) for j, token in enumerate(drafts)]


def _weights(p: Row, q: Row, drafts: Sequence[int]) -> Row:
    """How much of the target's probability of the first j drafts is left: k + 1 numbers, 1 for j = 0."""
    weights = [1.0]
    for ratio in _ratios(p, q, drafts):
        weights.append(min(weights[-1] * ratio, 1.0))
    return np.array(weights)


def _block_chances(weights: Row, rests: Sequence[Row]) -> list[float]:
    """Chance that the first j drafts are acceptable, for j = 1, ..., k."""
    masses = [float(rest.sum()) for rest in rests[1:]]
    inner = [
        1.0 if weight == 1 else mass / (mass + 1 - weight) for weight, mass in zip(weights[1:-1], masses, strict=True)
    ]
    return [*inner, float(weights[-1])]


def _uniform(seed: int, position: int, offset: int) -> float:
    """The high half of the word of token 0."""
    word = int(words(seed, position, np.zeros(1, dtype=np.int64), Purpose.ACCEPT, offset)[0])
    return ((word >> 32) + 0.5) / 2**32
