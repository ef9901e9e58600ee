"""Values of third parties as JSON: whatever they are, the report can be written, and what is written can be read."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

# Beyond these a value is shown as text: readers of JSON give up on deep nesting and on very long numbers.
DEEPEST = 64
LONGEST_INTEGER = 4096

NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def plain(value: object) -> Any:
    """A copy of ``value`` that JSON can hold; see the schema's description for NaN and infinities.

    A NumPy scalar becomes a number, a set a list, and what JSON cannot hold at all a text, since losing a whole
    report over one value would be worse.
    """
    return _plain(value, ())


def plain_object(value: object) -> dict[str, Any]:
    """The same where an object is wanted; anything else becomes its only member."""
    copy = plain(value)
    return copy if isinstance(copy, dict) else {"value": copy}


def as_text(value: object) -> str:
    """``value`` as text that UTF-8 can hold: half a surrogate pair is shown as an escape."""
    shown = value if isinstance(value, str) else _described(value, str)
    return shown.encode("utf-8", "backslashreplace").decode()


def _plain(value: object, outer: tuple[int, ...]) -> Any:
    """``outer`` holds the identities of the containers around the value."""
    try:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return as_text(value)
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return _plain_container(value, outer)
        if isinstance(value, numbers.Integral):
            number = int(value)
            return number if number.bit_length() <= LONGEST_INTEGER else hex(number)
        if isinstance(value, numbers.Real):
            return _plain_real(float(value))
    except Exception as error:  # noqa: BLE001 - a value of a third party may raise anything, whatever it is asked
        return _not_shown(value, error)
    return as_text(_described(value, repr))


def _plain_container(
    value: Mapping[Any, Any] | list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any], outer: tuple[int, ...]
) -> Any:
    if id(value) in outer:
        return "(contains itself)"
    if len(outer) == DEEPEST:
        return "(nested too deeply)"
    inside = (*outer, id(value))
    if isinstance(value, Mapping):
        return {as_text(key): _plain(item, inside) for key, item in value.items()}
    return [_plain(item, inside) for item in value]


def _plain_real(value: float) -> float | str:
    """JSON has no NaN and no infinities."""
    if math.isnan(value):
        return NOT_FINITE[0]
    return value if math.isfinite(value) else NOT_FINITE[1 if value > 0 else 2]


def _described(value: object, describe: Callable[[object], str]) -> str:
    """``describe(value)``, or the type of a value that cannot even be described."""
    try:
        return describe(value)
    except Exception as error:  # noqa: BLE001 - see above
        return _not_shown(value, error)


def _not_shown(value: object, error: Exception) -> str:
    return f"({type(value).__name__} that cannot be shown: {type(error).__name__})"
