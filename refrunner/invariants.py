"""Bookkeeping rules that hold between steps, checked off the hot path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product

from .api import InvariantViolation
from .block_tables import BlockTables
from .config import NULL_BLOCK
from .input_batch import InputBatch
from .request_states import RequestStates

PAD_SLOT = -1


def check_invariants(
    states: RequestStates,
    tables: BlockTables,
    computed: Mapping[str, int],
    total: Mapping[str, int],
    batch: InputBatch | None = None,
) -> list[InvariantViolation]:
    """All broken rules. Reads device values, so the caller synchronises first.

    Args:
        states: the state table.
        tables: the block tables.
        computed: tokens computed per live request, as the host counts them.
        total: tokens known per live request, as the host counts them.
        batch: inputs of the last step, if it built any.
    """
    rules = [_rows(states), _counters(states, computed, total), _newest_tokens(states), _blocks(states, tables)]
    if batch is not None:
        rules.append(_padding(batch))
    return [violation for rule in rules for violation in rule]


def _rows(states: RequestStates) -> Iterator[InvariantViolation]:
    """Used and free rows are disjoint and make up the whole table."""
    owners = Counter([*states.row_of.values(), *states.free_rows])
    for row in range(states.token_ids.shape[0]):
        if owners[row] != 1:
            yield InvariantViolation("row-bijection", f"row {row} has {owners[row]} owners, free list included")


def _counters(
    states: RequestStates, computed: Mapping[str, int], total: Mapping[str, int]
) -> Iterator[InvariantViolation]:
    """Without speculation the device's counters equal the host's."""
    device_computed, device_total = states.num_computed.tolist(), states.total_len.tolist()
    for name, row in states.row_of.items():
        pairs = (("num_computed", device_computed[row], computed[name]), ("total_len", device_total[row], total[name]))
        for counter, device, host in pairs:
            if device != host:
                yield InvariantViolation("counter", f"{counter}[{row}] is {device} on the device, {host} on host", name)


def _blocks(states: RequestStates, tables: BlockTables) -> Iterator[InvariantViolation]:
    """The device's block table holds what the host appended, and no block has two owners."""
    owners: dict[int, str] = {}
    device_table = tables.device_table().tolist()
    for (name, row), group in product(states.row_of.items(), range(tables.num_groups)):
        blocks = list(tables.blocks_of(row, group))
        found = device_table[group][row][: len(blocks)]
        if found != blocks:
            detail = f"row {row} of group {group} holds {found} on the device, {blocks} on host"
            yield InvariantViolation("block-table", detail, name)
        for block in filter(None, blocks):
            if block in owners:
                yield InvariantViolation("block-owner", f"block {block} belongs to {owners[block]} too", name)
            owners[block] = name


def _newest_tokens(states: RequestStates) -> Iterator[InvariantViolation]:
    """The newest token has two homes, ``last_sampled`` and the token table, and they agree.

    A step reads the newest one from the first and older ones from the second, so a table that lags shows in no output
    as long as one token at a time is computed.
    """
    table, newest, total = states.token_ids.tolist(), states.last_sampled.tolist(), states.total_len.tolist()
    for name, row in states.row_of.items():
        last = total[row] - 1
        if 0 <= last < len(table[row]) and table[row][last] != newest[row]:
            detail = f"token_ids[{row}, {last}] is {table[row][last]}, last_sampled[{row}] is {newest[row]}"
            yield InvariantViolation("newest-token", detail, name)


def _padding(batch: InputBatch) -> Iterator[InvariantViolation]:
    """Padding requests have length 0 and the null block, padding lanes no slot, so that a kernel reads nothing."""
    count, tokens = batch.num_requests, batch.num_tokens
    parts = {
        "seq_lens": (batch.seq_lens[count:], 0),
        "block_table": (batch.block_table[:, count:], NULL_BLOCK),
        "slot_mapping": (batch.slot_mapping[:, tokens:], PAD_SLOT),
    }
    for name, (values, neutral) in parts.items():
        if (values != neutral).any():
            yield InvariantViolation("padding", f"{name} of the padding is {values.tolist()}, not {neutral} throughout")
