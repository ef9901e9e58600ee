"""Stages "races" and "sync" with ``--device cuda``, on a device that is played and, where there is one, on a GPU."""

import pytest
import torch
from typer.testing import CliRunner

from mrv2.checks.cuda import audit
from mrv2.checks.findings import RunVerdict
from mrv2.ci.command.app import app
from mrv2.ci.stages import races, sync
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.races import Races
from mrv2.ci.stages.sync import Sync
from mrv2.fuzz.mutants import ORDERING, WAITING, mutant
from mrv2.fuzz.programs import random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget

from ..checks.cuda.conftest import virtual_cuda
from ..checks.cuda.facade import Allocator, for_recorder, recorder_over
from .test_stage_races import on_device

EXECUTE = "mrv2.refrunner.model_runner:ModelRunner.execute"
(WAIT,) = (mutation for mutation in WAITING if mutation.name == "item_in_execute")
(RACE,) = (mutation for mutation in ORDERING if mutation.name == "result_does_not_wait")


@pytest.fixture
def short(monkeypatch):
    """A few steps only, in which a request leaves."""
    for stage in (races, sync):
        monkeypatch.setattr(stage, "quick_workload", lambda vocab, seed, _: random_workload(vocab, 1, 4))
        monkeypatch.setattr(stage, "further_workloads", lambda *_: {})
    monkeypatch.setattr(races, "unexercised", lambda *_: [])


@pytest.fixture
def played(short, monkeypatch):
    """A device that is there for trap and recorder while something is audited."""
    stock = audit.cuda_audit

    def on_played(*args, **options):
        monkeypatch.setattr(audit, "require_cuda", lambda subject: None)
        scope = for_recorder(), virtual_cuda()
        return _Within(scope, stock, args, options, monkeypatch)

    monkeypatch.setattr("mrv2.ci.stages.on_cuda.cuda_audit", on_played)


class _Within:
    """An audit within a virtual device."""

    def __init__(self, scope, stock, args, options, monkeypatch):
        self.scope, self.stock, self.args, self.options, self.monkeypatch = scope, stock, args, options, monkeypatch

    def __enter__(self):
        self.scope[0].__enter__()
        device = self.scope[1].__enter__()
        self.monkeypatch.setattr(audit, "CudaDevice", lambda: device)
        self.monkeypatch.setattr(audit, "race_recorder", lambda **more: recorder_over(device.opened, **more))
        self.monkeypatch.setattr(audit, "CachingAllocator", lambda index: Allocator(device.opened.runtime))
        self.audit = self.stock(*self.args, **self.options)
        return self.audit.__enter__()

    def __exit__(self, *raised):
        self.audit.__exit__(*raised)
        for part in reversed(self.scope):
            part.__exit__(*raised)


def run(stage, mutation=None, progress=None):
    if mutation is None:
        return stage.run(ReferenceTarget(), Budget(), progress)
    with mutant(mutation) as target:
        return stage.run(target, Budget(), progress)


def check_sync(progress):
    result = run(Sync("cuda"), None, progress)
    assert (result.verdict, [finding.title for finding in result.findings]) == (RunVerdict.PASS, [])
    assert result.coverage["schedules"] == ["cuda"] and result.coverage["hot paths"][EXECUTE] > 3
    assert result.metrics["bytes allocated"] > 0 and progress.done == progress.total == 1
    result = run(Sync("cuda"), WAIT, progress)
    assert result.verdict is RunVerdict.FAIL
    (finding,) = result.findings
    assert finding.code == "MRV101" and finding.where[0].function == "ModelRunner._enqueue"
    assert finding.step is not None and finding.evidence["schedules"] == ["cuda"]


def check_races(progress):
    result = run(Races("cuda"), None, progress)
    assert (result.verdict, [finding.title for finding in result.findings]) == (RunVerdict.PASS, [])
    assert result.summary.startswith("on a GPU, ") and result.coverage["schedules"] == ["cuda"]
    assert result.coverage["kernels"]["triton:sample_blocks"] > 3 and progress.done == progress.total == 1
    result = run(Races("cuda"), RACE, progress)
    assert result.verdict is RunVerdict.FAIL
    race = next(finding for finding in result.findings if finding.code == "MRV203")
    assert race.evidence["schedules"] == ["cuda"] and race.step is not None


def test_the_sync_stage(played, progress):
    check_sync(progress)


def test_the_races_stage(played, progress):
    check_races(progress)


def test_what_does_not_work_there_is_inconclusive(played, progress):
    def refuse(reference, config):
        raise RuntimeError("no such device")

    target = on_device(refuse)
    target.hot_paths = (EXECUTE,)
    on_cpu = on_device(lambda reference, config: reference.build({**config, "device": "cpu"}))
    on_cpu.hot_paths = (EXECUTE,)
    for stage in (Races("cuda"), Sync("cuda")):
        result = stage.run(target, Budget(), progress)
        assert result.verdict is RunVerdict.INCONCLUSIVE
        assert result.summary == "the target cannot be built for device 'cuda': RuntimeError: no such device"
        result = stage.run(on_cpu, Budget(), progress)
        assert result.verdict is RunVerdict.INCONCLUSIVE
        assert result.summary == "the target enqueued nothing on the device"


def verify(*arguments):
    return CliRunner().invoke(app, ["verify", "--model", "tiny", *arguments])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_a_device_that_is_not_there_is_refused_at_once():
    for device, part in (("cuda", "there must be a CUDA device"), ("gpu", "it must be one of virtual, cuda")):
        result = verify("--device", device)
        assert result.exit_code == 2 and part in result.output


@pytest.mark.gpu
def test_the_sync_stage_on_a_gpu(short, progress):
    check_sync(progress)


@pytest.mark.gpu
def test_the_races_stage_on_a_gpu(short, progress):
    check_races(progress)


@pytest.mark.gpu
def test_the_command_on_a_gpu(tmp_path):
    result = verify("--device", "cuda", "--stage", "races", "--stage", "sync", "--json", str(tmp_path / "report.json"))
    assert result.exit_code == 0, result.output
    assert "on a GPU, 30 steps" in result.output
