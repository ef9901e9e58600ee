"""Faulty versions of the reference runner, to show that the toolkit finds faults.

Every mutation is also an attribute of this package, a ready target: ``mrv2.fuzz.mutants:row_not_reset``.
"""

from __future__ import annotations

from .catalogue import MUTATIONS
from .edges import EDGES
from .further import FURTHER_EDGES, FURTHER_WAITS
from .grammar import EDGES as MASK_EDGES
from .grammar import MASKS
from .ordering import ORDERING
from .planted import ADDED, PLANTED
from .seldom import SELDOM
from .source import Mutation, mutated_package
from .speculation import ACCOUNTING, DISTRIBUTION, HEADS, PROPOSALS
from .targets import MutantTarget, mutant
from .waiting import WAITING

__all__ = [
    "ACCOUNTING", "ADDED", "DISTRIBUTION", "EDGES", "FURTHER_EDGES", "FURTHER_WAITS", "HEADS", "MASKS", "MASK_EDGES",
    "MUTATIONS", "ORDERING", "PLANTED", "PROPOSALS", "SELDOM", "WAITING", "MutantTarget", "Mutation", "mutant",
    "mutated_package",
]  # fmt: skip

_ALL = (
    *MUTATIONS,
    *EDGES,
    *ORDERING,
    *WAITING,
    *MASKS,
    *MASK_EDGES,
    *DISTRIBUTION,
    *ACCOUNTING,
    *PROPOSALS,
    *HEADS,
    *ADDED,
    *FURTHER_EDGES,
    *FURTHER_WAITS,
    *SELDOM,
)


def __dir__() -> list[str]:
    return [*globals(), *(mutation.name for mutation in _ALL)]


def __getattr__(name: str) -> MutantTarget:
    for mutation in _ALL:
        if mutation.name == name:
            return MutantTarget(mutation)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
