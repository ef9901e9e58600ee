"""What a campaign needs of a target, and what each thing that it lacks costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mrv2.fuzz.machine import NEEDED
from mrv2.fuzz.targets.protocols import DraftingTarget, Feature, HotPathTarget, ModelsTarget, RunnerTarget

#: By feature, in the order in which they are told.
COSTS: Mapping[Feature, str] = MappingProxyType(
    {
        Feature.CHUNKED_PREFILL: "mrv2 fuzz refuses the target: budgets of 6 tokens a step split every longer prompt",
        Feature.PREEMPTION: "mrv2 fuzz refuses the target: blocks run out in most cases",
        Feature.ABORT: "mrv2 fuzz refuses the target: requests are aborted in most cases",
        Feature.LOGPROBS: "mrv2 fuzz refuses the target: a wrong logit that changes no token shows nowhere else",
        Feature.SEEDED_SAMPLING: "no request has a temperature: draws, seeds and noise are not tried",
        Feature.SNAPSHOT: "a wrong input is seen by the token that it changes, if it changes one, and not named",
        Feature.POISON: "nothing fills dead memory: what is read of a freed row or of padding may happen to be right",
        Feature.GRAMMARS: "no request has one: masks are not tried",
        Feature.STREAMING_UPDATES: "no live request is replaced by one that goes on, with its row and blocks",
        Feature.EMPTY_ADMISSION: "who enters is computed in the same step: no step without tokens has writes to apply",
        Feature.SAMPLER: "nothing for mrv2 fuzz; mrv2 audit cannot be asked about the sampler alone",
    }
)
_OPTIONAL: Mapping[str, tuple[type, str]] = MappingProxyType(
    {
        "hot_paths": (
            HotPathTarget,
            "hidden waits are looked for only where [tool.mrv2] of the project names hot paths",
        ),
        "models": (ModelsTarget, 'cases run on "tiny" alone: sliding windows, if there are any, are not tried'),
        "draft_model()": (DraftingTarget, "drafts that are accepted by chance are judged by what may be drawn at all"),
    }
)


@dataclass(frozen=True)
class Lack:
    """Something that a target has not.

    Attributes:
        name: of the feature, or of the optional part.
        costs: what that means for a campaign.
        needed: whether a campaign refuses the target without it.
    """

    name: str
    costs: str
    needed: bool


def lacks(target: RunnerTarget) -> Iterator[Lack]:
    """What a target lacks, that without which it cannot be fuzzed first."""
    for feature in (*NEEDED, *(each for each in COSTS if each not in NEEDED)):
        if feature not in target.features:
            yield Lack(feature.value, COSTS[feature], feature in NEEDED)
    if not target.knobs:
        yield Lack("knobs", "no setting is turned: cases differ by capacities, requests and schedules alone", False)
    for name, (protocol, costs) in _OPTIONAL.items():
        if not isinstance(target, protocol):
            yield Lack(name, costs, False)
