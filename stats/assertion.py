"""The audit as one line of a test: ``assert_sampler_correct(sampler)``."""

from __future__ import annotations

from collections.abc import Sequence

from mrv2.checks.findings import RunVerdict

from .audit import VOCAB_SIZE, AuditReport, audit, require_answers, settings
from .report import screen


class SamplerIncorrectError(AssertionError):
    """A sampler failed its audit, or could not be called right.

    Attributes:
        report: all that was found.
    """

    def __init__(self, report: AuditReport) -> None:
        super().__init__("\n" + "\n".join(screen(report)))
        self.report = report


def assert_sampler_correct(
    target: object,
    *,
    profile: str = "pr",
    seconds: float | None = None,
    seed: int = 0,
    alpha: float = 1e-4,
    vocab_size: int = VOCAB_SIZE,
    layers: Sequence[str] = (),
    allow_inconclusive: bool = False,
) -> AuditReport:
    """Fail unless the audit of a sampler passes; the same audit, with the same guarantees, as ``mrv2 audit``.

    A test that could have missed what it must see is INCONCLUSIVE, and that fails too: a sampler that was not tested is
    not known to be correct. With a fixed seed the draws of a keyed sampler, and so the verdict, are the same each time.

    Args:
        target: implements the protocols of :mod:`mrv2.stats.targets` that it can; ``sample`` and ``name`` at least.
        profile: how closely to look: ``"pr"``, ``"nightly"`` or ``"overnight"``.
        seconds: after which the audit ends; what was cut is INCONCLUSIVE. If None, rows are chosen for the profile's
            time, and it ends after three times that.
        seed: root of every random choice.
        alpha: chance that a correct sampler fails.
        vocab_size: tokens in the widest rows.
        layers: names of the layers to run; all if empty.
        allow_inconclusive: let a run pass that could have missed something, e.g. for a slow sampler.

    Returns:
        the report, for further looks.

    Raises:
        SamplerIncorrectError: the verdict is FAIL, or INCONCLUSIVE where that is not allowed; it says the first screen.
        ArgumentError: an argument is out of its range, or the target is no sampler.
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and what the error says
    require_answers(target)
    report = audit(target, settings(profile, seconds, seed, alpha, vocab_size, layers))
    good = {RunVerdict.PASS, RunVerdict.SUSPICIOUS}
    if allow_inconclusive:
        good.add(RunVerdict.INCONCLUSIVE)
    if report.verdict not in good:
        raise SamplerIncorrectError(report)
    return report
