"""Stage "races": the runner passes and each ordering fault fails in every schedule, and nothing idle passes."""

import functools
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.codes import CODES
from mrv2.checks.findings import RunVerdict
from mrv2.checks.virtual import UnsupportedOperationError
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import expand
from mrv2.ci.stages import races
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.further import further_workloads
from mrv2.ci.stages.races import FIRST, NEEDED, OTHERS, Races
from mrv2.fuzz.mutants import MUTATIONS, ORDERING, mutant
from mrv2.fuzz.programs import RunnerProgram, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget

SCHEDULES = [*map(str, expand(f"{FIRST},{OTHERS}"))]
# What each ordering fault is, by the race that it makes.
CODE_OF = {
    "slot_not_asked": "MRV201",
    "slot_event_too_early": "MRV201",
    "download_does_not_wait": "MRV204",
    "download_event_on_main_stream": "MRV203",
    "download_event_too_early": "MRV203",
    "one_download_buffer": "MRV203",
    "result_does_not_wait": "MRV203",
    "sources_dropped_early": "MRV205",
}


@pytest.fixture
def short(monkeypatch):
    """A few steps only, for what does not need the whole workload."""
    monkeypatch.setattr(races, "quick_workload", lambda vocab, seed, _: random_workload(vocab, seed, 3))
    monkeypatch.setattr(races, "unexercised", lambda *_: [])
    monkeypatch.setattr(races, "further_workloads", lambda *_: {})


def is_json(result):
    json.dumps([result.metrics, result.coverage, [dict(f.evidence) for f in result.findings]], allow_nan=False)
    return True


@pytest.mark.slow
def test_the_runner_passes(progress):
    with triton_cpu.enabled() as session:
        result = Races().run(ReferenceTarget(), Budget(), progress)
    assert session.findings == []
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert "6 schedules of 30 steps on the tiny model" in result.summary
    further = further_workloads(ReferenceTarget(), 256)
    assert f"{', '.join(further)}: likewise" in result.summary and {"grammars", "drafts of a head"} <= further.keys()
    assert list(result.coverage["further"]) == list(further)
    assert progress.done == progress.total == 8 + len(further)
    assert result.coverage["schedules"] == SCHEDULES
    assert set(result.coverage["lanes"]) == {"default stream", "stream 1", "host thread"}
    assert result.coverage["kernels"]["triton:sample_blocks"] > 10
    assert set(result.coverage["copies"]) == {
        "host-to-device copy", "device-to-host copy", "device-to-device copy",
    }  # fmt: skip
    assert {"stream waits for event", "host waits for event", "host polls event"} <= set(
        result.coverage["synchronisations"]
    )
    assert is_json(result)


def test_every_ordering_fault_is_known_by_its_code():
    assert {mutation.name for mutation in ORDERING} == set(CODE_OF)
    assert set(CODE_OF.values()) <= set(CODES)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ORDERING, ids=lambda mutation: mutation.name)
def test_each_ordering_fault_is_found_in_every_schedule(mutation):
    # A slot is written again once its event says yes; late and starve say no at first, so that takes some steps.
    steps = 8 if mutation.name == "slot_event_too_early" else 4
    workload = random_workload(256, 1, steps)
    # Two launches a layer in the place of dozens of operations: what is looked for is elsewhere.
    workload = replace(workload, capacities={**workload.capacities, "attention": "triton"})
    with mutant(mutation) as target:  # one twin for all schedules, since each is imported anew
        runs = {schedule: run_program(RunnerProgram(target, workload), schedule) for schedule in SCHEDULES}
    for schedule, run in runs.items():
        race = [finding for finding in run.findings if finding.code == CODE_OF[mutation.name]]
        assert race, schedule
        assert all(finding.step is not None for finding in race)
        assert any("refrunner/" in site.file for finding in run.findings for site in finding.where)


