"""Where results are written: tried before a run, written whole or not at all after it.

Writing is atomic: a reader sees the old file or the new one, never half of one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from .problem import InputError


def check_destinations(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Make sure, before a long run, that each of its results can be written after it, and takes nobody's place.

    Args:
        outputs: by the option that names them; None where it was not given.
        inputs: files that the command reads; a result that replaced one of them would destroy it.

    Raises:
        InputError: one cannot be written, is one of ``inputs``, or is named twice.
    """
    named = [(option, path) for option, path in outputs.items() if path is not None]
    for option, path in named:
        check_destination(path, option)
    read = "the command reads it, and would lose it"
    taken = {_final(path): read for path in inputs if path is not None and _exists(path)}
    for option, path in named:
        final = _final(path)
        if final in taken:
            raise _bad_destination(path, taken[final], option)
        taken[final] = f"{option} writes to it, too, and one of both would be lost"


def check_destination(path: Path, option: str = "--json") -> None:
    """Make sure, before a long run, that a report can be written to ``path`` after it.

    Tries it, since permission bits do not tell (a read-only file system, a quota, root); leaves nothing behind.

    Args:
        path: of the report.
        option: by which the path was given, for the error.

    Raises:
        InputError: the folder is missing or not writable, or ``path`` is something other than a file.
    """
    try:
        final = _final(path)
        if final.is_symlink() or (final.exists() and not final.is_file()):  # a resolved link is one to itself
            raise _bad_destination(path, "it exists and is not a regular file", option)
        if not final.parent.is_dir():
            raise _bad_destination(path, f"the folder {final.parent} does not exist", option)
        probe = _temporary(final)
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise _bad_destination(path, getattr(error, "strerror", None) or str(error), option) from error


def write_whole(path: Path, text: str, option: str = "--json") -> None:
    """Write a file, whole or not at all; half of a surrogate pair, as names in a trace may have it, is escaped.

    Args:
        path: of the file; a link stays one.
        text: its content.
        option: by which the path was given, for the error.

    Raises:
        InputError: the file system refuses; an existing file is unchanged.
    """
    try:
        final = _final(path)
        temporary = _temporary(final)
        try:
            with temporary.open("x", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _bad_destination(path, f"{error.strerror}", option) from error


def _exists(path: Path) -> bool:
    """Whether there is such a file; what cannot be asked for cannot be lost."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _final(path: Path) -> Path:
    """The file itself: replacing a symbolic link would cut it off from what it points to."""
    return Path(os.path.realpath(path))


def _temporary(final: Path) -> Path:
    """A name in the same folder (``os.replace`` is atomic only within a file system), free for this process."""
    return final.with_name(f".{final.name[:32]}.{uuid.uuid4().hex}.tmp")


def _bad_destination(path: Path, detail: str, option: str) -> InputError:
    return InputError(
        f"{option} {path}",
        f"the report must be writable: {detail}",
        "a result that cannot be kept is better refused before the run than after it",
        "the name of a file, new or to be replaced, in an existing folder that you may write to",
    )
