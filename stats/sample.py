"""What a sampler answered to a plan of draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .plan import DrawPlan
from .strata import Stratum, log_softmax


@dataclass(frozen=True, eq=False)
class Cell:
    """Draws of one row at one temperature.

    Attributes:
        row: index of the row of logits.
        temperature: as the sampler got it, representable in float32.
        chosen: int64 [n], which draws of the plan.
        log_probabilities: float64 [V] of the distribution they should follow.
    """

    row: int
    temperature: float
    chosen: NDArray[np.int64]
    log_probabilities: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sample:
    """A plan with its answers.

    Attributes:
        logits: float32 [rows, V].
        plan: the N draws asked for.
        tokens: int64 [N], the tokens drawn.
    """

    logits: NDArray[np.float32]
    plan: DrawPlan
    tokens: NDArray[np.int64]

    @property
    def greedy(self) -> NDArray[np.int64]:
        """Indices of the greedy draws, int64."""
        return np.flatnonzero(self.plan.temperatures == 0)

    def cells(self) -> Iterator[Cell]:
        """Every combination of temperature (outer) and row (inner) that was drawn from, without the greedy draws."""
        for temperature in np.unique(self.plan.temperatures[self.plan.temperatures > 0]).tolist():
            for row in range(len(self.logits)):
                chosen = np.flatnonzero((self.plan.rows == row) & (self.plan.temperatures == np.float32(temperature)))
                if chosen.size:
                    yield Cell(row, temperature, chosen, log_softmax(self.logits[row], temperature))

    def strata(self) -> dict[float, list[Stratum]]:
        """The draws by temperature, one stratum per row.

        Raises:
            ArgumentError: a token is outside the vocabulary.
        """
        result: dict[float, list[Stratum]] = {}
        for cell in self.cells():
            stratum = Stratum(cell.log_probabilities, self.tokens[cell.chosen])
            result.setdefault(cell.temperature, []).append(stratum)
        return result
