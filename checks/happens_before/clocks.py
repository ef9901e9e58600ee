"""Vector clocks of lanes, kept in pieces that are shared until they change.

Happens-before is Lamport's (1978, "Time, clocks, and the ordering of events in a distributed system"), vector clocks
are Fidge's (1988) and Mattern's (1989), and comparing one entry of a clock, an epoch, instead of the whole is from
FastTrack (Flanagan and Freund, 2009).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

NOBODY = -1
FOREVER = sys.maxsize


class Moment:
    """A point in the history of one lane, and all that happens before it.

    The time of a lane goes up with every operation and with everything that it learns, so (lane, time) names the
    moment, and whoever knows that pair knows all that the moment knew.

    Attributes:
        lane: whose history.
        time: how far the lane had come.
        known: for other lanes, the time up to which everything happens before this moment. Shared, never changed.
        issuer: the lane that enqueued the lane's last operation, or ``NOBODY``.
        issued: the time that the issuer had reached then. The pair is kept apart from ``known``, since it moves with
            every operation of a stream, and copying the mapping each time would cost one entry per lane.
    """

    __slots__ = ("issued", "issuer", "known", "lane", "time")

    def __init__(self, lane: int, time: int, known: Mapping[int, int], issuer: int, issued: int) -> None:
        self.lane = lane
        self.time = time
        self.known = known
        self.issuer = issuer
        self.issued = issued

    def reach(self, lane: int) -> int:
        """The time of a lane up to which everything happens before this moment (or is it)."""
        if lane == self.lane:
            return self.time
        known = self.known.get(lane, 0)
        return self.issued if lane == self.issuer and self.issued > known else known

    def covers(self, other: Moment) -> bool:
        """Whether the other moment happens before this one, or is the same."""
        return other.time <= self.reach(other.lane)


class LaneClock(Moment):
    """The present moment of a lane; moves on."""

    __slots__ = ("acted", "learnt")

    def __init__(self, lane: int) -> None:
        super().__init__(lane, 0, {}, NOBODY, 0)
        #: Time at which the lane last learnt of another one: whoever knows it from then on has nothing to copy.
        self.learnt = 0
        #: Time of its last operation.
        self.acted = 0

    def moment(self) -> Moment:
        """The present moment, to be kept."""
        return Moment(self.lane, self.time, self.known, self.issuer, self.issued)

    def joined_with(self, others: Sequence[LaneClock]) -> Moment:
        """The present moment, but after the others too; the lane itself learns nothing."""
        if len(others) == 1 and others[0].lane == self.issuer and others[0].learnt <= self.issued:
            # The lane knows all that its issuer knows but for what that one has done since: nothing is to be copied.
            return Moment(self.lane, self.time, self.known, self.issuer, others[0].time)
        clock = LaneClock(self.lane)
        for moment in (self, *others):
            if not clock.covers(moment):
                clock._merge(moment)
        return Moment(self.lane, self.time, clock.known, self.issuer, self.issued)

    def tick(self, issuer: LaneClock | None = None) -> None:
        """The next operation of the lane, enqueued by ``issuer`` if that is another lane."""
        self.time += 1
        self.acted = self.time
        if issuer is None or issuer.lane == self.lane:
            return
        if issuer.lane != self.issuer or issuer.learnt > self.issued:
            self._merge(self)
            self._merge(issuer)
            self.issuer = issuer.lane
        self.issued = issuer.time
        self.learnt = self.time

    def acquire(self, moment: Moment) -> bool:
        """All of the moment happens before what follows; returns whether that was news."""
        if self.covers(moment):
            return False
        self._merge(moment)
        self.time += 1
        self.learnt = self.time
        return True

    def _merge(self, moment: Moment) -> None:
        """Add to ``known`` what a moment knows, itself and its issuer's pair included."""
        merged = dict(self.known)
        for lane, time in (*moment.known.items(), (moment.lane, moment.time), (moment.issuer, moment.issued)):
            if time > merged.get(lane, 0) and lane != self.lane:
                merged[lane] = time
        self.known = merged

    def forget(self, lanes: Collection[int]) -> None:
        """Drop what is known of lanes that no comparison will ask for again."""
        if any(lane in self.known for lane in lanes):
            self.known = {lane: time for lane, time in self.known.items() if lane not in lanes}


class Frontier:
    """How much of each lane's past every one of some moments covers; what lies behind it cannot race any more.

    The moments stand for all operations still to come (and those whose accesses are still to be told), each of which
    comes after one of them. An operation on a moment's own lane is ordered with that lane's past by nature.
    """

    def __init__(self, moments: Iterable[Moment]) -> None:
        self._moments = tuple(moments)
        self._reached: dict[int, int] = {}

    def reach(self, lane: int) -> int:
        """The time of a lane up to which all its operations are ordered before whatever may still come."""
        if lane not in self._reached:
            others = (moment.reach(lane) for moment in self._moments if moment.lane != lane)
            self._reached[lane] = min(others, default=FOREVER)
        return self._reached[lane]

    def passed(self, lane: LaneClock) -> bool:
        """Whether all that a lane has done and knows is known to everyone, so that it can be forgotten if it ended."""
        known = (*lane.known.items(), (lane.issuer, lane.issued), (lane.lane, lane.acted))
        return all(time <= self.reach(other) for other, time in known)
