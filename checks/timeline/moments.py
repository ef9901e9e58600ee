"""What was running on a host thread at moments in question: the trace is read a second time for that."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from .intervals import Innermost, Interval, union
from .records import Frame, Source

Thread: TypeAlias = tuple[int, int]
#: Frames kept at most, in the order of the file; moments in question are few, and so is what runs at them.
MOST_FRAMES = 300_000
#: Frames of a stack that are shown, and what begins those that say little: libraries, and Python's own.
SHOWN = 5
_OPERATOR = "::"
#: Functions of an object are named with its address, which no two calls have in common.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SILENT = ("torch/", "<built-in", "<frozen", "<string>", "contextlib.py", "triton/", "threading.py", "nn.Module")


class Moments:
    """The operators and Python functions that ran at some moments.

    Args:
        source: of the trace.
        wanted: intervals of time, by process and thread.
    """

    def __init__(self, source: Source, wanted: Mapping[Thread, Iterable[Interval]]) -> None:
        self._asked = {thread: union(intervals) for thread, intervals in wanted.items()}
        # By thread and number of the interval: each holds the few frames that it meets.
        self._frames: dict[tuple[Thread, int], list[Frame]] = defaultdict(list)
        kept = 0
        for frame in source.frames() if self._asked else ():
            if kept >= MOST_FRAMES:
                break
            kept += self._keep(frame)
        for frames in self._frames.values():
            frames.sort(key=lambda frame: (frame.start, -frame.end))

    def _keep(self, frame: Frame) -> int:
        """Put a frame to all intervals that it has a moment in common with; how many there are."""
        thread = frame.process, frame.thread
        intervals = self._asked.get(thread, [])
        first = bisect_left(intervals, frame.start, key=lambda one: one[1])
        last = bisect_right(intervals, frame.end, key=lambda one: one[0])
        if last > first:
            frame = frame._replace(name=_ADDRESS.sub("", frame.name))
        for number in range(first, last):
            self._frames[thread, number].append(frame)
        return max(last - first, 0)

    def _at(self, thread: Thread, start: int) -> list[Frame]:
        """Frames around a moment that was asked for."""
        number = bisect_right(self._asked.get(thread, []), start, key=lambda one: one[0]) - 1
        return self._frames.get((thread, number), [])

    def stack(self, thread: Thread, start: int, end: int) -> tuple[str, ...]:
        """What an interval lies in, innermost first; what is not the program's own only if nothing else is there."""
        around = [frame.name for frame in self._at(thread, start) if frame.start <= start and end <= frame.end]
        around.reverse()
        telling = [name for name in _called(around) if not name.startswith(_SILENT)]
        return tuple((telling or around)[:SHOWN])

    def shares(self, thread: Thread, window: Interval) -> list[tuple[str, float]]:
        """What ran innermost in a window, with its share of it, the largest first."""
        frames = [one for one in self._at(thread, window[0]) if one.start < window[1] and one.end > window[0]]
        innermost = Innermost((frame.start, frame.end, frame.name) for frame in frames)
        named = [(name, time) for name, time in innermost.shares(window).items() if name is not None]
        return [(name, time / (window[1] - window[0])) for name, time in sorted(named, key=lambda one: -one[1])]


def _called(names: list[str]) -> list[str]:
    """Of operators that call each other only the one that the program called."""
    pairs = zip(names, [*names[1:], ""], strict=False)
    return [name for name, around in pairs if not (_OPERATOR in name and _OPERATOR in around)]
