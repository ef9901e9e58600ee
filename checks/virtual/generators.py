"""Random numbers that do not depend on the schedule.

A CUDA generator hands each operation its seed and offset when the operation is enqueued; so does this one, and the
deferred kernel draws from those, whenever it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .operators import Call
    from .runtime import Runtime


def draw_seed(runtime: Runtime, call: Call) -> int:
    """The seed of one operation."""
    runtime.draws += 1
    return runtime.draws


def seeded(run: Callable[[], None], seed: int) -> Callable[[], None]:
    """The kernel with the process's CPU generator set to a seed, and restored afterwards."""

    def run_seeded() -> None:
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(seed)
        try:
            run()
        finally:
            generator.set_state(state)

    return run_seeded
