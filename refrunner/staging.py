"""From the host to the device without a race: a pinned ring, one packed upload per step, staged table writes.

Two rules make this safe by construction. A pinned slot carries the event of its last reader; a slot still in
flight is neither rewritten nor waited for, the ring grows instead. And nothing else on the host is ever read by
the device: the persistent host state is ordinary memory, copied into a slot as a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import Device, Event, PassedEvent
from .errors import StepError
from .kernels.staged_write import apply_staged_writes

logger = logging.getLogger(__name__)

# Views of a packed buffer must be aligned for their own type, and 16 bytes is what a GPU loads at once.
ALIGNMENT = 16
SEGMENT_BLOCK = 1024
SMALLEST_SLOT = 4096


@dataclass
class _Slot:
    """Pinned bytes and the event after which they may be written again."""

    memory: Tensor
    last_reader: Event = field(default_factory=PassedEvent)


class PinnedRing:
    """Pinned slots, each reused only after its last reader has passed.

    Owner: the host. Readers: copies on the main stream.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._slots: list[_Slot] = []

    @property
    def depth(self) -> int:
        """Number of slots; it settles at the number of uploads in flight plus one."""
        return len(self._slots)

    def upload(self, payload: NDArray[np.uint8]) -> Tensor:
        """Copy bytes to fresh device memory through a free slot, without waiting.

        Args:
            payload: uint8 [bytes]; may be modified as soon as the call returns.

        Returns:
            uint8 [bytes] on the device, valid for work enqueued later on the current stream.
        """
        slot = self._free_slot(len(payload))
        slot.memory.numpy()[: len(payload)] = payload
        target = torch.empty(len(payload), dtype=torch.uint8, device=self._device.torch_device)
        target.copy_(slot.memory[: len(payload)], non_blocking=True)
        slot.last_reader = self._device.record_event()
        return target

    def _free_slot(self, size: int) -> _Slot:
        for slot in self._slots:
            if slot.last_reader.query():
                if slot.memory.numel() < size:
                    slot.memory = self._allocate(size)
                return slot
        self._slots.append(_Slot(self._allocate(size)))
        if len(self._slots) > 1:
            logger.info("pinned ring grew to %d slots: the device is that many uploads behind", len(self._slots))
        return self._slots[-1]

    def _allocate(self, size: int) -> Tensor:
        rounded = max(SMALLEST_SLOT, 1 << (size - 1).bit_length())
        return self._device.pinned_empty(rounded, torch.uint8)


class PackedUpload:
    """Collects the arrays of one step and sends them in one copy.

    Usage: ``add`` every array, ``send`` once, then ``view`` each of them on the device.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, NDArray[np.generic]]] = []
        self._size = 0
        self._on_device: Tensor | None = None

    def add(self, array: NDArray[np.generic]) -> int:
        """Add an array (copied at ``send``) and return its ticket."""
        self._parts.append((self._size, np.ascontiguousarray(array)))
        self._size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return len(self._parts) - 1

    def send(self, ring: PinnedRing) -> None:
        """Pack all arrays and upload them; an empty collection sends nothing."""
        if self._size == 0:
            return
        packed = np.zeros(self._size, dtype=np.uint8)
        for offset, array in self._parts:
            packed[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._on_device = ring.upload(packed)

    def view(self, ticket: int) -> Tensor:
        """The uploaded array of a ticket, flat, on the device."""
        offset, array = self._parts[ticket]
        dtype = torch.from_numpy(array).dtype
        if self._on_device is None:
            assert self._size == 0, "send() comes before view()"
            return torch.empty(0, dtype=dtype)
        return self._on_device[offset : offset + array.nbytes].view(dtype)


class StagedWriteTensor:
    """A device table that the host changes only through compact diffs.

    ``stage_write`` collects ragged row segments in ordinary memory; ``pack`` adds them to the step's upload;
    ``apply`` launches one kernel that scatters them. Later work on the same stream sees the new values.

    Attributes:
        gpu: [rows, columns], zero at start. Written by ``apply`` and by kernels, on the main stream.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: Device, name: str) -> None:
        self.gpu = torch.zeros(rows, columns, dtype=dtype, device=device.torch_device)
        self.name = name
        self._numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._staged: dict[int, list[tuple[int, NDArray[np.generic]]]] = {}
        self._tickets: tuple[int, int, int, int] | None = None
        self._num_segments = 0

    def stage_write(self, row: int, start: int, values: Sequence[int] | Sequence[float]) -> None:
        """Plan ``gpu[row, start : start + len(values)] = values`` for the next flush; the last write to a place wins.

        Raises:
            StepError: the segment leaves its row. It would overwrite the neighbour's state.
        """
        rows, columns = self.gpu.shape
        if not 0 <= row < rows or start < 0 or start + len(values) > columns:
            raise StepError(
                f"write of {len(values)} values to {self.name}[{row}, {start}:]",
                f"a write must stay inside its row (table of {rows} x {columns})",
                "a longer one would spill into the state of the next request",
                "fewer values, or a runner configured with longer rows",
            )
        if len(values):
            self._staged.setdefault(row, []).append((start, np.asarray(values, dtype=self._numpy_dtype)))

    def pack(self, upload: PackedUpload) -> None:
        """Move the staged writes into the upload, free of overlaps."""
        segments = [(row, *segment) for row, staged in self._staged.items() for segment in _without_overlap(staged)]
        self._staged.clear()
        self._num_segments = len(segments)
        if not segments:
            self._tickets = None
            return
        rows, starts, values = zip(*segments, strict=True)
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
        arrays = (np.array(rows, np.int32), np.array(starts, np.int32), offsets, np.concatenate(values))
        self._tickets = tuple(upload.add(array) for array in arrays)  # type: ignore[assignment]

    def apply(self, upload: PackedUpload) -> None:
        """Scatter the packed writes; enqueues one launch, or none if nothing was staged."""
        if self._tickets is None:
            return
        rows, starts, offsets, values = (upload.view(ticket) for ticket in self._tickets)
        apply_staged_writes[(self._num_segments,)](
            self.gpu, self.gpu.stride(0), rows, starts, offsets, values, BLOCK=SEGMENT_BLOCK
        )
        self._tickets = None

    def warm_up(self) -> None:
        """Load the kernel of ``apply``: a launch over no segment, which touches nothing."""
        nothing = torch.empty(0, dtype=torch.int32, device=self.gpu.device)
        apply_staged_writes[(0,)](
            self.gpu, self.gpu.stride(0), nothing, nothing, nothing, nothing.to(self.gpu.dtype), BLOCK=SEGMENT_BLOCK
        )


def _without_overlap(
    segments: list[tuple[int, NDArray[np.generic]]],
) -> list[tuple[int, NDArray[np.generic]]]:
    """The same final row content from segments that do not overlap.

    Different programs of one launch store in no particular order, so two writes to one element must be resolved
    before the launch (vLLM leaves this to its callers).
    """
    if len(segments) == 1:
        return segments
    low = min(start for start, _ in segments)
    high = max(start + len(values) for start, values in segments)
    content = np.zeros(high - low, dtype=segments[0][1].dtype)
    written = np.zeros(high - low + 2, dtype=np.int8)  # one cell of margin on each side, for the edges below
    for start, values in segments:
        content[start - low : start - low + len(values)] = values
        written[start - low + 1 : start - low + 1 + len(values)] = 1
    edges = np.diff(written)
    runs = zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
    return [(low + int(begin), content[begin:end]) for begin, end in runs]
