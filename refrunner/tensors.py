"""Finds the tensors that an object of this package holds: for checks and tests, off the hot path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor


def tensors_of(owner: object, *, without: tuple[type, ...] = ()) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that an object reaches through attributes, lists, tuples and mappings, each object once.

    Views that a function remembers (``lru_cache``) are passed over: what they are views of is found itself.

    Args:
        owner: an object of this package; other libraries' objects are not looked into.
        without: types whose objects are passed over.

    Yields:
        where it is, as ``"BlockTables._table.gpu"``, and the tensor.
    """
    yield from _walk(type(owner).__name__, owner, without, set())


def _walk(path: str, value: object, without: tuple[type, ...], seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    if id(value) in seen or isinstance(value, without):
        return
    seen.add(id(value))
    for name, part in _parts(value):
        yield from _walk(f"{path}{name}", part, without, seen)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif type(value).__module__.startswith(f"{__package__}."):
        yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())
