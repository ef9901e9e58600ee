"""What an entry of the registry says."""

from __future__ import annotations

from dataclasses import dataclass

from ..findings import Soundness


@dataclass(frozen=True)
class Example:
    """A fault and its repair, a few lines of code each."""

    before: str
    after: str


@dataclass(frozen=True)
class CodeInfo:
    """What is always true of one code.

    Attributes:
        code: e.g. ``"MRV302"``.
        title: one line, without the measured values.
        soundness: what the detectors of this code promise.
        rule: the rule that was broken.
        why: why the rule matters.
        remedy: what to do, in general.
        example: a fault that gives this code, and its repair.
        stage: the stage of ``mrv2 verify`` that reports it; for a code that every stage can report, ``"any"``.
    """

    code: str
    title: str
    soundness: Soundness
    rule: str
    why: str
    remedy: str
    example: Example
    stage: str
