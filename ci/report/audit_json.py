"""An audit as findings, metrics and coverage of a JSON report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mrv2.checks.codes import explain
from mrv2.checks.findings import JSON, Finding, RunVerdict, Verdict
from mrv2.stats.audit import AuditReport
from mrv2.stats.decision import JudgedTest
from mrv2.stats.diagnosis import Cause
from mrv2.stats.report import could_have_missed

# What kind of fault the tests of a layer find.
_CODES = {
    "contract": "MRV403",
    "noise": "MRV401",
    "replay": "MRV402",
    "filters": "MRV403",
    "distribution": "MRV401",
    "speculative": "MRV401",
    "logprobs": "MRV404",
    "evidence": "MRV401",
}
_EXAMPLES = 5


def findings_of(report: AuditReport) -> tuple[Finding, ...]:
    """One finding for each layer that failed, a suspect for each that looks odd."""
    found = []
    for verdict, kind in ((RunVerdict.FAIL, Verdict.VIOLATION), (RunVerdict.SUSPICIOUS, Verdict.SUSPECT)):
        tests = [test for test in report.audit.decision.tests if test.verdict is verdict]
        found += [
            _finding(report, layer, [test for test in tests if test.layer == layer], kind)
            for layer in dict.fromkeys(test.layer for test in tests)
        ]
    return tuple(found)


def _finding(report: AuditReport, layer: str, tests: Sequence[JudgedTest], kind: Verdict) -> Finding:
    code = _CODES[layer]
    causes: list[JSON] = [_cause(cause) for cause in report.causes]
    likely = f": {report.causes[0].kind}" if report.causes else ""
    evidence: dict[str, JSON] = {
        "tests": len(tests),
        "false_fail_rate": report.settings.alpha,
        "likely_cause": report.causes[0].detail if report.causes else None,
        "causes": causes,
        "failed": {test.first.name: metrics_of_test(test) for test in tests[:_EXAMPLES]},
    }
    return Finding(
        code=code,
        verdict=kind,
        soundness=explain(code).soundness,
        title=f"{report.target} fails the audit of {layer}{likely}",
        evidence=evidence,
        remedy=report.causes[0].remedy if report.causes else "see the tests that failed",
    )


def _cause(cause: Cause) -> dict[str, JSON]:
    return {"kind": cause.kind, "detail": cause.detail, "remedy": cause.remedy}


def metrics_of(report: AuditReport) -> dict[str, JSON]:
    """Settings and every test."""
    settings = report.settings
    return {
        "profile": settings.profile.name,
        "seed": settings.seed,
        "alpha": settings.alpha,
        "vocab_size": settings.vocab_size,
        "draws": report.draws,
        "seconds": round(report.seconds, 2),
        "tests": {f"{test.layer}: {test.first.name}": metrics_of_test(test) for test in report.audit.decision.tests},
        "causes": [_cause(cause) for cause in report.causes],
        "suspects": [f"{test.layer}: {test.first.name}" for test in report.audit.decision.suspects],
    }


def metrics_of_test(test: JudgedTest) -> dict[str, JSON]:
    """One test; infinite numbers are None."""
    first = test.first
    numbers: dict[str, JSON] = {
        "verdict": test.verdict.value,
        "exact": first.exact,
        "draws": first.result.draws,
        "needed": first.needed,
        "must_see": first.must_see,
        "could_see": first.could_see if math.isfinite(first.could_see) else None,
        "unit": first.unit,
        "cut": first.cut,
        "statistic": first.result.statistic if math.isfinite(first.result.statistic) else None,
        "p_value": test.p_value,
        "evidence": dict(first.evidence),
    }
    if test.repeat is not None:
        numbers["repeat"] = {"draws": test.repeat.result.draws, "p_value": test.repeat.result.p_value}
    return numbers


def coverage_of(report: AuditReport) -> dict[str, JSON]:
    """What was asked, and what could have been missed."""
    layers: dict[str, JSON] = {
        result.layer: list(result.coverage) if not result.not_run else f"not run: {result.not_run}"
        for result in report.audit.results
    }
    details: list[JSON] = [text for result in report.audit.results for text in result.could_have_missed]
    missed: list[JSON] = [*could_have_missed(report)]
    return {"layers": layers, "could_have_missed": missed, "details": details}
