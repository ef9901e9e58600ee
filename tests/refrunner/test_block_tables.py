"""Block tables: what the host appends is what the device gathers, and every lane gets the slot of its position."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.refrunner import block_tables as module
from mrv2.refrunner.block_tables import BlockTables
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.errors import StepError
from mrv2.refrunner.staging import PackedUpload, PinnedRing

ROWS, COLUMNS, BLOCK_SIZE, LANES = 4, 8, 4, 24


def make_tables():
    config = RunnerConfig(max_num_reqs=ROWS, max_model_len=COLUMNS * BLOCK_SIZE, block_size=BLOCK_SIZE)
    return BlockTables(config, Device("cpu"), LANES, ROWS)


def flush(tables):
    upload = PackedUpload()
    tables.pack(upload)
    upload.send(PinnedRing(Device("cpu")))
    tables.apply(upload)


def gather(tables, rows, padded):
    counts = torch.from_numpy(tables.num_blocks[rows])
    return tables.gather(torch.tensor(rows, dtype=torch.int32), counts, len(rows), padded)


def test_blocks_are_appended_across_flushes():
    tables = make_tables()
    tables.append(1, [5, 6])
    flush(tables)
    tables.append(1, [7])
    tables.append(1, [])
    tables.append(1, [8])
    flush(tables)
    assert tables.device_table()[1, :4].tolist() == [5, 6, 7, 8]
    assert tables.blocks_of(1) == (5, 6, 7, 8)
    assert tables.num_blocks.tolist() == [0, 4, 0, 0]


def test_a_cleared_row_says_what_it_held_and_starts_anew():
    tables = make_tables()
    tables.append(2, [5, 6, 7])
    flush(tables)
    assert tables.clear(2) == [5, 6, 7]
    assert tables.clear(2) == []
    tables.append(2, [9])
    flush(tables)
    assert tables.blocks_of(2) == (9,)
    assert gather(tables, [2], 1)[0, 0] == 9


def test_a_row_that_changes_hands_within_one_flush():
    tables = make_tables()
    tables.append(0, [1, 2, 3])
    tables.clear(0)
    tables.append(0, [4])
    flush(tables)
    assert tables.device_table()[0, 0] == 4
    assert tables.blocks_of(0) == (4,)


def test_more_blocks_than_columns_are_refused():
    tables = make_tables()
    tables.append(0, range(1, COLUMNS + 1))
    with pytest.raises(StepError, match="block table"):
        tables.append(0, [99])
    assert len(tables.blocks_of(0)) == tables.num_blocks[0] == COLUMNS
    flush(tables)
    assert not tables.device_table()[1:].any()


def test_gather_follows_the_batch_and_pads_with_the_null_block():
    tables = make_tables()
    tables.batch_table.fill_(77)
    for row in range(3):
        tables.append(row, [10 * row + 1, 10 * row + 2])
    flush(tables)
    table = gather(tables, [2, 0], padded=4)
    assert table[:2, :2].tolist() == [[21, 22], [1, 2]]
    assert table[2:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_tables_longer_than_a_kernel_block(monkeypatch, lanes):
    monkeypatch.setattr(module, "LANES", lanes)
    tables = make_tables()
    tables.append(3, range(1, COLUMNS))
    flush(tables)
    assert gather(tables, [3], 1)[0].tolist() == [*range(1, COLUMNS), 0]
    check_slots(tables, [3], [5], [LANES - 2])


def check_slots(tables, rows, starts, lengths):
    """Map the slots of a batch and compare with block * size + offset, computed lane by lane."""
    gather(tables, rows, len(rows))
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    bounds = np.cumsum([0, *lengths]).astype(np.int32)
    lanes = torch.zeros(tables.slot_mapping.numel(), dtype=torch.int64)
    lanes[: len(positions)] = torch.from_numpy(positions)
    tables.slot_mapping.fill_(12345)
    tables.map_slots(torch.from_numpy(bounds), lanes, len(rows))
    expected = [
        tables.blocks_of(row)[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for row, start, length in zip(rows, starts, lengths, strict=True)
        for position in range(start, start + length)
    ]
    padding = tables.slot_mapping.numel() - len(expected)
    assert tables.slot_mapping.tolist() == expected + [-1] * padding


def test_every_lane_behind_the_batch_is_padding():
    tables = make_tables()
    tables.append(0, [3])
    flush(tables)
    check_slots(tables, [0], [0], [1])


batches = st.permutations(range(ROWS)).flatmap(
    lambda rows: st.lists(
        st.tuples(st.integers(0, COLUMNS * BLOCK_SIZE - 6), st.integers(1, 6)), min_size=1, max_size=ROWS
    ).map(lambda spans: [(row, *span) for row, span in zip(rows, spans, strict=False)])
)


@given(batches, st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_slots_of_any_batch(batch, draw):
    tables = make_tables()
    free = draw.sample(range(1, 200), ROWS * COLUMNS)
    for row in range(ROWS):
        for _ in range(COLUMNS // 2):
            tables.append(row, [free.pop(), free.pop()])
        if draw.random() < 0.5:
            flush(tables)
    flush(tables)
    rows, starts, lengths = zip(*batch, strict=True)
    check_slots(tables, list(rows), starts, lengths)
