"""``mrv2 audit``: verdicts, exit codes, the first screen, errors."""

import itertools
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from mrv2.ci.command import auditing
from mrv2.ci.command.app import app
from mrv2.ci.report.audit_html import write_html
from mrv2.ci.report.json_report import read_report
from mrv2.ci.report.problem import InputError
from mrv2.stats.audit import LAYERS, AuditReport, settings
from mrv2.stats.audit import audit as run_whole_audit
from mrv2.stats.causes.draws import drawn_rows
from mrv2.stats.decision import run_audit
from mrv2.stats.distribution_layer import DistributionLayer, RowPlan
from mrv2.stats.distributions import ladder, zipf
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.lattice import LatticeSampler
from mrv2.stats.report import LINES, screen
from mrv2.stats.tail_profile import tail_profile

SMALL = ("--vocab", "3000")


def audit(*arguments):
    result = CliRunner().invoke(app, ["audit", *arguments])
    return result.exit_code, result.stdout.splitlines(), result.stderr


def test_a_correct_sampler_passes(tmp_path):
    code, lines, _ = audit("clean", "--layers", "contract,replay", *SMALL, "--json", str(tmp_path / "out.json"))
    assert code == 0
    assert lines[0] == "SAMPLER AUDIT of clean sampler: PASS"
    assert any("changes fewer than one draw in" in line for line in lines)
    assert any(
        "not tested: noise, filters, logprobs, speculative, distribution; left out by --layers" in x for x in lines
    )
    report = read_report(tmp_path / "out.json")
    assert report.findings == ()
    assert report.metrics["tests"]["replay: replay of narrow rows"]["draws"] == 6000
    assert report.coverage["could_have_missed"]


def test_a_fault_fails_and_is_named(tmp_path):
    arguments = ("planted:seed of row 0 broadcast", "--layers", "contract", *SMALL)
    code, lines, _ = audit(*arguments, "--json", str(tmp_path / "out.json"))
    assert code == 1
    assert "Likely cause: seed of another row" in lines[2]
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["verdict"] == "fail"
    assert report["findings"][0]["code"] == "MRV403"
    assert report["findings"][0]["evidence"]["causes"][0]["kind"] == "seed of another row"


def test_too_few_draws_are_inconclusive():
    code, lines, _ = audit("exponential-race", "--layers", "distribution", "--vocab", "60000", "--time", "0.1s")
    assert code == 3
    assert lines[0].endswith("INCONCLUSIVE")
    assert "Do not take this for a pass" in lines[1]
    assert any("too few drawn" in line for line in lines)


@pytest.mark.parametrize("name", ["planted:padding columns sampled", "torch-multinomial"])
def test_the_first_screen_is_short(name):
    _, lines, _ = audit(name, "--vocab", "500", "--layers", "contract,logprobs")
    assert 8 < len(lines) <= 24
    assert max(map(len, lines)) <= 112


@pytest.mark.parametrize("width", [60, 80])
def test_the_first_screen_fits_a_narrow_terminal_and_nothing_is_cut_off(width):
    ticks = itertools.count()
    chosen = settings(vocab_size=600, layers=("noise", "replay", "filters", "logprobs"), seconds=5.0)
    report = run_whole_audit(CleanSampler(), chosen, clock=lambda: next(ticks) * 0.1)
    wide, narrow = screen(report), screen(report, width)
    assert max(map(len, narrow)) <= width
    assert width < 80 or len(narrow) <= LINES
    told = " ".join(" ".join(narrow).split())
    assert " ".join(wide[0].split()) in told
    assert "time was over (5 s) before all of it was asked" in told
    assert "Next: give it more time (--time 10m, in a test seconds=600)" in told


@pytest.mark.parametrize(
    "arguments",
    [("nobody",), ("planted:nothing",), ("--layers", "foo"), ("--time", "3x"), ("--profile", "long"), ("--alpha", "2")],
)
def test_bad_input_is_told_in_four_parts(arguments):
    code, lines, errors = audit(*arguments)
    assert code == 2
    assert lines == []
    assert "instead" in errors


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_named_by_its_option(option, tmp_path):
    code, _, errors = audit("clean", option, str(tmp_path / "missing" / "out"))
    assert code == 2
    assert errors.startswith(f"error: {option} ")


