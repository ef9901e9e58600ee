"""Names of values: those of the text are unique in a region, those of the representation in a function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ..ir import Type, Value
from .lexer import Fault


class Scope:
    """The values that can be seen at a place of the text."""

    def __init__(self) -> None:
        self._visible: list[dict[str, Value]] = [{}]
        self._taken: set[str] = set()

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """A region: sees what is around it, and what it defines is not seen outside."""
        self._visible.append({})
        try:
            yield
        finally:
            self._visible.pop()

    def define(self, printed: str, kind: Type) -> Value:
        """A new value.

        Raises:
            Fault: the name is taken where it would be seen.
        """
        if any(printed in names for names in self._visible):
            raise Fault(f"a second definition of {printed}")
        value = Value(self._unique(printed[1:]), kind)
        self._visible[-1][printed] = value
        return value

    def results(self, printed: Sequence[tuple[str, int]], kinds: Sequence[Type]) -> tuple[Value, ...]:
        """The results of an operation: ``%a, %b:2`` names one, and one of two.

        Raises:
            Fault: more or fewer names than results.
        """
        names = [f"{name}#{k}" if count != 1 else name for name, count in printed for k in range(count)]
        if len(names) != len(kinds):
            raise Fault(f"{len(names)} names for {len(kinds)} results")
        return tuple(self.define(name, kind) for name, kind in zip(names, kinds, strict=True))

    def lookup(self, printed: str) -> Value:
        """The value of a name.

        Raises:
            Fault: there is none.
        """
        for names in reversed(self._visible):
            if printed in names:
                return names[printed]
        raise Fault(f"{printed}, which is not defined before it is used")

    def _unique(self, name: str) -> str:
        """The name, with a number if another region has used it; the printer puts no dot before a number alone."""
        unique, number = name, 0
        while unique in self._taken:
            number += 1
            unique = f"{name}.{number}"
        self._taken.add(unique)
        return unique
