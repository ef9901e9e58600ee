"""From the host to the device without a race: a pinned ring, one packed upload per step, staged table writes.

Two rules make this safe by construction. A pinned slot carries the event of its last reader, be it a copy or a kernel
that reads the slot in place; a slot still in flight is neither rewritten nor waited for, the ring grows instead. And
nothing else on the host is ever read by the device, but for prompts (:mod:`.prompt_rows`), to which the same rule
applies: the persistent host state is ordinary memory, copied into a slot as a snapshot.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

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
WORD = 4
#: First column, and the values from there on.
_Write = tuple[int, tuple[int | float, ...]]
ALIGNED_WORDS = ALIGNMENT // WORD
#: Rows, columns and type of each table, by name.
Shapes = Mapping[str, tuple[int, int, torch.dtype]]


@dataclass
class _Slot:
    """Pinned bytes and the event after which they may be written again."""

    memory: Tensor
    last_reader: Event = field(default_factory=PassedEvent)


class _NotRead(PassedEvent):
    """The event of a slot whose last reader has not been enqueued yet."""

    def query(self) -> bool:
        """Never passed."""
        return False


class PinnedRing:
    """Pinned slots, each reused only after its last reader has passed.

    Owner: the host. Readers: copies and kernels on the main stream.

    Args:
        device: it reads the slots.
        read_in_place: kernels do, and not only copies; see :meth:`Device.pinned_read_in_place`.
    """

    def __init__(self, device: Device, *, read_in_place: bool = False) -> None:
        self._device = device
        self._read_in_place = read_in_place
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

    def place(self, payload: NDArray[np.uint8]) -> Lease:
        """Copy bytes to a free slot, where kernels may read them in place until the lease ends, without waiting.

        Args:
            payload: uint8 [bytes]; may be modified as soon as the call returns.
        """
        slot = self._free_slot(len(payload))
        slot.memory.numpy()[: len(payload)] = payload
        slot.last_reader = _NotRead()
        return Lease(slot.memory[: len(payload)], slot, self._device)

    def _free_slot(self, size: int) -> _Slot:
        for slot in self._slots:
            if slot.last_reader.query():
                if slot.memory.numel() < size:
                    logger.info("a pinned slot grew from %d bytes to hold %d", slot.memory.numel(), size)
                    slot.memory = self._allocate(size)
                return slot
        self._slots.append(_Slot(self._allocate(size)))
        if len(self._slots) > 1:
            logger.info("pinned ring grew to %d slots: the device is that many uploads behind", len(self._slots))
        return self._slots[-1]

    def _allocate(self, size: int) -> Tensor:
        rounded = max(SMALLEST_SLOT, 1 << (size - 1).bit_length())
        if self._read_in_place:
            return self._device.pinned_read_in_place(rounded, torch.uint8)
        return self._device.pinned_empty(rounded, torch.uint8)


@dataclass(frozen=True)
class Lease:
    """A slot that kernels read in place.

    Attributes:
        memory: uint8 [bytes], pinned.
    """

    memory: Tensor
    _slot: _Slot
    _device: Device

    def end(self) -> None:
        """The last kernel that reads the slot is enqueued; behind it the slot is free."""
        self._slot.last_reader = self._device.record_event()


@dataclass
class Segments:
    """Pieces of a table that are written, free of overlaps.

    Attributes:
        targets: first word of each.
        lengths: words of each.
        values: int32 arrays, which hold the words of all pieces one after another.
    """

    targets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    values: list[NDArray[np.int32]] = field(default_factory=list)


class PackedUpload:
    """Collects the arrays of one step and sends them in one copy, or hands them to kernels where they are.

    Usage: ``add`` every array, ``send`` once, ``view`` each of them, ``end`` once no further kernel will read a view.

    Args:
        in_place: leave the arrays in the pinned slot. Kernels then read host memory over the bus, which pays for what
            is read once.
    """

    def __init__(self, *, in_place: bool = False) -> None:
        self._parts: list[tuple[int, NDArray[np.generic]]] = []
        self._size = 0
        self._in_place = in_place
        self._lease: Lease | None = None
        self._on_device: Tensor | None = None
        self._pieces: dict[torch.dtype, dict[int, Tensor]] = {}

    def add(self, array: NDArray[np.generic]) -> int:
        """Add an array (copied at ``send``) and return its ticket."""
        self._parts.append((self._size, np.ascontiguousarray(array)))
        self._size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return len(self._parts) - 1

    def send(self, ring: PinnedRing) -> None:
        """Pack all arrays and upload them, or place them in a slot; an empty collection sends nothing."""
        if self._size == 0:
            return
        if self._in_place:
            self._lease = ring.place(self._packed())
            self._on_device = self._lease.memory
        else:
            self._on_device = ring.upload(self._packed())

    def send_and_wait(self, device: Device) -> None:
        """Pack all arrays and upload them from ordinary memory, which waits for the device: for startup only."""
        self._on_device = torch.from_numpy(self._packed()).to(device.torch_device)

    def _packed(self) -> NDArray[np.uint8]:
        packed = np.zeros(self._size, dtype=np.uint8)
        for offset, array in self._parts:
            packed[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        return packed

    def end(self) -> None:
        """All readers are enqueued; a slot that is read in place is free behind them."""
        if self._lease is not None:
            self._lease.end()

    def view(self, ticket: int) -> Tensor:
        """The array of a ticket, flat, where kernels can read it."""
        dtype = _torch_dtype(self._parts[ticket][1].dtype)
        if self._on_device is None:
            assert self._size == 0, "send() comes before view()"
            return torch.empty(0, dtype=dtype)
        if dtype not in self._pieces:
            self._pieces[dtype] = self._split(self._on_device, dtype)
        return self._pieces[dtype][ticket]

    def _split(self, memory: Tensor, dtype: torch.dtype) -> dict[int, Tensor]:
        """All arrays of a type, by their tickets: cut out one by one they would cost two operations each."""
        width, end, sizes, tickets = dtype.itemsize, 0, [], []
        for ticket, (offset, array) in enumerate(self._parts):
            if _torch_dtype(array.dtype) == dtype:
                sizes += [offset // width - end, array.size]
                tickets.append(ticket)
                end = offset // width + array.size
        pieces = memory.view(dtype).split([*sizes, self._size // width - end])
        return dict(zip(tickets, pieces[1::2], strict=True))


@functools.cache
def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


class StagedWriteTensor:
    """A device table that the host changes only through compact diffs.

    ``stage_write`` collects ragged row segments in ordinary memory; ``pack`` adds them to the step's upload;
    ``apply`` launches one kernel that scatters them. Later work on the same stream sees the new values. Several tables
    that are always flushed together belong into one :class:`StagedTables`.

    Attributes:
        gpu: [rows, columns], zero at start. Written by ``apply`` and by kernels, on the main stream.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        dtype: torch.dtype,
        device: Device,
        name: str,
        words: Tensor | None = None,
    ) -> None:
        """Make the table.

        Args:
            words: int32, memory for it, dense and zero; by default its own.
        """
        if words is None:
            words = torch.zeros(words_of(rows, columns, dtype), dtype=torch.int32, device=device.torch_device)
        self.gpu = words.view(dtype).view(rows, columns)
        self.name = name
        self._shape = rows, columns
        self._writer = _WordWriter()
        self._numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._staged: dict[int, list[_Write]] = {}

    def stage_write(self, row: int, start: int, values: Sequence[int] | Sequence[float]) -> None:
        """Plan ``gpu[row, start : start + len(values)] = values`` for the next flush; the last write to a place wins.

        Raises:
            StepError: the segment leaves its row. It would overwrite the neighbour's state.
        """
        rows, columns = self._shape
        if not 0 <= row < rows or start < 0 or start + len(values) > columns:
            raise StepError(
                f"write of {len(values)} values to {self.name}[{row}, {start}:]",
                f"a write must stay inside its row (table of {rows} x {columns})",
                "a longer one would spill into the state of the next request",
                "fewer values, or a runner configured with longer rows",
            )
        if len(values):
            self._staged.setdefault(row, []).append((start, tuple(values)))

    def take_segments(self, segments: Segments, first_word: int = 0) -> None:
        """Add the staged writes, free of overlaps, as words of memory in which the table begins at ``first_word``."""
        if not self._staged:
            return
        columns, width = self._shape[1], self._numpy_dtype.itemsize // WORD
        taken: list[Sequence[int] | Sequence[float]] = []
        for row, staged in self._staged.items():
            for start, values in staged if len(staged) == 1 else _without_overlap(staged):
                segments.targets.append(first_word + (row * columns + start) * width)
                segments.lengths.append(len(values) * width)
                taken.append(values)
        segments.values.append(np.array([*chain.from_iterable(taken)], dtype=self._numpy_dtype).view(np.int32))
        self._staged.clear()

    def pack(self, upload: PackedUpload) -> None:
        """Move the staged writes into the upload, free of overlaps."""
        segments = Segments()
        self.take_segments(segments)
        self._writer.pack(upload, segments)

    def warm_up(self) -> None:
        """Load the kernel of ``apply``: a launch over no segment, which touches nothing."""
        self._writer.warm_up(self.gpu.view(torch.int32))

    def apply(self, upload: PackedUpload) -> None:
        """Scatter the packed writes; enqueues one launch, or none if nothing was staged."""
        if self._writer.pending:
            self._writer.apply(upload, self.gpu.view(torch.int32))


