"""Traces: the events of a run as a file of JSON lines. The format is in this room's README.

Nothing in a trace is executed, and nothing in it depends on addresses or time: the same run gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import CheckError
from ..events import EventSink, Stack
from ..findings import Finding
from .finding_json import finding_to_json, site_from_json
from .recording import Recorder, Replayer
from .records import RECORDS, Numbers, Record, readers_of

VERSION = 1
_HEADER = {"trace": VERSION, "writer": "mrv2"}
_END = "end"
_STACK = "stack"


class TraceWriter(Recorder):
    """Writes the events of a run to a file; a context manager, which ends the trace.

    Args:
        path: the file; an existing one is replaced.

    Raises:
        CheckError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(self._write)
        self._events = 0
        self._stacks: dict[Stack, int] = {}
        try:
            self._file = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise CheckError(
                f"trace {path}",
                f"it must be writable ({error.strerror})",
                "a run without its trace cannot be judged later",
                "a file in a folder that exists and is yours",
            ) from None
        self._line(_HEADER)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """End the trace; one without its end counts as cut off."""
        if not self._file.closed:
            self._line({"event": _END, "events": self._events})
            self._file.close()

    def _write(self, record: Record) -> None:
        line: dict[str, Any] = {"event": record.event}
        for name, default in _FIELDS[record.event]:
            value = getattr(record, name)
            if value != default:
                line[name] = self._stack(value) if name == _STACK else value
        self._line(line)
        self._events += 1

    def _stack(self, stack: Stack) -> int:
        """The number of a stack, which is written before it is first used."""
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = len(self._stacks)
            self._line({"event": _STACK, _STACK: number, "frames": stack})
        return number

    def _line(self, content: Mapping[str, Any]) -> None:
        self._file.write(_ENCODER.encode(content) + "\n")


def _plain(value: object) -> object:
    """What JSON has no word for."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Finding):
        return finding_to_json(value)
    raise TypeError(f"a trace cannot hold {value!r}")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
_FIELDS = {name: [(field.name, field.default) for field in dataclasses.fields(kind)] for name, kind in RECORDS.items()}


def read_trace(path: Path) -> Iterator[Record]:
    """The events of a trace, checked one by one as they are read.

    Raises:
        CheckError: the file cannot be read, is of another format, is damaged, or was cut off.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from _Reader(path).records(enumerate(file, 1))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _unusable(f"trace {path}", f"it must be a readable text file ({reason})") from None


def replay_trace(path: Path, sink: EventSink) -> Counter[str]:
    """Tell a sink the events of a trace, and return how many there were of each kind.

    Raises:
        CheckError: see :func:`read_trace`; or the events contradict each other.
    """
    replayer = Replayer(sink)
    counts: Counter[str] = Counter()
    for record in read_trace(path):
        try:
            replayer.tell(record)
        except CheckError as error:
            subject = f"trace {path}, event {counts.total() + 1}: {error.subject}"
            raise CheckError(subject, error.rule, error.reason, error.remedy) from None
        counts[record.event] += 1
    return counts


class _Reader:
    """Turns lines into records, and counts what they number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = Numbers()

    def records(self, lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
        """All records, header and end taken off."""
        self._header(lines)
        events = 0
        for number, text in lines:
            try:
                content = _object(text)
                if content.get("event") == _END:
                    self._end(content, events, lines)
                    return
                if content.get("event") == _STACK:
                    self._stack(content)
                    continue
                record = self._record(content)
            except (ValueError, RecursionError) as error:
                raise _unusable(f"trace {self._path}, line {number}", f"{error}") from None
            yield record
            events += 1
        raise _unusable(f"trace {self._path}", f"it stops after {events} events, without its last line")

    def _header(self, lines: Iterator[tuple[int, str]]) -> None:
        first = next(lines, (1, ""))[1]
        try:
            header = _object(first)
        except (ValueError, RecursionError):
            header = {}
        if header.get("trace") != VERSION:
            raise _unusable(f"trace {self._path}", f'the first line must be a header with "trace": {VERSION}')

    def _end(self, content: Mapping[str, Any], events: int, lines: Iterator[tuple[int, str]]) -> None:
        if content.get("events") != events:
            raise ValueError(f"the end counts {content.get('events')!r} events, but there are {events}")
        if next(lines, None) is not None:
            raise ValueError("nothing may follow the end")

    def _stack(self, content: Mapping[str, Any]) -> None:
        self._numbers.new(_STACK, content.get(_STACK))
        frames = content.get("frames")
        if not isinstance(frames, list):
            raise ValueError(f"{frames!r} is not a list of frames")
        sites = (site_from_json(frame) for frame in frames)
        self._numbers.stacks.append(tuple((site.file, site.line, site.function) for site in sites))

    def _record(self, content: dict[str, Any]) -> Record:
        event = str(content.pop("event", None))
        if event not in RECORDS:
            raise ValueError(f"there is no event {event!r}")
        readers = _READERS[event]
        unknown, missing = content.keys() - readers.keys(), _REQUIRED[event] - content.keys()
        if unknown or missing:
            raise ValueError(f"{event} has unknown fields {sorted(unknown)} and lacks {sorted(missing)}")
        values = {name: read(self._numbers, content[name]) for name, read in readers.items() if name in content}
        return RECORDS[event](**values)


def _object(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("a line must be a JSON object")
    return content


_READERS = {name: readers_of(kind) for name, kind in RECORDS.items()}
_REQUIRED = {
    name: {field for field, default in fields if default is dataclasses.MISSING} for name, fields in _FIELDS.items()
}


def _unusable(subject: str, rule: str) -> CheckError:
    return CheckError(
        subject,
        rule,
        "what a damaged or incomplete trace lacks could be the race, or the order that excludes it",
        "record the run again, and end the writer so that the file is whole",
    )
