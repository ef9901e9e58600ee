"""The reference runner under the race recorder, on a device that is played: silent, until a fence is taken out."""

import pytest

from mrv2.fuzz.mutants.ordering import ORDERING
from mrv2.fuzz.mutants.targets import mutant
from mrv2.fuzz.programs import RunnerProgram, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget

from .facade import on_facade

MUTANT = next(item for item in ORDERING if item.name == "download_does_not_wait")


def recorded(target, steps):
    program = RunnerProgram(target, random_workload(256, 7, steps))
    with on_facade() as (recorder, _):
        program()
    return recorder, program.trace


@pytest.mark.slow
def test_the_runner_has_no_finding():
    recorder, trace = recorded(ReferenceTarget(), 8)
    assert trace.crash is None and len(trace.steps) >= 8
    assert recorder.findings == []
    assert recorder.unseen == {}


def test_a_runner_without_one_of_its_fences_has():
    with mutant(MUTANT) as target:
        recorder, _ = recorded(target, 1)
    assert {finding.code for finding in recorder.findings} == {"MRV204"}
