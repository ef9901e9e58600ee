"""Names the line that wrote to memory behind the back of every hook.

A run of the virtual device can be repeated exactly. In the repetition every line of the program is followed, and after
each the bytes in question are looked at; the line after which they have changed is the writer. That is slow, and done
only once something has been found.

With several threads the line named is the one that the program began last before the change was seen.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ..errors import CheckError
from ..findings import Finding, Site
from . import snapshots
from .runtime import Runtime
from .snapshots import Snapshot, SnapshotSink

_TOOLKIT = f"{Path(__file__).resolve().parents[1]}/"
#: Told of each line that is about to run, and of each return: the code and the line.
Follower: TypeAlias = Callable[[CodeType, int], None]


def locate_writer(program: Callable[[], None], schedule: str, seed: int, finding: Finding) -> Site | None:
    """Repeat a run, and name the line that changed the source of an upload.

    Args:
        program: the whole of what ran inside of ``virtual_device``.
        schedule: of the run in which it was found.
        seed: of that run.
        finding: an MRV207.

    Returns:
        The line, or None if the repetition shows no change.

    Raises:
        CheckError: the finding is none of an unseen write.
    """
    from ..virtual import virtual_device

    number = finding.evidence.get("upload")
    if finding.code != "MRV207" or not isinstance(number, int):
        raise CheckError(
            f"finding {finding.code}",
            "only a write that no hook saw has to be located",
            "other findings name both of their places",
            "pass a finding with code MRV207",
        )
    watch = _Watch(number)
    with virtual_device(schedule, seed, hooks=(watch.install,)), followed(watch.line):
        program()
    return watch.writer


class _Watch:
    """Looks at the source of one upload after every line."""

    def __init__(self, number: int) -> None:
        self.writer: Site | None = None
        self._number = number
        self._snapshot: Snapshot | None = None
        self._last: Site | None = None

    def install(self, runtime: Runtime) -> Callable[[], None]:
        """Be told of the device's snapshots; returns the undo."""
        undo = snapshots.install(runtime)
        sink = runtime.sink
        assert isinstance(sink, SnapshotSink)
        sink.began = self._began
        return undo

    def _began(self, snapshot: Snapshot) -> None:
        if snapshot.number == self._number:
            self._snapshot = snapshot

    def line(self, code: CodeType, line: int) -> None:
        """A line is about to run, so the one before it has."""
        snapshot = self._snapshot
        if snapshot is not None and self.writer is None and len(snapshot.changed()):
            self.writer = self._last
        if not code.co_filename.startswith(_TOOLKIT):
            self._last = Site(code.co_filename, line, code.co_qualname)


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
