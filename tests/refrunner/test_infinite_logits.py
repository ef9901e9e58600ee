"""A logit of plus infinity is drawn, makes log-probabilities NaN, and is told; by both runners, on both devices."""

import dataclasses

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.targets.baseline import BaselineTarget
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import LogitsFault, NewRequest, SamplingParams, Step

SMALL = {"model": "tiny", "max_num_reqs": 3, "max_model_len": 16, "max_num_batched_tokens": 8, "num_kv_blocks": 9}
PLAIN = SamplingParams(max_tokens=2)
PLACE = 5


def outputs(target, spoil, monkeypatch, params=PLAIN, **settings):
    """Output of a step in which one request ends its prompt, another goes on with its own, and a third draws."""
    runner = target().build({**SMALL, **settings})
    model = runner._runner._model
    compute = model.compute_logits

    def spoiled(hidden):
        logits = compute(hidden).clone()
        spoil(logits)
        return logits

    monkeypatch.setattr(model, "compute_logits", spoiled)
    new = tuple(NewRequest(name, (1, 2, 3), 3, params) for name in "abc")
    scheduled, blocks = {"a": 3, "b": 2, "c": 3}, {name: ((place,),) for place, name in enumerate("abc", 1)}
    output = runner.execute(Step(new=new, scheduled=scheduled, new_blocks=blocks)).result()
    runner.close()
    return output


def infinite_in_two(logits):
    logits[:2, PLACE] = torch.inf


@pytest.mark.parametrize("target", [ReferenceTarget, BaselineTarget])
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
def test_it_is_told_of_who_draws(target, mode, monkeypatch):
    with triton_cpu.enabled():
        output = outputs(target, infinite_in_two, monkeypatch, logprobs_mode=mode)
    assert output.faults == {"a": (LogitsFault(0, None, False, infinite=True),)}
    assert output.token_ids["a"] == (PLACE,) and set(output.token_ids) == {"a", "c"}


def test_it_is_told_on_the_virtual_device(monkeypatch):
    with virtual_device("late") as device:
        output = outputs(ReferenceTarget, infinite_in_two, monkeypatch, device="cuda", attention="triton")
    assert output.faults == {"a": (LogitsFault(0, None, False, infinite=True),)} and not device.findings


def test_a_quotient_that_leaves_the_range_is_told_where_it_is_reported(monkeypatch):
    cold = dataclasses.replace(PLAIN, temperature=1e-30, seed=3)
    with triton_cpu.enabled():
        output = outputs(
            ReferenceTarget, lambda logits: logits.mul_(1e10), monkeypatch, cold, logprobs_mode="processed_logprobs"
        )
    assert {name: fault[0].infinite for name, fault in output.faults.items()} == {"a": True, "c": True}


def nan_beside_it(logits):
    logits[0, PLACE], logits[0, 7] = torch.inf, torch.nan


def nothing_left(logits):
    logits[0] = -torch.inf


@pytest.mark.parametrize(
    ("spoil", "fault"), [(nan_beside_it, LogitsFault(1, 7, False)), (nothing_left, LogitsFault(0, None, True))]
)
def test_what_is_told_otherwise_is_not_told_twice(spoil, fault, monkeypatch):
    with triton_cpu.enabled():
        assert outputs(ReferenceTarget, spoil, monkeypatch).faults == {"a": (fault,)}


def test_ordinary_logits_are_no_fault(monkeypatch):
    with triton_cpu.enabled():
        assert outputs(ReferenceTarget, lambda logits: None, monkeypatch).faults == {}
