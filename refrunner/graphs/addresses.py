"""Where the tensors are that captured graphs read: a graph keeps addresses, and asks nobody whether they still hold."""

from __future__ import annotations

from collections.abc import Sequence

from ..input_batch import InputBatch
from ..tensors import tensors_of


class Addresses:
    """Addresses of all tensors that some objects hold, as they are when this is made.

    The batch of a step is passed over: what of it a graph reads are views of buffers that the builder holds, and the
    rest may be anywhere.
    """

    def __init__(self, owners: Sequence[object]) -> None:
        self._owners = owners
        self._captured = self._now()

    def moved(self) -> list[str]:
        """A line for each that is elsewhere now, or gone."""
        now = self._now()
        names = (name for name, address in self._captured.items() if now.get(name) != address)
        return [f"{name} is no longer where the graphs read it" for name in names]

    def _now(self) -> dict[str, int]:
        found = (pair for owner in self._owners for pair in tensors_of(owner, without=(InputBatch,)))
        return {name: tensor.data_ptr() for name, tensor in found}
