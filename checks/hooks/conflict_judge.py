"""Which of the disputed bytes of a launch are in conflict, one pair of accesses for each pair of lines.

The bytes are cut into segments, within which each access touches all or nothing. Who wrote what decides in a segment;
stores of equal bytes fall out first, and for each line at most five accesses are left that stand for all of it. Where
atomics order programs, the pairs that are left are asked of ``ProgramOrder``. So the cost grows with the accesses to
disputed bytes, not with their pairs; what exceeds the bounds below is named in the answer, never dropped in silence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from .kernel_log import AccessKind, Fence
from .program_order import ProgramOrder

Numbers: TypeAlias = NDArray[np.int64]

#: Accesses of segments, counted once for each segment, that are looked at in one launch: some seconds.
MAX_TOUCHES = 1 << 20
#: Pairs of accesses of which it is asked whether atomics order them.
MAX_PAIRS = 1 << 20


@dataclass(frozen=True)
class Pieces:
    """Runs of adjacent bytes that programs accessed, in the order of execution; arrays of one length.

    Attributes:
        position: of the access, as fences count them.
        program, site: as in the log.
        kind: as ``conflict_kind`` numbers it.
        low, high: half-open range of addresses.
        stored: of a store: where its bytes begin in ``octets``; else -1.
        octets: bytes that stores wrote; uint8.
    """

    position: Numbers
    program: Numbers
    kind: Numbers
    site: Numbers
    low: Numbers
    high: Numbers
    stored: Numbers
    octets: NDArray[np.uint8]


class Pair(NamedTuple):
    """Two pieces by number, and bytes that both touch; ``judged`` is false if nobody looked whether it is a fault."""

    earlier: int
    later: int
    low: int
    high: int
    judged: bool = True


class _Touch(NamedTuple):
    """One piece in one segment; ``content`` is what a store left there."""

    program: int
    content: bytes | int | None
    piece: int


_Line: TypeAlias = tuple[int, int]  # a site and a kind


def judge(
    pieces: Pieces,
    fences: Sequence[Fence],
    regions: Sequence[ByteRange],
    *,
    max_touches: int = MAX_TOUCHES,
    max_pairs: int = MAX_PAIRS,
) -> list[Pair]:
    """The conflicts in these regions, in the order of execution; pairs that were not judged come last.

    Args:
        pieces: all that touch the regions, in the order of execution.
        fences: atomics that order, in the order of execution.
        regions: sorted, disjoint byte ranges within which programs may be in conflict.
        max_touches, max_pairs: bounds of the work.
    """
    segments, left_out = _segments(pieces, regions, max_touches)
    judgement = _Judgement(pieces, fences, max_pairs, left_out)
    judgement.look_at(segments)
    return judgement.answer()


@dataclass(frozen=True)
class _Segments:
    """Segments, and the pieces that touch them, sorted by segment and order of execution."""

    low: Numbers
    high: Numbers
    of: Numbers
    piece: Numbers

    def groups(self) -> Iterator[tuple[int, int, list[int]]]:
        """First and one-past-last address, and pieces of each."""
        bounds = np.flatnonzero(np.diff(self.of, prepend=-1, append=-1)).tolist()
        for start, end in itertools.pairwise(bounds):
            segment = int(self.of[start])
            yield int(self.low[segment]), int(self.high[segment]), self.piece[start:end].tolist()

    def only(self, wanted: NDArray[np.bool_]) -> _Segments:
        """Those of these that are wanted."""
        chosen = wanted[self.of]
        return replace(self, of=self.of[chosen], piece=self.piece[chosen])


def _segments(pieces: Pieces, regions: Sequence[ByteRange], most: int) -> tuple[_Segments, list[ByteRange]]:
    """The segments of the regions, those that fewest pieces touch first if they are too many; and those left out."""
    low, high = _cut(pieces, regions)
    first, last = np.searchsorted(low, pieces.low), np.searchsorted(low, pieces.high)
    steps = np.bincount(first, minlength=len(low) + 1) - np.bincount(last, minlength=len(low) + 1)
    touches = np.cumsum(steps)[: len(low)]
    order = np.argsort(touches, kind="stable")
    chosen = np.zeros(len(low), bool)
    chosen[order[np.cumsum(touches[order]) <= most]] = True
    left_out = list(zip(low[~chosen].tolist(), high[~chosen].tolist(), strict=True))
    low, high = low[chosen], high[chosen]
    first, last = np.searchsorted(low, pieces.low), np.searchsorted(low, pieces.high)
    counts = last - first
    piece = np.repeat(np.arange(len(counts)), counts)
    segment = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts) + first[piece]
    by_segment = np.argsort(segment, kind="stable")
    return _Segments(low, high, segment[by_segment], piece[by_segment]), left_out


def _cut(pieces: Pieces, regions: Sequence[ByteRange]) -> tuple[Numbers, Numbers]:
    """The regions, cut wherever a piece begins or ends."""
    bounds = np.array(regions, np.int64).reshape(-1, 2)
    cuts = np.unique(np.concatenate((pieces.low, pieces.high, bounds[:, 0], bounds[:, 1])))
    low, high = cuts[:-1], cuts[1:]
    region = np.minimum(np.searchsorted(bounds[:, 1], low, side="right"), len(bounds) - 1)
    inside = (bounds[region, 0] <= low) & (low < bounds[region, 1])
    return low[inside], high[inside]


@dataclass
class _Judgement:
    """What was found so far: a pair for each pair of sites, and bytes that nobody looked at."""

    pieces: Pieces
    fences: Sequence[Fence]
    max_pairs: int
    left_out: list[ByteRange]
    found: dict[frozenset[int], Pair] = field(default_factory=dict)
    doubtful: Pair | None = None

    def look_at(self, segments: _Segments) -> None:
        """Judge all segments."""
        order = ProgramOrder(self.fences, self.pieces.program) if self.fences else None
        if order is None:
            for low, high, group in segments.groups():
                for pair in self._candidates(low, high, group):
                    self._keep(pair)
            return
        if order.too_large:
            self.doubtful = next(self._all_candidates(segments, every=False), None)
            return
        segments = segments.only(self._unordered_segments(segments, order))
        for every in (False, True):
            self._ask_all(order, segments, every)

    def answer(self) -> list[Pair]:
        """The pairs."""
        found = sorted(self.found.values(), key=lambda pair: (pair.later, pair.earlier))
        doubtful = self.doubtful or next(filter(None, map(self._left_out, self.left_out)), None)
        return found if doubtful is None else [*found, doubtful._replace(judged=False)]

    def _keep(self, pair: Pair) -> None:
        self.found.setdefault(self._sites(pair), pair)

    def _sites(self, pair: Pair) -> frozenset[int]:
        sites = self.pieces.site
        return frozenset((int(sites[pair.earlier]), int(sites[pair.later])))

    def _unordered_segments(self, segments: _Segments, order: ProgramOrder) -> NDArray[np.bool_]:
        """Of each segment, whether not all its accesses are ordered: they are if each is with the next."""
        together = segments.of[1:] == segments.of[:-1]
        earlier, later = segments.piece[:-1][together], segments.piece[1:][together]
        wrong = self._not_ordered(order, earlier, later)
        unordered = np.zeros(len(segments.low), bool)
        unordered[segments.of[1:][together][wrong]] = True
        return unordered

    def _all_candidates(self, segments: _Segments, every: bool) -> Iterator[Pair]:
        """Candidates of all segments, of sites that are not yet known to be in conflict."""
        for low, high, group in segments.groups():
            for pair in self._candidates(low, high, group, every):
                if self._sites(pair) not in self.found:
                    yield pair

    def _ask_all(self, order: ProgramOrder, segments: _Segments, every: bool) -> None:
        """Keep the candidates that no atomic orders; those beyond the bound are doubtful.

        They are asked in growing heaps: once two sites are known to be in conflict, no more of them is looked at.
        """
        heap: list[Pair] = []
        asked, size = 0, 1024
        for pair in self._all_candidates(segments, every):
            heap.append(pair)
            if len(heap) == size or asked + len(heap) > self.max_pairs:
                self._ask(order, heap)
                asked, size, heap = asked + len(heap), 2 * size, []
            if asked > self.max_pairs:
                self.doubtful = next(self._all_candidates(segments, every), None)
                return
        self._ask(order, heap)

    def _ask(self, order: ProgramOrder, pairs: list[Pair]) -> None:
        """Keep the pairs that no atomic orders."""
        earlier, later = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
        for number in np.flatnonzero(self._not_ordered(order, earlier, later)).tolist():
            self._keep(pairs[number])

    def _not_ordered(self, order: ProgramOrder, earlier: Numbers, later: Numbers) -> NDArray[np.bool_]:
        """Pairs of different programs that no atomic orders; of those of one program, none."""
        program, position = self.pieces.program, self.pieces.position
        ordered = order.ordered(program[earlier], position[earlier], program[later], position[later])
        wrong: NDArray[np.bool_] = (program[earlier] != program[later]) & ~ordered
        return wrong

    # One segment

    def _candidates(self, low: int, high: int, group: list[int], every: bool = False) -> Iterator[Pair]:
        """Pairs that are in conflict if nothing orders them, of sites that are not yet known to be."""
        lines = self._by_line(low, high, group)
        for one, other in itertools.combinations_with_replacement(lines, 2):
            if not _may_conflict(one, other) or frozenset((one[0], other[0])) in self.found:
                continue
            both_store = one[1] == other[1] == AccessKind.WRITE
            for left, right in self._representatives(lines[one], lines[other], every):
                if left.program != right.program and not (both_store and left.content == right.content):
                    yield Pair(min(left.piece, right.piece), max(left.piece, right.piece), low, high)

    def _representatives(self, one: list[_Touch], other: list[_Touch], every: bool) -> Iterator[tuple[_Touch, _Touch]]:
        """Pairs that are worth looking at: without fences a few tell all, with them rather neighbours."""
        if every:
            return itertools.product(_first_and_last(one), _first_and_last(other))
        few = itertools.product(_few(one), _few(other))
        return itertools.chain(few, _neighbours(one, other)) if self.fences else few

    def _by_line(self, low: int, high: int, group: list[int]) -> dict[_Line, list[_Touch]]:
        pieces = self.pieces
        lines: dict[_Line, list[_Touch]] = {}
        for piece in group:
            line = (int(pieces.site[piece]), int(pieces.kind[piece]))
            lines.setdefault(line, []).append(
                _Touch(int(pieces.program[piece]), self._content(piece, low, high), piece)
            )
        return lines

    def _content(self, piece: int, low: int, high: int) -> bytes | int | None:
        """What a store left in a segment; a store of unknown bytes equals none."""
        if self.pieces.kind[piece] != AccessKind.WRITE:
            return None
        stored = int(self.pieces.stored[piece])
        if stored < 0:
            return piece
        first = stored + low - int(self.pieces.low[piece])
        return self.pieces.octets[first : first + high - low].tobytes()

    def _left_out(self, segment: ByteRange) -> Pair | None:
        """A pair that may be in conflict in a segment that nobody looked at."""
        low, high = segment
        group = np.flatnonzero((self.pieces.low <= low) & (low < self.pieces.high)).tolist()
        return next(self._candidates(low, high, group), None)


def _may_conflict(one: _Line, other: _Line) -> bool:
    """Whether a common byte would be a conflict: both store, or one kind is another, or atomics of another width."""
    return one[1] != other[1] or one[1] == AccessKind.WRITE


def _few(touches: list[_Touch]) -> list[_Touch]:
    """At most five that stand for all: whatever any differs from in program and content, one of these does as well."""
    first = touches[0]
    elsewhere = _two((touch for touch in touches if touch.program != first.program), key=1)
    other_content = _two((touch for touch in touches if touch.content != first.content), key=0)
    return [first, *elsewhere, *other_content]


def _two(touches: Iterator[_Touch], key: int) -> list[_Touch]:
    """The first, and the first that differs from it in a field."""
    first = next(touches, None)
    if first is None:
        return []
    second = next((touch for touch in touches if touch[key] != first[key]), None)
    return [first] if second is None else [first, second]


def _neighbours(one: list[_Touch], other: list[_Touch]) -> Iterator[tuple[_Touch, _Touch]]:
    """Pairs of one touch of each line that follow one another."""
    if one is other:
        yield from itertools.pairwise(one)
        return
    both = sorted([*((touch.piece, 0, touch) for touch in one), *((touch.piece, 1, touch) for touch in other)])
    for (_, side, before), (_, next_side, after) in itertools.pairwise(both):
        if side != next_side:
            yield before, after


def _first_and_last(touches: list[_Touch]) -> list[_Touch]:
    """Of each program and content: a program runs without pause, so if these two are ordered, those between are."""
    ends: dict[tuple[int, bytes | int | None], list[_Touch]] = {}
    for touch in touches:
        known = ends.setdefault((touch.program, touch.content), [touch])
        known[1:] = [touch] if touch is not known[0] else []
    return [touch for pair in ends.values() for touch in pair]
