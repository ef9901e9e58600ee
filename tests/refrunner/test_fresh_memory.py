"""Poison in fresh memory: what it fills, that it ends, that the runner reads none of it, and that a reader shows."""

import math

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.fresh_memory import POISON_NUMBER, PoisonedFreshMemory, fresh_memory
from mrv2.refrunner.models.llama import LlamaModel

STEPS = (
    Step(
        new=(NewRequest("a", (1, 2, 3), 3), NewRequest("b", (4, 5), 2, SamplingParams(0.9, 7))),
        scheduled={"a": 3, "b": 2},
        new_blocks={"a": ((1, 2),), "b": ((3,),)},
    ),
    *[Step(scheduled={"b": 1, "a": 1})] * 2,
)
WAYS = {
    "empty": lambda: torch.empty(3),
    "empty_like": lambda: torch.empty_like(torch.zeros(3)),
    "new_empty": lambda: torch.zeros(3).new_empty(3),
    "empty_strided": lambda: torch.empty_strided((3,), (1,)),
    "half": lambda: torch.empty(3, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("way", WAYS)
def test_floats_are_nan(way):
    with fresh_memory(True):
        assert WAYS[way]().isnan().all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_one(dtype):
    with fresh_memory(True):
        assert torch.empty(3, dtype=dtype).eq(POISON_NUMBER).all()


def test_what_is_written_at_once_is_left_alone_and_the_scope_ends():
    with PoisonedFreshMemory():
        assert torch.zeros(3).tolist() == [0] * 3
        assert torch.full((2,), 5).tolist() == [5] * 2
        assert torch.empty(2, dtype=torch.bool).dtype is torch.bool
    filled = []
    with fresh_memory(False):
        filled = [torch.empty(64).isnan().all() for _ in range(8)]
    assert not all(filled)


def outputs(runner):
    return [runner.execute(step).result() for step in STEPS]


@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_the_runner_reads_no_fresh_memory(make_runner, attention):
    with virtual_device() as device:
        clean, poisoned = (
            outputs(make_runner(device="cuda", attention=attention, poison=poison)) for poison in (False, True)
        )
    assert not device.findings
    assert clean == poisoned
    assert not any(math.isnan(value) for output in clean for logprobs in output.logprobs.values() for value in logprobs)


def test_a_reader_of_fresh_memory_shows(make_runner, monkeypatch):
    """The negative control: hidden states get a multiple of memory that nobody wrote, zero times whatever it held."""
    forward = LlamaModel.forward

    def careless(*arguments):
        hidden = forward(*arguments)
        return hidden + 0 * torch.empty_like(hidden)

    monkeypatch.setattr(LlamaModel, "forward", careless)
    with triton_cpu.enabled():
        first = outputs(make_runner(poison=True))[0]
    assert all(math.isnan(logprobs[0]) for logprobs in first.logprobs.values())
