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
from mrv2.refrunner.kv_groups import blocks_below_window
from mrv2.refrunner.staging import PackedUpload, PinnedRing

ROWS, COLUMNS, BLOCK_SIZE, LANES = 4, 8, 4, 24


def make_tables(windows=(0,)):
    config = RunnerConfig(max_num_reqs=ROWS, max_model_len=COLUMNS * BLOCK_SIZE, block_size=BLOCK_SIZE)
    return BlockTables(config, Device("cpu"), LANES, ROWS, windows)


def flush(tables):
    upload = PackedUpload()
    tables.pack(upload)
    upload.send(PinnedRing(Device("cpu")))
    tables.apply(upload)


def gather(tables, rows, padded, computed=None, lengths=None):
    """The batch's table of every group, with nothing computed yet of any row, and no lane, unless the test says so."""
    counts = torch.from_numpy(np.ascontiguousarray(tables.num_blocks[:, rows]))
    computed = torch.zeros(ROWS, dtype=torch.int32) if computed is None else torch.tensor(computed, dtype=torch.int32)
    bounds = torch.from_numpy(np.cumsum([0, *(lengths or [0] * len(rows))]).astype(np.int32))
    return tables.prepare(torch.tensor(rows, dtype=torch.int32), bounds, counts, computed, len(rows), padded)


def test_blocks_are_appended_across_flushes():
    tables = make_tables()
    tables.append(1, [[5, 6]])
    flush(tables)
    tables.append(1, [[7]])
    tables.append(1, [[]])
    tables.append(1, [[8]])
    flush(tables)
    assert tables.device_table()[0, 1, :4].tolist() == [5, 6, 7, 8]
    assert tables.blocks_of(1) == (5, 6, 7, 8)
    assert tables.num_blocks.tolist() == [[0, 4, 0, 0]]


def test_a_cleared_row_says_what_it_held_and_starts_anew():
    tables = make_tables()
    tables.append(2, [[5, 6, 7]])
    flush(tables)
    assert tables.clear(2) == [5, 6, 7]
    assert tables.clear(2) == []
    tables.append(2, [[9]])
    flush(tables)
    assert tables.blocks_of(2) == (9,)
    assert gather(tables, [2], 1)[0, 0, 0] == 9


def test_a_row_that_changes_hands_within_one_flush():
    tables = make_tables()
    tables.append(0, [[1, 2, 3]])
    tables.clear(0)
    tables.append(0, [[4]])
    flush(tables)
    assert tables.device_table()[0, 0, 0] == 4
    assert tables.blocks_of(0) == (4,)


def test_more_blocks_than_columns_are_refused():
    tables = make_tables()
    tables.append(0, [range(1, COLUMNS + 1)])
    with pytest.raises(StepError, match="block table"):
        tables.append(0, [[99]])
    assert len(tables.blocks_of(0)) == tables.num_blocks[0, 0] == COLUMNS
    flush(tables)
    assert not tables.device_table()[0, 1:].any()


def test_gather_follows_the_batch_and_pads_with_the_null_block():
    tables = make_tables()
    tables.batch_table.fill_(77)
    for row in range(3):
        tables.append(row, [[10 * row + 1, 10 * row + 2]])
    flush(tables)
    (table,) = gather(tables, [2, 0], padded=4)
    assert table[:2, :2].tolist() == [[21, 22], [1, 2]]
    assert table[2:].tolist() == [[0] * COLUMNS] * 2


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_tables_longer_than_a_kernel_block(monkeypatch, lanes):
    monkeypatch.setattr(module, "LANES", lanes)
    tables = make_tables()
    tables.append(3, [range(1, COLUMNS)])
    flush(tables)
    assert gather(tables, [3], 1)[0, 0].tolist() == [*range(1, COLUMNS), 0]
    check_slots(tables, [3], [5], [LANES - 2])


def test_groups_have_tables_of_their_own():
    tables = make_tables((0, 6))
    tables.append(2, [[5, 6], [7]])
    tables.append(0, [[1], []])
    tables.append(2, [[], [8, 9]])
    flush(tables)
    assert tables.num_blocks.tolist() == [[1, 0, 2, 0], [0, 0, 3, 0]]
    table = gather(tables, [2, 0], padded=3)
    assert table[0, :2, :2].tolist() == [[5, 6], [1, 0]]
    assert table[1, 0, :3].tolist() == [7, 8, 9]
    assert not table[:, 2].any()
    assert tables.clear(2) == [5, 6, 7, 8, 9]
    assert (tables.blocks_of(0), tables.blocks_of(2, 1)) == ((1,), ())


@pytest.mark.parametrize("window", [1, 3, 6, 8])
@pytest.mark.parametrize("computed", [0, 3, 4, 7, 8, 13, 31])
def test_blocks_below_the_window_read_as_the_null_block(window, computed):
    """A block is null exactly if its last token lies below the window of the next position."""
    tables = make_tables((0, window))
    blocks = list(range(11, 11 + COLUMNS))
    tables.append(1, [blocks, blocks])
    flush(tables)
    full, windowed = gather(tables, [1], 1, computed=[9, computed, 9, 9])[:, 0].tolist()
    lowest = computed - window + 1
    assert full == blocks
    assert windowed == [0 if (index + 1) * BLOCK_SIZE - 1 < lowest else block for index, block in enumerate(blocks)]
    assert windowed.count(0) == blocks_below_window(window, computed, BLOCK_SIZE)


def test_slots_of_every_group():
    tables = make_tables((0, 8))
    tables.append(3, [[5, 6], [2, 9]])
    flush(tables)
    gather(tables, [3], 1, computed=[0, 0, 0, 3], lengths=[3])
    padding = [-1] * (LANES - 3)
    assert tables.slot_mapping.tolist() == [[23, 24, 25, *padding], [11, 36, 37, *padding]]


def check_slots(tables, rows, starts, lengths):
    """Map the slots of a batch and compare with block * size + offset, computed lane by lane."""
    computed = [0] * ROWS
    for row, start in zip(rows, starts, strict=True):
        computed[row] = start
    tables.slot_mapping.fill_(12345)
    gather(tables, rows, len(rows), computed, list(lengths))
    expected = [
        tables.blocks_of(row)[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for row, start, length in zip(rows, starts, lengths, strict=True)
        for position in range(start, start + length)
    ]
    assert tables.slot_mapping.tolist() == [expected + [-1] * (LANES - len(expected))]


def test_every_lane_behind_the_batch_is_padding():
    tables = make_tables()
    tables.append(0, [[3]])
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
            tables.append(row, [[free.pop(), free.pop()]])
        if draw.random() < 0.5:
            flush(tables)
    flush(tables)
    rows, starts, lengths = zip(*batch, strict=True)
    check_slots(tables, list(rows), starts, lengths)
