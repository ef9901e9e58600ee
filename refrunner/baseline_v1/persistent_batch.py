"""The persistent batch: state of the requests and layout of the step in the same rows.

Row i is the i-th request of the next step, so rows have no holes and follow the order that attention wants. Whoever
leaves makes the last row move into the hole, and with it everything that is kept by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..api import InvariantViolation, NewRequest
from ..config import NULL_BLOCK, RunnerConfig
from ..device import Device
from ..kv_groups import blocks_below_window
from ..memory import padded
from ..sampling.prompt_logprobs import PromptReport
from .mirrored import MirroredTensor, exchange_rows


@dataclass
class CachedRequest:
    """What the host knows of a live request, in the batch or not: rows are lost, this is what they are filled from.

    Attributes:
        request: as it entered.
        token_ids: every token known on the host.
        blocks: its KV blocks, of each group; the null block where one left the window.
        num_below: how many of them did, of each group.
        report: of its prompt, while it is out of the batch.
        was_in_batch: whether a row has been filled from it.
    """

    request: NewRequest
    token_ids: list[int]
    blocks: tuple[list[int], ...]
    num_below: list[int]
    report: PromptReport | None = None
    was_in_batch: bool = False

    @classmethod
    def of(cls, request: NewRequest, num_groups: int) -> CachedRequest:
        """A request that enters."""
        blocks: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        return cls(request, list(request.token_ids), blocks, [0] * num_groups)

    def drop_below_window(self, windows: Sequence[int], computed: int, block_size: int) -> list[int]:
        """Let go of the blocks that no token behind the computed ones can see, and say which they were."""
        dropped = []
        for group, window in enumerate(windows):
            held = self.blocks[group]
            below = min(blocks_below_window(window, computed, block_size), len(held))
            for place in range(self.num_below[group], below):
                dropped.append(held[place])
                held[place] = NULL_BLOCK
            self.num_below[group] = max(below, self.num_below[group])
        return [block for block in dropped if block != NULL_BLOCK]


class RowKeeper(Protocol):
    """Something else that is kept by row."""

    def fill(self, row: int, cached: CachedRequest) -> None:
        """A request has got this row."""
        ...

    def move(self, source: int, target: int) -> None:
        """The request of a row moves to another one, which is free."""
        ...

    def exchange(self, first: int, second: int) -> None:
        """The requests of two rows trade places."""
        ...

    def clear(self, row: int, cached: CachedRequest) -> None:
        """The request leaves its row, and perhaps comes back."""
        ...


class PersistentBatch:
    """Rows of the requests of a step.

    Attributes:
        names: the request of each row.
        row_of: the row of each request.
        token_ids: int32 [R, L] in ordinary memory; tokens that the host does not know are stale.
        num_computed: int32 [R].
        device_tables: int32 [G, R padded, B] on the device, the block tables as of the last upload.
        tables: block tables, one for each group, [R padded, B] each.
        changed: whether a row has got another request since ``changed`` was last set to false.
    """

    def __init__(
        self, config: RunnerConfig, device: Device, vocab_size: int, num_groups: int, keepers: Sequence[RowKeeper]
    ) -> None:
        rows, columns = padded(config.max_num_reqs, config.pad_to), config.max_blocks_per_request
        self.token_ids: NDArray[np.int32] = np.zeros((config.max_num_reqs, config.max_model_len), dtype=np.int32)
        self.num_computed: NDArray[np.int32] = np.zeros(config.max_num_reqs, dtype=np.int32)
        where = device.torch_device
        self.device_tables = torch.zeros(num_groups, rows, columns, dtype=torch.int32, device=where)
        groups = self.device_tables.unbind()
        self.tables = [MirroredTensor(device, (rows, columns), torch.int32, group) for group in groups]
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.changed = False
        self._keepers = tuple(keepers)
        self._holes: list[int] = []
        self._poison_token = vocab_size - 1 if config.poison else None

    def add(self, name: str, cached: CachedRequest) -> None:
        """Give a request the lowest hole, or a row behind all others, and fill it from what is known."""
        if self._holes:
            row = min(self._holes)
            self._holes.remove(row)
            self.names[row] = name
        else:
            row = len(self.names)
            self.names.append(name)
        self.row_of[name] = row
        self.token_ids[row, : len(cached.token_ids)] = cached.token_ids
        for group, blocks in enumerate(cached.blocks):
            self.write_blocks(row, group, 0, blocks)
        for keeper in self._keepers:
            keeper.fill(row, cached)
        cached.was_in_batch = True
        self.changed = True

    def write_blocks(self, row: int, group: int, start: int, blocks: Sequence[int]) -> None:
        """Write KV blocks into a row of a group's table."""
        self.tables[group].host[row, start : start + len(blocks)] = blocks

    def hide_below_window(self, row: int, cached: CachedRequest) -> None:
        """Write null blocks where blocks have left a sliding window: they may be another request's by now."""
        for table, below in zip(self.tables, cached.num_below, strict=True):
            if below:
                table.host[row, :below].fill(NULL_BLOCK)

    def remove(self, name: str, cached: CachedRequest) -> None:
        """Take a request out of its row, which is a hole until ``condense``."""
        row = self.row_of.pop(name)
        self._holes.append(row)
        for keeper in self._keepers:
            keeper.clear(row, cached)
        self._empty(row)
        self.changed = True

    def _empty(self, row: int) -> None:
        """Leave a row that nobody has: with null blocks, since a padded batch shows it to attention."""
        for table in self.tables:
            table.host[row].fill(NULL_BLOCK)
        if self._poison_token is not None:
            self.token_ids[row].fill(self._poison_token)

    def condense(self) -> None:
        """Move the last rows into the holes."""
        holes = sorted(self._holes)
        self._holes.clear()
        while holes:
            last = len(self.names) - 1
            if holes[-1] == last:
                holes.pop()
            else:
                self._move(last, holes.pop(0))
            self.names.pop()

    def reorder(self, order: Sequence[str]) -> None:
        """Bring the rows into an order, exchange by exchange."""
        for row, name in enumerate(order):
            if self.names[row] != name:
                self._exchange(row, self.row_of[name])

    def _move(self, source: int, target: int) -> None:
        name = self.names[source]
        self.names[target], self.row_of[name] = name, target
        for rows in self._by_row():
            rows[target] = rows[source]
        self._empty(source)
        for keeper in self._keepers:
            keeper.move(source, target)

    def _exchange(self, first: int, second: int) -> None:
        names = self.names
        names[first], names[second] = names[second], names[first]
        self.row_of |= {names[first]: first, names[second]: second}
        for rows in self._by_row():
            exchange_rows(rows, first, second)
        for keeper in self._keepers:
            keeper.exchange(first, second)
        self.changed = True

    def _by_row(self) -> Iterator[NDArray[Any]]:
        yield self.token_ids
        yield from (table.host for table in self.tables)

    def violations(self, requests: Mapping[str, CachedRequest]) -> Iterator[InvariantViolation]:
        """Rules between steps that are broken; reads the device, so the caller synchronises first."""
        if self._holes or {name: row for row, name in enumerate(self.names)} != self.row_of:
            yield InvariantViolation("row-bijection", f"rows {self.names}, holes {self._holes}, map {self.row_of}")
        for row, name in enumerate(self.names):
            known = requests[name].token_ids[: self.token_ids.shape[1]]
            if self.token_ids[row, : len(known)].tolist() != known:
                yield InvariantViolation("row-tokens", f"row {row} holds other tokens than its request", name)
            for group, table in enumerate(self.tables):
                held, host = requests[name].blocks[group], table.host[row].tolist()
                # Where a block has left the window since, the null block comes with the next step.
                lost = [block for block, found in zip(held, host, strict=False) if block not in (NULL_BLOCK, found)]
                if lost or table.gpu[row].tolist() != host:
                    detail = f"row {row} of group {group} holds {table.gpu[row].tolist()}, {host} on host, not {held}"
                    yield InvariantViolation("block-table", detail, name)
