"""The contract of a sampler under audit: one protocol that every sampler fulfils, and parts that it may fulfil.

A sampler that only draws tokens (:class:`SamplerTarget`) is tested by sampling. What it shows beyond that makes the
audit exact and cheaper: the bits of its noise (:class:`NoiseTarget`) can be enumerated and its draws replayed, a mask
(:class:`MaskTarget`) can be compared token by token, counts (:class:`CountingTarget`) need not leave the device.
Nothing here depends on which random number generator the sampler uses.

All parts are found by their methods: an object with ``words``, ``noise`` and ``noise_bits`` is a :class:`NoiseTarget`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Purpose(enum.Enum):
    """What a draw is for; draws for different purposes must be independent."""

    TARGET = "target"
    DRAFT = "draft"
    ACCEPT = "accept"
    RECOVER = "recover"


@dataclass(frozen=True, eq=False)
class Filters:
    """Which tokens may be drawn, per draw; applied in the order min-p, top-k, top-p, each on what is left.

    Tokens with equal logits are kept or left together by each of them.

    Attributes:
        top_k: int32 [N], number of tokens kept; 0 keeps all.
        top_p: float32 [N], share of probability kept, the token that reaches it included; 1 keeps all.
        min_p: float32 [N], least probability as a share of the largest; 0 keeps all.
    """

    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]

    @classmethod
    def same(cls, count: int, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Filters:
        """The same filters for ``count`` draws."""
        return cls(
            np.full(count, top_k, np.int32), np.full(count, top_p, np.float32), np.full(count, min_p, np.float32)
        )


@dataclass(frozen=True, eq=False)
class SpeculativeDraws:
    """What speculative decoding did, N times.

    Attributes:
        drafts: int64 [N, k], the tokens proposed.
        emitted: int64 [N, k + 1], the tokens that came out: the accepted drafts, then one more (the recovered token
            behind the first rejection, or the bonus token), then -1.
    """

    drafts: NDArray[np.int64]
    emitted: NDArray[np.int64]


@runtime_checkable
class SamplerTarget(Protocol):
    """Draws one token per row of logits.

    A token must be a function of its own row, temperature, seed and position. A sampler with a generator of its own,
    for which that cannot hold, says so by an attribute ``keyed = False`` (:func:`is_keyed`).

    Attributes:
        name: shown in reports.
    """

    name: str

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Draw tokens.

        Args:
            logits: float32 [V] (the same row for every draw) or [N, V]; not to be changed. -inf and NaN are never
                drawn.
            temperature: float32 [N]; 0 means greedy, the lowest id of the largest logit.
            seeds: uint64 [N], one key per draw.
            positions: int64 [N], position in the sequence of the token drawn.

        Returns:
            int64 [N] token ids in [0, V).
        """
        ...


def is_keyed(target: object) -> bool:
    """Whether each token of a sampler is a function of its own row, seed and position."""
    return bool(getattr(target, "keyed", True))


@runtime_checkable
class CountingTarget(Protocol):
    """Optional: counts many draws of one row where they are made, e.g. on a GPU."""

    def count(
        self, logits: NDArray[np.float32], temperature: float, seed: int, first_position: int, draws: int
    ) -> NDArray[np.int64]:
        """Draw with one seed at neighbouring positions, and count.

        Args:
            logits: float32 [V].
            temperature: above 0.
            seed: below 2**64.
            first_position: positions are ``first_position`` up to ``first_position + draws - 1``, all below 2**31.
            draws: number of draws.

        Returns:
            int64 [V + 1], draws of each token; the last entry counts ids outside [0, V).
        """
        ...


