"""The few things that differ between a CUDA device and plain host memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Whether the device has passed it; never waits."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has passed it."""
        ...


class PassedEvent:
    """The event of a device that finishes each operation before the call returns."""

    def query(self) -> bool:
        """Always true."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Device:
    """Streams, events and pinned memory of one device.

    On CUDA there are two streams: ``main_stream`` (the one current when the runner was made) runs the whole
    step, and ``copy_stream`` downloads results; ``new_stream`` makes more. On the CPU every operation is over when its
    call returns.
    """

    def __init__(self, name: str) -> None:
        self.torch_device = torch.device(name)
        self.asynchronous = self.torch_device.type == "cuda"
        self.main_stream = torch.cuda.current_stream(self.torch_device) if self.asynchronous else None
        self.copy_stream = torch.cuda.Stream(self.torch_device) if self.asynchronous else None

    @property
    def description(self) -> str:
        """The device by its name."""
        return torch.cuda.get_device_name(self.torch_device) if self.asynchronous else "the host's processor"

    def on_main_stream(self) -> AbstractContextManager[object]:
        """Scope in which the main stream and its device are current, whatever is current in the calling thread.

        Without it a step from another thread, or on the second GPU, would run beside the one before it, and the
        events of the pinned ring would mark the wrong stream.
        """
        return nullcontext() if self.main_stream is None else torch.cuda.stream(self.main_stream)

    def new_stream(self, *memory: Tensor) -> torch.cuda.Stream | None:
        """A further stream, whose work may use some device memory for as long as it lives; None on the CPU."""
        if not self.asynchronous:
            return None
        stream = torch.cuda.Stream(self.torch_device)
        for tensor in memory:
            tensor.record_stream(stream)
        return stream

    def on_stream(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
        """Scope in which a stream of ``new_stream`` is current."""
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def wait_for(self, event: Event) -> None:
        """Let the current stream's further work wait for an event; the host does not."""
        if isinstance(event, torch.cuda.Event):
            torch.cuda.current_stream(self.torch_device).wait_event(event)

    def pinned_empty(self, size: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised host memory, [size]; page-locked if the device reads it asynchronously."""
        return torch.empty(size, dtype=dtype, pin_memory=self.asynchronous)

    def pinned_read_in_place(self, size: int, dtype: torch.dtype) -> Tensor:
        """Host memory, [size], that kernels on the current stream may read where it lies; uninitialised.

        To torch's host allocator, which hears of copies and not of kernels, such memory would be free as soon as its
        last reference goes: with a runner that nobody closed, or after an error in the middle of a step. But of a
        stream that it has once seen copy from a block it waits, when the block is dropped, for all that the stream has
        been given by then (``free`` in torch's ``ATen/core/CachingHostAllocator.h``). So an element of its own, behind
        the others, is copied once, and nobody has to outlive the kernels.
        """
        memory = self.pinned_empty(size + int(self.asynchronous), dtype)
        if self.asynchronous:
            self._tell_host_allocator(memory[size:].zero_())
        return memory[:size]

    def _tell_host_allocator(self, spare: Tensor) -> None:
        """The current stream uses the pinned memory that a part belongs to, which nobody writes any more."""
        torch.empty_like(spare, device=self.torch_device).copy_(spare, non_blocking=True)

    def record_event(self) -> Event:
        """Mark the current end of the current stream's work."""
        if not self.asynchronous:
            return PassedEvent()
        event = torch.cuda.Event()
        event.record()
        return event

    def download(self, sources: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Event]:
        """Copy device tensors to the host behind the work enqueued so far, without waiting.

        The copies run on ``copy_stream``, so later steps on the main stream do not queue behind them. Each goes to
        fresh pinned memory. The allocator is told that the copy stream reads ``sources`` too, so whoever drops them,
        or the whole result, before the event has passed does not hand their memory to a later step (vLLM pull
        request 29623 is what happens otherwise).

        Args:
            sources: that nobody writes any more, as the copies may still be running. On the CPU they are their own
                copies.

        Returns:
            the host tensors, and the event after which they hold the values.
        """
        if self.copy_stream is None:
            return sources, PassedEvent()
        self.copy_stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        for source in sources:
            source.record_stream(self.copy_stream)
        with torch.cuda.stream(self.copy_stream):
            copies = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)
            for copy, source in zip(copies, sources, strict=True):
                copy.copy_(source, non_blocking=True)
            return copies, self.record_event()

    def synchronize(self) -> None:
        """Wait for all work; never called on the hot path."""
        if self.asynchronous:
            torch.cuda.synchronize(self.torch_device)
