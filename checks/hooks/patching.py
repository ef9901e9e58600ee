"""Attributes of other people's modules and classes, replaced for a while."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


class Patches:
    """Replacements that are undone together, last first.

    What was there is taken from the owner's own dictionary: an attribute that it only inherits is deleted again, and a
    property or static method comes back as one.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, dict[str, Any], list[str]]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module, class or instance."""
        self.update(owner, {name: value})

    def update(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Replace several attributes of one owner."""
        own = vars(owner)
        before = {name: own[name] for name in values if name in own}
        self._replaced.append((owner, before, [name for name in values if name not in before]))
        _write(owner, values)

    def undo(self) -> None:
        """Put everything back."""
        while self._replaced:
            owner, before, added = self._replaced.pop()
            for name in added:
                delattr(owner, name)
            _write(owner, before)


def _write(owner: Any, values: Mapping[str, Any]) -> None:
    if isinstance(owner, ModuleType):
        vars(owner).update(values)
    else:
        for name, value in values.items():
            setattr(owner, name, value)
