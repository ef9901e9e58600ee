"""The k-th largest logit of a row against sorting, wherever in the lanes of a program the largest ones lie."""

import importlib
import itertools
from unittest import mock

import numpy as np
import pytest
import torch
import triton.language as tl

from mrv2.fuzz.mutants import Mutation, mutated_package
from mrv2.refrunner.kernels.filters import kth_largest
from mrv2.refrunner.kernels.launch import kernel

pytestmark = pytest.mark.usefixtures("compiled_kernels")

LANES, V, LOWEST = 16, 150, -(2**31)
COUNTS = (0, 1, 2, 3, 5, 7, 15, 16, 17, 40, 149, 150, 151)


@kernel
def write_kth(logits_ptr, counts_ptr, found_ptr, size, floor, BLOCK: tl.constexpr):
    index = tl.program_id(0)
    count = tl.load(counts_ptr + index)
    tl.store(found_ptr + index, kth_largest(logits_ptr, 1.0, size, floor, count, BLOCK))


def rows():
    """Logits by kind, float32 [V]."""
    random = np.random.default_rng(0)
    normal = random.normal(size=V).astype(np.float32)
    yield "normal", normal
    yield "coarse", np.round(normal)
    yield "equal", np.zeros(V, dtype=np.float32)
    yield "zeros of both signs", np.where(normal > 0, 0.0, -0.0).astype(np.float32)
    yield "descending", np.sort(normal)[::-1].copy()
    lane = normal.copy()
    lane[3::LANES] += 10  # the largest ones share a lane, which shows only its own largest
    yield "one lane", lane
    pair = normal.copy()
    pair[[5, 5 + LANES, 5 + 2 * LANES]] += 10
    yield "three of one lane", pair
    yield "mostly minus infinity", np.where(normal > 1.2, normal, -np.inf).astype(np.float32)
    yield "nothing", np.full(V, -np.inf, dtype=np.float32)
    spoiled = normal.copy()
    spoiled[::3], spoiled[7] = np.nan, np.inf
    yield "spoiled", spoiled


def keys_of(logits):
    """The integers by which logits are compared, int64: NaN as minus infinity, one zero."""
    bits = (np.where(np.isnan(logits), -np.inf, logits) + np.float32(0.0)).astype(np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)


def expected(logits, count, floor):
    """By sorting. Any number of logits reaches 0, so the largest integer is the answer."""
    keys = keys_of(logits)
    keys[keys < floor] = keys_of(np.float32([-np.inf]))[0]
    return (2**31 - 1) if count == 0 else int(np.sort(keys)[-count]) if count <= V else LOWEST


def found(logits, floor, device, launched=write_kth):
    counts = torch.tensor(COUNTS, dtype=torch.int32, device=device)
    result = torch.empty(len(COUNTS), dtype=torch.int64, device=device)
    launched[(len(COUNTS),)](torch.from_numpy(logits).to(device), counts, result, V, floor, BLOCK=LANES)
    return dict(zip(COUNTS, result.tolist(), strict=True))


@pytest.mark.parametrize(("kind", "logits"), [pytest.param(*row, id=row[0]) for row in rows()])
def test_it_is_that_of_sorting(device, kind, logits):
    floors = (LOWEST, int(keys_of(np.float32([0.5]))[0]))
    for floor in floors:
        assert found(logits, floor, device) == {count: expected(logits, count, floor) for count in COUNTS}


def thresholds(package, device="cpu"):
    """What top-k keeps of each kind of row and count, by the kernels of a package, in whole rows."""
    stages = importlib.import_module(f"{package}.kernels.logits_processing")
    host = importlib.import_module(f"{package}.sampling.filters")
    blocks = importlib.import_module(f"{package}.sampling.blocks")
    pairs = [(logits, count) for (_, logits), count in itertools.product(rows(), COUNTS[1:])]
    numbers = torch.zeros(len(pairs), stages.NUMBERS.value, dtype=torch.int32, device=device)
    numbers[:, stages.STAGES.value] = stages.TOP_K.value
    numbers[:, stages.COLUMN_TOP_K.value] = torch.tensor([count for _, count in pairs])
    reals = torch.zeros(len(pairs), stages.REALS.value, device=device)
    logits = torch.from_numpy(np.stack([logits for logits, _ in pairs])).to(device)
    order = torch.arange(len(pairs), dtype=torch.int32, device=device)
    maxima = torch.zeros(len(pairs), V // LANES + 1, dtype=torch.int32, device=device)
    never_by_groups = blocks.Grouping(LANES, 1, 0, 0, LANES, 4)
    with mock.patch.object(host, "row_block_of", return_value=LANES):
        return host.thresholds_of(
            logits, logits, maxima, order, numbers, reals, stages.TOP_K.value, never_by_groups
        ).tolist()


def test_thresholds_are_those_of_sorting(device):
    pairs = itertools.product(rows(), COUNTS[1:])
    assert thresholds("mrv2.refrunner", device) == [expected(logits, count, LOWEST) for (_, logits), count in pairs]


GOES_ON, NEVER = "if (number >= count) & (number > 0):\n", "if number < 0:\n"
FAULTS = {
    "a bound too high": ("reaching >= count", "reaching >= count - 1"),
    "no step": (f"        {GOES_ON}            kth", f"        {NEVER}            kth"),
    "no bisection": (f"    {GOES_ON}        kth = tl", f"    {NEVER}        kth = tl"),
}
# What one search misses the other finds, so only its time would show it.
HARMLESS = {"no step"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault):
    mutation = Mutation("kth", "kernels/filters.py", *FAULTS[fault], "see FAULTS")
    with mutated_package(mutation) as package:
        same = thresholds(package) == thresholds("mrv2.refrunner")
    assert same == (fault in HARMLESS)
