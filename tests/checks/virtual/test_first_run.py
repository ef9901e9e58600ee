"""The first run of a program in a process tells what the second one tells, though its operators import modules."""

import gc
import inspect
import subprocess
import sys
import traceback
import weakref

import pytest
import torch

from mrv2.checks.virtual import inference, virtual_device
from mrv2.checks.virtual.kept_frames import imports_keep_no_frames

#: Masks are above what is tried on stand-ins, so that torch's compiler is imported; the lengths dislike ones and zeros.
TWO_RUNS = """
import sys

import torch
from mrv2.checks.virtual.runs import run_program

def program():
    for size in (550, 551):
        mask = torch.ones(size, size, device="cuda", dtype=torch.bool).tril()
    lengths = torch.tensor([1, 2, 3], device="cuda")
    for _ in range(2):
        repeated = torch.repeat_interleave(torch.ones(3, device="cuda"), lengths, output_size=6)
    return mask.sum(), repeated

def events():
    entries = []
    run = run_program(program, note=entries.append)
    assert run.error is None, run.error
    return entries

assert "torch._dynamo" not in sys.modules
first = events()
assert "torch._dynamo" in sys.modules
for each in zip(first, events(), strict=True):
    assert each[0] == each[1], each
print(*sorted({kind for kind, *_ in first}))
"""


class Held:
    """Something that a caller holds."""


def test_both_runs_tell_the_same_events():
    ran = subprocess.run([sys.executable, "-c", TWO_RUNS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert {"access", "allocate", "free", "operation", "run"} <= set(ran.stdout.split())


@pytest.fixture
def _no_collection():
    gc.disable()
    yield
    gc.enable()


def keep_frame():
    frame = inspect.currentframe()
    return frame is None


def held_by_a_caller(callee):
    """Something that a caller of a function held until its end."""
    held = Held()
    callee()
    return weakref.ref(held)


@pytest.mark.usefixtures("_no_collection")
def test_frames_that_keep_themselves_are_let_go_if_modules_came(monkeypatch):
    def call(name):
        with imports_keep_no_frames():
            keep_frame()
            if name:
                monkeypatch.setitem(sys.modules, name, inspect)

    assert held_by_a_caller(lambda: call("mrv2_test_of_kept_frames"))() is None
    assert held_by_a_caller(lambda: call(None))() is not None


def import_in_a_scope(monkeypatch):
    with imports_keep_no_frames():
        keep_frame()
        monkeypatch.setitem(sys.modules, "mrv2_test_of_kept_frames", inspect)


def fail_with_frame():
    frame = inspect.currentframe()
    raise LookupError(frame is None)


@pytest.mark.usefixtures("_no_collection")
def test_frames_from_before_stay_in_their_cycles_as_in_the_next_run(monkeypatch):
    kept = held_by_a_caller(keep_frame)
    import_in_a_scope(monkeypatch)
    assert kept() is not None


@pytest.mark.usefixtures("_no_collection")
def test_a_stored_traceback_shows_the_variables_of_its_frames(monkeypatch):
    stored = []
    with imports_keep_no_frames():
        with pytest.raises(LookupError) as raised:
            fail_with_frame()
        stored.append(raised.value)
        monkeypatch.setitem(sys.modules, "mrv2_test_of_kept_frames", inspect)
    (*_, innermost), _ = zip(*traceback.walk_tb(stored.pop().__traceback__), strict=True)
    assert innermost.f_locals["frame"] is innermost


@pytest.mark.usefixtures("_no_collection")
def test_a_generator_that_holds_its_frame_goes_on(monkeypatch):
    def numbers():
        frame = inspect.currentframe()
        yield 1
        yield 2 if frame else 3

    resumed = numbers()
    assert next(resumed) == 1
    with imports_keep_no_frames():
        monkeypatch.setitem(sys.modules, "mrv2_test_of_kept_frames", traceback)
    assert next(resumed) == 2


@pytest.mark.usefixtures("_no_collection")
def test_what_an_operator_disliked_holds_nobody():
    def interleave():
        inference.forget_plans()
        torch.repeat_interleave(torch.ones(2, device="cuda"), torch.ones(2, device="cuda").long(), output_size=2)

    with virtual_device("late"):
        assert held_by_a_caller(interleave)() is None
