"""What a launch did, as Python sees it."""

from __future__ import annotations

import numpy as np

from mrv2.checks.findings import Site
from mrv2.checks.hooks.kernel_log import AccessKind as HookKind
from mrv2.checks.hooks.kernel_log import fence_addresses
from mrv2.checks.libraries import folder_of
from mrv2.checks.triton_cpu.emit.source import AccessKind, AccessSite
from mrv2.checks.triton_cpu.log import RECORD, STRAY, LaunchResult, Stop, Stopped, grid_index, place_of


def site(line: int, kind: AccessKind, **facts) -> AccessSite:
    return AccessSite((Site("kernel.py", line, "kernel"),), kind, 4, **facts)


SITES = (
    site(1, AccessKind.READ),
    site(2, AccessKind.WRITE),
    site(3, AccessKind.ATOMIC, acquires=True, releases=True),
    site(4, AccessKind.ATOMIC),
)


def result(*rows, stored=b"", strays=(), grid=(4, 1, 1), stopped=None) -> LaunchResult:
    """Rows of low, high, site, program and, of stores, where their bytes begin."""
    log = np.array([(*row, -1)[:5] for row in rows], RECORD).tobytes()
    kinds = bytes(found.kind for found in SITES)
    return LaunchResult(
        "kernel", SITES, kinds, grid, log, stored, np.array(list(strays), STRAY).tobytes(), 0, -1, stopped
    )


def test_programs_are_counted_with_the_last_axis_first():
    grid = (2, 3, 4)
    indices = [grid_index(program, grid) for program in range(24)]
    assert indices == [(x, y, z) for x in range(2) for y in range(3) for z in range(4)]


def test_atomics_count_as_writes():
    found = result((0x100, 0x104, 0, 0), (0x200, 0x208, 1, 0, 0), (0x208, 0x20C, 3, 1), stored=bytes(8))
    assert found.ranges(write=False) == [(0x100, 0x104)]
    assert found.ranges(write=True) == [(0x200, 0x20C)]


def test_stores_of_equal_bytes_are_no_conflict():
    rows = ((0x200, 0x208, 1, 0, 0), (0x204, 0x20C, 1, 1, 8))
    equal = np.array([1, 2, 2, 3], np.int32).tobytes()
    assert result(*rows, stored=equal).conflicts()[0] == []
    (conflict,), lines = result(*rows, stored=np.array([1, 2, 9, 3], np.int32).tobytes()).conflicts()
    assert (conflict.low, conflict.high) == (0x204, 0x208)
    assert lines[conflict.later.site].line == 2


def test_an_atomic_that_fills_several_records_is_one_fence():
    found = result((0x100, 0x104, 2, 0), (0x200, 0x204, 2, 0), (0x300, 0x304, 0, 0), (0x100, 0x104, 2, 1))
    fences = found._fences()
    assert [(fence.position, fence.program, fence.addresses) for fence in fences] == [
        (0, 0, fence_addresses([0x100, 0x200], 4)),
        (3, 1, fence_addresses([0x100], 4)),
    ]
    assert all(fence.acquires and fence.releases for fence in fences)


def test_lanes_of_a_fence_are_its_elements():
    (fence,) = result((0x100, 0x10C, 2, 0))._fences()
    assert fence.addresses == fence_addresses([0x100, 0x104, 0x108], 4)


def test_an_atomic_orders_what_lies_before_and_after_it():
    store, load = (0x500, 0x504, 1, 0, 0), (0x500, 0x504, 0, 1)
    first, second = (0x100, 0x104, 2, 0), (0x100, 0x104, 2, 1)
    assert result(store, first, second, load, stored=bytes(4)).conflicts()[0] == []
    relaxed = [(low, high, 3, program) for low, high, _, program in (first, second)]
    assert len(result(store, relaxed[0], relaxed[1], load, stored=bytes(4)).conflicts()[0]) == 1
    assert len(result(first, store, second, load, stored=bytes(4)).conflicts()[0]) == 1, "released too early"


def test_lines_are_those_that_touch_a_byte_in_the_way_that_is_asked_for():
    found = result((0x100, 0x104, 0, 0), (0x104, 0x108, 1, 0, 0), (0x104, 0x108, 2, 1), stored=bytes(4))
    lines = [
        [site.line for site in found.lines(low, high, write=write)]
        for low, high, write in ((0x100, 0x108, False), (0x100, 0x108, True), (0x100, 0x104, True), (0x0, 0x100, False))
    ]
    assert lines == [[1], [2, 3], [], []]


def test_stray_lanes_have_their_line():
    (stray,) = result(strays=[(0x900, 0x910, 1, 2, 3)]).stray_lanes()
    assert (stray.kind, stray.site.line, stray.program) == (HookKind.WRITE, 2, 2)
    assert (stray.low, stray.high, stray.lanes) == (0x900, 0x910, 3)


def test_a_launch_without_accesses():
    found = result()
    assert found.conflicts() == ([], [])
    assert found.ranges(write=True) == found.ranges(write=False) == []
    assert found.stray_lanes() == []
    assert found.error() is None


def test_memory_that_ran_out_is_pythons_own_error():
    assert isinstance(result(stopped=Stopped(Stop.OUT_OF_MEMORY, -1, 0)).error(), MemoryError)


def test_the_line_is_the_users_not_tritons():
    (triton,) = {folder for folder in folder_of("triton") if "site-packages" in folder}
    inner, outer = Site(f"{triton}language/standard.py", 5, "zeros"), Site("kernel.py", 9, "kernel")
    assert place_of(AccessSite((inner, outer))) == outer
    assert place_of(AccessSite((inner,))) == inner
    assert place_of(AccessSite(())).line == 0
