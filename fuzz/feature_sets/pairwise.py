"""Combinations of values such that any two values that go together meet in one of them.

Most faults of interaction need two settings, hardly any needs four (Kuhn, Wallace and Gallo 2004, "Software fault
interactions and implications for software testing"), and pairs are cheap: a few dozen combinations instead of millions.
The construction is the greedy one of Cohen et al. 1997, "The AETG system", with ties broken by use and order, not by
chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

#: A factor and one of its values.
Choice: TypeAlias = tuple[str, Any]
Pair: TypeAlias = tuple[Choice, Choice]
Factors: TypeAlias = Mapping[str, Sequence[Any]]
#: Whether two choices may stand in one combination.
GoTogether: TypeAlias = Callable[[Choice, Choice], bool]


def compatible_pairs(factors: Factors, go_together: GoTogether) -> list[Pair]:
    """All pairs of choices of different factors that go together, in the order of the factors."""
    return [
        ((one, left), (other, right))
        for one, other in combinations(factors, 2)
        for left in factors[one]
        for right in factors[other]
        if go_together((one, left), (other, right))
    ]


def all_pairs(factors: Factors, go_together: GoTogether, at_least: int = 0) -> list[dict[str, Any]]:
    """Combinations that hold every compatible pair; the same ones every time.

    Args:
        factors: values by factor, hashable; a combination has one value of each.
        go_together: is asked about pairs only.
        at_least: so many combinations; once every pair is there, all are looked for again.

    Raises:
        ValueError: choices that go together leave no value of another factor.
    """
    wanted = compatible_pairs(factors, go_together)
    greedy = _Greedy(factors, frozenset(wanted))
    found = greedy.cover(wanted)
    while len(found) < at_least:
        found += greedy.cover(wanted)[: at_least - len(found)]
    return found


class _Greedy:
    """Makes combinations one after the other."""

    def __init__(self, factors: Factors, allowed: frozenset[Pair]) -> None:
        self._factors = factors
        self._allowed = allowed
        self._used: Counter[Choice] = Counter()

    def cover(self, wanted: Sequence[Pair]) -> list[dict[str, Any]]:
        """Combinations that hold all wanted pairs."""
        missing, found = dict.fromkeys(wanted), []
        while missing:
            combination = self._complete(next(iter(missing)), missing)
            for pair in combinations(combination.items(), 2):
                missing.pop(pair, None)
            self._used.update(combination.items())
            found.append(combination)
        return found

    def _complete(self, start: Pair, missing: Mapping[Pair, None]) -> dict[str, Any]:
        """Add to a pair the value of each other factor that brings the most missing pairs, of equals the least used."""
        chosen = dict(start)
        for factor in self._factors:
            if factor not in chosen:
                chosen[factor] = max(
                    self._fitting(factor, chosen), key=lambda value: self._gain(value, chosen, missing)
                )[1]
        return {factor: chosen[factor] for factor in self._factors}

    def _fitting(self, factor: str, chosen: Mapping[str, Any]) -> list[Choice]:
        choices = [(factor, value) for value in self._factors[factor]]
        fitting = [choice for choice in choices if all(_is_in(self._allowed, old, choice) for old in chosen.items())]
        if not fitting:
            raise ValueError(f"no value of {factor!r} goes together with {chosen}")
        return fitting

    def _gain(self, choice: Choice, chosen: Mapping[str, Any], missing: Mapping[Pair, None]) -> tuple[int, int]:
        return sum(_is_in(missing, old, choice) for old in chosen.items()), -self._used[choice]


def _is_in(pairs: Mapping[Pair, None] | frozenset[Pair], one: Choice, other: Choice) -> bool:
    return (one, other) in pairs or (other, one) in pairs
