"""Which synchronisations of a recorded run are needed, and which could go.

A fence is all synchronisations at one place of the program. It is judged by what the happens-before check says of the
same run without it: since clocks do not depend on when operations ran, the recorded run stands for all schedules of the
same program path, and a race that appears is the order that the fence kept.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..events import Stack, SyncKind
from ..findings import Finding, Site
from .core import HappensBefore
from .recording import Replayer
from .records import Accesses, Acquires, Record, Synchronises
from .rules import sites

#: These come with something else that the program wants, a value or an object that is handed over, of which a recorded
#: run has no access; taking them alone out of the program is not possible.
_NOT_ALONE = (SyncKind.IMPLICIT, SyncKind.THREAD)
_EVENTS = (SyncKind.WAIT_EVENT, SyncKind.EVENT_SYNCHRONIZE)
_POLLS = (SyncKind.EVENT_QUERY, SyncKind.STREAM_QUERY)
_Place: TypeAlias = tuple[SyncKind, str, Stack]
_Identity: TypeAlias = tuple[object, ...]


class Need(enum.Enum):
    """Whether a run needs a fence."""

    NEEDED = "needed"
    REMOVABLE = "removable"
    VACUOUS = "vacuous"
    INHERENT = "inherent"


@dataclass(frozen=True)
class Fence:
    """The synchronisations at one place.

    Attributes:
        kind: what they are.
        name: what the program called.
        where: stack of the call, innermost first.
        times: how often it was reached.
        answered: how often it acquired anything; a poll that said no, and a wait for an event never recorded, did not.
        effective: how often it ordered anything that was not ordered already.
        need: NEEDED if a race appears without it; INHERENT if none does, but it is part of an operation or of a
            hand-over between threads, which cannot go without it; VACUOUS if it never ordered anything new; else
            REMOVABLE, as far as the memory goes that this run touched.
        witness: the race that appears without it, or, for one that can go only as long as others stay, without it and
            those others.
        redundant_with: the others of which at least one must stay if this one goes.
        ordered_by: of a vacuous one, others that had made its order already: without all of them it would order
            something; none if the program's own order on one stream or thread made it.
        can_go: member of a set of fences that can all go together; none can be added to the set.
    """

    kind: SyncKind
    name: str
    where: tuple[Site, ...]
    times: int
    answered: int
    effective: int
    need: Need
    witness: Finding | None = None
    redundant_with: tuple[tuple[Site, ...], ...] = ()
    ordered_by: tuple[tuple[Site, ...], ...] = ()
    can_go: bool = False

    @property
    def polls(self) -> bool:
        """Whether it asks without waiting."""
        return self.kind in _POLLS

    @property
    def never_true(self) -> bool:
        """Whether it was only polled, and always said no: then it orders nothing."""
        return self.polls and not self.answered

    @property
    def never_recorded(self) -> bool:
        """Whether it waits for an event that never was recorded before: a fence that is none."""
        return self.kind in _EVENTS and not self.answered


def analyse_fences(records: Iterable[Record]) -> list[Fence]:
    """Judge every fence of a recorded run, in the order in which the run first came to them.

    Costs one check of the run for all fences that can go at once, at most two for each that is needed (these end at
    the race), one more for each removable one, and a few for each of those that are vacuous or redundant only with
    others.
    """
    run = _Run(tuple(records))
    witnesses = _witnesses(run)
    fences = {place: _judge_alone(run, place, witnesses.get(place)) for place in run.places}
    fences.update(_judge_together(run, fences))
    return list(fences.values())


def _witnesses(run: _Run) -> dict[_Place, Finding]:
    """The races that appear when one fence goes, of each fence without which there is one.

    Those that are no fences to take away are asked about together, for mostly none of them is needed.
    """
    ordering = [place for place in run.places if run.effective[place]]
    alone, not_alone = (
        [place for place in ordering if (place[0] in _NOT_ALONE) is inherent] for inherent in (False, True)
    )
    return dict([*_needed_of(run, not_alone), *_needed_of(run, alone)])


def _needed_of(run: _Run, places: Sequence[_Place]) -> Iterator[tuple[_Place, Finding]]:
    """Those of some places without which alone a race appears.

    Whatever is unordered without one fence is unordered without more of them as well, so if no race appears without
    all, none of them is needed; else each half is asked about.
    """
    witness = run.race_without(places) if places else None
    if witness is None:
        return
    if len(places) == 1:
        yield places[0], witness
        return
    half = len(places) // 2
    yield from _needed_of(run, places[:half])
    yield from _needed_of(run, places[half:])


def _judge_alone(run: _Run, place: _Place, witness: Finding | None) -> Fence:
    effective = run.effective[place]
    need = _need(place, effective, witness)
    ordered_by = _ordered_by(run, place) if need is Need.VACUOUS and run.answered[place] else ()
    kind, name, stack = place
    times, answered = run.times[place], run.answered[place]
    return Fence(kind, name, sites(stack), times, answered, effective, need, witness, ordered_by=ordered_by)


def _need(place: _Place, effective: int, witness: Finding | None) -> Need:
    if witness is not None:
        return Need.NEEDED
    if place[0] in _NOT_ALONE:
        return Need.INHERENT
    return Need.REMOVABLE if effective else Need.VACUOUS


def _ordered_by(run: _Run, place: _Place) -> tuple[tuple[Site, ...], ...]:
    """A least set of the others without which a vacuous one orders something."""
    others = [other for other in run.places if other != place]
    if not run.news_without(place, others):
        return ()
    found = _least(others, lambda gone: run.news_without(place, gone))
    return tuple(sites(stack) for _, _, stack in found)


def _judge_together(run: _Run, fences: Mapping[_Place, Fence]) -> Iterator[tuple[_Place, Fence]]:
    """Let one removable fence go after the other, as long as no race appears; vacuous ones cannot make any."""
    candidates = [place for place in fences if place[0] not in _NOT_ALONE]
    gone = [place for place in candidates if fences[place].need is Need.VACUOUS]
    for place in gone:
        yield place, replace(fences[place], can_go=True)
    for place in candidates:
        if fences[place].need is not Need.REMOVABLE:
            continue
        witness = run.race_without((*gone, place))
        if witness is None:
            gone.append(place)
            yield place, replace(fences[place], can_go=True)
        else:
            yield place, replace(fences[place], witness=witness, redundant_with=_partners(run, place, gone))


def _partners(run: _Run, place: _Place, gone: Sequence[_Place]) -> tuple[tuple[Site, ...], ...]:
    """A least set of those that are gone without which this one must stay."""
    found = _least(gone, lambda others: run.race_without((*others, place)) is not None)
    return tuple(sites(stack) for _, _, stack in found)


def _least(places: Sequence[_Place], breaks: Callable[[Collection[_Place]], bool]) -> list[_Place]:
    """A least set of some places, of which it is known that something breaks when all of them go, that breaks it too.

    The first place at which it breaks is found by bisection; it belongs to the set, and those before it are searched
    again until the set breaks it by itself.
    """
    found: list[_Place] = []
    while not breaks(found):
        index = _first_at_which(places, found, breaks)
        found.append(places[index])
        places = places[:index]
    return found


def _first_at_which(
    places: Sequence[_Place], found: Sequence[_Place], breaks: Callable[[Collection[_Place]], bool]
) -> int:
    sizes = range(1, len(places) + 1)
    return bisect.bisect_left(sizes, True, key=lambda size: breaks((*found, *places[:size])))


class _Run:
    """A recorded run, and which of its acquisitions belong to which fence."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        #: All that moves a clock.
        self._order = [record for record in records if not isinstance(record, Accesses)]
        self._place_of = {
            record.sync: (record.kind, record.name, record.stack)
            for record in records
            if isinstance(record, Synchronises)
        }
        self.times = Counter(self._place_of.values())
        answered = {record.sync for record in records if isinstance(record, Acquires) and record.sync is not None}
        self.answered = Counter(self._place_of[sync] for sync in answered)
        self.places = list(self.times)
        self.effective, self._known = self._as_it_was()

    def _as_it_was(self) -> tuple[Counter[_Place], set[_Identity]]:
        """How many synchronisations of each fence brought news, and the races that are there with all of them."""
        news: set[int] = set()
        judge = HappensBefore()
        replayer = Replayer(judge)
        for record in self._records:
            before = judge.news
            replayer.tell(record)
            if isinstance(record, Acquires) and record.sync is not None and judge.news > before:
                news.add(record.sync)
        return Counter(self._place_of[sync] for sync in news), {_identity(race) for race in judge.races}

    def race_without(self, places: Collection[_Place]) -> Finding | None:
        """A race that appears when some fences go; the check ends there."""
        judge = HappensBefore()
        replayer = Replayer(judge)
        kinds = 0
        for record in self._records:
            if self._place(record) in places:
                continue
            replayer.tell(record)
            if judge.kinds_of_race > kinds:
                kinds = judge.kinds_of_race
                appeared = [race for race in judge.races if _identity(race) not in self._known]
                if appeared:
                    return appeared[0]
        return None

    def news_without(self, place: _Place, places: Collection[_Place]) -> bool:
        """Whether a fence brings news when some others go; the check ends there, and asks for no access on its way."""
        judge = HappensBefore()
        replayer = Replayer(judge)
        for record in self._order:
            own = self._place(record)
            if own is None or own not in places:
                before = judge.news
                replayer.tell(record)
                if own == place and judge.news > before:
                    return True
        return False

    def _place(self, record: Record) -> _Place | None:
        """The fence that acquires something with this record."""
        return self._place_of[record.sync] if isinstance(record, Acquires) and record.sync is not None else None


def _identity(race: Finding) -> _Identity:
    """What makes races of two checks of one run the same, though one may have met it at another step."""
    return race.code, race.verdict.value, race.title, race.where[:1], race.other[:1], race.allocation[:1]
