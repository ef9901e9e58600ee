"""What the trap asks of a CUDA device, and nothing else, so that it can be tried on one that is not there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from .progress import StreamKey, Streams


class Device(Streams, Protocol):
    """A device whose calls are watched.

    Attributes:
        tensors, events, streams: the classes whose methods programs call.
    """

    tensors: tuple[type, ...]
    events: tuple[type, ...]
    streams: tuple[type, ...]

    @property
    def now_ns(self) -> Callable[[], int]:
        """A clock in nanoseconds."""
        ...

    def get_sync_mode(self) -> int:
        """Torch's debug mode for synchronisation."""
        ...

    def set_sync_mode(self, mode: int) -> None:
        """Set it."""
        ...

    def capturing(self) -> bool:
        """Whether the current stream is being captured."""
        ...

    def busy(self) -> bool:
        """Whether the current stream has work that is not over."""
        ...

    def never_recorded(self, event: Any) -> bool:
        """Whether an event was never recorded."""
        ...

    def reserved(self) -> int:
        """Bytes of the device that torch has taken from the driver."""
        ...

    def host_frees(self) -> int:
        """How often torch has given pinned memory back to the driver; 0 if this version does not count that."""
        ...


class CudaDevice:
    """The CUDA devices of this machine."""

    tensors: tuple[type, ...] = (torch.Tensor,)
    events: tuple[type, ...] = (torch.cuda.Event, torch.Event)
    streams: tuple[type, ...] = (torch.cuda.Stream, torch.Stream)
    now_ns = staticmethod(time.perf_counter_ns)

    def get_sync_mode(self) -> int:
        """See :class:`Device`."""
        return int(torch._C._cuda_get_sync_debug_mode())

    def set_sync_mode(self, mode: int) -> None:
        """See :class:`Device`."""
        torch._C._cuda_set_sync_debug_mode(mode)

    def current_stream(self) -> StreamKey:
        """See :class:`Streams`."""
        number, device, _ = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
        return device, number

    def key_of(self, stream: Any) -> StreamKey:
        """See :class:`Streams`."""
        return stream.device_index, stream.stream_id

    def capturing(self) -> bool:
        """See :class:`Device`."""
        return bool(torch.cuda.is_current_stream_capturing())

    def busy(self) -> bool:
        """See :class:`Device`."""
        return not torch.cuda.current_stream().query()

    def never_recorded(self, event: Any) -> bool:
        """See :class:`Device`; torch makes the driver's event at the first record."""
        return not (event.cuda_event if isinstance(event, torch.cuda.Event) else event.event_id)

    def reserved(self) -> int:
        """See :class:`Device`."""
        return sum(torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count()))

    def host_frees(self) -> int:
        """See :class:`Device`."""
        statistics: dict[str, Any] = getattr(torch.cuda, "host_memory_stats", dict)()
        return int(statistics.get("num_host_free", 0))
