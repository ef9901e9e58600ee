"""Prompts that the gather kernel reads where the host wrote them: in pinned memory, never copied to the device.

The host may write a row only when no step that reads it is in flight. A row carries the event of the last such step,
and the host asks it; it never waits, since a prompt that cannot be written here is staged to the device's own table.
That happens where a request leaves within the steps in flight of its prefill and another one gets its row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch

from .config import RunnerConfig
from .device import Device, Event, PassedEvent

logger = logging.getLogger(__name__)


class PromptRows:
    """One row of host memory for each row of the state table.

    Attributes:
        memory: int32 [R, L], pinned. Written by the host in ``put``, read by the gather kernel on the main stream; the
            contents of a row beyond its request's known length are stale.
        num_refused: prompts that could not be written here.
    """

    def __init__(self, config: RunnerConfig, device: Device) -> None:
        rows, columns = config.max_num_reqs, config.max_model_len
        self.memory = device.pinned_read_in_place(rows * columns, torch.int32).view(rows, columns)
        self.num_refused = 0
        self._device = device
        self._last_reader: list[Event] = [PassedEvent()] * rows

    def put(self, row: int, tokens: Sequence[int]) -> bool:
        """Write a prompt, unless a step that reads the row's former content is in flight; returns whether it did."""
        if not self._last_reader[row].query():
            self.num_refused += 1
            logger.info("prompt of %d tokens is staged: its row is still read by a step in flight", len(tokens))
            return False
        self.memory.numpy()[row, : len(tokens)] = tokens
        return True

    def read_now(self, rows: Iterable[int]) -> None:
        """The kernel that reads these rows has just been enqueued on the current stream."""
        event = self._device.record_event()
        for row in rows:
            self._last_reader[row] = event
