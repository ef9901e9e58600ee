"""The samplers that ``mrv2 audit`` knows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED
from mrv2.stats.targets import SamplerTarget

from .plain_samplers import OracleSampler, exponential_race_sampler, multinomial_sampler
from .reference_sampler import ReferenceSampler

NAMED: Mapping[str, Callable[[], SamplerTarget]] = {
    "refrunner": lambda: ReferenceSampler(compiled=True),
    "refrunner-interpreted": ReferenceSampler,
    "refrunner-cuda": lambda: ReferenceSampler(device="cuda"),
    "oracle": OracleSampler,
    "torch-multinomial": multinomial_sampler,
    "exponential-race": exponential_race_sampler,
    "clean": CleanSampler,
    **{f"planted:{planted.name}": planted.make for planted in PLANTED},
}