def test_names_are_listed():
    code, lines, _ = audit("--list")
    assert code == 0
    text = "\n".join(lines)
    names = re.findall(r"^  '?((?:planted:)?[\w-]+[^'\n]*?)(?:'| {2})", text, re.MULTILINE)
    assert {*auditing.NAMED, *LAYERS} == set(names)
    assert all(len(line.split("  ")[-1]) > 10 for line in lines)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("refruner", "did you mean 'refrunner'"),
        ("planted:24 bit", "'planted:24-bit noise'"),
        ("engine.audited.Sampler", "did you mean engine.audited:Sampler?"),
        ("xyzzy", "for example, my_engine.audited:Sampler"),
    ],
)
def test_a_name_that_is_missing_is_told_with_those_near_it(name, meant):
    code, _, errors = audit(name)
    assert code == 2
    assert meant in errors
    assert [line.split()[0] for line in errors.splitlines()] == ["error:", "rule", "why", "instead"]


class TestTargets:
    def test_a_function_a_class_and_an_instance_are_samplers(self):
        here = "tests.ci.audited_samplers"
        for name in ("largest", "Sampler", "sampler", "provider"):
            target = auditing.resolve_sampler(f"{here}:{name}")
            drawn = target.sample(np.eye(3, dtype=np.float32), np.zeros(3, np.float32), *CleanKeys)
            assert drawn.tolist() == [0, 1, 2]

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("WithArguments", "missing 1 required positional argument"),
            ("WithoutDevice", "no device here"),
            ("three_arguments", "called with four arguments"),
            ("ThreeArguments", "called with four arguments"),
        ],
    )
    def test_one_that_cannot_be_made_or_called_is_refused(self, name, told):
        with pytest.raises(InputError, match=told):
            auditing.resolve_sampler(f"tests.ci.audited_samplers:{name}")

    def test_anything_else_is_refused(self):
        with pytest.raises(InputError, match="a sampler has a name"):
            auditing.resolve_sampler("tests.ci.audited_samplers:NUMBER")


CleanKeys = np.arange(3, dtype=np.uint64), np.arange(3)


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("90", 90), ("1.5m", 90), ("8h", 28800)])
def test_times_are_read(text, seconds):
    assert auditing.seconds_of(text) == seconds


def test_the_self_test_says_what_was_not_caught(monkeypatch):
    blind = [planted for planted in auditing.PLANTED if planted.layer == "contract"][1:]
    monkeypatch.setattr(auditing, "PLANTED", (*blind, auditing.Planted(CleanSampler, "contract", "none at all")))
    code, lines, _ = audit("--self-test", "--layers", "contract", *SMALL)
    assert code == 1
    assert lines[-1].startswith("FAIL: 2 of 3 planted faults caught, 2 named rightly")


def test_a_page_holds_plots_and_escapes_names(tmp_path):
    """Of a report made from counts, so that nothing has to be drawn for long."""
    rows = (*ladder(3000)[:3], zipf(3000))
    layer = DistributionLayer([RowPlan(row, 20_000) for row in rows], 0)
    plan = AuditPlan(3000, 1)
    found = run_audit([layer], LatticeSampler("<24 bits>", 24, False), plan, Silent())
    draws = drawn_rows(found.results, ())
    report = AuditReport("<24 bits>", settings(), found, found.decision.verdict, (), tail_profile(draws), 80_000, 1.0)
    write_html(tmp_path / "out.html", report)
    text = (tmp_path / "out.html").read_text()
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 4
    assert all(len(ElementTree.fromstring(drawing)) > 5 for drawing in drawings)
    assert "<script" not in text
    told = re.findall(r"<(?:li|p)>(.*?)</(?:li|p)>", text, re.DOTALL)
    assert len(told) == len(set(told)) > 5
    assert not any(one != other and one in other for one in told for other in told)
    assert "&lt;24 bits&gt;" in text
    assert "<24 bits>" not in text


def test_a_sampler_of_a_gpu_is_not_wrong_where_there_is_none(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, lines, errors = audit("refrunner-cuda", "--layers", "contract", *SMALL)
    assert code == 2
    assert not any("wrong" in line for line in lines)
    assert "sees none" in errors
