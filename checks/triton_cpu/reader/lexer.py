"""Printed TTIR as tokens, and a cursor over them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

_Item = TypeVar("_Item")

# The order matters: extents such as ``64x`` before numbers, hexadecimal before decimal. Numbers are bounded, so that
# a damaged text cannot ask for a number that takes forever to compute.
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+ | //[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<value>%[A-Za-z0-9_$.\-]+(?:\#[0-9]+)?)
    | (?P<symbol>@(?:[A-Za-z_][\w.$]*|"(?:[^"\\\n]|\\.)*"))
    | (?P<label>\^[A-Za-z0-9_$.]+)
    | (?P<alias>\#[A-Za-z_][\w.]*)
    | (?P<sigil>![A-Za-z_][\w.]*)
    | (?P<extents>(?:[0-9]{1,18}x)+(?=[a-z!]))
    | (?P<bits>0x[0-9A-F]{1,32})
    | (?P<float>-?[0-9]{1,60}\.[0-9]{0,60}(?:[eE][-+]?[0-9]{1,4})?)
    | (?P<integer>-?[0-9]{1,60})
    | (?P<word>[A-Za-z_][A-Za-z0-9_$]*(?:\.[A-Za-z0-9_$]+)*)
    | (?P<sign>->|[()\[\]{}<>,:=*|])
    | (?P<unknown>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")


class Fault(Exception):
    """Text that the reader does not understand; becomes ``Unsupported`` where the place in the kernel is known."""


class Token(NamedTuple):
    """A piece of the text: what it is, itself, and its line, counted from 1."""

    kind: str
    text: str
    line: int


def tokens_of(text: str, first_line: int = 1) -> list[Token]:
    """All tokens, without white space and comments.

    Raises:
        Fault: a character that begins no token.
    """
    found, line = [], first_line
    for match in _TOKEN.finditer(text):
        kind, piece = match.lastgroup or "", match.group()
        if kind == "space":
            line += piece.count("\n")
        elif kind == "unknown":
            raise Fault(f"the character {piece!r} in line {line} of the TTIR")
        else:
            found.append(Token(kind, piece, line))
    return found


def unquoted(literal: str) -> str:
    """The content of a string literal, whose escapes are hexadecimal bytes or the character itself."""

    def plain(match: re.Match[str]) -> str:
        escaped = match.group(1)
        return bytes.fromhex(escaped).decode("latin-1") if len(escaped) == 2 else _NAMED.get(escaped, escaped)

    content = literal[1:-1]
    if "\\" not in content:
        return content
    # Bytes of an UTF-8 sequence are escaped one by one.
    return _ESCAPE.sub(plain, content.encode().decode("latin-1")).encode("latin-1").decode(errors="replace")


#: More results than any operation has.
_MANY = 10_000

_NAMED = {"n": "\n", "t": "\t"}
_END = Token("end", "the end of the text", 0)


class Cursor:
    """A place among tokens that moves on as they are read."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = [*tokens, _END]
        self.position = 0

    @property
    def next(self) -> Token:
        """The token to be read next; one of the kind ``end`` after the last."""
        return self.tokens[self.position]

    def at(self, text: str) -> bool:
        """Whether the next token is this one."""
        token = self.tokens[self.position]
        return token.text == text and token.kind in ("sign", "word")

    def accept(self, text: str) -> bool:
        """Move over this token if it comes next."""
        found = self.at(text)
        self.position += found
        return found

    def expect(self, *texts: str) -> None:
        """Move over tokens that must come next.

        Raises:
            Fault: something else comes.
        """
        for text in texts:
            if not self.accept(text):
                raise self.fault(f"where {text!r} is due")

    def take(self, *kinds: str) -> str:
        """Move over a token of one of some kinds; returns its text.

        Raises:
            Fault: it is of another kind.
        """
        token = self.next
        if token.kind not in kinds:
            raise self.fault(f"where a {' or '.join(kinds)} is due")
        self.position += 1
        return token.text

    def integer(self) -> int:
        """Move over a decimal number."""
        return int(self.take("integer"))

    def count(self) -> int:
        """Move over a number of things, which is not negative and not large."""
        number = self.integer()
        if not 0 <= number <= _MANY:
            self.position -= 1
            raise self.fault("as a number of things")
        return number

    def string(self) -> str:
        """Move over a string literal; returns its content."""
        return unquoted(self.take("string"))

    def list(self, item: Callable[[], _Item], start: str = "", end: str = "") -> list[_Item]:
        """Items with commas between them; within brackets there may be none."""
        if start:
            self.expect(start)
        found: list[_Item] = []
        if end and self.accept(end):
            return found
        found.append(item())
        while self.accept(","):
            found.append(item())
        if end:
            self.expect(end)
        return found

    def fault(self, why: str = "") -> Fault:
        """The error that says what comes next, and where."""
        token = self.next
        what = token.text if token.kind == "end" else repr(token.text)
        place = f"in line {token.line} of the TTIR" if token.line else ""
        return Fault(" ".join(part for part in (what, why, place) if part))
