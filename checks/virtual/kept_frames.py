"""Frames that keep themselves after their call has ended, and with them the frames and tensors of all their callers.

``frame = inspect.currentframe()`` in a function does so: the frame has a local variable that is the frame, a cycle that
only the garbage collector finds. ``torch.fx.wrap`` is such a function, which modules of torch call while they are
imported. If a program's first call of an operator imports them, its first run would free what its callers hold later
than the next ones. Collecting garbage instead would free what the program itself has in cycles, at a moment that
only its first run has.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Of a caller's variable, of a function's parameter, and of the argument of ``sys.getrefcount``.
_COUNTED_BESIDE = 3


@contextmanager
def imports_keep_no_frames() -> Iterator[None]:
    """Scope in which modules may be imported; if any were, the frames that they have left in cycles are let go.

    Only frames of calls within the scope, and only those that nobody but they themselves refer to: who stored a
    traceback or a frame finds its variables in it, and what else is in cycles stays there in the first run as in all.
    """
    scope = sys._getframe(2)  # of the function with the with statement: this generator, contextlib, it
    before = len(sys.modules)
    try:
        yield
    finally:
        if len(sys.modules) != before:
            _let_go(scope)
        del scope  # which has this generator, to leave the scope


def _let_go(scope: FrameType) -> None:
    candidates = [found for found in gc.get_objects() if isinstance(found, FrameType) and _keeps_itself(found)]
    while candidates:
        found = candidates.pop()
        if _is_its_own_alone(found) and _was_called_in(scope, found):
            with suppress(RuntimeError):  # it is running
                found.clear()


def _keeps_itself(frame: FrameType) -> bool:
    """Whether a local variable of a frame is the frame; to clear one that can be resumed would end it."""
    return not frame.f_code.co_flags & _RESUMED and any(held is frame for held in gc.get_referents(frame))


def _is_its_own_alone(frame: FrameType) -> bool:
    """Whether all references to a frame, but a variable of the caller, are variables of the frame itself."""
    own = sum(held is frame for held in gc.get_referents(frame))
    return sys.getrefcount(frame) == own + _COUNTED_BESIDE


def _was_called_in(scope: FrameType, frame: FrameType) -> bool:
    callers: FrameType | None = frame
    while callers is not None and callers is not scope:
        callers = callers.f_back
    return callers is scope
