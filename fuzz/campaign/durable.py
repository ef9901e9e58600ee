"""Files that survive: written whole or not at all, and on the disk before anybody counts them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mrv2.checks.findings import JSON


def write_durably(path: Path, content: Mapping[str, JSON]) -> None:
    """Write JSON so that after a crash at any moment the file holds all of its old or all of its new content.

    Raises:
        OSError: the file system refuses; the old content is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path, start: int = 0) -> tuple[list[JSON], int]:
    """The values of a file of JSON lines from a byte on, and the byte behind the last whole line.

    A last line that was cut off by a crash is none yet; a whole line that is no JSON is None.
    """
    found: list[JSON] = []
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                found.append(None)
            start += len(line)
    return found, start
