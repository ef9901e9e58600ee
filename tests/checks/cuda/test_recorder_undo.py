"""What the race recorder leaves behind: nothing."""

import sys
import threading

import pytest
import torch
from torch.cuda import _gpu_trace as trace
from triton.runtime.jit import JITFunction

from mrv2.checks.cuda.callbacks import _trace_state
from mrv2.checks.cuda.recorder import race_recorder
from mrv2.checks.errors import CheckError
from mrv2.checks.virtual import virtual_device

from ..race_programs import pinned_source_overwritten
from .facade import on_facade

PATCHED = [
    (torch.Tensor, "numpy"), (torch.Tensor, "tolist"), (torch.Tensor, "__repr__"), (torch.Tensor, "new_tensor"),
    (torch, "tensor"), (torch.Event, "query"), (torch.Stream, "query"), (torch.cuda.Event, "query"),
    (torch.cuda.Stream, "query"), (torch.cuda.Stream, "__new__"), (torch.cuda.CUDAGraph, "replay"),
    (torch.cuda.CUDAGraph, "capture_begin"), (JITFunction, "run"), (threading.Thread, "start"),
]  # fmt: skip


def state():
    lists = [list(value.callback_list) for name, value in vars(trace).items() if name.endswith("Callbacks")]
    flag = _trace_state()
    attributes = [vars(owner).get(name) for owner, name in PATCHED]
    return lists, None if flag is None else flag.value, attributes, torch.Event.query, sys.getswitchinterval()


def test_nothing_is_left_behind():
    before = state()
    with on_facade():
        pinned_source_overwritten(False)
    assert state() == before


@pytest.mark.parametrize("time", [1, 2])
def test_torch_calls_back_each_time(time):
    with on_facade():
        flag = _trace_state()
        assert flag is None or flag.value
    assert flag is None or not flag.value


def test_nothing_is_left_behind_by_a_program_that_raises():
    before = state()
    with pytest.raises(TypeError), on_facade():
        pinned_source_overwritten()
    assert state() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_it_says_what_to_use():
    with pytest.raises(CheckError, match=r"needs a CUDA device.*virtual_device"), race_recorder():
        pass


def test_it_does_not_record_a_virtual_device():
    with virtual_device(), pytest.raises(CheckError, match="records a real device"), race_recorder():
        pass


def test_one_at_a_time():
    with on_facade(), pytest.raises(CheckError, match="one recorder at a time"), race_recorder():
        pass
