"""Where the outcomes of two runs of one program part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs import Run

_MISSING = "(nothing)"


def first_difference(one: Run, two: Run) -> tuple[str, object, object]:
    """Path and both values of the first leaf that differs; of the errors, if the program raised."""
    if one.error != two.error:
        return "error", one.error or _MISSING, two.error or _MISSING
    left, right = dict(_leaves(one.data, "result")), dict(_leaves(two.data, "result"))
    paths = (path for path in (*left, *right) if repr(left.get(path, _MISSING)) != repr(right.get(path, _MISSING)))
    path = next(paths, "result")
    return path, left.get(path, _MISSING), right.get(path, _MISSING)


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """The values inside of what a program returned, each with the expression that gives it; of nothing, itself."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
