"""Programs of one launch that conflict, and those that only look as if they did."""

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from mrv2.checks.findings import Site
from mrv2.checks.hooks import triton_launch
from mrv2.checks.hooks.kernel_conflicts import conflicts
from mrv2.checks.hooks.kernel_log import AccessKind, KernelAccess, KernelLog


@triton.jit
def scatter(index_ptr, value_ptr, out_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(index_ptr + lane), tl.load(value_ptr + lane))


@triton.jit
def shift_in_place(x_ptr, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + lane, tl.load(x_ptr + lane + 1, mask=lane + 1 < n, other=0.0))


@triton.jit
def histogram(index_ptr, counts_ptr, RACY: tl.constexpr):
    index = tl.load(index_ptr + tl.program_id(0))
    if RACY:
        tl.store(counts_ptr + index, tl.load(counts_ptr + index) + 1)
    else:
        tl.atomic_add(counts_ptr + index, 1)


@triton.jit
def last_one_sums(x_ptr, partial_ptr, count_ptr, out_ptr, ORDER: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(partial_ptr + program, tl.load(x_ptr + program) * 2.0)
    before = tl.atomic_add(count_ptr, 1, sem=ORDER)
    if before == programs - 1:
        total = 0.0
        for index in range(programs):
            total += tl.load(partial_ptr + index)
        tl.store(out_ptr, total)


@triton.jit
def locked(lock_ptr, sum_ptr, EARLY: tl.constexpr):
    if EARLY:
        value = tl.load(sum_ptr)
    while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") == 1:
        pass
    if not EARLY:
        value = tl.load(sum_ptr)
    tl.store(sum_ptr, value + 1.0 + tl.program_id(0))
    tl.atomic_xchg(lock_ptr, 0, sem="release")


@pytest.fixture(params=["compiled", "interpreted"])
def gpu(device, request):
    undo = triton_launch.install(device, compiled=request.param == "compiled")
    yield device
    undo()


def scattered(gpu, index, value, programs=2):
    out = gpu.device([0.0] * 8)
    block = len(index) // programs
    scatter[(programs,)](gpu.device(index, torch.int32), gpu.device(value), out, BLOCK=block)
    gpu.run()
    return gpu.codes


class TestKernels:
    def test_disjoint_stores(self, gpu):
        assert scattered(gpu, [0, 2, 1, 3], [1.0, 2.0, 3.0, 4.0]) == []

    def test_two_programs_store_one_element(self, gpu):
        assert scattered(gpu, [0, 2, 1, 2], [1.0, 2.0, 3.0, 4.0]) == ["MRV211"]
        (finding,) = gpu.judge.findings
        assert finding.evidence["bytes"] == [8, 12]
        assert [finding.evidence[side]["program"] for side in ("first", "second")] == [[0, 0, 0], [1, 0, 0]]
        assert finding.where[0].function == finding.other[0].function == "scatter"
        assert finding.where[1].file == "program.py"

    def test_duplicates_within_one_program(self, gpu):
        assert scattered(gpu, [5, 5, 1, 1], [1.0, 2.0, 3.0, 4.0]) == []

    def test_equal_values_have_no_order_to_lose(self, gpu):
        assert scattered(gpu, [0, 2, 1, 2], [1.0, 7.0, 3.0, 7.0]) == []

    def test_reads_what_a_neighbour_writes(self, gpu):
        x = gpu.device([float(value) for value in range(8)])
        shift_in_place[(2,)](x, 8, BLOCK=4)
        gpu.run()
        assert gpu.codes == ["MRV211"]
        assert gpu.judge.findings[0].evidence["bytes"] == [16, 20]
        assert "what another reads" in gpu.titles[0]

    def test_one_program_in_place(self, gpu):
        shift_in_place[(1,)](gpu.device([1.0] * 8), 8, BLOCK=8)
        gpu.run()
        assert gpu.codes == []

    @pytest.mark.parametrize(("racy", "codes"), [(False, []), (True, ["MRV211"])])
    def test_atomics_do_not_conflict_with_each_other(self, gpu, racy, codes):
        histogram[(4,)](gpu.device([1, 0, 1, 1], torch.int32), gpu.device([0, 0], torch.int32), RACY=racy)
        gpu.run()
        assert gpu.codes == codes

    @pytest.mark.parametrize(("order", "codes"), [("acq_rel", []), ("relaxed", ["MRV211"])])
    def test_a_counter_orders_the_last_program(self, gpu, order, codes):
        x, partial, count = gpu.device([1.0, 2.0, 3.0]), gpu.device([0.0] * 3), gpu.device([0], torch.int32)
        last_one_sums[(3,)](x, partial, count, gpu.device([0.0]), ORDER=order)
        gpu.run()
        assert gpu.codes == codes

    @pytest.mark.parametrize(("early", "codes"), [(False, []), (True, ["MRV211"])])
    def test_a_lock_orders_what_is_inside(self, gpu, early, codes):
        locked[(3,)](gpu.device([0], torch.int32), gpu.device([0.0]), EARLY=early)
        gpu.run()
        assert gpu.codes == codes

    def test_one_finding_for_many_launches(self, gpu):
        index, value, out = gpu.device([2, 2], torch.int32), gpu.device([1.0, 2.0]), gpu.device([0.0] * 4)
        for _ in range(3):
            scatter[(2,)](index, value, out, BLOCK=1)
        gpu.run()
        assert gpu.codes == ["MRV211"]


# Against the definition, access by access


def _log(rows):
    log = KernelLog(sites=[Site("kernel.py", number, "kernel") for number in range(len(rows))])
    for site, (program, kind, starts) in enumerate(sorted(rows, key=lambda row: row[0])):
        lanes = np.array(starts, dtype=np.int64) * 2
        dense = len(starts) == 1
        values = np.full(len(starts), 0x01010101 * site, np.int32)  # all bytes of two stores differ
        stored = (values, np.ones(len(starts), bool)) if kind == AccessKind.WRITE else None
        bounds = (int(lanes.min()), int(lanes.max()) + 4)
        log.accesses.append(
            KernelAccess(site, program, AccessKind(kind), site, *bounds, None if dense else lanes, 4, stored)
        )
    return log


def _bytes_of(access):
    lanes = [access.low] if access.lanes is None else access.lanes.tolist()
    return {lane + offset for lane in lanes for offset in range(4)}


def _expected(log):
    found = set()
    for number, later in enumerate(log.accesses):
        for earlier in log.accesses[:number]:
            differ = earlier.program != later.program
            conflict = {earlier.kind, later.kind} not in ({AccessKind.READ}, {AccessKind.ATOMIC})
            if differ and conflict and _bytes_of(earlier) & _bytes_of(later):
                found.add((earlier.site, later.site))
    return found


rows = st.tuples(st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 12), min_size=1, max_size=4))


@given(st.lists(rows, max_size=8))
def test_finds_exactly_what_conflicts_by_definition(given_rows):
    log = _log(given_rows)
    assert {(found.earlier.site, found.later.site) for found in conflicts(log)} == _expected(log)


@given(st.lists(rows, max_size=8))
def test_names_bytes_that_both_touch(given_rows):
    for found in conflicts(_log(given_rows)):
        shared = set(range(found.low, found.high))
        assert shared
        assert shared <= _bytes_of(found.earlier) & _bytes_of(found.later)


@given(st.lists(rows, min_size=1, max_size=8))
def test_merged_ranges_are_the_bytes_touched(given_rows):
    log = _log(given_rows)
    for write in (False, True):
        touched = [_bytes_of(one) for one in log.accesses if (one.kind != AccessKind.READ) is write]
        ranges = log.ranges(write=write)
        assert all(low < high for low, high in ranges)
        assert all(high < low for (_, high), (low, _) in itertools.pairwise(ranges))
        assert {byte for low, high in ranges for byte in range(low, high)} == set().union(*touched)
