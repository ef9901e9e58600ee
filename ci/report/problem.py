"""Errors in four parts: the object, the rule it breaks, why the rule exists, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass

from mrv2.checks.errors import CheckError

PARTS = ("subject", "rule", "reason", "remedy")


@dataclass(frozen=True)
class FourParts:
    """What the command prints of an error, kept apart from the exception that carried it."""

    subject: str
    rule: str
    reason: str
    remedy: str


class InputError(CheckError):
    """The user's input cannot be used; nothing was changed. Exit code 2, no traceback."""


def four_parts(error: BaseException) -> FourParts | None:
    """The four parts of any exception that carries them as strings, whoever raised it; else ``None``.

    By shape and not by class, so that a third party's target can raise its own.
    """
    values = [getattr(error, part, None) for part in PARTS]
    if not all(isinstance(value, str) for value in values):
        return None
    return FourParts(*(str(value) for value in values))
