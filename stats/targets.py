"""The contract of a sampler under audit."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class SamplerTarget(Protocol):
    """Draws one token per row of logits.

    Attributes:
        name: shown in reports.
    """

    name: str

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Draw tokens.

        Args:
            logits: float32 [V] (the same row for every draw) or [N, V]; not to be changed. -inf and NaN are never
                drawn.
            temperature: float32 [N]; 0 means greedy, the lowest id of the largest logit.
            seeds: uint64 [N], one key per draw.
            positions: int64 [N], position in the sequence of the token drawn.

        Returns:
            int64 [N] token ids in [0, V).
        """
        ...
