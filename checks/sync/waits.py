"""One call that made the host wait for the device, as a front end tells it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..events import Stack
from ..semantics import Direction


class Certainty(enum.Enum):
    """How sure it is that the call waits."""

    WAITED = "it waits whenever the device is busy"
    DEPENDS = "whether it waits depends on what else is going on"


@dataclass(frozen=True)
class Wait:
    """A wait.

    Attributes:
        operation: what the program called, e.g. ``"Tensor.item"``, ``"torch.cuda.synchronize"``, ``"aten::nonzero"``.
        code: of the finding that it makes in a hot path, MRV101 to MRV109.
        stack: where the program called it, innermost frame first, out to the hot path.
        remedy: what to write instead, for this operation.
        certainty: a finding of a wait that depends is SUSPECT.
        direction: of a copy.
        size: of a copy, in bytes.
        step: of the runner, if known.
    """

    operation: str
    code: str
    stack: Stack
    remedy: str
    certainty: Certainty = Certainty.WAITED
    direction: Direction | None = None
    size: int | None = None
    step: int | None = None
