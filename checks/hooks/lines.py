"""Follows a program line by line."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeAlias

#: Told of each line that is about to run, and of each return: the code and the line.
Follower: TypeAlias = Callable[[CodeType, int], None]


@contextlib.contextmanager
def followed(follower: Follower) -> Iterator[None]:
    """Follow the lines of all Python code that starts within this scope, in every thread."""
    monitoring = getattr(sys, "monitoring", None)
    with _traced(follower) if monitoring is None else _monitored(follower, monitoring):
        yield


@contextlib.contextmanager
def _traced(follower: Follower) -> Iterator[None]:
    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        follower(frame.f_code, frame.f_lineno)
        if event == "return" and frame.f_back is not None:
            follower(frame.f_back.f_code, frame.f_back.f_lineno)  # whose line goes on
        return trace

    before, before_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield
    finally:
        threading.settrace(before_threads)
        sys.settrace(before)


@contextlib.contextmanager
def _monitored(follower: Follower, monitoring: Any) -> Iterator[None]:
    """The same from Python 3.12 on, where it costs less."""

    def returned(code: CodeType, offset: int, value: object) -> None:
        frame = sys._getframe(1).f_back
        if frame is not None:
            follower(code, frame.f_lineno)
            follower(frame.f_code, frame.f_lineno)

    tool = next(number for number in range(6) if monitoring.get_tool(number) is None)
    monitoring.use_tool_id(tool, "mrv2 watchpoint")
    monitoring.register_callback(tool, monitoring.events.LINE, follower)
    monitoring.register_callback(tool, monitoring.events.PY_RETURN, returned)
    monitoring.set_events(tool, monitoring.events.LINE | monitoring.events.PY_RETURN)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
