"""Sampling parameters of the live requests: one row each, in the rows of the state table."""

from __future__ import annotations

import torch
from torch import Tensor

from ..api import SamplingParams
from ..config import RunnerConfig
from ..device import Device
from ..staging import PackedUpload, StagedWriteTensor

# Above 0, or it would read as greedy; so high that whoever draws with it gets almost any token.
POISON_TEMPERATURE = 1000.0
POISON_SEED = -1


class SamplingTables:
    """Device tables, written on the main stream by staged writes when a request is added, read by the kernels by row.

    ``temperature`` float32 [R]; ``seeds`` int64 [R].
    """

    def __init__(self, config: RunnerConfig, device: Device) -> None:
        rows = config.max_num_reqs
        self._temperature = StagedWriteTensor(1, rows, torch.float32, device, "temperature")
        self._seeds = StagedWriteTensor(1, rows, torch.int64, device, "seeds")

    @property
    def temperature(self) -> Tensor:
        """float32 [R]."""
        return self._temperature.gpu[0]

    @property
    def seeds(self) -> Tensor:
        """int64 [R]."""
        return self._seeds.gpu[0]

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Stage the parameters of a request that has got this row; nothing of the former owner survives."""
        self._temperature.stage_write(0, row, [sampling.temperature])
        self._seeds.stage_write(0, row, [_as_int64(sampling.seed or 0)])

    def poison(self, row: int) -> None:
        """Stage values into a freed row that would change the output if anything read them."""
        self._temperature.stage_write(0, row, [POISON_TEMPERATURE])
        self._seeds.stage_write(0, row, [POISON_SEED])

    def pack(self, upload: PackedUpload) -> None:
        """Add the staged writes to the step's upload."""
        for table in (self._temperature, self._seeds):
            table.pack(upload)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter them on the device."""
        for table in (self._temperature, self._seeds):
            table.apply(upload)

    def warm_up(self) -> None:
        """Load the kernels of ``apply``; nothing changes."""
        for table in (self._temperature, self._seeds):
            table.warm_up()


def _as_int64(seed: int) -> int:
    """The same 64 bits as a signed number."""
    return (seed + 2**63) % 2**64 - 2**63
