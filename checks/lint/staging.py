"""Rule MRV131: pinned memory that is written again before the copy that reads it is known to be over.

What a hot path does with the pinned memory of its objects is a list of effects in program order, and the hot path runs
again and again: the list is judged as if it came twice. A wait of the host for an event, a stream or the device ends
all copies before it; which event belongs to which copy is not told apart, so that a wrong event is missed.

The list of a whole program would be as long as its tree of calls. Waits cut it into stretches, and what lies between
two waits of one function matters to nobody who calls it: it is kept once, however often the function is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

#: Effects of one stretch beyond which it is cut.
_LONGEST = 1000


@dataclass(frozen=True)
class Effect:
    """One thing done with staging memory, or a wait.

    Attributes:
        verb: ``"fresh"`` (the memory is new), ``"upload"``, ``"write"`` or ``"wait"``.
        buffer: which memory; ``None`` for a wait.
        module: where it is done.
        function: its qualified name.
        line: its line.
        branched: it may be skipped.
        arms: which way was taken at the conditions on the way: what needs two ways at one does not happen in one step.
    """

    verb: str
    buffer: str | None
    module: str
    function: str
    line: int
    branched: bool
    arms: frozenset[tuple[int, bool]] = frozenset()

    def excludes(self, other: Effect) -> bool:
        """Whether the two cannot both happen in one run of the hot path."""
        return any((node, not way) in other.arms for node, way in self.arms)


class Stretch:
    """Effects without a wait in between: each where it came first and where it came last since its memory was new.

    In between it could break the rule only where it breaks it there as well.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Effect, bool, int], None] = {}
        self._fresh: Counter[str | None] = Counter()

    def __iter__(self) -> Iterator[Effect]:
        return (effect for effect, _, _ in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, effect: Effect) -> bool:
        """One more; says whether there is room for others."""
        if len(self._kept) >= _LONGEST:
            return False
        age = self._fresh[effect.buffer]
        self._fresh[effect.buffer] += effect.verb == "fresh"
        if (effect, False, age) in self._kept:
            self._kept.pop((effect, True, age), None)
            self._kept[effect, True, age] = None
        else:
            self._kept[effect, False, age] = None
        return True


class Effects:
    """What a function does with staging memory, those that it calls included.

    Attributes:
        head: before the first wait; all there is if there is none.
        tail: after the last wait; ``None`` if there is none.
    """

    def __init__(self) -> None:
        self.head = Stretch()
        self.tail: Stretch | None = None
        self._between: dict[tuple[Effect, ...] | Effects, None] = {}

    def __bool__(self) -> bool:
        return bool(len(self.head)) or self.waits

    @property
    def waits(self) -> bool:
        """Whether the host waits in it."""
        return self.tail is not None

    def add(self, effect: Effect) -> None:
        """Something that the function does itself."""
        if effect.verb == "wait":
            self._wait()
            return
        self._last.add(effect)

    @property
    def _last(self) -> Stretch:
        return self.head if self.tail is None else self.tail

    def add_call(self, callee: Effects, arms: frozenset[tuple[int, bool]]) -> None:
        """What a function does that it calls, where its own conditions led."""
        self._add_all(callee.head, arms)
        if callee.tail is not None:
            self._wait()
            self._between[callee] = None
            self._add_all(callee.tail, arms)

    def _add_all(self, stretch: Stretch, arms: frozenset[tuple[int, bool]]) -> None:
        into = self._last
        for effect in stretch:
            if not into.add(_led(effect, arms)):
                return

    def _wait(self) -> None:
        if self.tail:
            self._between[tuple(self.tail)] = None
        self.tail = Stretch()

    def stretches_between(self) -> Iterator[tuple[Effect, ...]]:
        """All stretches between two waits, each once."""
        seen: set[tuple[Effect, ...] | Effects] = set()
        ahead: list[tuple[Effect, ...] | Effects] = [self]
        while ahead:
            one = ahead.pop()
            if one in seen:
                continue
            seen.add(one)
            if isinstance(one, Effects):
                ahead.extend(reversed(one._between))
            else:
                yield one


def _led(effect: Effect, arms: frozenset[tuple[int, bool]]) -> Effect:
    return replace(effect, arms=effect.arms | arms) if arms - effect.arms else effect


def rewritten(hot_paths: Iterable[Effects]) -> Iterator[tuple[Effect, Effect]]:
    """Pairs of an upload and a write of the same memory without a wait in between, each write once.

    Args:
        hot_paths: what each of them does; they are taken for parts of one step, in this order.
    """
    step = Effects()
    for hot_path in hot_paths:
        step.add_call(hot_path, frozenset())
    seen: set[tuple[str, str, int]] = set()
    for stretch in _stretches_of_two(step):
        yield from _within(stretch, seen)


def _stretches_of_two(step: Effects) -> Iterator[list[tuple[int, Effect]]]:
    """The stretches of a step that runs twice; each effect with the step that it is of."""
    head = list(step.head)
    if step.tail is None:
        yield [(number, effect) for number in range(2) for effect in head]
        return
    yield [(0, effect) for effect in head]
    for stretch in step.stretches_between():
        yield [(0, effect) for effect in stretch]
    yield [*((0, effect) for effect in step.tail), *((1, effect) for effect in head)]


def _within(stretch: Iterable[tuple[int, Effect]], seen: set[tuple[str, str, int]]) -> Iterator[tuple[Effect, Effect]]:
    """The pairs of one stretch."""
    pending: dict[str, tuple[int, Effect]] = {}
    for step, effect in stretch:
        buffer = str(effect.buffer)
        if effect.verb == "fresh":
            pending.pop(buffer, None)
        elif effect.verb == "upload":
            pending[buffer] = step, effect
        elif buffer in pending:
            before, copied = pending[buffer]
            place = (buffer, effect.module, effect.line)
            if place not in seen and not (before == step and copied.excludes(effect)):
                seen.add(place)
                yield copied, effect
