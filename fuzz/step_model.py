"""What a runner's inputs must be: the step contract executed in plain Python.

It shares no code with any runner. Fed with the same steps and outputs, it knows for every step which token stands
at which position in which KV slot, and so names the first input that a runner got wrong, which is where to look,
instead of the token that came out wrong some steps later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from mrv2.fuzz.targets.protocols import InputSnapshot
from mrv2.refrunner.api import NewRequest, Step, StepOutput


@dataclass
class _Sequence:
    """One live request; ``total`` counts known tokens and those in flight, as if every draft were accepted."""

    token_ids: list[int]
    blocks: list[int]
    computed: int
    total: int
    unverified: int = 0

    def reject(self, drafts: int, rejected: int) -> None:
        """Learn what became of drafts."""
        self.unverified -= drafts
        self.computed -= rejected
        self.total -= rejected


@dataclass(frozen=True)
class ExpectedLane:
    """What one lane of the batch must hold; ``token`` is None while it is known to the device only."""

    request_id: str
    position: int
    token: int | None
    slot: int


@dataclass(frozen=True)
class InputMismatch:
    """The first place where a step's inputs are wrong.

    Attributes:
        field: name of the field of :class:`InputSnapshot`.
        request_id: the request it belongs to.
        index: index in the field (or, for a block table, in the request's table).
        expected: what the step contract demands.
        observed: what the runner had.
    """

    field: str
    request_id: str
    index: int
    expected: int
    observed: int


class StepModel:
    """Follows steps in execution order."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._live: dict[str, _Sequence] = {}
        # For whom each step has drawn whose output was not recorded yet: whoever it was then, live or not.
        self._drawing: deque[dict[str, _Sequence]] = deque()

    def advance(self, step: Step) -> ExpectedInputs:
        """Apply a step and return the inputs it must produce."""
        for request_id in (*step.finished, *step.preempted):
            del self._live[request_id]
        for request_id, outcome in step.verified.items():
            self._live[request_id].reject(*outcome)
        for request in step.new:
            self._live[request.request_id] = _enter(request)
        for request_id, groups in step.new_blocks.items():
            self._live[request_id].blocks.extend(groups[0])
        scheduled = {request_id: self._live[request_id] for request_id in step.scheduled}
        certain = not any(sequence.unverified for sequence in scheduled.values())
        lanes: list[ExpectedLane] = []
        for request_id, sequence in scheduled.items():
            first, count = sequence.computed, step.scheduled[request_id]
            lanes.extend(self._lane(request_id, sequence, first + i) for i in range(count))
            sequence.computed += count
        drafts = {name: step.drafts.get(name, 0) for name in scheduled}
        draws = frozenset(name for name, seq in scheduled.items() if seq.computed - drafts[name] == seq.total)
        for name in draws:
            scheduled[name].total += 1 + drafts[name]
            scheduled[name].unverified += drafts[name]
        if draws:
            self._drawing.append({name: scheduled[name] for name in draws})
        return ExpectedInputs(
            tuple(lanes),
            {name: sequence.computed for name, sequence in scheduled.items()},
            {name: self._used_blocks(sequence) for name, sequence in scheduled.items()},
            draws,
            certain,
        )

    def record(self, output: StepOutput) -> None:
        """Learn the tokens that the oldest step drew whose output was not recorded yet.

        Those of a request that has left meanwhile do not matter, even if it is back: it was drawn for as it was then.
        """
        drawing = self._drawing.popleft() if output.token_ids else {}
        for request_id, token_ids in output.token_ids.items():
            drawing[request_id].token_ids.extend(token_ids)

    def _used_blocks(self, sequence: _Sequence) -> tuple[int, ...]:
        """Blocks that hold a computed token; a scheduler may have reserved more."""
        return tuple(sequence.blocks[: -(-sequence.computed // self._block_size)])

    def _lane(self, request_id: str, sequence: _Sequence, position: int) -> ExpectedLane:
        known = position < len(sequence.token_ids)
        token = sequence.token_ids[position] if known else None
        block = sequence.blocks[position // self._block_size]
        return ExpectedLane(request_id, position, token, block * self._block_size + position % self._block_size)


@dataclass(frozen=True)
class ExpectedInputs:
    """Inputs of one step as the contract demands them.

    Attributes:
        lanes: all lanes, in execution order.
        seq_lens: length of each scheduled request's sequence after the step.
        blocks: KV blocks that hold its computed tokens.
        draws: requests whose known tokens end with this step, so that it must draw one for each.
        certain: whether the places are known, and not only bounds of them, since drafts are in flight.
    """

    lanes: tuple[ExpectedLane, ...]
    seq_lens: dict[str, int]
    blocks: dict[str, tuple[int, ...]]
    draws: frozenset[str]
    certain: bool = True

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Scheduled requests in execution order."""
        return tuple(self.seq_lens)

    def compare(self, snapshot: InputSnapshot) -> InputMismatch | None:
        """The first difference, in the order in which a runner computes the fields; None if there is none."""
        return next(self._differences(snapshot), None)

    def _differences(self, snapshot: InputSnapshot) -> Iterator[InputMismatch]:
        if tuple(snapshot.request_ids) != self.request_ids:
            yield self._order_difference(tuple(snapshot.request_ids))
            return
        yield from self._bound_differences(snapshot)
        yield from self._block_differences(snapshot)
        for i, request_id in enumerate(self.request_ids):
            if snapshot.seq_lens[i] != self.seq_lens[request_id]:
                yield InputMismatch("seq_lens", request_id, i, self.seq_lens[request_id], snapshot.seq_lens[i])
        yield from self._lane_differences(snapshot)

    def _order_difference(self, observed: tuple[str, ...]) -> InputMismatch:
        """The first request that is not in its place; places are -1 where there is none."""
        pairs = enumerate(zip_longest(self.request_ids, observed))
        place, (left, right) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
        if left is None:
            return InputMismatch("request_ids", str(right), place, -1, place)
        return InputMismatch("request_ids", left, place, place, observed.index(left) if left in observed else -1)

    def _bound_differences(self, snapshot: InputSnapshot) -> Iterator[InputMismatch]:
        counts = Counter(lane.request_id for lane in self.lanes)
        expected = list(accumulate((counts[name] for name in self.request_ids), initial=0))
        if len(snapshot.query_start_loc) != len(expected):
            yield InputMismatch("query_start_loc", "", len(expected), len(expected), len(snapshot.query_start_loc))
            return
        for index, (left, right) in enumerate(zip(expected, snapshot.query_start_loc, strict=True)):
            if left != right:
                yield InputMismatch("query_start_loc", self.request_ids[max(index - 1, 0)], index, left, right)

    def _block_differences(self, snapshot: InputSnapshot) -> Iterator[InputMismatch]:
        for request_id, observed in zip(self.request_ids, snapshot.block_tables, strict=True):
            expected = self.blocks[request_id]
            for index in range(max(len(expected), len(observed))):
                left = expected[index] if index < len(expected) else -1
                right = observed[index] if index < len(observed) else -1
                if left != right:
                    yield InputMismatch("block_tables", request_id, index, left, right)

    def _lane_differences(self, snapshot: InputSnapshot) -> Iterator[InputMismatch]:
        fields = (
            ("positions", snapshot.positions, [lane.position for lane in self.lanes]),
            ("slot_mapping", snapshot.slot_mapping, [lane.slot for lane in self.lanes]),
            ("input_ids", snapshot.input_ids, [lane.token for lane in self.lanes]),
        )
        for field, observed, expected in fields:
            if len(observed) != len(expected):
                yield InputMismatch(field, "", len(expected), len(expected), len(observed))
                return
            for index, (right, left) in enumerate(zip(observed, expected, strict=True)):
                if left is not None and left != right:
                    yield InputMismatch(field, self.lanes[index].request_id, index, left, right)


def _enter(request: NewRequest) -> _Sequence:
    return _Sequence(list(request.token_ids), [], request.num_computed_tokens, len(request.token_ids))
