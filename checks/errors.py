"""Errors of a user or a frontend, in four parts that the command renders."""

from __future__ import annotations


class CheckError(Exception):
    """Something given to the checks cannot be used.

    Args:
        subject: the object concerned, e.g. ``"trace run.jsonl, line 12"``.
        rule: the rule it breaks.
        reason: why the rule exists.
        remedy: what to do instead.
    """

    def __init__(self, subject: str, rule: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {rule}. Why: {reason}. Instead: {remedy}.")
        self.subject = subject
        self.rule = rule
        self.reason = reason
        self.remedy = remedy
