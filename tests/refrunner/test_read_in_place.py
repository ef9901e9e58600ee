"""Host memory that kernels read in place: prompts, and the slots of staged writes.

On the virtual device each fence has a twin without it, which must race in every schedule.
"""

import logging
from itertools import pairwise

import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.mutants import Mutation, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import NewRequest, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.prompt_rows import PromptRows
from mrv2.refrunner.staging import PackedUpload, PinnedRing, StagedTables

SCHEDULES = ("late", "early", "random:0")
CONFIG = {
    "model": "tiny",
    "max_num_reqs": 1,
    "max_num_batched_tokens": 8,
    "max_model_len": 16,
    "block_size": 4,
    "num_kv_blocks": 9,
}
PROMPT_NOT_ASKED = Mutation(
    "prompt_not_asked",
    "prompt_rows.py",
    "        if not self._last_reader[row].query():\n",
    "        if not self._last_reader[row]:\n",
    "a prompt is written to its row whether or not a step that reads the row is in flight",
)
READER_NOT_NOTED = Mutation(
    "reader_not_noted",
    "input_batch.py",
    "        states.gathered(scheduled.rows, scheduled.computed)\n",
    "",
    "the row of a prompt does not know of the steps that read it",
)
_APPLIED = "        self._states.apply(writes)\n        self._builder.block_tables.apply(writes)\n"
LEASE_ENDS_EARLY = Mutation(
    "lease_ends_early",
    "model_runner.py",
    _APPLIED + "        writes.end()\n",
    "        writes.end()\n" + _APPLIED,
    "the event of a slot that kernels read in place is recorded before they are enqueued",
)


@pytest.fixture(autouse=True)
def _compiled():
    with triton_cpu.enabled():
        yield


def rows_change_hands(runner):
    """One row, a new owner in every step: the tokens drawn.

    Nobody waits but once, so that a step meets a device that has nothing to do: an event that is recorded ahead of what
    it is to cover has passed there already, and behind pending work it has not, whatever it covers.
    """
    handles = []
    for index in range(6):
        tokens = tuple(range(10 * index, 10 * index + 5))
        blocks = {f"r{index}": ((1 + 2 * (index % 3), 2 + 2 * (index % 3)),)}
        leaving = (f"r{index - 1}",) if index else ()
        new = (NewRequest(f"r{index}", tokens, 5),)
        handles.append(runner.execute(Step(leaving, new=new, scheduled={f"r{index}": 5}, new_blocks=blocks)))
        if index == 3:
            handles.append(runner.execute(Step(scheduled={f"r{index}": 1})))
            handles[-1].result()
    return [handle.result().token_ids for handle in handles]


def found(schedule, target, **settings):
    """Tokens, codes of what the device saw, and the runner, closed."""
    with virtual_device(schedule) as device:
        runner = target.build({**CONFIG, "device": "cuda", **settings})._runner
        tokens = rows_change_hands(runner)
        runner.close()
    return tokens, {finding.code for finding in device.findings}, runner


WAYS = [
    {"prompt_tokens": "uva"},
    {"staged_writes": "in_place"},
    {"prompt_tokens": "uva", "staged_writes": "in_place", "poison": True},
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_no_race_and_the_same_tokens(schedule, settings):
    expected = rows_change_hands(ReferenceTarget().build(CONFIG)._runner)
    tokens, codes, _ = found(schedule, ReferenceTarget(), **settings)
    assert (tokens, codes) == (expected, set())


@pytest.mark.parametrize("schedule", ["late", "early"])
@pytest.mark.parametrize("mutation", [PROMPT_NOT_ASKED, READER_NOT_NOTED, LEASE_ENDS_EARLY], ids=lambda m: m.name)
def test_without_its_fence_each_of_them_races_whether_or_not_tokens_are_wrong(schedule, mutation):
    with mutant(mutation) as target:
        _, codes, _ = found(schedule, target, prompt_tokens="uva", staged_writes="in_place")
    assert codes & {"MRV201", "MRV202", "MRV203"}


def test_a_prompt_whose_row_is_read_is_staged_and_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="mrv2.refrunner.prompt_rows"):
        _, _, runner = found("late", ReferenceTarget(), prompt_tokens="uva")
    refused = runner._states._prompts.num_refused
    assert 0 < refused < 6
    assert len(caplog.records) == refused


