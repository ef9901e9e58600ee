"""Reads the events of a Chrome trace one by one: the file may be hundreds of megabytes, and none of it is kept."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any

from ..errors import CheckError

CHUNK = 1 << 20
#: No event and no other value of a trace is longer; what is, is no JSON at all.
LONGEST = 16 << 20
EVENTS = "traceEvents"
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
#: How much of a value that was cut off may be left over behind the place where it stops making sense: ``nul``, ``1e+``.
_SCRAP = 8


class EventStream:
    """The events of one file: an object with ``traceEvents``, or the bare array of them.

    Attributes:
        header: what else the object holds, small values only.
        cut: where the file ends too early, for people; None if it does not. Known once ``events`` has ended.
        count: events read so far.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self.cut: str | None = None
        self.count = 0
        self._path = path
        # Numbers with a fraction stay text: times of some profilers have more digits than a float.
        self._decode = JSONDecoder(strict=False, parse_float=str).raw_decode

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event; the file is read as they are asked for.

        Raises:
            CheckError: it cannot be read, is no trace, or is damaged in the middle.
        """
        self.cut, self.count = None, 0
        text = _Text(_chunks(self._path), self._path)
        try:
            yield from self._events(text)
            if text.peek(at_start=True).strip("\0"):
                self.cut = (
                    f"the file goes on behind the end of the trace, {text.consumed} characters from its beginning"
                )
        except _Ended:
            why = "the file ends early" if text.broken is None else text.broken
            self.cut = f"{why}, {text.consumed} characters and {self.count} events from its beginning"

    def _events(self, text: _Text) -> Iterator[dict[str, Any]]:
        first = text.peek(at_start=True)
        if first == "[":
            yield from self._array(text)
            return
        if not first and text.broken is not None:
            raise _Ended
        if first != "{":
            raise self._no_trace(f"begins with {first!r}" if first else "is empty")
        text.skip()
        found = False
        while text.peek() != "}":
            name = self._value(text)
            text.expect(":")
            if name == EVENTS and text.peek() == "[":
                found = True
                yield from self._array(text)
            else:
                value = self._value(text)
                if isinstance(name, str) and len(self.header) < 64:
                    self.header[name] = value
            if text.peek() == ",":
                text.skip()
        text.skip()
        if not found:
            raise self._no_trace(f'has no list "{EVENTS}"')

    def _array(self, text: _Text) -> Iterator[dict[str, Any]]:
        """The bare array may end without its bracket, as writers that were stopped leave it: that is a cut."""
        text.skip()
        while text.peek() != "]":
            event = self._value(text)
            self.count += 1
            if isinstance(event, dict):
                yield event
            if text.peek() == ",":
                text.skip()
        text.skip()

    def _value(self, text: _Text) -> Any:
        """The next value, whatever it is.

        Raises:
            CheckError: it is no JSON.
        """
        text.peek()
        while True:
            try:
                value, end = self._decode(text.buffer, text.position)
            except JSONDecodeError as error:
                if text.length <= LONGEST and text.more():
                    continue
                if text.length > LONGEST or _is_damage(text.buffer, error):
                    raise self._damaged(text, error.msg) from None
                raise _Ended from None
            except ValueError:
                raise self._damaged(text, "a number in it has thousands of digits") from None
            except RecursionError:
                raise self._no_trace("is nested too deeply") from None
            length = end - text.position
            if end < len(text.buffer) or not text.more():  # a number may go on in the next chunk
                text.position += length
                return value

    def _no_trace(self, what: str) -> CheckError:
        return CheckError(
            f"trace {self._path}",
            f'it {what}, and a trace is an object with "{EVENTS}", or an array of events',
            "what is no list of events has no times",
            "a file of torch.profiler's export_chrome_trace, .json or .json.gz, or an Nsight Systems export (.sqlite)",
        )

    def _damaged(self, text: _Text, what: str) -> CheckError:
        return CheckError(
            f"trace {self._path}, event {self.count + 1}, character {text.consumed}",
            f"it is no JSON: {what}",
            "events behind a damaged one cannot be told from its content",
            "the file as the profiler wrote it, of a program whose ranges have no quotation mark or backslash in their "
            "names: torch.profiler writes these as they are",
        )


def _is_damage(buffer: str, error: JSONDecodeError) -> bool:
    """Whether a value is wrong before the text ends, and not just cut off there."""
    return len(buffer) - error.pos > _SCRAP and not error.msg.startswith("Unterminated")


class _Ended(Exception):
    """The file ended in the middle."""


class _Text:
    """A window over the text of a file.

    Attributes:
        buffer: the window.
        position: where in it the next value begins.
        broken: why no more could be read although the file goes on, for people.
    """

    def __init__(self, chunks: Iterator[bytes], path: Path) -> None:
        self.buffer, self.position = "", 0
        self.broken: str | None = None
        self._before = 0
        self._chunks = chunks
        self._path = path
        self._over = False
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def consumed(self) -> int:
        """Characters before the next value."""
        return self._before + self.position

    @property
    def length(self) -> int:
        """Characters in the window from the next value on."""
        return len(self.buffer) - self.position

    def more(self) -> bool:
        """Read on, and forget what was consumed; False at the end."""
        if self._over:
            return False
        try:
            chunk = next(self._chunks, b"")
        except (EOFError, zlib.error) as error:
            chunk, self.broken = b"", f"the compressed data end early or are damaged ({error})"
        self._over = not chunk
        self._before += self.position
        self.buffer = self.buffer[self.position :] + self._characters.decode(chunk, final=self._over)
        self.position = 0
        return not self._over

    def peek(self, *, at_start: bool = False) -> str:
        """The next character that is not blank; at the start of a file there may be none."""
        while True:
            while self.position < len(self.buffer) and self.buffer[self.position] in " \t\r\n\ufeff":
                self.position += 1
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self.more():
                if at_start:
                    return ""
                raise _Ended

    def skip(self) -> None:
        """Pass the next character."""
        self.position += 1

    def expect(self, character: str) -> None:
        """Pass a character that has to be there.

        Raises:
            CheckError: another one is.
        """
        if self.peek() != character:
            raise CheckError(
                f"trace {self._path}, character {self.consumed}",
                f"{character!r} belongs here, and {self.peek()!r} is",
                "what is no JSON cannot be read further",
                "the file as the profiler wrote it",
            )
        self.skip()


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file in pieces, unpacked if they are packed, whatever its name.

    Raises:
        CheckError: it cannot be read.
        EOFError: packed data end early; all that could be unpacked was yielded.
        zlib.error: packed data are damaged; likewise.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            pieces = iter(lambda: file.read(CHUNK), b"")
            yield from _unpacked(pieces) if packed else pieces
    except OSError as error:
        raise CheckError(
            f"trace {path}",
            f"the file must be readable: {error.strerror}",
            "there is nothing to analyse without it",
            "the path of an existing file",
        ) from error


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    unpacker, begun = zlib.decompressobj(_GZIP_WINDOW), False
    for packed in pieces:
        rest = packed
        while rest:
            if unpacker.eof:  # a further member
                unpacker, begun = zlib.decompressobj(_GZIP_WINDOW), False
            begun = True
            if piece := unpacker.decompress(rest, CHUNK):
                yield piece
            rest = unpacker.unconsumed_tail or unpacker.unused_data
    if begun and not unpacker.eof:
        raise EOFError("no end mark")
