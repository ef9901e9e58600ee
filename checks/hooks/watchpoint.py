"""Names the line that wrote to memory behind the back of every hook.

A run of the virtual device can be repeated exactly. In the repetition every line of the program is followed, and after
each the bytes in question are looked at; the line after which they have changed is the writer. That is slow, and done
only once something has been found.

With several threads the line named is the one that the program began last before the change was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING

from ..errors import CheckError
from ..findings import Finding, Site
from ..libraries import is_library, is_standard, portable_path
from . import snapshots
from .lines import followed
from .open_snapshots import Snapshot
from .runtime import Runtime
from .snapshots import SnapshotSink

if TYPE_CHECKING:
    from ..virtual.schedules import Scheduler


def locate_writer(program: Callable[[], object], schedule: str | Scheduler, seed: int, finding: Finding) -> Site | None:
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
        if not (is_library(code.co_filename) or is_standard(code.co_filename)):
            self._last = Site(portable_path(code.co_filename), line, code.co_qualname)
