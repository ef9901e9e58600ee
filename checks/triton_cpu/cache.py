"""Built variants of kernels on disk, for all processes of one user.

An entry is a JSON file that names a shared object by the digest of its content, and has a digest of its own. Both are
written beside their place and renamed into it, the JSON file last, so that another process sees all of an entry or
nothing. What is loaded is what was digested; an entry that is damaged, or only half there, counts as absent and is
written anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckError
from ..findings import JSON

#: Bytes that the files may take together; an entry takes some 40,000.
LIMIT = 512 << 20
#: What an eviction leaves, so that not every new entry evicts another.
_LEAVE = 0.9


class UnsafeCache(CheckError):
    """The folder could be filled by somebody else, whose code would be run."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(
            subject=f"cache folder {folder}",
            rule=f"it must belong to the user and be writable by no one else, but it {what}",
            reason="the machine code in it is loaded and run",
            remedy="set MRV2_CACHE_DIR to a folder of your own, or take the others' rights away (chmod 700)",
        )


class NothingKept(UserWarning):
    """The folder takes no files, so each process builds its kernels anew."""


@dataclass(frozen=True)
class Entry:
    """A built variant: its shared object and what is known about it."""

    library: Path
    facts: Mapping[str, Any]


def folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where built variants are kept; None if the user has no home."""
    given = os.environ if environment is None else environment
    if given.get("MRV2_CACHE_DIR"):
        return Path(given["MRV2_CACHE_DIR"]) / "triton_cpu"
    base = given.get("XDG_CACHE_HOME") or (f"{given['HOME']}/.cache" if given.get("HOME") else "")
    return Path(base) / "mrv2" / "triton_cpu" if base else None


class Cache:
    """One folder of entries.

    Args:
        folder: created if it does not exist, for its owner alone.
        limit: bytes that it may take; the entries that were not used for longest go first.

    Raises:
        UnsafeCache: another user may have written to the folder.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.stat()
        except OSError as error:  # nothing is found in it, nothing is added
            _notice(folder, error.strerror or str(error))
            return
        if facts.st_uid != os.geteuid():
            raise UnsafeCache(folder, "belongs to another user")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeCache(folder, "is writable by others")
        for parent in folder.resolve().parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise UnsafeCache(folder, f"lies in {parent}, in which anybody may put another folder in its place")

    def find(self, key: str) -> Entry | None:
        """The entry of a key, if it is there and whole; it counts as used now."""
        place = self._place(key)
        try:
            found = json.loads(place.read_bytes())
            digest, facts = found["digest"], found["facts"]
            library = self._library(digest)
            if found["seal"] != _seal(key, digest, facts) or _digest(library.read_bytes()) != digest:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._use(place, library)
        return Entry(library, facts)

    def add(self, key: str, library: Path, facts: Mapping[str, JSON]) -> Entry | None:
        """Keep a shared object; None if the folder takes no files."""
        content = library.read_bytes()
        digest = _digest(content)
        try:
            self._write(self._library(digest), content)
            found = {"digest": digest, "facts": facts, "seal": _seal(key, digest, facts)}
            self._write(self._place(key), json.dumps(found).encode())
            self._evict()
        except OSError as error:
            _notice(self.folder, error.strerror or str(error))
            return None
        return Entry(self._library(digest), facts)

    def _place(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _library(self, digest: str) -> Path:
        return self.folder / f"{digest}.so"

    def _write(self, place: Path, content: bytes) -> None:
        """Write a file whole or not at all, whoever else does the same."""
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, place)  # noqa: PTH105 - name is a string
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

    def _use(self, *files: Path) -> None:
        for file in files:
            try:
                os.utime(file)
            except OSError:
                return

    def _files(self) -> Iterator[tuple[os.stat_result, Path]]:
        """What is in the folder; other processes rename and remove files all the time."""
        for file in map(Path, os.scandir(self.folder)):
            with contextlib.suppress(FileNotFoundError):
                yield file.stat(), file

    def _evict(self) -> None:
        """Remove the files that were not used for longest, until the rest fits."""
        files = list(self._files())
        total = sum(facts.st_size for facts, _ in files)
        if total <= self.limit:
            return
        for facts, file in sorted(files, key=lambda pair: (pair[0].st_mtime_ns, pair[1].name)):
            if total <= self.limit * _LEAVE:
                return
            file.unlink(missing_ok=True)
            total -= facts.st_size


@functools.cache
def _notice(folder: Path, reason: str) -> None:
    """Say once that a folder takes no files."""
    said = f"each process builds its kernels anew, for cache folder {folder} takes no files ({reason})"
    warnings.warn(f"{said}; set MRV2_CACHE_DIR to a folder of your own that does", NothingKept, stacklevel=2)


def _seal(key: str, digest: str, facts: Mapping[str, JSON]) -> str:
    """A digest of an entry's JSON: damaged facts would be read as the facts of another kernel."""
    return _digest(json.dumps([key, digest, facts]).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
