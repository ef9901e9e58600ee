"""Turns what goes wrong inside third-party readers into errors that name a file, a rule, a reason and a remedy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from ..errors import CheckpointError


@contextmanager
def located(place: str) -> Iterator[None]:
    """Put ``place`` in front of the subject of a ``CheckpointError`` raised inside.

    The checks below a file know a key or a tensor; only the caller knows which file they came from.
    """
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error.subject}", error.rule, error.reason, error.remedy) from error.__cause__


@contextmanager
def parsing(subject: str) -> Iterator[None]:
    """Report any failure inside as a damaged file.

    Only for calls into a parser that is fed bytes from a file. Such a parser raises whatever its author met
    (IndexError, struct.error, OverflowError, RecursionError, an error type of its own), so nothing narrower than
    ``Exception`` would hold for the next version of the library.

    Raises:
        CheckpointError: something failed inside.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            subject,
            f"the file cannot be read ({type(error).__name__}: {str(error)[:200]})",
            "a damaged or truncated file would give a model with wrong weights",
            "copy or download the file again, and check that it is what its name says",
        ) from error


def optional_module(name: str, needed_for: str) -> ModuleType:
    """Import a package of the extra ``model`` at the moment it is needed.

    Raises:
        CheckpointError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckpointError(
            f"package {name!r}",
            f"it must be installed for {needed_for}",
            "the toolkit itself runs without it, so it is not among the required packages",
            "pip install 'mrv2[model]'",
        ) from error
