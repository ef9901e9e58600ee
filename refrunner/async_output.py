"""The pending result of a step: the only place where the host waits for the device."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from .api import StepOutput
from .device import Device

Value = TypeVar("Value", int, float)


class AsyncOutput:
    """Downloads the drawn tokens behind the step, and waits only when asked for them.

    May be dropped at any time, ``result`` called or not; see :meth:`Device.download`.
    """

    def __init__(
        self,
        device: Device,
        request_ids: tuple[str, ...],
        finished_prefill: frozenset[str],
        token_ids: Tensor,
        logprobs: Tensor,
    ) -> None:
        """Enqueue the download.

        Args:
            request_ids: requests of the batch, in the order of the rows below.
            finished_prefill: those whose draw counts; the others are still in the middle of their prefill.
            token_ids: int32 [n] on the device.
            logprobs: float32 [n] on the device.
        """
        self._request_ids = request_ids
        self._finished_prefill = finished_prefill
        self._copies, self._done = device.download((token_ids, logprobs))
        self._output: StepOutput | None = None

    def result(self) -> StepOutput:
        """Wait for the copies; later calls return the same output."""
        if self._output is None:
            self._done.synchronize()
            token_ids, logprobs = (copy.tolist() for copy in self._copies)
            self._output = StepOutput(self._per_request(token_ids), self._per_request(logprobs))
        return self._output

    def _per_request(self, values: list[Value]) -> dict[str, tuple[Value, ...]]:
        pairs = zip(self._request_ids, values, strict=True)
        return {name: (value,) for name, value in pairs if name in self._finished_prefill}


class EmptyOutput:
    """The result of a step that scheduled no token."""

    def result(self) -> StepOutput:
        """Nothing was drawn."""
        return StepOutput({}, {})