def test_a_fault_fails_the_stage_with_the_schedules_that_show_it(short, progress):
    (mutation,) = [mutation for mutation in ORDERING if mutation.name == "result_does_not_wait"]
    with mutant(mutation) as target:
        result = Races().run(target, Budget(), progress)
    assert result.verdict is RunVerdict.FAIL
    race = next(finding for finding in result.findings if finding.code == "MRV203")
    assert race.evidence["schedules"] == SCHEDULES
    assert race.step is not None
    # Late, the tokens are read before they are there; early they are right by luck.
    crash = next(finding for finding in result.findings if finding.code == "MRV307")
    assert "late" in crash.evidence["schedules"] and "early" not in crash.evidence["schedules"]
    assert any(finding.code == "MRV309" for finding in result.findings)
    assert progress.done == progress.total
    assert is_json(result)


def test_a_fault_that_is_none_of_order_is_the_oracles_finding(short, progress):
    (mutation,) = [mutation for mutation in MUTATIONS if mutation.name == "temperature_ignored"]
    with mutant(mutation) as target:
        result = Races().run(target, Budget(seed=3), progress)
    assert result.verdict is RunVerdict.FAIL
    assert {finding.code for finding in result.findings} == {"MRV302"}


def test_a_target_that_lacks_a_feature_is_inconclusive(reference_with, progress):
    for feature in NEEDED:
        target = reference_with(features=ReferenceTarget.features - {feature})
        result = Races().run(target, Budget(), progress)
        assert result.verdict is RunVerdict.INCONCLUSIVE
        assert feature.value in result.summary


def on_device(build):
    """The reference target, but for how it builds for device cuda."""
    reference = ReferenceTarget()

    def choose(config):
        return build(reference, config) if config.get("device") == "cuda" else reference.build(config)

    return SimpleNamespace(name="other", features=ReferenceTarget.features, knobs={}, build=choose)


def test_a_target_without_cuda_is_inconclusive(short, progress):
    def refuse(reference, config):
        raise RuntimeError("no such device")

    result = Races().run(on_device(refuse), Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "cannot be built for device 'cuda': RuntimeError: no such device" in result.summary


def test_a_target_that_enqueues_nothing_is_inconclusive(short, progress):
    on_cpu = on_device(lambda reference, config: reference.build({**config, "device": "cpu"}))
    result = Races().run(on_cpu, Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert result.summary == "the target enqueued nothing on the device"


def test_what_the_virtual_device_cannot_do_is_not_the_targets_fault(short, progress):
    def limited(reference, config):
        def execute(step):
            raise UnsupportedOperationError("aten.strange", "a rule", "a reason", "a remedy")

        runner = reference.build(config)
        runner.execute = execute
        return runner

    result = Races().run(on_device(limited), Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "the virtual device cannot run the target: UnsupportedOperationError" in result.summary


def test_an_idle_workload_is_inconclusive(short, monkeypatch, progress):
    monkeypatch.setattr(races, "unexercised", lambda *_: ["preempted 0 of 2"])
    result = Races().run(ReferenceTarget(), Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "not exercised: preempted 0 of 2" in result.summary


def with_output(change):
    """The reference target, whose outputs on device cuda are changed on their way to the host."""

    def build(reference, config):
        runner = reference.build(config)
        execute = runner.execute
        runner.execute = lambda step: SimpleNamespace(result=functools.partial(change, execute(step)))
        return runner

    return on_device(build)


def test_uninitialised_memory_that_reaches_a_token_fails_the_stage(short, progress):
    def right_by_luck(handle):
        output = handle.result()
        lucky = torch.empty(1, dtype=torch.int32, device="cuda").item() < 0
        return output if lucky else replace(output, token_ids=dict.fromkeys(output.token_ids, (0,)))

    result = Races().run(with_output(right_by_luck), Budget(), progress)
    assert result.verdict is RunVerdict.FAIL
    (finding,) = result.findings
    assert finding.code == "MRV213" and "right_by_luck" in finding.allocation[0].function
    assert is_json(result)


def test_a_target_whose_output_differs_by_itself_is_inconclusive(short, progress):
    calls = itertools.count()

    def drifting(handle):
        output = handle.result()
        drift = next(calls) * 1e-3
        return replace(output, logprobs={name: (value - drift,) for name, (value,) in output.logprobs.items()})

    result = Races().run(with_output(drifting), Budget(), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "two runs with the same poison must give the same data" in result.summary
