"""``mrv2 fuzz`` and ``mrv2 replay`` of what it found."""

import json

import pytest
from typer.testing import CliRunner

from mrv2.ci.command.app import app
from mrv2.ci.command.fuzz import _options


def mrv2(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_fault_is_found_made_small_and_repeated(tmp_path):
    options = ["--cases", "20", "--db", tmp_path / "db", "--models", "tiny", "--schedule", "cpu"]
    ran = mrv2("fuzz", "mrv2.fuzz.mutants:position_off_by_one", *options, "--json", tmp_path / "report.json")
    assert ran.exit_code == 1, ran.output
    assert "FAIL: 1 finding" in ran.output and "def test_replay():" in ran.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "fail" and [item["code"] for item in report["findings"]] == ["MRV311"]
    (path,) = (tmp_path / "db" / "findings").glob("*.json")
    again = mrv2("replay", path, "--twice", "--json", tmp_path / "again.json")
    assert again.exit_code == 0 and "PASS: it goes wrong in the same way" in again.output
    mended = path.read_text().replace("mrv2.fuzz.mutants:position_off_by_one", "refrunner")
    path.write_text(mended)
    twin = mrv2("replay", path)
    assert twin.exit_code == 1 and "nothing is wrong" in twin.output


def test_the_reference_passes_and_the_campaign_adds_up(tmp_path):
    options = ["--cases", "2", "--db", tmp_path / "db", "--models", "tiny", "--json", tmp_path / "report.json"]
    for cases in (2, 4):
        ran = mrv2("fuzz", "refrunner", *options)
        assert ran.exit_code == 0, ran.output
        metrics = json.loads((tmp_path / "report.json").read_text())["metrics"]
        assert metrics["cases"] + metrics["refused"] >= cases


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--time", "fast"], "a time is a number above zero"),
        (["--features", "topk"], "a feature is one of"),
        (["--schedule", "sometimes"], "a schedule is one of"),
        (["no_such_module:target"], "must be importable"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path, arguments, words):
    ran = mrv2("fuzz", *arguments, "--db", tmp_path / "db")
    assert ran.exit_code == 2 and words in ran.output
    assert not (tmp_path / "db").exists()


def test_a_folder_that_cannot_be_is_refused_as_such(tmp_path):
    (tmp_path / "file").touch()
    ran = mrv2("fuzz", "--db", tmp_path / "file" / "db", "--models", "tiny", "--cases", "1")
    assert ran.exit_code == 2 and "a folder that can be written to" in " ".join(ran.output.split())


@pytest.mark.parametrize(("text", "names"), [("none", ()), (None, None), ("top_k, top_p", ("top_k", "top_p"))])
def test_features_are_a_list_which_may_have_none(text, names):
    assert _options("refrunner", 0, text, None, "tiny", 1).features == names
