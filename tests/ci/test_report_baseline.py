import json
import os
from pathlib import Path

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import Finding, RunVerdict, Soundness, Verdict
from mrv2.checks.report.baseline import Baseline, read_baseline
from mrv2.checks.report.identity import identity
from mrv2.ci.report.outcome import ReportedFinding, RunOutcome, StageOutcome, judge
from mrv2.ci.stages.base import StageResult


def finding(title: str = "one", verdict: Verdict = Verdict.VIOLATION) -> Finding:
    return Finding("MRV302", verdict, Soundness.SOUND, title)


def entry(of: Finding, **changes: object) -> dict[str, object]:
    return {"fingerprint": identity(of), "code": of.code, "reason": "known", "owner": "me", **changes}


def write(path: Path, accepted: object, **changes: object) -> Path:
    path.write_text(json.dumps({"schema": 1, "accepted": accepted, **changes}))
    return path


def outcome(baseline: Baseline, *results: StageResult) -> RunOutcome:
    stages = (
        StageOutcome(f"s{index}", result, 0.0, judge(f"s{index}", result.findings, baseline.reasons))
        for index, result in enumerate(results)
    )
    return RunOutcome(tuple(stages))


def test_accepted_finding_does_not_fail_and_keeps_its_reason(tmp_path: Path) -> None:
    baseline = read_baseline(write(tmp_path / "b.json", [entry(finding())]))
    run = outcome(baseline, StageResult(RunVerdict.FAIL, "", (finding(),)))
    assert run.verdict is RunVerdict.PASS
    assert run.findings == (ReportedFinding(finding(), "s0", "known"),)


def test_other_finding_still_fails(tmp_path: Path) -> None:
    baseline = read_baseline(write(tmp_path / "b.json", [entry(finding())]))
    run = outcome(baseline, StageResult(RunVerdict.FAIL, "", (finding(), finding("two"))))
    assert run.verdict is RunVerdict.FAIL
    assert [shown.accepted for shown in run.findings] == ["known", None]


def test_fingerprint_of_another_code_accepts_nothing(tmp_path: Path) -> None:
    baseline = read_baseline(write(tmp_path / "b.json", [entry(finding(), code="MRV303")]))
    assert outcome(baseline, StageResult(RunVerdict.FAIL, "", (finding(),))).verdict is RunVerdict.FAIL
    assert baseline.unmatched((finding(),)) == (identity(finding()),)


def test_entry_that_matched_nothing_is_named(tmp_path: Path) -> None:
    baseline = read_baseline(write(tmp_path / "b.json", [entry(finding()), entry(finding("gone"))]))
    assert baseline.unmatched((finding(),)) == (identity(finding("gone")),)


@pytest.mark.parametrize(
    ("claimed", "findings", "expected"),
    [
        (RunVerdict.INCONCLUSIVE, (), RunVerdict.INCONCLUSIVE),
        (RunVerdict.FAIL, (), RunVerdict.FAIL),
        (RunVerdict.INCONCLUSIVE, (finding(),), RunVerdict.INCONCLUSIVE),
        (RunVerdict.FAIL, (finding(verdict=Verdict.SUSPECT),), RunVerdict.FAIL),
        (RunVerdict.SUSPICIOUS, (finding(verdict=Verdict.SUSPECT),), RunVerdict.PASS),
    ],
)
def test_baseline_improves_only_what_the_findings_explain(
    claimed: RunVerdict, findings: tuple[Finding, ...], expected: RunVerdict, tmp_path: Path
) -> None:
    baseline = read_baseline(write(tmp_path / "b.json", [entry(finding())]))
    assert outcome(baseline, StageResult(claimed, "", findings)).verdict is expected


@pytest.mark.parametrize(
    ("claimed", "findings", "expected"),
    [
        (RunVerdict.PASS, (), RunVerdict.PASS),
        (RunVerdict.PASS, (finding(),), RunVerdict.FAIL),
        (RunVerdict.PASS, (finding(verdict=Verdict.SUSPECT),), RunVerdict.SUSPICIOUS),
        (RunVerdict.INCONCLUSIVE, (finding(),), RunVerdict.FAIL),
        (RunVerdict.INCONCLUSIVE, (finding(verdict=Verdict.SUSPECT),), RunVerdict.INCONCLUSIVE),
    ],
)
def test_a_stage_cannot_claim_more_than_its_findings_allow(
    claimed: RunVerdict, findings: tuple[Finding, ...], expected: RunVerdict
) -> None:
    assert outcome(Baseline(), StageResult(claimed, "", findings)).verdict is expected


def test_run_combines_its_stages() -> None:
    passed, dry = StageResult(RunVerdict.PASS, ""), StageResult(RunVerdict.INCONCLUSIVE, "no samples")
    suspicious = StageResult(RunVerdict.SUSPICIOUS, "", (finding(verdict=Verdict.SUSPECT),))
    failed = StageResult(RunVerdict.FAIL, "", (finding(),))
    assert outcome(Baseline()).verdict is RunVerdict.INCONCLUSIVE
    assert outcome(Baseline(), passed, passed).verdict is RunVerdict.PASS
    assert outcome(Baseline(), passed, suspicious).verdict is RunVerdict.SUSPICIOUS
    assert outcome(Baseline(), suspicious, dry).verdict is RunVerdict.INCONCLUSIVE
    assert outcome(Baseline(), dry, failed, passed).verdict is RunVerdict.FAIL


def test_stopped_run_is_inconclusive() -> None:
    assert RunOutcome((), unfinished=("s0",)).verdict is RunVerdict.INCONCLUSIVE


BAD_ENTRIES: list[object] = [
    [entry(finding(), reason="")],
    [entry(finding(), reason="  ")],
    [{key: value for key, value in entry(finding()).items() if key != "reason"}],
    [entry(finding(), owner=None)],
    [entry(finding(), code=302)],
    [entry(finding(), code="MRV999")],
    [entry(finding(), code="mrv302")],
    [entry(finding(), fingerprint="*")],
    [entry(finding(), fingerprint="0123456789ABCDEF")],
    [entry(finding(), until="2027")],
    ["0123456789abcdef"],
    [entry(finding()), entry(finding())],
    {"0123456789abcdef": "known"},
    None,
]


@pytest.mark.parametrize("accepted", BAD_ENTRIES)
def test_malformed_entries_are_four_part_errors(accepted: object, tmp_path: Path) -> None:
    with pytest.raises(CheckError) as caught:
        read_baseline(write(tmp_path / "b.json", accepted))
    assert "--baseline" in caught.value.subject
    assert caught.value.rule and caught.value.reason and caught.value.remedy


MALFORMED = [
    "",
    "[]",
    '{"schema": 2, "accepted": []}',
    '{"schema": true, "accepted": []}',
    '{"schema": 1.0, "accepted": []}',
    '{"schema": 1, "accepted": [], "accepted": []}',
    '{"accepted": []}',
    "NaN",
]


@pytest.mark.parametrize("content", MALFORMED)
def test_malformed_files_are_four_part_errors(content: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(CheckError):
        read_baseline(path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="No such file"):
        read_baseline(tmp_path / "absent.json")


def test_a_pipe_and_a_device_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(CheckError, match="a pipe, a socket or a device"):
            read_baseline(path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "null"])
def test_a_name_that_no_file_has_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckError) as caught:
        read_baseline(tmp_path / name)
    assert caught.value.rule and caught.value.reason and caught.value.remedy
