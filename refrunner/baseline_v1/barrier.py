"""The one place where a step of this runner waits: its inputs live in memory that the step before may still read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..async_output import AsyncOutput
from ..device import Event, PassedEvent
from ..phases import Phase, phase
from .persistent_batch import CachedRequest


@dataclass(frozen=True)
class Draws:
    """What one step drew.

    Attributes:
        output: on its way to the host.
        tokens: int32 [M] on the device.
        requests: those whose draws count, each as it was then, with its row of the batch, that is, of ``tokens``.
    """

    output: AsyncOutput
    tokens: Tensor
    requests: Mapping[str, tuple[CachedRequest, int]]


class Barrier:
    """Orders the host behind the device, twice.

    Pinned memory that a step uploads is written again for the next one, so the host waits until the uploads are over.
    And what was drawn belongs into the host's own sequences: the draws of all steps but the last are taken there, of
    the last one too if the sampler needs the whole history; else its tokens go from step to step on the device.
    """

    def __init__(self) -> None:
        self._inputs_read: Event = PassedEvent()
        self._draws: deque[Draws] = deque()

    @property
    def latest(self) -> Draws | None:
        """Draws that the host has not taken, those of the last step that drew anything."""
        return self._draws[-1] if self._draws else None

    def uploads_enqueued(self, behind: Event) -> None:
        """The last copy from pinned memory of this step is enqueued, and the event stands behind it."""
        self._inputs_read = behind

    def drawn(self, draws: Draws) -> None:
        """A step has drawn tokens."""
        self._draws.append(draws)

    def wait(self, *, whole_history: bool) -> Iterator[tuple[CachedRequest, int]]:
        """Wait until the host may write the inputs of the next step.

        Yields:
            the requests whose draws have arrived, in order, each with its token.
        """
        with phase(Phase.WAIT):
            self._inputs_read.synchronize()
        while len(self._draws) > (0 if whole_history else 1):
            draws = self._draws.popleft()
            arrived = draws.output.result().token_ids
            yield from ((cached, arrived[name][0]) for name, (cached, _) in draws.requests.items())
