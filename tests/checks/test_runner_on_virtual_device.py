"""The reference runner, unchanged, through a long random trace on the virtual device: no finding, the oracle's tokens.

The first schedule runs the reference attention, of dozens of operations a request; the others run the kernels, which is
what is fast on a GPU, and here. Two hundred steps; the long form, of ten times as many, is the same test::

    MRV2_RUNNER_STEPS=2000 pytest tests/checks/test_runner_on_virtual_device.py
"""

import os
from dataclasses import replace

import pytest

from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import expand
from mrv2.ci.stages.races import Silent
from mrv2.ci.stages.runner_oracle import RunnerAgainstOracle
from mrv2.fuzz.programs import MODEL, RunnerProgram, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle

STEPS = int(os.environ.get("MRV2_RUNNER_STEPS", "200"))
# The runner uses two streams; test_the_runner_uses_the_streams_that_are_starved holds that true.
SCHEDULES = [*map(str, expand("late,early,random:0,starve", streams=2))]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_long_random_trace_has_no_finding_and_the_oracles_tokens(schedule):
    checkpoint = load_checkpoint(MODEL)
    oracle = Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))
    workload = random_workload(checkpoint.config.vocab_size, 7, STEPS)
    attention = "torch" if schedule == SCHEDULES[0] else "triton"
    workload = replace(workload, capacities={**workload.capacities, "attention": attention})
    program = RunnerProgram(ReferenceTarget(), workload)
    run = run_program(program, schedule)
    trace = program.trace
    assert run.error is None and trace is not None and trace.crash is None
    assert not run.findings
    assert len(trace.steps) >= STEPS
    assert min(trace.counts[fate] for fate in ("preempted", "resumed", "aborted", "chunked")) >= STEPS // 50
    judged = RunnerAgainstOracle(MODEL, workload.vocab_size, oracle).judge(workload, trace, Silent())
    assert not judged.findings
    assert judged.tokens >= STEPS


def test_the_runner_uses_the_streams_that_are_starved():
    run = run_program(RunnerProgram(ReferenceTarget(), random_workload(256, 7, 2)))
    assert run.streams == 2
