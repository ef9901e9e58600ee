"""Speculative decoding: the exact law of draft and outcome, and rows on which its mistakes show.

Rejection sampling (Leviathan, Kalman and Matias 2023; Chen and others 2023) accepts a draft d from q with probability
min(1, p(d) / q(d)) and otherwise draws from the residual (p - q)+ / sum. Its outcome follows p, and so nearly does that
of wrong variants. The joint law of draft and outcome is as exact and tells far more: with A = sum (p - q)+

* ``P(draft d, accepted) = min(p, q)(d)``
* ``P(draft d, rejected, outcome r) = (q - p)+(d) * (p - q)+(r) / A``, which is 0 for every r with p(r) <= q(r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError
from .strata import log_softmax

IMPOSSIBLE = 1e-6  # residuals below it are what rounding leaves of 0


@dataclass(frozen=True, eq=False)
class SpeculationCase:
    """Rows of a target and a draft model.

    Attributes:
        name: what it is.
        target_logits: float32 [k + 1, V].
        draft_logits: float32 [k, V]; -inf everywhere but at one token for a proposal that is certain.
        temperature: of both, representable in float32.
    """

    name: str
    target_logits: NDArray[np.float32]
    draft_logits: NDArray[np.float32]
    temperature: float = 1.0

    @property
    def drafts(self) -> int:
        """k."""
        return len(self.draft_logits)

    def target(self, position: int) -> NDArray[np.float64]:
        """Probabilities of the target at a position from 0 to k, float64 [V]."""
        return np.exp(log_softmax(self.target_logits[position], self.temperature))

    def draft(self, position: int) -> NDArray[np.float64]:
        """Probabilities of the draft at a position from 0 to k - 1, float64 [V]."""
        return np.exp(log_softmax(self.draft_logits[position], self.temperature))

    def reach(self, position: int) -> float:
        """Probability that all drafts before a position are accepted."""
        return float(np.prod([acceptance(self.target(j), self.draft(j)) for j in range(position)]))


def acceptance(target: NDArray[np.float64], draft: NDArray[np.float64]) -> float:
    """Probability that a draft is accepted, ``sum(min(p, q))``."""
    return float(np.minimum(target, draft).sum())


def joint_law(target: NDArray[np.float64], draft: NDArray[np.float64]) -> NDArray[np.float64]:
    """Law of (draft, outcome): float64 [V, V + 1]; column V is acceptance, column r a rejection with outcome r.

    Residuals below :data:`IMPOSSIBLE` are 0.

    Args:
        target: p, float64 [V].
        draft: q, float64 [V].

    Raises:
        ArgumentError: the lengths differ.
    """
    if target.shape != draft.shape or target.ndim != 1:
        raise ArgumentError(
            f"target of shape {target.shape}, draft of shape {draft.shape}",
            "both must have one entry per token",
            "a draft is judged by the target's probability of the same token",
            "two rows of one vocabulary",
        )
    surplus, residual = np.maximum(draft - target, 0.0), np.maximum(target - draft, 0.0)
    residual[residual < IMPOSSIBLE] = 0.0
    total = residual.sum()
    rejected = np.outer(surplus, residual / total) if total > 0 else np.zeros((target.size, target.size))
    return np.concatenate([rejected, np.minimum(target, draft)[:, np.newaxis]], axis=1)


def speculation_cases() -> tuple[SpeculationCase, ...]:
    """Small vocabularies, where tables fill; k = 1, 3 and 7; drafts far from the target, near to it, and certain."""
    return (
        reversed_case(3, 1),
        reversed_case(3, 3),
        reversed_case(16, 1, temperature=0.7),
        near_case(16, 3),
        near_case(64, 7),
        certain_case(16, 3),
    )


def reversed_case(vocab_size: int, drafts: int, temperature: float = 1.0) -> SpeculationCase:
    """The draft model likes least what the target likes most: most drafts are rejected."""
    rows = _rows(vocab_size, drafts + 1)
    name = f"reversed drafts, V = {vocab_size}, k = {drafts}"
    return SpeculationCase(name, rows, -rows[:drafts], float(np.float32(temperature)))


def near_case(vocab_size: int, drafts: int) -> SpeculationCase:
    """The draft model is nearly the target: most drafts are accepted, and the last positions are reached."""
    rows = _rows(vocab_size, drafts + 1)
    near = rows[:drafts] + 0.15 * np.random.default_rng(vocab_size).choice([-1.0, 1.0], (drafts, vocab_size))
    return SpeculationCase(f"near drafts, V = {vocab_size}, k = {drafts}", rows, near.astype(np.float32))


def certain_case(vocab_size: int, drafts: int) -> SpeculationCase:
    """The draft is certain, as of a lookup of n-grams: the target's likeliest token."""
    rows = _rows(vocab_size, drafts + 1)
    rows[np.arange(drafts + 1), rows.argmax(axis=1)] += 1.5
    certain = np.full((drafts, vocab_size), -np.inf, np.float32)
    certain[np.arange(drafts), rows[:drafts].argmax(axis=1)] = 0.0
    return SpeculationCase(f"certain drafts, V = {vocab_size}, k = {drafts}", rows, certain)


def _rows(vocab_size: int, count: int) -> NDArray[np.float32]:
    """Logits between -1.5 and 0.5 with different orders of tokens at each position.

    They bend downwards, so that a reversed row leaves two tokens or more to recover: with one there is nothing to test.
    """
    ramp = np.linspace(-1.0, 1.0, vocab_size)
    ramp = ramp - 0.5 * ramp**2
    random = np.random.default_rng(vocab_size + 1)
    return np.stack([random.permutation(ramp) for _ in range(count)]).astype(np.float32)
