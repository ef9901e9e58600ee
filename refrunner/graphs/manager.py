"""Captures a runner's graphs once, and finds the one that a batch may run in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..attention.interface import AttentionBackend
from ..config import RunnerConfig
from ..device import Device
from ..input_batch import BatchShape, InputBatch
from ..models.llama import LlamaModel
from .addresses import Addresses
from .candidates import BatchNeeds, Candidate, candidates, first_that_admits
from .captured import CapturedForward, FullGraph, PiecewiseGraph, Recorder


class GraphManager:
    """The graphs of one runner. All are captured at startup; none is captured, dropped or replaced later.

    Attributes:
        captured: a forward pass for each candidate, smallest first; empty before ``capture`` and in eager mode.
        eager_decodes: batches of decodes only that no graph admitted, where graphs were asked for.
    """

    def __init__(self, config: RunnerConfig, model: LlamaModel, attention: AttentionBackend, device: Device) -> None:
        self._candidates = candidates(config)
        self._model = model
        self._attention = attention
        self._device = device
        self._addresses: Addresses | None = None
        self.captured: dict[Candidate, CapturedForward] = {}
        self.eager_decodes = 0

    def capture(self, builder: object, pad: Callable[[BatchShape], InputBatch]) -> None:
        """Capture every candidate, largest first, so that the smaller ones find memory in the pool.

        Args:
            builder: owns the buffers that every batch lies in.
            pad: makes a batch of that shape which is all padding.
        """
        if not self._candidates:
            return
        recorder = Recorder(self._device)
        for candidate in reversed(self._candidates):
            batch = pad(candidate.shape(num_requests=1))
            self._attention.begin(batch)
            self.captured[candidate] = self._capture(candidate, batch, recorder)
        # Attention between the pieces may look elsewhere in every step; in a full graph it may not.
        inside = (self._attention,) if candidate.mode == "full" else ()
        self._addresses = Addresses((self._model, builder, *inside))

    def find(self, needs: BatchNeeds) -> Candidate | None:
        """The smallest captured graph that admits a batch; None: it runs eagerly."""
        found = first_that_admits(self.captured and self._candidates, needs)
        self.eager_decodes += found is None and needs.decode_only and bool(self._candidates)
        return found

    def moved(self) -> list[str]:
        """Tensors that graphs read and that are no longer where they were, a line each; off the hot path."""
        return [] if self._addresses is None else self._addresses.moved()

    def _capture(self, candidate: Candidate, batch: InputBatch, recorder: Recorder) -> CapturedForward:
        forward = partial(self._model.forward, batch.input_ids, batch.positions)
        if candidate.mode == "full":
            return FullGraph(forward, self._attention.forward, recorder)
        return PiecewiseGraph(forward, recorder)
