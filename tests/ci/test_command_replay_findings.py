"""mrv2 replay of findings of mrv2 fuzz: tokens, a race, a relation, a death; byte for byte, and what is not is told."""

import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.ci.command.app import app
from mrv2.ci.command.fuzz import size_of
from mrv2.ci.command.targets import importable, resolve_target
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase, read_found_case
from mrv2.fuzz.campaign.observed import observe
from mrv2.fuzz.case import run_case
from mrv2.fuzz.script import Arrive, Script
from mrv2.refrunner.api import SamplingParams

SETTINGS = {
    "max_num_reqs": 2, "max_num_batched_tokens": 8, "max_model_len": 48, "block_size": 8, "num_kv_blocks": 15,
    "attention": "triton",
}  # fmt: skip
PLAIN = Script((Arrive((1, 2, 3), SamplingParams(max_tokens=3)),), SETTINGS)
DRAWN = (Arrive((3,) * 9, SamplingParams(temperature=0.8, seed=5, max_tokens=6)),)
SEEDS = tuple(Arrive((3, 4), SamplingParams(temperature=1.5, seed=seed, max_tokens=6)) for seed in (5, 6))
LATE = Schedule("late", 0, (Decision(3, None),))
#: Draws are biased where the device is behind: it does not say what its drafts are drawn from, so that only a relation
#: sees it.
MODULE = """
import os
from dataclasses import replace

import torch

from mrv2.fuzz.targets.reference import ReferenceTarget


class Hasty(ReferenceTarget):
    def draft_model(self, settings):
        return None

    def build(self, config):
        torch.zeros(1, device="cuda").add_(1)
        event = torch.cuda.Event()
        event.record()
        behind = not event.query()
        runner = super().build(config)
        execute = runner.execute

        def biased(request):
            return replace(request, sampling=replace(request.sampling, logit_bias=((5, 4.0),) if behind else ()))

        runner.execute = lambda step: execute(replace(step, new=tuple(map(biased, step.new))))
        return runner


class Dying(ReferenceTarget):
    def build(self, config):
        os._exit(3)
"""
CASES = {
    "tokens": ("mrv2.fuzz.mutants:stale_seed", replace(PLAIN, events=SEEDS, settings={**SETTINGS, "max_num_reqs": 1})),
    "race": ("mrv2.fuzz.mutants:download_does_not_wait", replace(PLAIN, schedule=LATE)),
    "relation": (
        "replayed_targets:Hasty",
        Script(
            DRAWN, {**SETTINGS, "speculation": "eagle", "verification": "token"}, 2, LATE, relation="an idle device"
        ),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "replayed_targets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("replayed_targets", None)


def mrv2(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def written(folder, name):
    """A finding, as a campaign writes it."""
    reference, script = CASES[name]
    with importable(folder):
        target = resolve_target(reference)
        observed, outcome = observe(lambda note: run_case(target, script, note))
    first = outcome.failures[0]
    case = FoundCase(
        reference, first.signature, first.text, script, script, first.distance, first.signature, True, observed=observed
    )
    FindingStore(folder / "findings").add(case)
    path = folder / "findings" / case.file_name
    assert read_found_case(path) == case
    return path, case


@pytest.mark.parametrize("name", CASES)
def test_a_finding_is_repeated_byte_for_byte(tmp_path, name):
    path, case = written(tmp_path, name)
    assert {"tokens": "token", "race": "MRV204", "relation": "relation 'an idle device'"}[name] in case.text
    ran = mrv2("replay", path, "--twice", "--json", tmp_path / "report.json")
    assert ran.exit_code == 0 and "PASS: it goes wrong in the same way, byte for byte" in ran.output, ran.output
    events = case.observed.events
    assert (events > 100) == (name != "tokens") and f"the same  timeline of {events} events" in ran.output
    repeated = json.loads((tmp_path / "report.json").read_text())["metrics"]["repeated"]
    assert len(repeated) == 4 and all(repeated.values())


def test_what_is_another_now_is_told_and_versions_that_differ(tmp_path):
    path, case = written(tmp_path, "tokens")
    tokens = {name: (*ids[:-1], 255) for name, ids in case.observed.tokens.items()}
    other = replace(case, observed=replace(case.observed, tokens=tokens), environment={"torch": "1.0"})
    path.write_text(json.dumps(other.as_json()))
    ran = mrv2("replay", path)
    assert ran.exit_code == 0 and "PASS: it goes wrong in the same way\n" in ran.output
    assert "another   tokens" in ran.output and "the same  findings" in ran.output
    assert "found with torch 1.0, repeated with" in ran.output


def test_a_case_that_ends_its_process_is_repeated_in_another_one(tmp_path):
    case = FoundCase("replayed_targets:Dying", "crash exit 3", "died", PLAIN, PLAIN, 3, "crash exit 3", True)
    FindingStore(tmp_path / "findings").add(case)
    ran = mrv2("replay", tmp_path / "findings" / case.file_name)
    assert ran.exit_code == 0 and "now       the process died: crash exit 3" in ran.output
    mended = replace(case, target="refrunner")
    (tmp_path / "findings" / case.file_name).write_text(json.dumps(mended.as_json()))
    ran = mrv2("replay", tmp_path / "findings" / case.file_name)
    assert ran.exit_code == 1 and "nothing is wrong" in ran.output


def test_a_target_that_cannot_be_imported_is_the_findings(tmp_path):
    case = FoundCase("no_such_module:Target", "crash", "as seen", PLAIN, PLAIN, 3, "crash", True)
    FindingStore(tmp_path / "findings").add(case)
    ran = mrv2("replay", tmp_path / "findings" / case.file_name)
    assert ran.exit_code == 2 and "the finding's target 'no_such_module:Target'" in " ".join(ran.stderr.split())
    assert "--target" not in ran.stderr


@pytest.mark.parametrize(("number", "words"), [(1, "1 event, 1 deviation"), (2, "2 events, 2 deviations")])
def test_one_event_is_no_events(number, words):
    assert size_of(Script(SEEDS[:number], SETTINGS, schedule=Schedule("late", 0, LATE.deviations * number))) == words


@pytest.mark.parametrize("damage", [{"events": "many"}, {"tokens": [1]}, {"failures": [7]}, {"more": 1}])
def test_what_was_observed_must_be_whole(tmp_path, damage):
    path, case = written(tmp_path, "tokens")
    content = case.as_json()
    path.write_text(json.dumps({**content, "observed": {**content["observed"], **damage}}))
    ran = mrv2("replay", path)
    assert ran.exit_code == 2 and "must be a finding of mrv2 fuzz" in ran.output
