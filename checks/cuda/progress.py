"""What the host knows to be over: an event of which it knows that is not waited for.

The host waits for an event, or is told by a query that it has passed; then it knows the same of all that came before
it, on its own stream and on those that its stream had waited for. So of each stream the records are counted, and an
event carries the counts of all streams that are over once it is.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol, TypeAlias

#: Device and number of a stream.
StreamKey: TypeAlias = tuple[int, int]
_Counts: TypeAlias = dict[StreamKey, int]


class Streams(Protocol):
    """What must be known of a device's streams."""

    def current_stream(self) -> StreamKey:
        """The current stream of the calling thread."""
        ...

    def key_of(self, stream: Any) -> StreamKey:
        """The key of a stream."""
        ...


class Progress:
    """Follows records, waits and polls of events."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._past: dict[StreamKey, _Counts] = {}  # what is over once all is that a stream was given so far
        self._events: dict[int, tuple[StreamKey, _Counts]] = {}  # by id: a new event at an old address has no record
        self._over: _Counts = {}

    def recorded(self, event: object, stream: Any) -> None:
        """An event was recorded on a stream, or on the current one."""
        key = self._key(stream)
        with self._lock:
            past = self._past.setdefault(key, {})
            past[key] = past.get(key, 0) + 1
            self._events[id(event)] = key, dict(past)

    def waits(self, event: object, stream: Any) -> None:
        """A stream, or the current one, was told to wait for an event."""
        key = self._key(stream)
        with self._lock:
            known = self._events.get(id(event))
            if known is not None:
                _raise(self._past.setdefault(key, {}), known[1])

    def stream_waits(self, stream: Any, other: Any) -> None:
        """A stream was told to wait for another."""
        key, awaited = self._key(stream), self._key(other)
        with self._lock:
            _raise(self._past.setdefault(key, {}), self._past.get(awaited, {}))

    def passed(self, event: object) -> None:
        """The host knows that an event has passed."""
        with self._lock:
            known = self._events.get(id(event))
            if known is not None:
                _raise(self._over, known[1])

    def stream_passed(self, stream: Any = None) -> None:
        """The host knows that a stream, or the current one, has done all that it was given."""
        key = self._key(stream)
        with self._lock:
            _raise(self._over, self._past.get(key, {}))

    def all_passed(self) -> None:
        """The host knows that the device has done all that it was given."""
        with self._lock:
            for past in self._past.values():
                _raise(self._over, past)

    def is_over(self, event: object) -> bool:
        """Whether the host knows that an event has passed."""
        with self._lock:
            known = self._events.get(id(event))
            return known is not None and self._over.get(known[0], 0) >= known[1][known[0]]

    def _key(self, stream: Any) -> StreamKey:
        return self._streams.current_stream() if stream is None else self._streams.key_of(stream)


def _raise(counts: _Counts, to: _Counts) -> None:
    for key, count in to.items():
        if count > counts.get(key, 0):
            counts[key] = count
