"""The samplers that ``mrv2 audit`` knows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mrv2.checks.errors import CheckError
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED

from .plain_samplers import OracleSampler, exponential_race_sampler, multinomial_sampler
from .reference_sampler import ReferenceSampler
from .speculation import ReferenceSpeculation


@dataclass(frozen=True)
class Named:
    """A sampler with a name.

    Attributes:
        make: builds it; it implements the protocols of :mod:`mrv2.stats.targets` that it can.
        about: what it is, in a line.
    """

    make: Callable[[], object]
    about: str


def _on_gpu() -> object:
    """The reference's sampler on a GPU.

    Raises:
        CheckError: there is none, which says nothing about the sampler.
    """
    import torch

    if not torch.cuda.is_available():
        raise CheckError(
            "sampler 'refrunner-cuda'",
            "this process must see a CUDA device, and sees none",
            "a sampler that cannot be asked is neither right nor wrong",
            "a machine with a GPU and a torch built for it, or refrunner, the same sampler on the CPU",
        )
    return ReferenceSampler(device="cuda")


PLANTED_PREFIX = "planted:"
NAMED: Mapping[str, Named] = {
    "refrunner": Named(lambda: ReferenceSampler(compiled=True), "the reference runner's sampler, compiled for the CPU"),
    "refrunner-interpreted": Named(ReferenceSampler, "the same, in Triton's interpreter: a hundred times slower"),
    "refrunner-cuda": Named(_on_gpu, "the same, compiled for the GPU; needs one"),
    "refrunner-speculation": Named(
        ReferenceSpeculation, "the reference runner's drafting and rejection sampling, compiled for the CPU"
    ),
    "oracle": Named(OracleSampler, "the reference runner's specification in float64"),
    "torch-multinomial": Named(multinomial_sampler, "torch.multinomial; loses rare tokens, and fails"),
    "exponential-race": Named(exponential_race_sampler, "largest of probability / exponential, in float32, by torch"),
    "clean": Named(CleanSampler, "a correct sampler in numpy, whose audit takes seconds"),
    **{
        f"{PLANTED_PREFIX}{planted.name}": Named(
            planted.make, f"'clean' with a fault that the layer {planted.layer} finds"
        )
        for planted in PLANTED
    },
}
