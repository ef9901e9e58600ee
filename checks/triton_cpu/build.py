"""Shared objects: from the memory of the process, else from the disk, else built."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..findings import JSON
from .cache import Cache, Entry, folder
from .compiler import Compiler, find_compiler
from .errors import CompileError

#: Writes the C file, and what else is to be remembered about it.
Writer: TypeAlias = Callable[[], tuple[str, Mapping[str, JSON]]]


def shared_object(name: str, key: str | None, write: Writer) -> tuple[ctypes.CDLL, Mapping[str, Any]]:
    """Load a shared object, after building it if it was never built before.

    Args:
        name: whose it is, for errors.
        key: tells it from all others built by this version of this package; None if it cannot be told, then it is
            built for this process alone.
        write: called only if it must be built.

    Returns:
        The loaded object and the facts.

    Raises:
        Unsupported: there is no compiler, or it failed; or ``write`` raised it.
        UnsafeCache: the cache could be written by others.
    """
    compiler, cache = find_compiler(), _cache(folder())
    place = None if key is None else _digest(key, _own_sources(), compiler.identity())
    if place is not None and cache is not None:
        entry = cache.find(place)
        found = None if entry is None else _loaded_if_there(entry)
        if found is not None and entry is not None:
            return found, entry.facts
    return _built(name, place, write, compiler, cache)


def _built(
    name: str, place: str | None, write: Writer, compiler: Compiler, cache: Cache | None
) -> tuple[ctypes.CDLL, Mapping[str, Any]]:
    text, facts = write()
    with tempfile.TemporaryDirectory(prefix="mrv2-") as scratch:
        library = Path(scratch) / "kernel.so"
        compiler.build(text, name, library)
        entry = cache.add(place, library, facts) if place is not None and cache is not None else None
        kept = None if entry is None else _loaded_if_there(entry)
        return kept or _loaded(name, library), facts


def _loaded_if_there(entry: Entry) -> ctypes.CDLL | None:
    """None if it cannot be loaded: another process evicted it meanwhile, or nothing may be run in the folder."""
    try:
        return ctypes.CDLL(str(entry.library))
    except OSError:
        return None


def _loaded(name: str, library: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:  # a file system that runs nothing, for one
        raise CompileError(name, f"the shared object could not be loaded: {error}") from error


@functools.lru_cache(maxsize=8)
def _cache(place: Path | None) -> Cache | None:
    return None if place is None else Cache(place)


@functools.cache
def _own_sources() -> str:
    """A digest of this room: what an older version of it built may mean something else."""
    top = Path(__file__).parent
    names = sorted(os.path.relpath(file, top) for pattern in ("**/*.py", "runtime/*") for file in top.glob(pattern))
    return _digest(*(f"{name}:{hashlib.sha256((top / name).read_bytes()).hexdigest()}" for name in names))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