@runtime_checkable
class NoiseTarget(Protocol):
    """Optional: shows the random bits behind each draw.

    Its draw is the argmax of ``logits / temperature + noise(words(...))``, the lowest id on a tie.

    Attributes:
        noise_bits: random bits per token, at most 64: every word is below ``2**noise_bits``.
    """

    noise_bits: int

    def words(
        self,
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        tokens: NDArray[np.int64],
        purpose: Purpose = Purpose.TARGET,
    ) -> NDArray[np.uint64]:
        """The bits of each draw; the three arrays are broadcast against each other, the result has that shape."""
        ...

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The Gumbel noise that the sampler makes of each word, as it computes it; monotone in the word."""
        ...


@runtime_checkable
class FilteringTarget(Protocol):
    """Optional: draws through top-k, top-p and min-p."""

    def sample_filtered(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        filters: Filters,
    ) -> NDArray[np.int64]:
        """Draw as :meth:`SamplerTarget.sample` does, from what the filters keep."""
        ...


@runtime_checkable
class MaskTarget(Protocol):
    """Optional: shows which tokens its filters keep."""

    def kept(
        self, logits: NDArray[np.float32], temperature: NDArray[np.float32], filters: Filters
    ) -> NDArray[np.bool_]:
        """For logits float32 [N, V]: bool [N, V], whether a token can be drawn."""
        ...


@runtime_checkable
class LogprobTarget(Protocol):
    """Optional: reports log-probabilities (natural logarithm), float32.

    Attributes:
        processed_logprobs: whether they are those of ``softmax(logits / temperature)``; else of ``softmax(logits)``.
        block: tokens per partial sum of the denominator; the vocabulary if there is one sum. With ``serial`` it
            decides how large rounding errors may be.
        serial: whether the partial sums are added one after another; else as a tree.
    """

    processed_logprobs: bool
    block: int
    serial: bool

    def logprobs(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-probabilities of all tokens: logits float32 [N, V], temperature float32 [N]; float32 [N, V]."""
        ...


@runtime_checkable
class RankTarget(Protocol):
    """Optional: reports ranks."""

    def ranks(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """1 + the number of logits above the token's own, per row: logits float32 [N, V], tokens [N]; int64 [N]."""
        ...


@runtime_checkable
class PromptLogprobTarget(Protocol):
    """Optional: reports log-probabilities of a prompt."""

    def prompt_logprobs(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """For logits float32 [T, V] of a prompt of T tokens: float32 [T - 1], entry t is token t + 1 under row t."""
        ...


@runtime_checkable
class MemoryTarget(Protocol):
    """Optional: knows how much memory its log-probabilities take."""

    def peak_bytes(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> int | None:
        """Most memory held during a call of ``logprobs`` beyond what was held before; None where it is not known."""
        ...


@runtime_checkable
class SpeculativeTarget(Protocol):
    """Optional: drafts and verifies k tokens at once."""

    def speculate(
        self,
        target_logits: NDArray[np.float32],
        draft_logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> SpeculativeDraws:
        """Draft from one model, accept or replace by the other.

        Args:
            target_logits: float32 [k + 1, V], of the model whose distribution must come out; the same for every draw.
            draft_logits: float32 [k, V], of the model that proposes.
            temperature: float32 [N], for both models.
            seeds: uint64 [N].
            positions: int64 [N], position of the first draft; draft j stands at ``positions + j``.
        """
        ...


@runtime_checkable
class OwnAcceptanceTarget(Protocol):
    """Optional: says whether drafts are proposed and accepted in a way of its own.

    Attributes:
        own_acceptance: True where drafts are not drawn from the draft model and accepted one by one with probability
            ``min(1, p / q)``: whole blocks (Sun and others 2024), drafts by argmax, acceptance of equal tokens. What
            comes out must still follow the target, and only that is judged.
    """

    own_acceptance: bool


@dataclass(frozen=True)
class Identity:
    """What evidence about a sampler holds for; if any part changes, evidence starts anew.

    Attributes:
        kernel: hash of its sources.
        device: name of the GPU, or ``"cpu"``.
        compiler: name and version of what compiles its kernels.
        dtype: of its logits.
    """

    kernel: str
    device: str
    compiler: str
    dtype: str = "float32"


@runtime_checkable
class IdentifiedTarget(Protocol):
    """Optional: knows which code and machine draw; without it, the class and its source file stand for it."""

    def identity(self) -> Identity:
        """Of the sampler as it is now."""
        ...