class Held:
    """An event that has passed when the test says so."""

    def __init__(self):
        self.passed = False

    def query(self):
        return self.passed


class HeldDevice(Device):
    def __init__(self):
        super().__init__("cpu")
        self.events = []

    def record_event(self):
        self.events.append(Held())
        return self.events[-1]


def test_a_row_is_written_only_behind_its_last_reader():
    device = HeldDevice()
    rows = PromptRows(RunnerConfig(max_num_reqs=2, max_model_len=4), device)
    assert rows.put(0, (1, 2, 3))
    rows.read_now([0])
    rows.read_now([0])
    device.events[0].passed = True
    assert not rows.put(0, (7, 8))
    assert rows.put(1, (9,))
    assert rows.memory[0, :3].tolist() == [1, 2, 3]
    device.events[1].passed = True
    assert rows.put(0, (7, 8))
    assert (rows.memory[0, :3].tolist(), rows.num_refused) == ([7, 8, 3], 1)


def test_a_slot_read_in_place_is_kept_until_its_lease_ends_and_its_reader_has_passed():
    device = HeldDevice()
    ring = PinnedRing(device)
    lease = ring.place(np.arange(10, dtype=np.uint8))
    ring.place(np.arange(10, dtype=np.uint8))
    assert ring.depth == 2
    assert device.events == []
    lease.end()
    ring.place(np.arange(10, dtype=np.uint8))
    assert ring.depth == 3
    device.events[0].passed = True
    ring.place(np.full(10, 7, dtype=np.uint8))
    assert ring.depth == 3
    assert lease.memory.tolist() == [7] * 10


SHAPES = {"small": (1, 3, torch.int32), "wide": (4, 5, torch.int64), "real": (3, 7, torch.float32)}


@pytest.mark.parametrize("in_place", [False, True])
def test_tables_of_all_types_are_flushed_in_one_launch(in_place, monkeypatch):
    tables, twins = StagedTables(Device("cpu"), SHAPES), {}
    random = np.random.default_rng(7)
    for name, (rows, columns, dtype) in SHAPES.items():
        twin = twins[name] = torch.zeros(rows, columns, dtype=dtype)
        for _ in range(6):
            row, start = int(random.integers(rows)), int(random.integers(columns))
            values = random.integers(-(2**31), 2**31, int(random.integers(1, columns - start + 1))).tolist()
            tables[name].stage_write(row, start, values)
            twin[row, start : start + len(values)] = torch.tensor(values, dtype=dtype)
    launches = count_launches(monkeypatch)
    upload = PackedUpload(in_place=in_place)
    tables.pack(upload)
    upload.send(PinnedRing(Device("cpu")))
    tables.apply(upload)
    tables.apply(upload)
    assert len(launches) == 1
    for name, twin in twins.items():
        assert torch.equal(tables[name].gpu, twin)


def test_tables_in_one_memory_do_not_touch():
    tables = StagedTables(Device("cpu"), SHAPES)
    spans = sorted((tables[name].gpu.data_ptr(), tables[name].gpu.nbytes) for name in SHAPES)
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))
    assert len({tables[name].gpu.untyped_storage().data_ptr() for name in SHAPES}) == 1


def count_launches(monkeypatch):
    from mrv2.refrunner import staging

    grids, kernel = [], staging.apply_staged_writes

    class Counted:
        def __getitem__(self, grid):
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(staging, "apply_staged_writes", Counted())
    return grids
