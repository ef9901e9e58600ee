"""The evidence ledger: counts of many nights in one file of JSON lines, which no crash can spoil.

Each line is one portion of draws. A line is written at once, behind an exclusive lock, and carries a checksum. A
process killed in the middle leaves a line without an end; it is ignored, and the next one starts on a line of its own.
Counts are added only for the same key: another kernel, GPU or version starts new evidence and keeps the old.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .errors import ArgumentError

_SCHEMA = 1


@dataclass(frozen=True)
class EvidenceKey:
    """What evidence is about; if any part changes, it starts anew.

    Attributes:
        test: name of the test, with its row of logits.
        kernel: hash of the sampler's sources.
        gpu: name of the device.
        triton: version of the compiler.
        dtype: of the logits.
        vocab_size: V.
    """

    test: str
    kernel: str
    gpu: str
    triton: str
    dtype: str
    vocab_size: int


@dataclass(frozen=True)
class Portion:
    """One entry.

    Attributes:
        key: what it is about.
        name: of the portion, e.g. the seed of its draws. A portion that is there twice counts once.
        counts: draws per cell.
    """

    key: EvidenceKey
    name: str
    counts: tuple[int, ...]


class EvidenceLedger:
    """Evidence in a file.

    Args:
        path: of the file; it and its folder are made with the first portion.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def require_usable(self) -> None:
        """Refuse a file that evidence cannot be read from and added to, before anything is drawn for it.

        Raises:
            ArgumentError: it cannot be opened or made.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+"):
                pass
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ArgumentError:
        return ArgumentError(
            f"ledger {self.path}",
            f"evidence is added to a file; {error.strerror or error}",
            "what is not kept adds up to nothing",
            "a file, new or with the evidence of earlier nights, in a folder that you may write to",
        )

    def append(self, key: EvidenceKey, portion: str, counts: NDArray[np.int64]) -> None:
        """Write a portion, durable when this returns; other processes may do the same.

        Args:
            key: what it is about.
            portion: name that no other draws of this key have.
            counts: int64 [K].

        Raises:
            ArgumentError: a count is negative, or the file cannot be written.
        """
        if not np.all(np.asarray(counts) >= 0):
            raise ArgumentError("counts", "0 or above", "draws cannot be taken back", "counts of this portion alone")
        line = _line({"schema": _SCHEMA, "key": asdict(key), "portion": portion, "counts": np.asarray(counts).tolist()})
        try:
            self._write(line)
        except OSError as error:
            raise self._unusable(error) from error

    def _write(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def portions(self) -> Iterator[Portion]:
        """All entries that are whole, in the order of the file."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                portion = _portion(line)
                if portion is not None:
                    yield portion

    def total(self, key: EvidenceKey, cells: int) -> NDArray[np.int64]:
        """Counts of all portions of a key, int64 [cells].

        Raises:
            ArgumentError: a portion has another number of cells.
        """
        total, seen = np.zeros(cells, np.int64), set()
        for portion in self.portions():
            if portion.key != key or portion.name in seen:
                continue
            if len(portion.counts) != cells:
                raise ArgumentError(
                    f"portion {portion.name!r} of {key.test!r} with {len(portion.counts)} cells",
                    f"evidence of this key has {cells} cells",
                    "counts of different cells cannot be added",
                    "another name for the test, since its cells have changed",
                )
            seen.add(portion.name)
            total += np.asarray(portion.counts, np.int64)
        return total

    def damaged(self) -> int:
        """Number of lines that are not whole, which a kill or a full disk leaves behind."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            return sum(_portion(line) is None for line in file if line.strip())


def _line(content: Mapping[str, JSON]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({"crc": zlib.crc32(text.encode()), "entry": content}, separators=(",", ":")).encode() + b"\n"


def _portion(line: bytes) -> Portion | None:
    """The entry of a line, or None if it is not whole or not one of ours."""
    try:
        outer = json.loads(line)
        content = outer["entry"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        if outer["crc"] != zlib.crc32(text.encode()) or content["schema"] != _SCHEMA:
            return None
        return Portion(EvidenceKey(**content["key"]), content["portion"], tuple(content["counts"]))
    except (ValueError, KeyError, TypeError):
        return None
