"""Host tensors with a copy on the device: written in place by the host, step after step, and uploaded as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..device import Device
from ..staging import Shapes


class MirroredTensor:
    """A pinned host tensor and a device tensor of the same shape.

    Nothing here keeps the host from writing what a copy in flight still reads: that is what the barrier is for, which
    every step passes before it writes anything (:mod:`.barrier`).

    Attributes:
        host: a numpy view of the pinned memory, zero at start. Owner: the host.
        gpu: written by ``upload``, on the main stream; its address never changes.
    """

    def __init__(self, device: Device, shape: Sequence[int], dtype: torch.dtype, gpu: Tensor | None = None) -> None:
        """Allocate both.

        Args:
            gpu: device memory for it, dense; by default its own.
        """
        self._pinned = device.pinned_empty(int(np.prod(shape)), dtype).view(*shape)
        self.host: NDArray[Any] = self._pinned.numpy()
        self.host.fill(0)
        self.gpu = torch.zeros(*shape, dtype=dtype, device=device.torch_device) if gpu is None else gpu

    def upload(self, count: int) -> Tensor:
        """Enqueue the copy of the first ``count`` rows, changed or not, and return them: a view of ``gpu``."""
        part = self.gpu[:count]
        part.copy_(self._pinned[:count], non_blocking=True)
        return part


class MirroredTable(MirroredTensor):
    """A table that the sampler's kernels read by row; see :class:`~..sampling.tables.Table`.

    Args:
        by_column: its columns are the rows of the batch.
    """

    def __init__(self, device: Device, shape: tuple[int, int], dtype: torch.dtype, *, by_column: bool) -> None:
        super().__init__(device, shape, dtype)
        self._by_row = self.host[0] if by_column else self.host
        self._by_column = by_column

    def stage_write(self, row: int, start: int, values: Sequence[int] | Sequence[float]) -> None:
        """Write at once; the device sees it after the next ``upload``."""
        self.host[row, start : start + len(values)] = values

    def move(self, source: int, target: int) -> None:
        """A row of the batch takes the place of another one."""
        self._by_row[target] = self._by_row[source]

    def exchange(self, first: int, second: int) -> None:
        """Two rows of the batch trade places."""
        exchange_rows(self._by_row, first, second)

    def upload(self, count: int) -> Tensor:
        """Enqueue the copy of what belongs to the first ``count`` rows of the batch."""
        if not self._by_column:
            return super().upload(count)
        part = self.gpu[0, :count]
        part.copy_(self._pinned[0, :count], non_blocking=True)
        return part


class MirroredTables:
    """Tables by their names; see :class:`~..sampling.tables.Tables`."""

    def __init__(self, device: Device, shapes: Shapes, max_num_reqs: int) -> None:
        self._tables = {
            name: MirroredTable(device, (rows, columns), dtype, by_column=rows != max_num_reqs)
            for name, (rows, columns, dtype) in shapes.items()
        }

    def __getitem__(self, name: str) -> MirroredTable:
        """A table by its name."""
        return self._tables[name]

    def move(self, source: int, target: int) -> None:
        """A row of the batch takes the place of another one in all tables."""
        for table in self._tables.values():
            table.move(source, target)

    def exchange(self, first: int, second: int) -> None:
        """Two rows of the batch trade places in all tables."""
        for table in self._tables.values():
            table.exchange(first, second)

    def upload(self, names: Iterable[str], count: int) -> None:
        """Enqueue the copies of what some tables hold for the first ``count`` rows of the batch, one for each table."""
        for name in names:
            self._tables[name].upload(count)


def exchange_rows(rows: NDArray[Any], first: int, second: int) -> None:
    """Let two rows of an array trade places."""
    kept = np.array(rows[first])
    rows[first] = rows[second]
    rows[second] = kept
