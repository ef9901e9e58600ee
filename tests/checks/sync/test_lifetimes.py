"""Watching keeps nothing of a program alive: what it would free, it frees as if nobody watched.

A frame that outlives its call holds the variables of the call. Device memory that is not given back raises the peak,
and hides that it would have been given back too early (MRV205).
"""

import contextlib
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.hot_path import hot_path
from mrv2.checks.sync.probes import FREE, WAITING, make_bench
from mrv2.checks.sync.virtual import sync_trap
from mrv2.checks.virtual import virtual_device

from ..cuda.conftest import virtual_trap

DEVICES = {"unwatched": virtual_device, "virtual": sync_trap, "real": virtual_trap}


class Local:
    """A variable of a program's function."""


@contextlib.contextmanager
def uncollected():
    """Python's collector would free in the end what a cycle holds, only too late."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def kept_until_return(call, bench):
    local = Local()
    call(bench)
    return weakref.ref(local)


def dropped_behind_the_call(call, bench):
    local = Local()
    reference = weakref.ref(local)
    call(bench)
    del local
    return reference() is None


@pytest.mark.parametrize("device", ["virtual", "real"])
def test_variables_of_a_function_that_waits_end_with_it(device):
    alive = []
    with DEVICES[device](), uncollected():
        for name, call in {**WAITING, **FREE}.items():
            bench = make_bench()
            call(bench)  # what torch imports at its first use may keep the stack of that moment
            with hot_path("decode"):
                if kept_until_return(call, bench)() is not None:
                    alive.append(f"{name}: after the return")
                if not dropped_behind_the_call(call, bench):
                    alive.append(f"{name}: after del")
    assert alive == []


def test_an_operator_whose_stand_ins_had_to_be_tried_again_keeps_nothing():
    """Lengths of zero do not add up to the size that is stated, so a second try follows the error of the first."""

    def repeated(size):
        return lambda bench: torch.repeat_interleave(
            torch.arange(size, device="cuda"), output_size=size * (size - 1) // 2
        )

    with virtual_device(), uncollected():
        assert [kept_until_return(repeated(size), None)() for size in (37, 38)] == [None, None]


#: Shapes that no stand-in likes; values, behind a wait; into memory that would be resized; indexing; a copy.
FAILING = {
    "shapes": lambda one: one + torch.ones(3, device="cuda"),
    "values": lambda one: torch.linalg.cholesky(-one.expand(2, 2)),
    "aside": lambda one: torch.nonzero(one, out=torch.empty(0, device="cuda")),
    "mask": lambda one: one[torch.ones(4, device="cuda", dtype=torch.bool)],
    "copy": lambda one: one.copy_(torch.ones(3)),
}


def test_an_operator_that_fails_keeps_nothing():
    def failing(call):
        def caught(one):
            with contextlib.suppress(RuntimeError, IndexError):
                call(one)
                pytest.fail("it should have been refused")

        return caught

    with virtual_device(), uncollected():
        one = torch.ones(2, device="cuda")
        kept = [name for name, call in FAILING.items() if kept_until_return(failing(call), one)() is not None]
    assert kept == []


def test_a_future_that_fails_keeps_nothing():
    def caught(one):
        with ThreadPoolExecutor(1) as pool, contextlib.suppress(TypeError):
            pool.submit(len, one).result()

    with virtual_device(), uncollected():
        assert kept_until_return(caught, 1)() is None


@triton.jit
def asserts(numbers):
    tl.device_assert(tl.load(numbers) > 5, "more than five")


def test_a_kernel_that_stops_keeps_nothing():
    def stops(one):
        asserts[(1,)](one, debug=True)
        torch.cuda.synchronize()

    with virtual_device() as device, uncollected():
        assert kept_until_return(stops, torch.ones(2, device="cuda"))() is None
    assert "more than five" in str(device.findings)


def test_the_test_above_sees_a_frame_that_is_kept():
    frames = []
    with uncollected():
        assert kept_until_return(lambda _: frames.append(sys._getframe(1)), None)() is not None


@pytest.mark.parametrize("device", ["unwatched", "virtual"])
def test_a_wait_does_not_hide_that_memory_is_freed_too_early(device):
    def step(side):
        tokens = torch.ones(8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        bool(tokens.all())
        with torch.cuda.stream(side):
            tokens.add(1)

    with DEVICES[device]() as opened, uncollected(), hot_path("decode"):
        step(torch.cuda.Stream())
        torch.ones(8, device="cuda")
        findings = getattr(opened, "device", opened).findings
    assert [finding.code for finding in findings] == ["MRV205"]
