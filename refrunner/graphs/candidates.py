"""Which graphs a runner captures, and which of them a batch may use.

A graph is a recorded sequence of launches: replaying it costs the host one call, but its sizes and addresses are those
of the capture. So a batch is padded to the size of a graph that admits it, or it runs without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..config import RunnerConfig
from ..input_batch import BatchShape


@dataclass(frozen=True)
class BatchNeeds:
    """What a step is about to compute.

    Attributes:
        num_tokens: scheduled in this step.
        num_requests: that they belong to.
        decode_only: every request computes exactly the one token that was drawn last, and drafts behind it. The last
            token of a prompt that comes in chunks is no such token, though its batch would have the same shape: what a
            backend prepares for a decode need not hold for it.
    """

    num_tokens: int
    num_requests: int
    decode_only: bool


@dataclass(frozen=True)
class Candidate:
    """A graph that may be captured.

    Attributes:
        mode: ``"full"``, the whole forward pass, for decodes; or ``"piecewise"``, everything but attention.
        num_tokens: lanes.
        most_requests: requests of a full graph; pieces see no requests, attention runs between them.
    """

    mode: str
    num_tokens: int
    most_requests: int

    def admits(self, needs: BatchNeeds) -> bool:
        """Whether the batch, padded, may run in this graph."""
        return needs.num_tokens <= self.num_tokens and (needs.decode_only or self.mode != "full")

    def shape(self, num_requests: int) -> BatchShape:
        """Size of a batch of so many requests, padded for this graph."""
        return BatchShape(self.num_tokens, self.most_requests if self.mode == "full" else num_requests)


def candidates(config: RunnerConfig) -> tuple[Candidate, ...]:
    """All graphs of a configuration, smallest first."""
    if config.graph_mode == "eager":
        return ()
    sizes = config.graph_sizes or powers_up_to(config.largest_graph)
    return tuple(Candidate(config.graph_mode, size, min(size, config.max_num_reqs)) for size in sizes)


def first_that_admits(choices: Iterable[Candidate], needs: BatchNeeds) -> Candidate | None:
    """The smallest graph for a batch; None if it has to run without one."""
    return next((choice for choice in choices if choice.admits(needs)), None)


def powers_up_to(largest: int) -> list[int]:
    """Powers of two below a size, and the size itself."""
    return [*(1 << exponent for exponent in range((largest - 1).bit_length())), largest]
