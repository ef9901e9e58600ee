"""Debug locations: chains of calls, innermost first."""

from __future__ import annotations

from collections.abc import Mapping

from ...findings import Site
from ..source_names import function_at
from .attributes import attribute_of
from .lexer import Cursor, Fault, Token

#: How deep locations may refer to each other; only a damaged text refers in circles.
_DEPTH = 200


class Locations:
    """What ``loc(…)`` means.

    Args:
        definitions: tokens of each alias, by its name, ``#loc12``; a definition may refer to later ones.
    """

    def __init__(self, definitions: Mapping[str, list[Token]]) -> None:
        self._definitions = definitions
        self._known: dict[str, tuple[Site, ...]] = {}

    def trailing(self, text: Cursor) -> tuple[Site, ...]:
        """Read the location that may come next."""
        return self.read(text) if text.at("loc") else ()

    def read(self, text: Cursor, depth: int = 0) -> tuple[Site, ...]:
        """Read ``loc(…)``."""
        text.expect("loc", "(")
        found = self._location(text, depth)
        text.expect(")")
        return found

    def _location(self, text: Cursor, depth: int) -> tuple[Site, ...]:
        if depth > _DEPTH:
            raise text.fault("as a location that refers to itself")
        if text.next.kind == "alias":
            return self._alias(text.take("alias"), depth + 1)
        if text.next.kind == "string":
            return self._file_or_name(text, depth + 1)
        if text.accept("callsite"):
            return self._call(text, depth + 1)
        if text.accept("fused"):
            return self._fused(text, depth + 1)
        text.expect("unknown")
        return ()

    def _alias(self, name: str, depth: int) -> tuple[Site, ...]:
        if name not in self._known:
            if name not in self._definitions:
                raise Fault(f"the location {name}, which is not defined")
            self._known[name] = self.read(Cursor(self._definitions[name]), depth)
        return self._known[name]

    def _file_or_name(self, text: Cursor, depth: int) -> tuple[Site, ...]:
        """A place in a file, or the name of a variable, with the place in parentheses."""
        name = text.string()
        if text.accept("("):
            place = self._location(text, depth)
            text.expect(")")
            return place
        if not text.accept(":"):
            return ()
        line = text.integer()
        text.expect(":")
        text.integer()
        if text.accept("to"):
            if text.next.kind == "integer":
                text.integer()
            text.expect(":")
            text.integer()
        return (Site(name, line, function_at(name, line)),)

    def _call(self, text: Cursor, depth: int) -> tuple[Site, ...]:
        text.expect("(")
        callee = self._location(text, depth)
        text.expect("at")
        caller = self._location(text, depth)
        text.expect(")")
        return callee + caller

    def _fused(self, text: Cursor, depth: int) -> tuple[Site, ...]:
        """Several places at which one operation came about; the first that is known stands for all."""
        if text.accept("<"):
            attribute_of(text)
            text.expect(">")
        places = text.list(lambda: self._location(text, depth), "[", "]")
        return next((place for place in places if place), ())