class StagedTables:
    """Several staged tables in one piece of device memory: one launch flushes them all, whatever their types."""

    def __init__(self, device: Device, shapes: Shapes) -> None:
        """Make the tables."""
        sizes = [words_of(*shape) for shape in shapes.values()]
        self._starts = _starts(sizes)
        self._words = torch.zeros(self._starts[-1], dtype=torch.int32, device=device.torch_device)
        self._writer = _WordWriter()
        self._tables = {
            name: StagedWriteTensor(*shape, device, name, self._words[start : start + size])
            for (name, shape), start, size in zip(shapes.items(), self._starts, sizes, strict=False)
        }

    def __getitem__(self, name: str) -> StagedWriteTensor:
        """A table by its name."""
        return self._tables[name]

    def pack(self, upload: PackedUpload) -> None:
        """Move the staged writes of all tables into the upload."""
        segments = Segments()
        for table, start in zip(self._tables.values(), self._starts, strict=False):
            table.take_segments(segments, start)
        self._writer.pack(upload, segments)

    def warm_up(self) -> None:
        """Load the kernel of ``apply``; nothing changes."""
        self._writer.warm_up(self._words)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter the packed writes of all tables; enqueues one launch, or none if nothing was staged."""
        self._writer.apply(upload, self._words)


def bytes_of(shapes: Shapes) -> int:
    """Bytes that :class:`StagedTables` of these shapes take."""
    return WORD * _starts([words_of(*shape) for shape in shapes.values()])[-1]


def _starts(sizes: list[int]) -> list[int]:
    """First word of each table, and the end of the last one."""
    return [0, *accumulate(-(-size // ALIGNED_WORDS) * ALIGNED_WORDS for size in sizes)]


def words_of(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Words that a table of a 4- or 8-byte type takes."""
    return rows * columns * (dtype.itemsize // WORD)


class _WordWriter:
    """Scatters segments of 32-bit words into device memory: types do not matter to a copy."""

    def __init__(self) -> None:
        self._tickets: tuple[int, int, int] | None = None
        self._num_segments = 0

    @property
    def pending(self) -> bool:
        """Whether anything is packed."""
        return self._tickets is not None

    def pack(self, upload: PackedUpload, segments: Segments) -> None:
        self._num_segments = len(segments.targets)
        self._tickets = None
        if segments.targets:
            offsets = np.cumsum([0, *segments.lengths], dtype=np.int32)
            first, second = upload.add(np.array(segments.targets, np.int64)), upload.add(offsets)
            self._tickets = first, second, upload.add(np.concatenate(segments.values))

    def warm_up(self, words: Tensor) -> None:
        nothing = torch.empty(0, dtype=torch.int32, device=words.device)
        apply_staged_writes[(0,)](words, nothing.long(), nothing, nothing, BLOCK=SEGMENT_BLOCK)

    def apply(self, upload: PackedUpload, words: Tensor) -> None:
        if self._tickets is not None:
            targets, offsets, values = (upload.view(ticket) for ticket in self._tickets)
            apply_staged_writes[(self._num_segments,)](words, targets, offsets, values, BLOCK=SEGMENT_BLOCK)
            self._tickets = None


def _without_overlap(writes: list[_Write]) -> Iterator[_Write]:
    """The same final row content from writes that do not overlap.

    Different programs of one launch store in no particular order, so two writes to one element must be resolved
    before the launch (vLLM leaves this to its callers).
    """
    low = min(start for start, _ in writes)
    high = max(start + len(values) for start, values in writes)
    content: list[int | float] = [0] * (high - low)
    written = np.zeros(high - low + 2, dtype=np.int8)  # one cell of margin on each side, for the edges below
    for start, values in writes:
        content[start - low : start - low + len(values)] = values
        written[start - low + 1 : start - low + 1 + len(values)] = 1
    edges = np.diff(written)
    for begin, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        yield low + int(begin), tuple(content[begin:end])
