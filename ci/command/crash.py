"""Whose fault an exception is: the target's, or ours.

A stage runs our code, which calls the target, which calls libraries. The target is to blame for an exception if its
code runs below our innermost frame; if only libraries run below it, we called them wrongly. A target without Python
frames (a C extension) cannot be seen, and its exceptions count as ours.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from mrv2.checks.codes import CODES
from mrv2.checks.findings import JSON, Finding, Site, Verdict
from mrv2.ci.report.problem import FourParts, four_parts

if TYPE_CHECKING:
    from mrv2.fuzz.targets.protocols import RunnerTarget

_OURS = ("mrv2.checks", "mrv2.ci", "mrv2.fuzz", "mrv2.stats", "mrv2.refrunner.oracle")
# Faults planted on purpose stand in for a target's own.
_PLANTED = ("mrv2.fuzz.mutants", "mrv2.fuzz.museum")
_LIBRARIES = frozenset(
    {"gguf", "hypothesis", "numpy", "safetensors", "scipy", "tokenizers", "torch", "transformers", "triton"}
)


def target_frames(error: BaseException) -> tuple[Site, ...]:
    """The target's part of the stack, innermost first; empty if the exception is not the target's.

    Files are named after their modules, so that a fingerprint does not depend on where a package is installed.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [index for index, (frame, _) in enumerate(frames) if _is_ours(_module(frame))]
    below = frames[ours[-1] + 1 :] if ours else frames
    sites = [_site(frame, line) for frame, line in below if not _is_library(_module(frame))]
    return tuple(reversed(sites))


def refused_by(error: BaseException, target: RunnerTarget) -> FourParts | None:
    """The four parts of a refusal at startup: an exception that carries them and left ``target.build``."""
    build = getattr(target.build, "__func__", target.build)
    code = getattr(build, "__code__", None)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return four_parts(error) if any(frame.f_code is code for frame in frames) else None


def crash_finding(error: BaseException, where: Sequence[Site]) -> Finding:
    """The finding for a target that raised."""
    info = CODES["MRV307"]
    name = type(error).__name__
    evidence: dict[str, JSON] = {"exception": name, "message": str(error)}
    return Finding(
        code=info.code,
        verdict=Verdict.VIOLATION,
        soundness=info.soundness,
        title=f"the runner crashed: {name} in {where[0].function}",
        where=tuple(where),
        evidence=evidence,
        remedy=info.remedy,
    )


def refusal_finding(parts: FourParts) -> Finding:
    """The finding for a target that would not start."""
    info = CODES["MRV701"]
    return Finding(
        code=info.code,
        verdict=Verdict.VIOLATION,
        soundness=info.soundness,
        title=f"refused at startup: {parts.subject}",
        evidence={"rule": parts.rule, "reason": parts.reason},
        remedy=parts.remedy,
    )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _is_ours(module: str) -> bool:
    return _within(module, _OURS) and not _within(module, _PLANTED)


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _LIBRARIES or (top in sys.stdlib_module_names and top != "__main__")


def _site(frame: FrameType, line: int) -> Site:
    file = _module(frame).removeprefix("mrv2.").replace(".", "/")  # our rooms lie at the top of our repository
    return Site(f"{file}.py", line, frame.f_code.co_qualname)
