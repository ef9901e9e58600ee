"""Faults of speculative decoding planted in the reference runner, each a mistake that real runners have made."""

from __future__ import annotations

from .source import Mutation

_REJECTION = "kernels/rejection.py"

#: Those that change a distribution and no token of a greedy request.
DISTRIBUTION = (
    Mutation(
        "shared_noise",
        _REJECTION,
        "PURPOSE_RECOVER = tl.constexpr(3)",
        "PURPOSE_RECOVER = tl.constexpr(1)",
        "a rejected draft is replaced with the noise that it was drawn with",
    ),
    Mutation(
        "recovery_from_the_target",
        _REJECTION,
        "rest = weight * tl.exp(p - target_sum) - tl.where(q == q, q, 0.0)",
        "rest = weight * tl.exp(p - target_sum)",
        "a rejected draft is replaced by a draw from the target alone",
    ),
    Mutation(
        "recovery_without_subtraction",
        _REJECTION,
        "rest = weight * tl.exp(p - target_sum) - tl.where(q == q, q, 0.0)",
        "rest = tl.where(weight * tl.exp(p - target_sum) > q, tl.exp(p - target_sum), 0.0)",
        "a rejected draft is replaced by one of the tokens that the target likes better, as likely as it likes them",
    ),
    Mutation(
        "always_accepted",
        _REJECTION,
        "(uniform(seed, total + place, purpose) < chance)",
        "(uniform(seed, total + place, purpose) * 0.0 < chance)",
        "the random number of the acceptance is 0, so that every draft is accepted",
    ),
)
