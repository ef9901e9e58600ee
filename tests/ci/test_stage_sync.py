"""Stage "sync": the runner passes, each hidden wait fails, and what was not judged does not pass."""

import json
import textwrap
from types import SimpleNamespace

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.codes import CODES
from mrv2.checks.findings import RunVerdict
from mrv2.checks.hot_path import HotPathError
from mrv2.checks.virtual import UnsupportedOperationError
from mrv2.ci.stages import sync
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.further import further_workloads
from mrv2.ci.stages.sync import NEEDED, SCHEDULES, Sync
from mrv2.fuzz.mutants import WAITING, Mutation, mutant
from mrv2.fuzz.programs import random_workload
from mrv2.fuzz.targets.baseline import BaselineTarget
from mrv2.fuzz.targets.reference import ReferenceTarget

# What each hidden wait is, and where it is.
CODE_OF = {
    "item_in_execute": ("MRV101", "ModelRunner._enqueue"),
    "branch_on_the_device": ("MRV101", "ModelRunner._enqueue"),
    "logits_are_logged": ("MRV101", "ModelRunner._enqueue"),
    "blocking_upload": ("MRV102", "PinnedRing.upload"),
    "pageable_upload": ("MRV102", "PinnedRing.upload"),
    "pageable_download": ("MRV103", "Device.download"),
    "ring_waits": ("MRV104", "PinnedRing._free_slot"),
    "device_synchronise": ("MRV104", "Device.synchronize"),
    "stream_synchronise": ("MRV104", "Device.download"),
    "padding_found_by_nonzero": ("MRV105", "TorchReferenceAttention.begin"),
    "padding_removed_by_mask": ("MRV105", "TorchReferenceAttention.forward"),
    "cache_emptied": ("MRV106", "ModelRunner._remove"),
}
EXECUTE = "mrv2.refrunner.model_runner:ModelRunner.execute"
ENGINE = "mrv2.fuzz.targets.reference:ReferenceRunner.execute"


@pytest.fixture
def short(monkeypatch):
    """A few steps only, in which a request leaves."""
    monkeypatch.setattr(sync, "quick_workload", lambda vocab, seed, _: random_workload(vocab, 1, 6))
    monkeypatch.setattr(sync, "further_workloads", lambda *_: {})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes the settings of a project, below which the current folder is."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")

    def write(text):
        (tmp_path / "pyproject.toml").write_text(textwrap.dedent(text))

    return write


def other(build=None, features=ReferenceTarget.features):
    """A target that names no hot paths itself."""
    reference = ReferenceTarget()
    return SimpleNamespace(name="other", features=features, knobs={}, build=build or reference.build)


def is_json(result):
    json.dumps([result.metrics, result.coverage, [dict(f.evidence) for f in result.findings]], allow_nan=False)
    return True


