"""Conflicts between programs: the sweep in C finds all disputed bytes, and the verdicts are the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks.findings import Site
from mrv2.checks.hooks.kernel_conflicts import conflicts
from mrv2.checks.triton_cpu import enabled
from mrv2.checks.triton_cpu.emit.source import AccessKind, AccessSite
from mrv2.checks.triton_cpu.fallback import interpret
from mrv2.checks.triton_cpu.log import RECORD, LaunchResult
from mrv2.checks.triton_cpu.memory import Memory
from mrv2.checks.triton_cpu.prepared import prepared
from mrv2.checks.triton_cpu.support import support

#: Reads, stores, atomics of one byte and of four.
KINDS = bytes([0, 1, 2, 4])


def records(rows) -> bytes:
    """Rows of low, high, kind, program; the number of a site is its kind."""
    return np.array([(low, high, kind, program, -1) for low, high, kind, program in rows], RECORD).tobytes()


def disputed(rows) -> list[tuple[int, int]]:
    found = support().disputed(records(rows), len(rows), KINDS)
    return [] if found is None else [tuple(row) for row in found.tolist()]


def disputed_by_hand(rows) -> list[tuple[int, int]]:
    """The same, byte by byte, from the definition."""
    touched: dict[int, set[tuple[int, int]]] = {}
    for low, high, kind, program in rows:
        for byte in range(low, high):
            touched.setdefault(byte, set()).add((program, kind))
    allowed = ({0}, {2}, {3})
    wrong = sorted(
        byte
        for byte, those in touched.items()
        if any(one[0] != other[0] and {one[1], other[1]} not in allowed for one in those for other in those)
    )
    return joined(wrong)


def joined(numbers) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return ranges


rows_of_records = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(0, 3), st.integers(0, 3)).map(
        lambda row: (row[0], row[0] + row[1], row[2], row[3])
    ),
    max_size=12,
)


@settings(max_examples=1000, deadline=None)
@given(rows_of_records)
def test_exactly_the_disputed_bytes_are_found(rows):
    assert disputed(rows) == disputed_by_hand(rows)


@settings(max_examples=300, deadline=None)
@given(rows_of_records, st.integers(0, 7))
def test_ranges_are_merged(rows, wanted):
    merged = support().merged(records(rows), len(rows), KINDS, wanted)
    chosen = sorted({byte for low, high, kind, _ in rows if wanted >> KINDS[kind] & 1 for byte in range(low, high)})
    assert merged == joined(chosen)


@settings(max_examples=300, deadline=None)
@given(rows_of_records, st.lists(st.integers(0, 40), max_size=8, unique=True))
def test_records_that_touch_a_range_are_found(rows, bounds):
    bounds = sorted(bounds)[: len(bounds) // 2 * 2]
    ranges = np.array(bounds, np.uint64).reshape(-1, 2)
    found = support().touching(records(rows), len(rows), ranges).tolist()
    expected = [n for n, row in enumerate(rows) if any(row[0] < high and low < row[1] for low, high in ranges.tolist())]
    assert found == expected


def test_many_records_in_any_order():
    generator = np.random.default_rng(5)
    starts = generator.permutation(20_000) * 8
    rows = [(8 + int(start), 16 + int(start), 1, int(start) % 7) for start in starts]
    assert disputed(rows) == []
    rows.append((8_000, 8_004, 0, 99))
    assert disputed(rows) == [(8_000, 8_004)]


# Verdicts


@triton.jit
def tiles(out_ptr, n, STEP: tl.constexpr, SIZE: tl.constexpr):
    lanes = tl.program_id(0) * STEP + tl.arange(0, SIZE)
    tl.store(out_ptr + lanes, tl.program_id(0) + lanes * 0, mask=lanes < n)


@triton.jit
def same_tiles(out_ptr, n, STEP: tl.constexpr, SIZE: tl.constexpr):
    lanes = tl.program_id(0) * STEP + tl.arange(0, SIZE)
    tl.store(out_ptr + lanes, lanes, mask=lanes < n)


@triton.jit
def rows_of(out_ptr, rows_ptr):
    tl.store(out_ptr + tl.load(rows_ptr + tl.program_id(0)), tl.program_id(0))


@triton.jit
def reads_neighbour(x_ptr):
    program = tl.program_id(0)
    tl.store(x_ptr + program, tl.load(x_ptr + program + 1) + 1)


@triton.jit
def counts(counter_ptr, x_ptr):
    tl.atomic_add(counter_ptr + tl.program_id(0) % 2, 1)
    tl.atomic_max(x_ptr, tl.program_id(0))


@triton.jit
def reads_a_counter(counter_ptr, out_ptr):
    tl.atomic_add(counter_ptr, 1)
    tl.store(out_ptr + tl.program_id(0), tl.load(counter_ptr))


@triton.jit
def last_one_sums(parts_ptr, counter_ptr, out_ptr, PROGRAMS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts_ptr + program, program)
    if tl.atomic_add(counter_ptr, 1) == PROGRAMS - 1:
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def last_one_sums_unordered(parts_ptr, counter_ptr, out_ptr, PROGRAMS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts_ptr + program, program)
    if tl.atomic_add(counter_ptr, 1, sem="relaxed") == PROGRAMS - 1:
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def last_one_sums_within_a_program(parts_ptr, counter_ptr, out_ptr, PROGRAMS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts_ptr + program, program)
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="cta") == PROGRAMS - 1:
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def last_one_sums_by_exchange(parts_ptr, counter_ptr, out_ptr, PROGRAMS: tl.constexpr, SCOPE: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts_ptr + program, program)
    if tl.atomic_cas(counter_ptr, program, program + 1, sem="acq_rel", scope=SCOPE) == PROGRAMS - 1:
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def counts_in_two_widths(counter_ptr, APART: tl.constexpr, SEM: tl.constexpr):
    wide_ptr = counter_ptr.to(tl.pointer_type(tl.int64))
    if tl.program_id(0) % 2 == 0:
        tl.atomic_add(counter_ptr, 1, sem=SEM)
    else:
        tl.atomic_add(wide_ptr + APART, 1, sem=SEM)


@triton.jit
def sums_after_a_counter_of_another_width(parts_ptr, counter_ptr, out_ptr, PROGRAMS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts_ptr + program, program)
    if program < PROGRAMS - 1:
        tl.atomic_add(counter_ptr, 1, sem="release")
    else:
        tl.atomic_add(counter_ptr.to(tl.pointer_type(tl.int64)), 0, sem="acquire")
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, PROGRAMS)), axis=0))


def ints(*shape) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


CASES = {
    "disjoint tiles": (tiles, lambda: (ints(64), 64, 16, 16), 0),
    "overlapping tiles": (tiles, lambda: (ints(64), 64, 12, 16), 1),
    "overlapping tiles, equal stores": (same_tiles, lambda: (ints(64), 64, 12, 16), 0),
    "rows, each once": (rows_of, lambda: (ints(8), torch.tensor([3, 1, 0, 2], dtype=torch.int32)), 0),
    "rows, one twice": (rows_of, lambda: (ints(8), torch.tensor([3, 1, 3, 2], dtype=torch.int32)), 1),
    "a neighbour's element": (reads_neighbour, lambda: (ints(8),), 1),
    "atomics alone": (counts, lambda: (ints(2), ints(1)), 0),
    "an atomic and a plain read": (reads_a_counter, lambda: (ints(1), ints(8)), 1),
    "ordered by a counter": (last_one_sums, lambda: (ints(4), ints(1), ints(1), 4), 0),
    "a counter that orders nothing": (last_one_sums_unordered, lambda: (ints(4), ints(1), ints(1), 4), 1),
    "a counter of each program": (last_one_sums_within_a_program, lambda: (ints(4), ints(1), ints(1), 4), 1),
    "an exchange of each program": (last_one_sums_by_exchange, lambda: (ints(4), ints(1), ints(1), 4, "cta"), 1),
    "atomics of two widths": (counts_in_two_widths, lambda: (ints(4), 0, "acq_rel"), 1),
    "atomics of two widths, relaxed": (counts_in_two_widths, lambda: (ints(4), 0, "relaxed"), 1),
    "atomics of two widths, apart": (counts_in_two_widths, lambda: (ints(4), 1, "acq_rel"), 0),
    "an atomic of another width orders nothing": (
        sums_after_a_counter_of_another_width,
        lambda: (ints(4), ints(4), ints(1), 4),
        2,
    ),
    "an exchange of the system": (last_one_sums_by_exchange, lambda: (ints(4), ints(1), ints(1), 4, "sys"), 0),
}


def verdicts(found, sites) -> list[tuple]:
    return sorted((sites[c.earlier.site].line, sites[c.later.site].line, c.earlier.kind, c.later.kind) for c in found)


@pytest.mark.parametrize("name", CASES)
def test_verdicts_are_the_interpreters(name):
    kernel, arguments, count = CASES[name]
    values = arguments()
    call = prepared(kernel).bind(values, {})
    compiled = prepared(kernel).kernel(call, audit=True)
    blocks = Memory(kernel.arg_names, values).packed()
    result = compiled.launch(compiled.pack(call.words), (4, 1, 1), blocks=blocks)
    found = verdicts(*result.conflicts())
    log, _ = interpret(kernel, arguments(), (4, 1, 1), check=True, blocks=None, order=None, masked_lanes=0)
    assert found == verdicts(conflicts(log), log.sites)
    assert len(found) == count


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_the_interpreters(name):
    kernel, arguments, _ = CASES[name]
    values = arguments()
    before = [value.clone() for value in values if isinstance(value, torch.Tensor)]
    call = prepared(kernel).bind(values, {})
    compiled = prepared(kernel).kernel(call, audit=True)
    blocks = Memory(kernel.arg_names, values).packed()
    result = compiled.launch(compiled.pack(call.words), (4, 1, 1), blocks=blocks)
    for value, old in zip((value for value in values if isinstance(value, torch.Tensor)), before, strict=True):
        value.copy_(old)
    log, _ = interpret(kernel, values, (4, 1, 1), check=True, blocks=None, order=None, masked_lanes=0)
    for write in (False, True):
        assert result.ranges(write=write) == log.ranges(write=write)


@pytest.mark.parametrize("order", ["forward", "reverse", 3])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0] in (tiles, rows_of, reads_neighbour)])
def test_conflicts_do_not_depend_on_the_order(name, order):
    kernel, arguments, count = CASES[name]
    with enabled(order=order) as session:
        kernel[(4,)](*arguments())
    assert len(session.findings) == count


def test_of_very_many_conflicts_some_of_each_line_are_judged():
    """A kind that is rare among them is not lost."""
    sites = [AccessSite((Site("kernel.py", line, "kernel"),), AccessKind(kind), 1) for line, kind in ((1, 0), (2, 1))]
    reads = [(8, 9, 0, program) for program in range(100_000)]
    log = records([*reads, (8, 9, 1, 100_000)])
    result = LaunchResult("kernel", sites, KINDS[:2], (100_001, 1, 1), log, b"", b"", 0, -1, None)
    found, lines = result.conflicts()
    assert [(lines[c.earlier.site].line, lines[c.later.site].line) for c in found] == [(1, 2)]
    assert found[0].later.program == 100_000


def test_many_programs_far_apart_in_memory():
    """Numbers of programs times distances between addresses do not fit 64 bits."""
    sites = [AccessSite((Site("kernel.py", 2, "kernel"),), AccessKind.WRITE, 4)]
    rows = [(low, low + 4, 0, program) for program in (5, 2**30) for low in (2**12, 2**46)]
    log = np.array([(*row, 4 * number) for number, row in enumerate(rows)], RECORD).tobytes()
    result = LaunchResult("kernel", sites, KINDS[1:2], (2**30 + 1, 1, 1), log, bytes(range(16)), b"", 0, -1, None)
    (conflict,), _ = result.conflicts()
    assert (conflict.earlier.program, conflict.later.program, conflict.low) == (5, 2**30, 2**12)
