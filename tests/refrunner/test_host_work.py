"""What a step costs the host for each request that only decodes, as calls of Python functions: a count has no noise.

Neither design may pay for what only our own bookkeeping asks, or a comparison of the two says nothing. The older one
takes each token that has arrived into its request's own sequence, one after another; that is part of it.
"""

import inspect
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from mrv2.checks import triton_cpu
from mrv2.refrunner import model_runner
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.baseline_v1.runner import BaselineRunner
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.checkpoint import load_checkpoint

ROOM = str(Path(inspect.getfile(model_runner)).parent)
FEW, MANY, STEPS = 2, 10, 3
PER_REQUEST = {
    ModelRunner: {},
    BaselineRunner: {"Barrier.wait": 1, "Barrier.wait.<locals>.<genexpr>": 1, "BaselineRunner._is_live": 1},
}


class Counting:
    """A runner, and the calls within this package while it makes steps and hands over their results."""

    def __init__(self, runner):
        self.runner, self.calls = runner, Counter()
        self.check_request, self.close = runner.check_request, runner.close

    def execute(self, step):
        with self.counted():
            return Result(self, self.runner.execute(step))

    @contextmanager
    def counted(self):
        before = sys.getprofile()
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def note(self, frame, event, _argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOM):
            self.calls[code.co_qualname] += 1


class Result:
    def __init__(self, counting, handle):
        self.counting, self.handle = counting, handle

    def result(self):
        with self.counting.counted():
            return self.handle.result()


def calls_of(kind, count):
    """Of some steps in which so many requests decode, without a new block."""
    checkpoint = load_checkpoint("tiny")
    config = RunnerConfig(max_num_reqs=MANY, max_num_batched_tokens=64, max_model_len=64, attention="triton")
    runner = Counting(kind(config, checkpoint.config, checkpoint.tensors))
    engine = Engine(runner, config)
    for index in range(count):
        engine.add(f"r{index}", [1 + index, 2], SamplingParams(max_tokens=12))
    for _ in range(4):
        engine.advance()
    runner.calls.clear()
    for _ in range(STEPS):
        engine.advance()
    calls = runner.calls.copy()
    engine.drain()
    engine.close()
    return calls


def calls_for_each_request(kind):
    few, many = calls_of(kind, FEW), calls_of(kind, MANY)
    assert sum(few.values()) > 100
    return {name: count / (MANY - FEW) / STEPS for name, count in (many - few).items()}


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    with triton_cpu.enabled():
        yield


@pytest.mark.parametrize("kind", PER_REQUEST)
def test_a_request_that_decodes_costs_no_call_beyond_its_design(kind):
    assert calls_for_each_request(kind) == PER_REQUEST[kind]


def test_a_call_for_each_request_shows(monkeypatch):
    def one_by_one(self, scheduled):
        for name in scheduled.request_ids:
            self._is_live(self.requests[name])
        advance(self, scheduled)

    advance = BaselineRunner._advance
    monkeypatch.setattr(BaselineRunner, "_advance", one_by_one)
    assert calls_for_each_request(BaselineRunner)["BaselineRunner._is_live"] == 2
