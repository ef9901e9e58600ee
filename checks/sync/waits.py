"""One call that made the host wait for the device: what a front end saw, and what it tells a watch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..events import Stack
from ..semantics import Direction


class WaitKind(enum.Enum):
    """Why the host waits."""

    VALUE = "a value of the device is read"
    SHAPE = "a shape depends on values of the device"
    INSIDE = "an operator of torch waits inside"
    CUSTOM = "an operator of an extension waits inside"
    UPLOAD = "a copy to the device"
    DOWNLOAD = "a copy into new memory of the host"
    DOWNLOAD_INTO = "a copy into memory that the host has"
    EVENT = "a wait for an event"
    STREAM = "a wait for a stream"
    DEVICE = "a wait for the device"
    FREE_DEVICE = "device memory goes back to the driver"
    FREE_HOST = "pinned memory goes back to the driver"
    MODULE = "a kernel is loaded"
    QUEUE = "the launch queue is full"

    @property
    def direction(self) -> Direction | None:
        """Of a copy."""
        return _DIRECTIONS.get(self)


_DIRECTIONS = {
    WaitKind.UPLOAD: Direction.UPLOAD,
    WaitKind.DOWNLOAD: Direction.DOWNLOAD,
    WaitKind.DOWNLOAD_INTO: Direction.DOWNLOAD,
}


class Certainty(enum.Enum):
    """How sure it is that the call waits."""

    WAITED = "it waits whenever the device is busy"
    DEPENDS = "whether it waits depends on what else is going on"


@dataclass(frozen=True)
class Cause:
    """What a device knows of a wait, before anybody asks where in the program it happened.

    Attributes:
        kind: why the host waits.
        name: of the operator, as in ``"aten.nonzero"``, or of the call.
        size: of a copy, or of the memory given back, in bytes.
        certainty: whether it surely waits.
    """

    kind: WaitKind
    name: str
    size: int | None = None
    certainty: Certainty = Certainty.WAITED


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
