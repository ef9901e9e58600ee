"""Captured forward passes: one graph, or pieces between which attention runs.

Capturing runs nothing: the launches are written down. A replay enqueues them on the stream that is current then, with
the addresses of the capture, so all that they read must stay where it was.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..device import Device

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Forward = Callable[[Attend], Tensor]
"""The model's forward pass over the buffers of one batch, up to the hidden states; see ``models.llama``."""


class CapturedForward(Protocol):
    """A forward pass that can be replayed."""

    def replay(self, attend: Attend) -> Tensor:
        """Enqueue it on the current stream.

        Args:
            attend: attention of the step, which has begun; a full graph has its own and does not call it.

        Returns:
            hidden states [padded T, H]; always the same tensor, valid until the next replay.
        """
        ...


class Recorder:
    """Captures graphs on a stream of its own, into one memory pool.

    Graphs that share a pool may use each other's intermediate memory. That is safe here: replays follow one another on
    one stream, and what a replay returns is read before the next one.
    """

    def __init__(self, device: Device) -> None:
        self._stream = torch.cuda.Stream(device.torch_device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Scope of captures; ends one that broke off, so that the error is all that is left of it."""
        gc.collect()  # what dies in the middle of a capture may free memory of the device, and that ends the capture
        with torch.cuda.stream(self._stream):
            try:
                yield
            except BaseException:
                if torch.cuda.is_current_stream_capturing():
                    self._abandon()
                raise

    def begin(self) -> torch.cuda.CUDAGraph:
        """Start the capture of a graph; other threads go on as ever."""
        graph = self._current = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return graph

    def hand_over(self, beside: Tensor | None) -> None:
        """Let the current stream, on which replays will run, have what the captures made beside their graphs.

        It waits for its filling, and the allocator waits for it when the memory is dropped, since a runner may go while
        a replay is in flight.
        """
        current = torch.cuda.current_stream()
        current.wait_stream(self._stream)
        if beside is not None:
            beside.record_stream(current)

    def _abandon(self) -> None:
        try:
            self._current.capture_end()
        except RuntimeError:
            return  # the capture was lost; ending it says so once more


class FullGraph:
    """The whole forward pass as one graph, attention included."""

    def __init__(self, forward: Forward, attend: Attend, recorder: Recorder) -> None:
        with recorder.on_stream():
            self._graph = recorder.begin()
            self._hidden = forward(attend)
            self._graph.capture_end()

    def replay(self, attend: Attend) -> Tensor:
        """See :class:`CapturedForward`."""
        self._graph.replay()
        return self._hidden


@dataclass(frozen=True)
class _Piece:
    """A graph, and the attention behind it."""

    graph: torch.cuda.CUDAGraph
    layer: int
    inputs: tuple[Tensor, Tensor, Tensor]


class PiecewiseGraph:
    """The forward pass in pieces, cut wherever the model calls attention.

    Attention runs between the pieces, from the host, with the metadata of the step: it may look at lengths, choose
    launches and allocate. What it returns is copied to where the next piece looks for it. Queries, keys and values of
    all layers stay allocated.
    """

    def __init__(self, forward: Forward, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pieces: list[_Piece] = []
        self._attended: Tensor | None = None
        with recorder.on_stream():
            self._last = recorder.begin()
            self._hidden = forward(self._cut)
            self._last.capture_end()
        recorder.hand_over(self._attended)

    def replay(self, attend: Attend) -> Tensor:
        """See :class:`CapturedForward`."""
        for piece in self._pieces:
            piece.graph.replay()
            assert self._attended is not None
            self._attended.copy_(attend(piece.layer, *piece.inputs))
        self._last.replay()
        return self._hidden

    def _cut(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Stands for attention during the capture: ends a piece and begins the next."""
        self._last.capture_end()
        self._pieces.append(_Piece(self._last, layer, (query, key, value)))
        if self._attended is None:  # outside of every graph, one for all layers
            self._attended = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        self._last = self._recorder.begin()
        return self._attended
