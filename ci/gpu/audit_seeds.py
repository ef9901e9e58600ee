"""Audits one correct sampler with many seeds: ``python -m mrv2.ci.gpu.audit_seeds FILE``.

Each seed is a whole audit, as ``mrv2 audit TARGET --seed N`` does it; a FAIL is a false alarm. FILE gets one line of
JSON a seed, so that a run which is cut off goes on where it ended. Time is the processor's and not the clock's: which
rows an audit can afford must not depend on what else a machine does. Needs no GPU; half a minute of a core a seed.
Exit codes: 0 no FAIL and all seeds judged, 1 a FAIL, 3 a seed without a verdict.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mrv2.checks.findings import JSON, RunVerdict, combine
from mrv2.ci.command.auditing import resolve_sampler
from mrv2.ci.command.kernels import compiled_kernels
from mrv2.stats.audit import AuditReport, audit, settings
from mrv2.stats.calibration import clopper_pearson_upper
from mrv2.stats.targets import IdentifiedTarget

from .lines import add_line, read_lines

EXIT_CODES = {RunVerdict.PASS: 0, RunVerdict.SUSPICIOUS: 0, RunVerdict.FAIL: 1, RunVerdict.INCONCLUSIVE: 3}


def audited(target: str, profile: str, seed: int) -> dict[str, JSON]:
    """One audit as a line of the file: its verdict, its cost, and what did not pass."""
    sampler = resolve_sampler(target)
    with compiled_kernels() as found:
        report = audit(sampler, settings(profile, seed=seed), clock=time.process_time)
    verdict = combine([report.verdict, RunVerdict.FAIL]) if found else report.verdict
    told = {"seed": seed, "verdict": verdict.value, "kernels": [finding.title for finding in found]}
    return {**_sought(target, profile, sampler), **told, **_told(report)}


def _sought(target: str, profile: str, sampler: object) -> dict[str, JSON]:
    """What a line must say to be one of this run's."""
    identity: JSON = dict(asdict(sampler.identity())) if isinstance(sampler, IdentifiedTarget) else None
    return {"target": target, "profile": profile, "identity": identity}


def _told(report: AuditReport) -> dict[str, JSON]:
    tests = report.audit.decision.tests
    p_values = [test.first.result.p_value for test in tests if not test.first.exact]
    return {
        "draws": report.draws,
        "processor_seconds": round(report.seconds, 1),
        "tests": len(tests),
        "smallest_p": min(p_values, default=None),
        "failed": [test.first.name for test in report.audit.decision.failed],
        "not_run": {result.layer: result.not_run for result in report.audit.results if result.not_run},
        "short": [test.first.name for test in tests if test.first.short],
    }


def known(file: Path, target: str, profile: str) -> dict[int, RunVerdict]:
    """Verdicts that the file already has of this very sampler, by seed; a line that was cut off is not one."""
    sought = _sought(target, profile, resolve_sampler(target))
    found: dict[int, RunVerdict] = {}
    for told in read_lines(file):
        if all(told.get(name) == value for name, value in sought.items()):
            found[told["seed"]] = RunVerdict(told["verdict"])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mrv2.ci.gpu.audit_seeds", description=(__doc__ or "")[:65])
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="refrunner", help="as of mrv2 audit")
    parser.add_argument("--profile", default="pr")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    options = parser.parse_args(arguments)
    verdicts = known(options.file, options.target, options.profile)
    wanted = range(options.first, options.first + options.seeds)
    for seed in (seed for seed in wanted if seed not in verdicts):
        told = audited(options.target, options.profile, seed)
        add_line(options.file, told)
        verdicts[seed] = RunVerdict(str(told["verdict"]))
        print(f"seed {seed}: {told['verdict']}, {told['processor_seconds']} s of a processor", flush=True)
    found = [verdicts[seed] for seed in wanted]
    counts = {verdict.value: found.count(verdict) for verdict in RunVerdict if verdict in found}
    upper = clopper_pearson_upper(found.count(RunVerdict.FAIL), len(found), 0.95)
    print(f"{len(found)} seeds: {counts}; at most {upper:.0%} of audits fail (Clopper and Pearson, 95 %)")
    return EXIT_CODES[combine(found)]


if __name__ == "__main__":
    sys.exit(main())
