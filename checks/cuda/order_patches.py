"""Events, streams and devices: what orders the host after the device, and what the host knows by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ..hot_path import compiling, open_entries
from ..sync.waits import Cause, WaitKind
from .copies import PinnedAddresses
from .device import Device
from .patches import CallPatches, Wrap
from .progress import Progress


class Doing:
    """What a thread is doing.

    Attributes:
        warned: in a patched call, how often torch has warned; else None.
        loaded: when it last loaded a kernel, by the device's clock.
        launched: when it began to launch the last one, if in a hot path; else 0.
    """

    __slots__ = ("launched", "loaded", "warned")

    def __init__(self) -> None:
        self.warned: int | None = None
        self.loaded = -1
        self.launched = 0


class Thread(threading.local):
    """``doing`` is that of the calling thread."""

    def __init__(self) -> None:
        self.doing = Doing()


class OrderPatches:
    """Wraps the calls that wait, record and poll.

    Args:
        patches: to be undone by whoever made them.
        device: whose classes are wrapped.
        progress: learns what the host knows.
        thread: what each thread is doing.
        tell: to be told of waits.
        pinned: what is known to be pinned; forgotten when host memory goes back to the driver.
    """

    def __init__(
        self,
        patches: CallPatches,
        device: Device,
        progress: Progress,
        thread: Thread,
        tell: Callable[[Cause, str | None], None],
        pinned: PinnedAddresses,
    ) -> None:
        self._patches, self._device, self.progress, self._thread, self._tell = patches, device, progress, thread, tell
        self._pinned = pinned

    def apply(self) -> None:
        """Wrap them all."""
        for owner in self._device.events:
            self._event(owner)
        for owner in self._device.streams:
            self._stream(owner)
        for module in (torch.cuda, torch.accelerator):
            self._patches.function(module, "synchronize", self._synchronizing(f"{module.__name__}.synchronize"))
            given = self._freeing(WaitKind.FREE_DEVICE, f"{module.__name__}.empty_cache", self._device.reserved, -1)
            self._patches.function(module, "empty_cache", given)
        for holder, name in ((torch.accelerator, "empty_host_cache"), (torch._C, "_host_emptyCache")):
            given = self._freeing(WaitKind.FREE_HOST, f"{holder.__name__}.{name}", self._device.host_frees, 1)
            self._patches.function(holder, name, given)
        runtime = getattr(torch._C, "_cudart", None)
        if runtime is not None:
            self._patches.function(runtime, "cudaHostUnregister", self._forgetting)

    def _forgetting(self, original: Any) -> Callable[..., Any]:
        """A call after which what was pinned may not be any more."""

        def forgets(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._pinned.known.clear()

        return forgets

    def _event(self, owner: type) -> None:
        progress, device = self.progress, self._device

        def record(original: Any) -> Callable[..., Any]:
            def recorded(event: Any, stream: Any = None) -> Any:
                result = original(event) if stream is None else original(event, stream)
                progress.recorded(event, stream)
                return result

            return recorded

        def wait(original: Any) -> Callable[..., Any]:
            def waits(event: Any, stream: Any = None) -> Any:
                result = original(event) if stream is None else original(event, stream)
                progress.waits(event, stream)
                return result

            return waits

        def query(original: Any) -> Callable[..., Any]:
            def queried(event: Any) -> Any:
                over = original(event)
                if over:
                    progress.passed(event)
                return over

            return queried

        def synchronize(original: Any) -> Callable[..., Any]:
            def synchronized(event: Any) -> Any:
                if open_entries() and not progress.is_over(event) and not device.never_recorded(event):
                    self._tell(Cause(WaitKind.EVENT, "Event.synchronize"), None)
                result = original(event)
                progress.passed(event)
                return result

            return synchronized

        for name, wrap in (("record", record), ("wait", wait), ("query", query), ("synchronize", synchronize)):
            self._patches.method(owner, name, wrap)

    def _stream(self, owner: type) -> None:
        progress = self.progress

        def query(original: Any) -> Callable[..., Any]:
            def queried(stream: Any) -> Any:
                over = original(stream)
                if over:
                    progress.stream_passed(stream)
                return over

            return queried

        def wait_stream(original: Any) -> Callable[..., Any]:
            def waits_for(stream: Any, other: Any) -> Any:
                result = original(stream, other)
                progress.stream_waits(stream, other)
                return result

            return waits_for

        def wait_event(original: Any) -> Callable[..., Any]:
            def waits(stream: Any, event: Any) -> Any:
                result = original(stream, event)
                progress.waits(event, stream)
                return result

            return waits

        def record_event(original: Any) -> Callable[..., Any]:
            def recorded(stream: Any, event: Any = None) -> Any:
                event = original(stream, event)
                progress.recorded(event, stream)
                return event

            return recorded

        self._patches.method(owner, "synchronize", self._stream_synchronize)
        for name, wrap in (
            ("query", query), ("wait_stream", wait_stream), ("wait_event", wait_event), ("record_event", record_event),
        ):  # fmt: skip
            self._patches.method(owner, name, wrap)

    def _stream_synchronize(self, original: Any) -> Callable[..., Any]:
        thread, progress = self._thread, self.progress

        def synchronized(stream: Any) -> Any:
            doing = thread.doing
            outer, doing.warned = doing.warned, 0  # torch warns of it, too
            try:
                if open_entries() and outer is None:
                    self._tell(Cause(WaitKind.STREAM, "Stream.synchronize"), None)
                result = original(stream)
            finally:
                doing.warned = outer
            progress.stream_passed(stream)
            return result

        return synchronized

    def _synchronizing(self, name: str) -> Wrap:
        """A call that waits for the device."""

        def wrap(original: Any) -> Callable[..., Any]:
            def synchronized(*args: Any, **kwargs: Any) -> Any:
                if compiling():
                    return original(*args, **kwargs)
                if open_entries():
                    self._tell(Cause(WaitKind.DEVICE, name), None)
                result = original(*args, **kwargs)
                self.progress.all_passed()
                return result

            return synchronized

        return wrap

    def _freeing(self, kind: WaitKind, name: str, amount: Callable[[], int], sign: int) -> Wrap:
        """A call that waits if it gives memory back to the driver: then an amount has changed."""

        def wrap(original: Any) -> Callable[..., Any]:
            frees = self._forgetting(original)

            def freeing(*args: Any, **kwargs: Any) -> Any:
                if compiling():
                    return original(*args, **kwargs)
                if not open_entries():
                    return frees(*args, **kwargs)
                before = amount()
                result = frees(*args, **kwargs)
                change = sign * (amount() - before)
                if change > 0:
                    self._tell(Cause(kind, name, change if kind is WaitKind.FREE_DEVICE else None), None)
                return result

            return freeing

        return wrap
