"""Phases of a step: seen by a clock and a profiler, and by nobody else."""

import pytest
import torch

from mrv2.refrunner import phases
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.phases import HostClock, NvtxRanges, Phase, observed, phase


class Diary:
    """Writes down what it is told."""

    def __init__(self):
        self.entries = []

    def begin(self, phase):
        self.entries.append(f"+{phase.name}")

    def end(self, phase):
        self.entries.append(f"-{phase.name}")


def test_nobody_looks():
    assert phase(Phase.STEP) is phase(Phase.FORWARD), "an empty context, made once"


def test_observer_is_told_until_its_scope_ends():
    diary = Diary()
    with observed(diary), phase(Phase.STEP), pytest.raises(ZeroDivisionError), phase(Phase.FORWARD):
        _ = 1 // 0
    with phase(Phase.WAIT):
        pass
    assert diary.entries == ["+STEP", "+FORWARD", "-FORWARD", "-STEP"]
    assert phases._observers == []


def test_clock_gives_time_to_the_innermost_phase():
    ticks = iter((0, 10, 25, 100, 130))
    clock = HostClock(lambda: next(ticks))
    for call, which in (
        (clock.begin, Phase.STEP), (clock.begin, Phase.FORWARD), (clock.end, Phase.FORWARD), (clock.end, Phase.STEP),
        (clock.begin, Phase.WAIT),
    ):  # fmt: skip
        call(which)
    assert clock.nanoseconds == {Phase.STEP: 10 + 75, Phase.FORWARD: 15}
    assert clock.entries == {Phase.STEP: 1, Phase.FORWARD: 1, Phase.WAIT: 1}


def run_a_request(runner, config):
    engine = Engine(runner, config)
    engine.add("a", (5, 6, 7), SamplingParams(max_tokens=2, temperature=0.0))
    engine.drain()
    return engine.requests["a"].output_token_ids


def test_phases_of_a_request(make_runner):
    runner = make_runner()
    diary = Diary()
    with observed(diary):
        run_a_request(runner, runner.config)
    step = diary.entries[: diary.entries.index("-STEP") + 1]
    assert [entry[1:] for entry in step if entry[0] == "+"] == [
        "STEP", "SCHEDULER", "STATE_UPDATE", "STATE_UPDATE", "STAGING", "INPUT_PREP", "FORWARD", "STAGING", "FORWARD",
        "SAMPLER", "SAMPLER", "DOWNLOAD", "STATE_UPDATE",
    ]  # fmt: skip
    assert "+WAIT" in diary.entries and "+DRAFTING" not in diary.entries


def test_profiler_sees_the_phases(make_runner):
    runner = make_runner()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run_a_request(runner, runner.config)
    names = {event.name for event in profile.events() or ()}
    assert {which.value for which in Phase} - names == {Phase.DRAFTING.value}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is NVTX")
def test_nvtx_without_cuda_is_refused():
    with pytest.raises(ConfigurationError, match="NvtxRanges"):
        NvtxRanges()


@pytest.mark.gpu
def test_nvtx_on_a_device_changes_no_token(make_runner):
    """Without a profiler attached the ranges go nowhere; what can be seen is that a request runs to its end in them."""
    tokens = []
    for observer in (HostClock(), NvtxRanges()):
        runner = make_runner(device="cuda", attention="triton")
        with observed(observer):
            tokens.append(run_a_request(runner, runner.config))
        runner.close()
    assert tokens[0] == tokens[1] != ()
