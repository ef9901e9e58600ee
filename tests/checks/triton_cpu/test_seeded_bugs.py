"""Faults that real kernels have had, each with its repaired twin: found on plain tensors and on the virtual device."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.uninitialised import find_uninitialised


@triton.jit
def copy_tiles(x, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Tile p begins at p * STEP, which is right if that is BLOCK; the values tell which program wrote last."""
    lane = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    mask = (lane < n) if MASKED else (lane >= 0)
    tl.store(out + lane, tl.load(x + lane, mask=mask, other=0.0) + tl.program_id(0), mask=mask)


@triton.jit
def scale_rows(x, out, stride, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * stride
    tl.store(out + row + lane, tl.load(x + row + lane, mask=lane < columns) * 2, mask=lane < columns)


@triton.jit
def sum_row(x, out, columns, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    other: tl.constexpr = 0.0 if OTHER else None
    tl.store(out, tl.sum(tl.load(x + lane, mask=lane < columns, other=other), 0))


@triton.jit
def add_into(x, total, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + lane, mask=lane < n, other=0.0), 0))


@triton.jit
def running_total(x, out, CHAINED: tl.constexpr):
    """Each program adds to what the one before left: right only if they run one after another."""
    program = tl.program_id(0)
    if CHAINED:
        before = tl.load(out + program - 1, mask=program > 0, other=0.0)
        tl.store(out + program, before + tl.load(x + program))
    else:
        total = 0.0
        for index in range(program + 1):
            total += tl.load(x + index)
        tl.store(out + program, total)


def launch_tiles(device, *, step=8, masked=True, n=24):
    x, out = torch.arange(float(n), device=device), torch.zeros(n, device=device)
    copy_tiles[(triton.cdiv(n, 8),)](x, out, n, STEP=step, BLOCK=8, MASKED=masked)
    return out


def launch_rows(device, *, stride=6, rows=4):
    x = torch.ones(rows, 6, device=device)
    scale_rows[(rows,)](x, x if stride < 6 else torch.empty_like(x), stride, 6, BLOCK=8)


def launch_chain(device, *, chained):
    x, out = torch.arange(1.0, 5.0, device=device), torch.zeros(4, device=device)
    running_total[(4,)](x, out, CHAINED=chained)
    return out


FAULTS = {
    "overlapping tiles": (lambda device: launch_tiles(device, step=6), {"MRV211"}),
    "no mask on the last block": (lambda device: launch_tiles(device, masked=False, n=21), {"MRV212"}),
    "row stride too large": (lambda device: launch_rows(device, stride=7), {"MRV212"}),
    "row stride too small": (lambda device: launch_rows(device, stride=5), {"MRV211"}),
    "programs that rely on their order": (lambda device: launch_chain(device, chained=True), {"MRV211"}),
}
REPAIRED = {
    "tiles side by side": launch_tiles,
    "a mask on the last block": lambda device: launch_tiles(device, n=21),
    "the row stride": launch_rows,
    "programs on their own": lambda device: launch_chain(device, chained=False),
}


@pytest.mark.parametrize("order", ["forward", "reverse", 3])
@pytest.mark.parametrize("name", FAULTS)
def test_found_on_plain_tensors(name, order):
    launch, codes = FAULTS[name]
    with triton_cpu.enabled(order=order) as session:
        launch("cpu")
    assert {finding.code for finding in session.findings} == codes
    assert all(finding.where[0].file == __file__ for finding in session.findings)


@pytest.mark.parametrize("kernels", ["compiled", "interpreted"])
@pytest.mark.parametrize("name", FAULTS)
def test_found_on_the_virtual_device(name, kernels):
    launch, codes = FAULTS[name]
    with virtual_device(kernels=kernels) as device:
        launch("cuda")
        torch.cuda.synchronize()
        assert {finding.code for finding in device.findings} == codes


@pytest.mark.parametrize("name", REPAIRED)
def test_the_repaired_twin_is_clean(name):
    with triton_cpu.enabled() as session:
        REPAIRED[name]("cpu")
    assert session.findings == []
    with virtual_device() as device:
        REPAIRED[name]("cuda")
        torch.cuda.synchronize()
        assert device.findings == []


@pytest.mark.parametrize(("name", "depends"), [("overlapping tiles", True), ("tiles side by side", False)])
def test_the_order_of_programs_shows_who_wrote_last(name, depends):
    launch = FAULTS[name][0] if depends else REPAIRED[name]
    with triton_cpu.enabled(order="forward"):
        forward = launch("cpu")
    with triton_cpu.enabled(order="reverse"):
        reverse = launch("cpu")
    assert torch.equal(forward, reverse) is not depends


def test_a_store_outside_leaves_the_bytes_there_intact():
    memory = np.full(32, 7.0, dtype=np.float32)
    middle = torch.from_numpy(memory[8:24])
    with triton_cpu.enabled() as session:
        copy_tiles[(3,)](torch.ones(24), middle, 24, STEP=8, BLOCK=8, MASKED=True)
    assert [finding.code for finding in session.findings] == ["MRV212"]
    assert memory[24:].tolist() == [7.0] * 8
    assert memory[8:24].tolist() == [1.0] * 8 + [2.0] * 8


@pytest.mark.parametrize(("other", "spoiled"), [(False, True), (True, False)])
def test_another_byte_shows_masked_lanes_that_are_summed(other, spoiled):
    results = []
    for byte in (0, 0xFB):
        out = torch.zeros(1)
        with triton_cpu.enabled(masked_lanes=byte):
            sum_row[(1,)](torch.ones(5), out, 5, OTHER=other, BLOCK=8)
        results.append(out.item())
    assert (results[0] != results[1]) is spoiled


@pytest.mark.parametrize(("make", "codes"), [(torch.empty, ["MRV213"]), (torch.zeros, [])])
def test_an_accumulator_that_nobody_cleared_is_found(make, codes):
    def program():
        total = make(1, device="cuda")
        add_into[(3,)](torch.ones(20, device="cuda"), total, 20, BLOCK=8)
        return total.cpu()

    assert [finding.code for finding in find_uninitialised(program)] == codes
