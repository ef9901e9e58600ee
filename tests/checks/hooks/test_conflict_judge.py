"""The judge against the definition, pair by pair; and what it says when a launch is too large to be judged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks.findings import Site, Verdict
from mrv2.checks.hooks import program_order
from mrv2.checks.hooks.conflict_judge import Pieces, judge
from mrv2.checks.hooks.kernel_conflicts import Conflict
from mrv2.checks.hooks.kernel_faults import conflict_fault
from mrv2.checks.hooks.kernel_log import AccessKind, Fence, KernelAccess

READ, WRITE, ATOMIC = AccessKind
EVERYWHERE = [(0, 1 << 40)]


def pieces_of(rows) -> Pieces:
    """Rows of position, program, kind, site, first address, and bytes: stored, or just as many as are touched."""
    octets = b"".join(row[5] for row in rows)
    lengths = np.array([len(row[5]) for row in rows])
    position, program, kind, site, low = (np.array([int(row[field]) for row in rows], np.int64) for field in range(5))
    stored = np.where(kind == WRITE, np.cumsum(lengths) - lengths, -1)
    return Pieces(position, program, kind, site, low, low + lengths, stored, np.frombuffer(octets, np.uint8))


def sites_of(pieces: Pieces, pairs) -> set[frozenset[int]]:
    return {frozenset((int(pieces.site[pair.earlier]), int(pieces.site[pair.later]))) for pair in pairs}


def informed(fences, program: int, start: int, end: int) -> set[int]:
    """Programs that know at a position what another one had done at an earlier position, fence by fence."""
    found, released = {program}, set[int]()
    for fence in fences:
        if start <= fence.position <= end:
            if fence.acquires and not released.isdisjoint(fence.addresses):
                found.add(fence.program)
            if fence.releases and fence.program in found:
                released |= fence.addresses
    return found


def by_definition(rows, fences) -> set[frozenset[int]]:
    return {frozenset((one[3], other[3])) for one, other in wrong_pairs(rows) if is_unordered(fences, one, other)}


def is_unordered(fences, one, other) -> bool:
    return other[1] not in informed(fences, one[1], one[0], other[0])


def wrong_pairs(rows) -> Iterator[tuple[tuple, tuple]]:
    for number, other in enumerate(rows):
        for one in rows[:number]:
            kinds = {one[2], other[2]}
            if one[1] == other[1] or kinds in ({READ}, {ATOMIC}):
                continue
            left, right = ({row[4] + k: octet for k, octet in enumerate(row[5])} for row in (one, other))
            both = left.keys() & right.keys()
            if both and (kinds != {WRITE} or any(left[byte] != right[byte] for byte in both)):
                yield one, other


access = st.tuples(st.sampled_from(AccessKind), st.integers(0, 3), st.integers(0, 5), st.binary(min_size=1, max_size=3))
fence = st.tuples(st.frozensets(st.integers(100, 102), min_size=1), st.booleans(), st.booleans())
programs = st.lists(st.lists(access | fence, max_size=5), max_size=5)


def launch(events):
    """The programs run one after another; each event takes a position."""
    rows, fences, position = [], [], 0
    for program, those in enumerate(events):
        for event in those:
            if len(event) == 4:
                kind, site, low, octets = event
                rows.append((position, program, kind, site, low, bytes(octet & 1 for octet in octets)))
            else:
                fences.append(Fence(position, program, *event))
            position += 1
    return rows, fences


@settings(max_examples=500, deadline=None)
@given(programs)
def test_finds_exactly_the_pairs_of_sites_in_conflict(events):
    rows, fences = launch(events)
    if rows:
        pieces = pieces_of(rows)
        found = judge(pieces, fences, EVERYWHERE)
        assert sites_of(pieces, found) == by_definition(rows, fences)
        assert all(pair.judged for pair in found)


@settings(max_examples=300, deadline=None)
@given(programs, st.integers(0, 6), st.integers(0, 3))
def test_no_conflict_is_lost_in_silence(events, max_touches, max_pairs):
    rows, fences = launch(events)
    if rows:
        pieces = pieces_of(rows)
        found = judge(pieces, fences, EVERYWHERE, max_touches=max_touches, max_pairs=max_pairs)
        judged = sites_of(pieces, [pair for pair in found if pair.judged])
        expected = by_definition(rows, fences)
        assert judged <= expected
        assert judged == expected or not found[-1].judged


def test_equal_stores_hide_no_other_one():
    for odd in (0, 91, 127, 4000, 4095):
        rows = [(p, p, WRITE, 0, 64, b"\6" if p == odd else b"\5") for p in range(4096)]
        (pair,) = judge(pieces_of(rows), [], EVERYWHERE)
        assert odd in (pair.earlier, pair.later)
    assert judge(pieces_of([(p, p, WRITE, 0, 64, b"\5") for p in range(4096)]), [], EVERYWHERE) == []


def counted(programs: int):
    """Each program stores, then counts; the last one reads all."""
    rows = [(3 * p, p, WRITE, 0, 4 * p, bytes([p % 7] * 4)) for p in range(programs)]
    fences = [Fence(3 * p + 1, p, frozenset({1 << 30}), True, True) for p in range(programs)]
    last = 3 * programs
    return rows + [(last + p, programs - 1, READ, 1, 4 * p, bytes(4)) for p in range(programs)], fences


def test_ordered_accesses_hide_no_race():
    rows, fences = counted(2000)
    assert judge(pieces_of(rows), fences, EVERYWHERE) == []
    race = [(3 * p + 2, p, WRITE, 2, 1 << 20, bytes([p % 5])) for p in (17, 1200)]
    pieces = pieces_of(sorted(rows + race))
    assert sites_of(pieces, judge(pieces, fences, EVERYWHERE)) == {frozenset({2})}


def test_accesses_under_a_lock_are_ordered_however_many():
    """All programs in turn read and write one place: their pairs would be millions."""
    rows, fences = [], []
    for p in range(3000):
        fences.append(Fence(4 * p, p, frozenset({8}), True, False))
        rows += [(4 * p + 1, p, READ, 0, 64, bytes(4)), (4 * p + 2, p, WRITE, 1, 64, p.to_bytes(4, "little"))]
        fences.append(Fence(4 * p + 3, p, frozenset({8}), False, True))
    assert judge(pieces_of(rows), fences, EVERYWHERE) == []
    broken = [one for one in fences if one.position != 4 * 1500 + 3]
    pieces = pieces_of(rows)
    assert sites_of(pieces, judge(pieces, broken, EVERYWHERE)) == {frozenset({0, 1}), frozenset({1})}


def test_clocks_in_several_passes_say_the_same(monkeypatch):
    rows, fences = counted(50)
    race = [(3 * 40, 40, READ, 2, 4 * 3, bytes(4))]
    pieces = pieces_of(sorted(rows + race))
    once = judge(pieces, fences, EVERYWHERE)
    monkeypatch.setattr(program_order, "_ROOM", 150)
    assert judge(pieces, fences, EVERYWHERE) == once


def test_too_many_fences_are_told(monkeypatch):
    rows, fences = counted(50)
    monkeypatch.setattr(program_order, "_STEPS", 10)
    (pair,) = judge(pieces_of(rows), fences, EVERYWHERE)
    assert not pair.judged


def test_what_was_not_judged_is_suspect():
    one, other = (KernelAccess(p, p, WRITE, p, 64, 68, None, 4) for p in (0, 1))
    sites = [Site("kernel.py", line, "kernel") for line in (1, 2)]
    sure = conflict_fault("kernel", (2, 1, 1), Conflict(one, other, 64, 68), sites)
    unsure = conflict_fault("kernel", (2, 1, 1), Conflict(one, other, 64, 68, judged=False), sites)
    assert (sure.verdict, unsure.verdict) == (Verdict.VIOLATION, Verdict.SUSPECT)
    assert "not judged" in unsure.title
    assert "not judged" not in sure.title
