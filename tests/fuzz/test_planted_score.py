"""The score of planted faults: one is found, made small and told from the runner without it; harmless ones are not."""

import json

import pytest

from mrv2.checks.errors import CheckError
from mrv2.fuzz.mutants import PLANTED, Mutation, score

FAULT = next(mutation for mutation in PLANTED["positions"] if mutation.name == "logits_of_first_lane")
HARMLESS = Mutation("harmless", "config.py", "max_num_reqs: int = 16", "max_num_reqs: int = 10", "no case relies on it")
OPTIONS = score.Options


@pytest.fixture(autouse=True)
def _small_cases(monkeypatch):
    monkeypatch.setattr(score, "Options", lambda target, **given: OPTIONS(target, schedule="cpu", rules=6, **given))


def test_a_fault_is_found_and_its_test_tells_it_from_the_runner():
    entry = score.score(FAULT, 30)
    assert entry["found"] and entry["fails_with"] and entry["passes_without"]
    assert entry["events"] <= 2 and entry["deviations"] == 0
    assert entry["cpu_seconds_to_find"] >= 0 and 0 < entry["cases_to_find"] <= 30


def test_nothing_is_found_in_a_runner_without_a_fault():
    assert score.score(HARMLESS, 3)["found"] is False


def entry(found=True, **values):
    known = {"cpu_seconds_to_find": 3.0, "events": 2, "deviations": 1, "fails_with": True, "passes_without": True}
    return {"found": found, **known, **values}


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_score_goes_on_where_it_was(tmp_path, monkeypatch, workers):
    out, ran = tmp_path / "score.json", []

    def run(name, cases):
        ran.append(name)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return entry(found=len(ran) != 2)

    monkeypatch.setattr(score, "_in_a_process", run)
    with pytest.raises(KeyboardInterrupt):
        score.main(["--out", str(out)])
    content = json.loads(out.read_text())
    assert content["summary"]["tried"] == 2 and content["summary"]["found"] == 1
    assert content["summary"]["median_events"] == 2
    with pytest.raises(CheckError, match="of one commit"):
        score.main(["--out", str(out), "--commit", "another"])
    assert score.main(["--out", str(out), "--workers", workers]) == 1, "one was not found"
    assert len(ran) == 31 and ran[2] in ran[3:6]
    names = list(json.loads(out.read_text())["faults"])
    assert names == [mutation.name for part in PLANTED.values() for mutation in part]


def test_neither_a_slow_fault_nor_a_process_that_fails_keeps_the_others_from_the_file(tmp_path, monkeypatch):
    out, names = tmp_path / "score.json", [mutation.name for part in PLANTED.values() for mutation in part][:4]
    slow, failing, *others = names

    def run(name, cases):
        if name == slow:
            while not out.exists() or set(json.loads(out.read_text())["faults"]) != set(others):
                pass
        return None if name == failing else entry()

    monkeypatch.setattr(score, "_in_a_process", run)
    only = [option for name in names for option in ("--only", name)]
    assert score.main(["--out", str(out), "--workers", "4", "--commit", "abc", *only]) == 1
    content = json.loads(out.read_text())
    assert list(content["faults"]) == [slow, *others] and content["commit"] == "abc"


def test_a_process_that_fails_has_no_score(monkeypatch):
    monkeypatch.setattr(score.sys, "executable", "/bin/false")
    assert score._in_a_process("none", 1) is None
