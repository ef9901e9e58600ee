"""Findings and verdicts: what every detector returns.

A detector returns data, never prose; ``mrv2.ci.report`` renders it. The shape follows Elle's idea that a
verdict carries its own explanation (Kingsbury and Alvaro, 2020, "Elle: inferring isolation anomalies").
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

JSON: TypeAlias = None | bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"]


class Verdict(enum.Enum):
    """How sure a finding is."""

    VIOLATION = "violation"
    SUSPECT = "suspect"


class Soundness(enum.Enum):
    """What a detector promises for its code.

    ``SOUND``: every finding is a real violation. ``MAY``: it can be a false alarm (the access was only
    possible). ``BEST_EFFORT``: it can miss violations that happened in the run.
    """

    SOUND = "sound"
    MAY = "may"
    BEST_EFFORT = "best effort"


class RunVerdict(enum.Enum):
    """The answer of a whole run or stage, worst last but for ``INCONCLUSIVE``: nothing that did not run may pass."""

    PASS = "pass"
    SUSPICIOUS = "suspicious"
    INCONCLUSIVE = "inconclusive"
    FAIL = "fail"


@dataclass(frozen=True)
class Site:
    """A place in source code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Finding:
    """One broken rule.

    Attributes:
        code: ``"MRV201"``; 1xx sync, 2xx race, 3xx state or differential, 4xx statistics, 5xx graphs,
            6xx memory, 7xx startup. Every code is explained by ``mrv2.checks.codes``.
        verdict: VIOLATION, or SUSPECT for a may-access or weak evidence.
        soundness: what the detector promises.
        title: one line that names the object and the rule broken.
        where: stack of the offending access, innermost first.
        other: stack of the access it conflicts with.
        allocation: stack that allocated the object.
        evidence: measured values, JSON only.
        remedy: what to write instead.
        step: index of the runner step, if one is known.
        replay: replay file that reproduces it.
    """

    code: str
    verdict: Verdict
    soundness: Soundness
    title: str
    where: tuple[Site, ...] = ()
    other: tuple[Site, ...] = ()
    allocation: tuple[Site, ...] = ()
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    remedy: str = ""
    step: int | None = None
    replay: str | None = None

    def __str__(self) -> str:
        """All of it on a few lines, as the command and pytest show it."""
        from .report.text import finding_lines

        return "\n".join(finding_lines(self))

    def fingerprint(self) -> str:
        """Identity across runs: code, title and functions, without line numbers, steps or measured values."""
        places = [f"{site.file}:{site.function}" for site in (*self.where, *self.other)]
        return hashlib.sha256("\n".join([self.code, self.title, *places]).encode()).hexdigest()[:16]


_SEVERITY = (RunVerdict.PASS, RunVerdict.SUSPICIOUS, RunVerdict.INCONCLUSIVE, RunVerdict.FAIL)


def combine(verdicts: Iterable[RunVerdict]) -> RunVerdict:
    """Verdict of a whole from its parts: any FAIL fails, else any INCONCLUSIVE, else any SUSPICIOUS.

    No parts at all is INCONCLUSIVE, because nothing that did not run may pass.
    """
    found = list(verdicts)
    if not found:
        return RunVerdict.INCONCLUSIVE
    return max(found, key=_SEVERITY.index)


def verdict_of(findings: Iterable[Finding]) -> RunVerdict:
    """Verdict of a detector that ran to its end: FAIL on a violation, SUSPICIOUS on a suspect, else PASS."""
    kinds = {finding.verdict for finding in findings}
    if Verdict.VIOLATION in kinds:
        return RunVerdict.FAIL
    return RunVerdict.SUSPICIOUS if Verdict.SUSPECT in kinds else RunVerdict.PASS
