"""Where results are written: tried before a run, written whole or not at all after it.

Writing is atomic: a reader sees the old file or the new one, never half of one.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from .problem import InputError

#: What commands read in a folder that is named to them, of programs and of models; an older report may lie beside it.
_READ_IN_FOLDERS = (
    "*.py", "pyproject.toml", "*.safetensors", "*.gguf", "*.index.json", "config.json", "generation_config.json",
    "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
_READ = "the command reads it, and would lose it"


def check_destinations(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Make sure, before a long run, that each of its results can be written after it, and takes nobody's place.

    Args:
        outputs: by the option that names them; None where it was not given.
        inputs: files and folders that the command reads; a result that replaced one of the files, or a source, or a
            file of a model in one of the folders, would destroy it.

    Raises:
        InputError: one cannot be written, is one of ``inputs``, or is named twice.
    """
    named = [(option, path) for option, path in outputs.items() if path is not None]
    for option, path in named:
        check_destination(path, option)
    read = [_final(path) for path in inputs if path is not None and _exists(path)]
    taken = dict.fromkeys(read, _READ)
    for option, path in named:
        final = _final(path)
        if any(_is_read_in(folder, final) for folder in read):
            raise _bad_destination(path, _READ, option)
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
        InputError: the folder is missing or not writable; ``path`` is something other than a file, or the one that
            standard output or error goes to.
    """
    try:
        final = _final(path)
        _check_kind(path, final, option)
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
        path: of the file; a link stays one, and who may read the file stays as it was.
        text: its content.
        option: by which the path was given, for the error.

    Raises:
        InputError: the file system refuses; an existing file is unchanged.
    """
    try:
        final = _final(path)
        _check_kind(path, final, option)
        mode = stat.S_IMODE(final.stat().st_mode) if final.exists() else None
        temporary = _temporary(final)
        try:
            with temporary.open("x", encoding="utf-8", errors="backslashreplace") as stream:
                if mode is not None:
                    os.fchmod(stream.fileno(), mode)
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _bad_destination(path, f"{error.strerror}", option) from error


def _check_kind(path: Path, final: Path, option: str) -> None:
    if final.is_symlink() or (path.exists() and not path.is_file()):  # a resolved link is one to itself
        raise _bad_destination(path, "it exists and is not a regular file", option)
    if any(_goes_to(output, final) for output in (1, 2)):
        raise _bad_destination(path, "what is printed goes to it, too, and one of both would be lost", option)


def _goes_to(descriptor: int, final: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), final.stat())
    except OSError:  # it is closed, or there is no such file yet
        return False


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder; what cannot be asked for cannot be lost."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_read_in(folder: Path, final: Path) -> bool:
    return final.is_relative_to(folder) and final.exists() and any(map(final.match, _READ_IN_FOLDERS))


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
