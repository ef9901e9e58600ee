"""A file of JSON lines that a run adds to as it goes, so that one which is cut off can be continued."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects that the file holds, none if it is not there; a line that was cut off is left out."""
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def add_line(file: Path, told: Mapping[str, object]) -> None:
    """Add an object, on a line of its own even where the last one was cut off."""
    cut = file.exists() and not file.read_bytes().endswith(b"\n") and file.stat().st_size > 0
    with file.open("a") as lines:
        lines.write("\n" * cut + json.dumps(told) + "\n")
