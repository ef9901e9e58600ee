"""Errors of the reference runner: each says what object, which rule, why, and what to write instead."""

from __future__ import annotations

from reprlib import repr as short_repr


class RunnerError(Exception):
    """A rule was broken by the caller; nothing was changed before it was raised.

    The four parts are kept apart so that a command line, a report or a test can render or compare them.
    Any exception that carries these four attributes is shown without a traceback by the ``mrv2`` command.

    Args:
        subject: the object concerned, e.g. ``"SamplingParams.temperature=-1.0"``.
        rule: the rule it breaks.
        reason: why the rule exists.
        remedy: what to write instead.
    """

    def __init__(self, subject: str, rule: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {rule}. Why: {reason}. Instead: {remedy}.")
        self.subject = subject
        self.rule = rule
        self.reason = reason
        self.remedy = remedy


class ConfigurationError(RunnerError):
    """The runner cannot start with this configuration; raised before anything is allocated."""


class CheckpointError(RunnerError):
    """A model folder or weight file cannot be used."""


class RequestError(RunnerError):
    """A request is not acceptable; it was not added."""


class StepError(RunnerError):
    """A scheduler decision breaks the step contract; no state was changed."""


def shown(value: object) -> str:
    """A value as an error message shows it: short, and never an error of its own (Python shows no huge int)."""
    try:
        return short_repr(value)
    except Exception as error:  # noqa: BLE001 - the value is a caller's and may raise anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
