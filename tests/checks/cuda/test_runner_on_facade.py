"""The reference runner under the race recorder, on a device that is played: silent."""

from mrv2.fuzz.programs import RunnerProgram, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget

from .facade import on_facade


def recorded(target, steps):
    program = RunnerProgram(target, random_workload(256, 7, steps))
    with on_facade() as (recorder, _):
        program()
    return recorder, program.trace


def test_the_runner_has_no_finding():
    recorder, trace = recorded(ReferenceTarget(), 8)
    assert trace.crash is None and len(trace.steps) >= 8
    assert recorder.findings == []
    assert recorder.unseen == {}
