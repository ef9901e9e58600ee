"""What each host thread is doing, and the level at which deferred work runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..events import Stack
    from .queues import Queue


class Here:
    """The torch call that a thread is in, if any.

    Attributes:
        call: function, arguments and keyword arguments.
        frame: of the caller; stacks begin there, and need not walk through torch and this toolkit.
        stack: of the call, once somebody asked for it.
        function: that the program called, also if torch is not asked.
        told: lines of the program in that call whose waits were told of: a call that waits twice is one to change.
        below: whether the thread is below all modes already.
    """

    __slots__ = ("below", "call", "frame", "function", "stack", "told")

    def __init__(self) -> None:
        self.call: tuple[Any, Any, Any] | None = None
        self.frame: FrameType | None = None
        self.stack: Stack | None = None
        self.function: Any = None
        self.told: set[Stack] | None = None
        self.below = False


class _Heres(threading.local):
    def __init__(self) -> None:
        self.here = Here()


#: ``heres.here`` is that of the calling thread.
heres = _Heres()


class ThreadState:
    """What a thread has of its own on one device.

    Attributes:
        lane: of the sink.
        queue: its current stream; None for the default one.
        entered: the stream handles that it is inside of, each with what was current before; several threads may be
            inside of one.
    """

    __slots__ = ("entered", "lane", "queue")

    def __init__(self) -> None:
        self.lane: int | None = None
        self.queue: Queue | None = None
        self.entered: list[tuple[object, Queue]] = []

    def leave(self, handle: object) -> Queue | None:
        """What was current where this thread last entered a handle; None if it is not inside of it."""
        for index in reversed(range(len(self.entered))):
            if self.entered[index][0] is handle:
                return self.entered.pop(index)[1]
        return None


def _keys_above_kernels() -> torch._C.DispatchKeySet:
    names = ("PythonTLSSnapshot", "ADInplaceOrView", "AutocastCPU", "AutocastCUDA", "AutogradCPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    for name in (*names, "AutogradOther", "AutogradCUDA"):
        keys = keys.add(getattr(torch._C.DispatchKey, name))
    return keys


#: Python modes, autograd, autocast and the checks of inference mode.
ABOVE_KERNELS = _keys_above_kernels()
NoFunctions = torch._C.DisableTorchFunction
NoDispatch = torch._C._ExcludeDispatchKeyGuard


@contextlib.contextmanager
def below_modes() -> Iterator[None]:
    """Run plain kernels: no mode, no autograd, no autocast, no inference-mode check.

    Deferred work runs inside whichever host call drains it. What that caller has switched on must not touch it: casts
    and gradients were decided when the operation was enqueued, above this level.
    """
    here = heres.here
    outer, here.below = here.below, True
    try:
        with NoFunctions(), NoDispatch(ABOVE_KERNELS):
            yield
    finally:
        here.below = outer
