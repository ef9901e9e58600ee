"""Rule MRV131: pinned memory that is written again before the copy that reads it is known to be over.

What a hot path does with the pinned memory of its objects is a list of effects in program order, and the hot path runs
again and again: the list is judged as if it came twice. A wait of the host for an event, a stream or the device ends
all copies before it; which event belongs to which copy is not told apart, so that a wrong event is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


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


def rewritten(effects: Iterable[Effect]) -> Iterator[tuple[Effect, Effect]]:
    """Pairs of an upload and a write of the same memory without a wait in between, each write once."""
    order = list(effects)
    pending: dict[str, tuple[int, Effect]] = {}
    seen: set[tuple[str, str, int]] = set()
    for step, effect in [(step, effect) for step in range(2) for effect in order]:
        if effect.verb == "wait":
            pending.clear()
        elif effect.verb == "fresh":
            pending.pop(str(effect.buffer), None)
        elif effect.verb == "upload":
            pending[str(effect.buffer)] = step, effect
        elif str(effect.buffer) in pending:
            before, copied = pending[str(effect.buffer)]
            place = (str(effect.buffer), effect.module, effect.line)
            if place not in seen and not (before == step and copied.excludes(effect)):
                seen.add(place)
                yield copied, effect


def appended(
    effects: list[Effect], of_callee: Iterable[Effect], arms: frozenset[tuple[int, bool]], longest: int = 4000
) -> None:
    """Add what a function that was called did, where the caller's conditions led; a list that is too long is cut."""
    for effect in of_callee:
        if len(effects) >= longest:
            return
        told = replace(effect, arms=effect.arms | arms) if arms else effect
        if not effects or effects[-1] != told:
            effects.append(told)
