"""Captured passes of a draft model, in a memory pool of their own.

A pass in which every request has the same number of lanes can be captured: the two newest tokens of each, which is the
first pass behind a step of decodes, or one, which is every further pass. The rest runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ..attention.interface import AttentionBackend
from ..config import RunnerConfig
from ..device import Device
from ..graphs.addresses import Addresses
from ..graphs.candidates import powers_up_to
from ..graphs.captured import CapturedForward, FullGraph, PiecewiseGraph, Recorder
from ..input_batch import InputBatch
from .draft_models import DraftModel

#: Lanes of each request in the first pass behind a step of decodes, and in the others.
LANES_OF_FIRST, LANES_OF_NEXT = 2, 1


class DraftGraphs:
    """Graphs by lanes a request and number of requests; none is captured, dropped or replaced after startup."""

    def __init__(self, config: RunnerConfig, model: DraftModel, attention: AttentionBackend, device: Device) -> None:
        self._mode, self._model, self._attention, self._device = config.graph_mode, model, attention, device
        self._sizes = powers_up_to(config.max_num_reqs) if config.graph_mode != "eager" else []
        self._addresses: Addresses | None = None
        self.captured: dict[tuple[int, int], CapturedForward] = {}

    def requests_for(self, count: int) -> int | None:
        """Requests of the smallest graph that holds so many; None if none was captured."""
        return next((size for size in self._sizes if size >= count), None) if self.captured else None

    def capture(self, inert: Callable[[int, int], InputBatch], states: Tensor, buffers: tuple[Tensor, ...]) -> None:
        """Capture all of them, largest first.

        Args:
            inert: makes a batch of so many lanes a request and requests, all of it padding.
            states: [D, H], where the states before the lanes are.
            buffers: that the batches are views of.
        """
        if not self._sizes:
            return
        recorder = Recorder(self._device)
        for size in reversed(self._sizes):
            for lanes in (LANES_OF_FIRST, LANES_OF_NEXT):
                batch = inert(lanes, size)
                self._attention.begin(batch)
                before = states[: lanes * size]
                forward = partial(self._model.forward, batch.input_ids, batch.positions, before)
                self.captured[lanes, size] = (
                    FullGraph(forward, self._attention.forward, recorder)
                    if self._mode == "full"
                    else PiecewiseGraph(forward, recorder)
                )
        inside = (self._attention,) if self._mode == "full" else ()
        self._addresses = Addresses((self._model, states, buffers, *inside))

    def moved(self) -> list[str]:
        """Tensors that graphs read and that are no longer where they were, a line each; off the hot path."""
        return [] if self._addresses is None else self._addresses.moved()