@pytest.mark.slow
def test_the_runner_passes(progress):
    with triton_cpu.enabled():
        result = Sync().run(ReferenceTarget(), Budget(), progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    further = further_workloads(ReferenceTarget(), 256)
    assert result.summary == f"{EXECUTE}: entered 27 times, no hidden wait; {', '.join(further)}: likewise"
    assert progress.done == progress.total == 2 + len(further)
    assert result.coverage["schedules"] == [*SCHEDULES, *(f"late, {name}" for name in further)]
    assert result.coverage["hot paths"] == {EXECUTE: 27}
    assert is_json(result)


def test_every_hidden_wait_is_known_by_its_code():
    assert {mutation.name for mutation in WAITING} == set(CODE_OF)
    assert {code for code, _ in CODE_OF.values()} <= set(CODES)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", WAITING, ids=lambda mutation: mutation.name)
def test_each_hidden_wait_fails_the_stage(short, mutation, progress):
    with mutant(mutation) as target:
        result = Sync().run(target, Budget(), progress)
    assert result.verdict is RunVerdict.FAIL
    (finding,) = result.findings
    assert (finding.code, finding.where[0].function) == CODE_OF[mutation.name]
    assert finding.where[-1].function == "ModelRunner.execute" and finding.step is not None
    assert finding.evidence["schedules"] == list(SCHEDULES)
    assert finding.remedy and is_json(result)


def test_slots_of_pageable_memory_are_suspicious_however_little_a_step_uploads(short, progress):
    pageable = Mutation(
        "slots_are_pageable",
        "staging.py",
        "        return self._device.pinned_empty(rounded, torch.uint8)\n",
        "        return self._device.pinned_empty(rounded, torch.uint8).clone()\n",
        "the ring's slots are ordinary memory, from which an upload waits when the driver's staging memory is full",
    )
    with mutant(pageable) as target:
        result = Sync().run(target, Budget(), progress)
    assert result.verdict is RunVerdict.SUSPICIOUS
    (finding,) = result.findings
    assert (finding.code, finding.where[0].function) == ("MRV102", "PinnedRing.upload")


def test_the_project_names_the_hot_paths_of_other_targets(short, project, progress):
    project(f"[tool.mrv2]\nhot_paths = ['{ENGINE}']\n")
    result = Sync().run(other(), Budget(), progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert result.summary.startswith(f"{ENGINE}: entered ")


def reading(reference):
    """Builds runners that read a value in each step."""

    def build(config):
        runner = reference.build(config)
        inner = runner._runner.execute

        def execute(step):
            torch.ones(1, device="cuda").item()
            return inner(step)

        runner._runner.execute = execute
        return runner

    return build


def test_a_wait_that_the_project_allows_is_none_and_one_that_never_happens_is_suspicious(short, project, progress):
    table = f"""
        [tool.mrv2]
        hot_paths = ["{ENGINE}"]
        [[tool.mrv2.allow]]
        site = "{ENGINE}"
        code = "%s"
        reason = "the test reads a value"
    """
    project(table % "MRV101")
    result = Sync().run(other(reading(ReferenceTarget())), Budget(), progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert result.summary.endswith("no hidden wait, 1 allowed")
    project(table % "MRV103")
    result = Sync().run(other(reading(ReferenceTarget())), Budget(), progress)
    assert result.verdict is RunVerdict.FAIL
    assert [finding.code for finding in result.findings] == ["MRV101", "MRV122"]


def test_a_wait_that_the_target_declares_is_none_and_another_one_is_a_finding(short, monkeypatch, progress):
    result = Sync().run(BaselineTarget(), Budget(), progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert result.summary.endswith("no hidden wait, 1 allowed")
    monkeypatch.setattr(BaselineTarget, "allowances", ())
    result = Sync().run(BaselineTarget(), Budget(), progress)
    assert result.verdict is RunVerdict.FAIL
    assert {finding.code for finding in result.findings} == {"MRV104"}
    assert {finding.where[0].function for finding in result.findings} == {"Barrier.wait"}


def test_without_hot_paths_nothing_was_judged(project, progress):
    project("[tool.other]\n")
    result = Sync().run(other(), Budget(), progress)
    assert (result.verdict, result.findings) == (RunVerdict.INCONCLUSIVE, ())
    assert "no hot path is named" in result.summary


def test_a_hot_path_that_was_never_entered_is_named(short, project, progress):
    project(f"[tool.mrv2]\nhot_paths = ['{ENGINE}', 'mrv2.refrunner.llm:LLM.generate']\n")
    result = Sync().run(other(), Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "never judged: mrv2.refrunner.llm:LLM.generate (never entered)" in result.summary


def test_a_misspelt_hot_path_is_an_error(project, progress):
    project("[tool.mrv2]\nhot_paths = ['mrv2.refrunner.model_runner:ModelRunner.exekute']\n")
    with pytest.raises(HotPathError, match=r"did you mean execute"):
        Sync().run(other(), Budget(), progress)


def test_a_target_that_lacks_a_feature_is_inconclusive(progress):
    for feature in NEEDED:
        result = Sync().run(other(features=ReferenceTarget.features - {feature}), Budget(), progress)
        assert result.verdict is RunVerdict.INCONCLUSIVE and feature.value in result.summary


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (RuntimeError("no such device"), "cannot be built for device 'cuda': RuntimeError: no such device"),
        (UnsupportedOperationError("aten.strange", "a rule", "a reason", "a remedy"), "UnsupportedOperationError"),
    ],
)
def test_a_target_that_cannot_run_there_is_inconclusive(short, project, progress, error, summary):
    def refuse(config):
        raise error

    project(f"[tool.mrv2]\nhot_paths = ['{ENGINE}']\n")
    result = Sync().run(other(refuse), Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE and summary in result.summary


def test_a_target_that_enqueues_nothing_is_inconclusive(short, project, progress):
    reference = ReferenceTarget()
    project(f"[tool.mrv2]\nhot_paths = ['{ENGINE}']\n")
    on_cpu = other(lambda config: reference.build({**config, "device": "cpu"}))
    result = Sync().run(on_cpu, Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert result.summary == "the target enqueued nothing on the device"
