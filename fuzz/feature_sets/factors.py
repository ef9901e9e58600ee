"""The features of the runner as factors with values, and the sets of them that are tried.

Factors named like a field of ``RunnerConfig`` are settings. The others say what the requests ask for and what happens
to them; ``traces`` turns them into a workload.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mrv2.checks.findings import JSON
from mrv2.refrunner.compatibility import PAIRS

from .pairwise import Choice, all_pairs

#: Sets of the second kind, whose dead memory is poisoned; with those of the first that have it, more than 40.
POISONED_SETS = 32
NO, SOME = "none", "some"

SETTINGS: Mapping[str, tuple[JSON, ...]] = MappingProxyType(
    {
        "graph_mode": ("eager", "piecewise", "full"),
        "attention": ("triton", "torch"),
        "poison": (True, False),
        "zero_new_blocks": (False, True),
        "prompt_tokens": ("staged", "uva"),
        "staged_writes": ("copied", "in_place"),
        "prefix_caching": (True, False),
        "pad_to": (1, 3),
        "block_size": (4, 8, 16),
        "max_num_batched_tokens": (16, 6, 40),
        "max_num_reqs": (3, 5),
        "prompt_logprobs_chunk": (3, 1024),
        "force_sampler_stages": (False, True),
        "scheduling": ("fcfs", "priority"),
    }
)
REQUESTS: Mapping[str, tuple[JSON, ...]] = MappingProxyType(
    {
        "model": ("tiny", "tiny-sliding"),
        "steps_in_flight": (2, 1, 3),
        "blocks": ("roomy", "scarce"),
        "temperature": ("mixed", "greedy", "random"),
        "logprobs": (NO, "three", "full"),
        "prompt_logprobs": (NO, "two", "full"),
        "penalties": (NO, SOME),
        "filters": (NO, SOME),
        "constraints": (NO, "bias", "allowed", "min tokens", "bad words"),
        "preempt": (NO, SOME),
        "abort": (NO, SOME),
        "continue": (NO, SOME),
    }
)
FACTORS: Mapping[str, tuple[JSON, ...]] = MappingProxyType({**SETTINGS, **REQUESTS})
#: Beside those, of sets in which drafts are verified: by equality, so that the oracle without drafts judges them.
SPECULATION: Mapping[str, tuple[JSON, ...]] = MappingProxyType(
    {"speculation": ("ngram", "draft", "eagle"), "num_drafts": (3, 1, 7)}
)
DRAFT_MODELS: Mapping[JSON, str] = MappingProxyType({"draft": "tiny-draft", "eagle": "tiny-eagle"})


@dataclass(frozen=True)
class FeatureSet:
    """One value of each factor.

    Attributes:
        number: its place among the sets.
        values: by factor.
    """

    number: int
    values: Mapping[str, JSON]

    @property
    def settings(self) -> dict[str, JSON]:
        """Its fields of ``RunnerConfig``."""
        return {name: self.values[name] for name in (*SETTINGS, *SPECULATION) if name in self.values}

    @property
    def models(self) -> dict[str, JSON]:
        """The model, and what proposes drafts for it, as the target's configuration names them."""
        return {"model": self.values["model"], "draft_model": DRAFT_MODELS.get(self.values.get("speculation"), "")}


def go_together(one: Choice, other: Choice) -> bool:
    """Whether the compatibility table of the runner allows two choices on a CUDA device."""
    settings = {"device": "cuda", one[0]: one[1], other[0]: other[1]}
    return not any(
        {pair.first.field, pair.second.field} <= settings.keys()
        and pair.first.holds(settings)
        and pair.second.holds(settings)
        for pair in PAIRS
    )


@functools.cache
def feature_sets() -> tuple[FeatureSet, ...]:
    """Sets in which every compatible pair of values occurs, and then more with poison; the same ones every time."""
    poisoned = {**FACTORS, "poison": (True,), "zero_new_blocks": (False,)}
    found = [*all_pairs(FACTORS, go_together), *all_pairs(poisoned, go_together, POISONED_SETS)]
    different = {tuple(values.items()): MappingProxyType(values) for values in found}
    return tuple(FeatureSet(number, values) for number, values in enumerate(different.values()))


@functools.cache
def speculating_sets() -> tuple[FeatureSet, ...]:
    """Sets with drafts in which every compatible pair of values occurs; their numbers go on behind those without."""
    factors = {**SPECULATION, **FACTORS, "prompt_tokens": ("staged",)}
    sets = enumerate(all_pairs(factors, go_together), start=len(feature_sets()))
    return tuple(FeatureSet(number, MappingProxyType(values)) for number, values in sets)


def every_set() -> tuple[FeatureSet, ...]:
    """All of them, by number."""
    return (*feature_sets(), *speculating_sets())
