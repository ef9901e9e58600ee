"""The one error of this package: a bad argument, told in four parts."""

from __future__ import annotations


class ArgumentError(ValueError):
    """A function of ``mrv2.stats`` was called with an argument it cannot use.

    The four parts are kept apart, so the ``mrv2`` command shows the error without a traceback.

    Args:
        subject: the argument and its value, e.g. ``"false_fail_rate=0"``.
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


def require_rate(name: str, value: float) -> None:
    """Check that an error rate lies strictly between 0 and 1.

    Raises:
        ArgumentError: it does not.
    """
    if not 0.0 < value < 1.0:
        raise ArgumentError(
            f"{name}={value!r}",
            "an error rate lies strictly between 0 and 1",
            "no finite number of draws gives certainty",
            f"{name}=1e-6, say",
        )
