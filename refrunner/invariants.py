"""Bookkeeping rules that hold between steps, checked off the hot path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from .api import InvariantViolation
from .block_tables import BlockTables
from .config import NULL_BLOCK
from .input_batch import InputBatch
from .request_states import RequestStates

PAD_SLOT = -1


@dataclass(frozen=True)
class HostCounts:
    """What the host knows of each live request.

    Attributes:
        computed: tokens computed, at most.
        total: tokens known, at most.
        unverified: by how much both may be too high: drafts whose outcome it has not been told.
    """

    computed: Mapping[str, int]
    total: Mapping[str, int]
    unverified: Mapping[str, int]


def check_invariants(
    states: RequestStates,
    tables: BlockTables,
    counts: HostCounts,
    batch: InputBatch | None = None,
) -> list[InvariantViolation]:
    """All broken rules. Reads device values, so the caller synchronises first.

    Args:
        states: the state table.
        tables: the block tables.
        counts: what the host knows of the live requests.
        batch: inputs of the last step, if it built any.
    """
    rules = [
        _rows(states),
        _generations(states),
        _counters(states, counts),
        _newest_tokens(states),
        _blocks(states, tables, counts.computed),
    ]
    if batch is not None:
        rules.append(check_padding(batch))
    return [violation for rule in rules for violation in rule]


def _rows(states: RequestStates) -> Iterator[InvariantViolation]:
    """Used and free rows are disjoint and make up the whole table."""
    owners = Counter([*states.row_of.values(), *states.free_rows])
    for row in range(states.token_ids.shape[0]):
        if owners[row] != 1:
            yield InvariantViolation("row-bijection", f"row {row} has {owners[row]} owners, free list included")


def _counters(states: RequestStates, counts: HostCounts) -> Iterator[InvariantViolation]:
    """The host's counters bound the device's, and are off by unverified drafts at most, both by the same number."""
    computed, total = counts.computed, counts.total
    device_computed, device_total = states.num_computed.tolist(), states.total_len.tolist()
    for name, row in states.row_of.items():
        pairs = (("num_computed", device_computed[row], computed[name]), ("total_len", device_total[row], total[name]))
        for counter, device, host in pairs:
            if not host - counts.unverified[name] <= device <= host:
                yield InvariantViolation("counter", f"{counter}[{row}] is {device} on the device, {host} on host", name)
        if device_computed[row] - computed[name] != device_total[row] - total[name]:
            pair = f"{device_computed[row]} of {device_total[row]} on the device, {computed[name]} of {total[name]}"
            yield InvariantViolation("counter", f"row {row} has computed {pair} on host", name)


def _blocks(states: RequestStates, tables: BlockTables, computed: Mapping[str, int]) -> Iterator[InvariantViolation]:
    """The device's block table holds what the host appended, and a block has one owner until it is full."""
    owners: dict[int, tuple[str, int, int]] = {}
    device_table = tables.device_table().tolist()
    for (name, row), group in product(states.row_of.items(), range(tables.num_groups)):
        blocks = tables.blocks_of(row, group)
        found = [block if known else NULL_BLOCK for block, known in zip(device_table[group][row], blocks, strict=False)]
        if found != list(blocks):
            detail = f"row {row} of group {group} holds {found} on the device, {list(blocks)} on host"
            yield InvariantViolation("block-table", detail, name)
        for place, block in enumerate(blocks):
            owner, *where = owners.setdefault(block, (name, group, place))
            written = min(computed[name], computed[owner]) < (place + 1) * tables.block_size
            if block != NULL_BLOCK and owner != name and (written or where != [group, place]):
                yield InvariantViolation("block-owner", f"block {block} belongs to {owner} too", name)


def _newest_tokens(states: RequestStates) -> Iterator[InvariantViolation]:
    """The newest token has two homes, ``last_sampled`` and the token table, and they agree.

    A step reads the newest one from the first and older ones from the second, so a table that lags shows in no output
    as long as one token at a time is computed.
    """
    newest = states.last_sampled.tolist()
    for name, row in states.row_of.items():
        kept = states.newest_in_its_home(row)
        if kept is not None and kept != newest[row]:
            yield InvariantViolation(
                "newest-token", f"{kept} is kept for row {row}, last_sampled is {newest[row]}", name
            )


def _generations(states: RequestStates) -> Iterator[InvariantViolation]:
    """The device has seen the latest owner of each row enter."""
    device = states.device_generations.tolist()
    for name, row in states.row_of.items():
        if device[row] != states.generations[row]:
            detail = f"generation of row {row} is {device[row]} on the device, {states.generations[row]} on host"
            yield InvariantViolation("generation", detail, name)


def check_padding(batch: InputBatch) -> Iterator[InvariantViolation]:
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
