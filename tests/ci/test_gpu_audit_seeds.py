"""Many seeds of an audit: what is kept of each, what is taken from an earlier run, and the exit code."""

import json

import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.ci.gpu import audit_seeds
from mrv2.stats.audit import audit, settings
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED


@pytest.fixture
def verdicts(monkeypatch):
    """Answers of audits by seed, instead of audits; PASS where nothing is set. Also the seeds that were asked for."""
    answers, asked = {}, []

    def audited(target, profile, seed):
        asked.append(seed)
        return {
            **audit_seeds._sought(target, profile, CleanSampler()),
            "seed": seed,
            "verdict": answers.get(seed, RunVerdict.PASS).value,
            "processor_seconds": 1.0,
        }

    monkeypatch.setattr(audit_seeds, "audited", audited)
    answers["asked"] = asked
    return answers


def seeds(file, *more):
    return audit_seeds.main([str(file), "--target", "clean", "--seeds", "3", *more])


def test_a_run_that_was_cut_off_is_continued(tmp_path, verdicts, capsys):
    file = tmp_path / "seeds.jsonl"
    assert seeds(file) == 0
    with file.open("a") as lines:
        lines.write('{"target": "cle')
    assert seeds(file, "--first", "2") == 0
    seeds(file, "--first", "2")
    assert verdicts["asked"] == [1, 2, 3, 4]
    assert "3 seeds: {'pass': 3}; at most 63% of audits fail" in capsys.readouterr().out


def test_lines_of_another_sampler_are_not_taken(tmp_path, verdicts):
    file = tmp_path / "seeds.jsonl"
    seeds(file)
    file.write_text(file.read_text().replace('"pr"', '"nightly"'))
    seeds(file)
    assert verdicts["asked"] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("verdict", "code"), [(RunVerdict.FAIL, 1), (RunVerdict.INCONCLUSIVE, 3), (RunVerdict.SUSPICIOUS, 0)]
)
def test_one_seed_decides_the_exit_code(tmp_path, verdicts, verdict, code):
    verdicts[2] = verdict
    assert seeds(tmp_path / "seeds.jsonl") == code


def test_a_line_says_what_failed_and_what_did_not_run():
    padding = next(planted for planted in PLANTED if "padding" in planted.name)
    told = audit_seeds._told(audit(padding.make(), settings(layers=("contract", "replay"))))
    assert told["failed"] and told["tests"] >= len(told["failed"])
    assert json.loads(json.dumps(told)) == told
