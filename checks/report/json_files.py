"""JSON files of users, read strictly."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from ..errors import CheckError

#: Of the formats that users write or read: reports and baselines.
VERSION = 1


def load_json(path: Path, role: str) -> Any:
    """Parse a JSON file strictly.

    Args:
        path: the file.
        role: what the file is, for the error, e.g. ``"--baseline"``.

    Raises:
        CheckError: not a file, not readable, not UTF-8, not JSON (NaN is not JSON), or with a key twice in one object.
    """
    try:
        _refuse_device(path)
        content = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_twins
        )
        json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair parses, but is no text
        return content
    except OSError as error:
        raise CheckError(
            f"{role} {path}",
            f"the file must be readable: {error.strerror}",
            "nothing can be compared or accepted without it",
            "the path of an existing file",
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckError(
            f"{role} {path}",
            f"the file must be JSON: {str(error)[:200] or 'nested too deeply'}",
            "a damaged file could accept or hide a finding",
            "a complete file, as it was written",
        ) from error


def is_version(value: object) -> bool:
    """Whether a parsed ``schema`` is the number of this version; ``true`` and ``1.0`` equal 1, but are not it."""
    return type(value) is int and value == VERSION


def _refuse_device(path: Path) -> None:
    """To read a pipe may hang, and a device may never end.

    Raises:
        OSError: the path names one of them, or nothing.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
