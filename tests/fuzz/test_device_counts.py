"""What counting draws on a device asks of it: a batch is a few launches and no wait, a call one row up, counts down."""

import numpy as np
import pytest
import torch

from mrv2.checks.timeline.step_counts import StepCounter, WorkKind
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.targets import reference_sampler
from mrv2.fuzz.targets.device_counts import counted
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler

V, BATCH = 3000, 64
ROW = (np.random.default_rng(0).normal(size=V) * 2).astype(np.float32)


def test_ids_of_either_side_are_counted_apart():
    tokens = torch.tensor([-(2**31), -1, 0, 4, 4, 5, 2**31 - 1], dtype=torch.int32)
    counts = counted(lambda some: tokens[some], torch.arange(7), 5, 2)
    assert counts.tolist() == [1, 0, 0, 0, 2, 4]


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setitem(reference_sampler._COUNTED_AT_ONCE, "cuda", BATCH * V)


def test_a_batch_costs_launches_and_no_wait(small_batches):
    counter, counts = StepCounter(), []
    with virtual_device(sink=counter) as device:
        sampler = ReferenceSampler(device="cuda")
        for batches in (1, 3):
            with device.at_step(batches):
                counts.append(sampler.count(ROW, 0.7, 5, 2**31 - 3 * BATCH, batches * BATCH))
    one, three = counter.steps[1], counter.steps[3]
    # The noise kernel and its combination, one constant for both, and three to count.
    assert three.total(WorkKind.LAUNCH) - one.total(WorkKind.LAUNCH) == 2 * 6
    for kind in (WorkKind.UPLOAD, WorkKind.DOWNLOAD, WorkKind.HOST_WAIT):
        assert three.total(kind) == one.total(kind) <= 3
    # The row and the seed go up, whatever the number of draws; cells of 8 bytes come down.
    assert three.num_bytes == one.num_bytes == {WorkKind.UPLOAD: 4 * V + 8, WorkKind.DOWNLOAD: 8 * (V + 2)}
    assert counts[1].sum() == 3 * BATCH
    np.testing.assert_array_equal(counts[1], by_single_draws(3 * BATCH))


def by_single_draws(draws):
    keys = np.full(draws, 5, np.uint64), 2**31 - 3 * BATCH + np.arange(draws)
    tokens = ReferenceSampler(compiled=True).sample(ROW, np.full(draws, 0.7, np.float32), *keys)
    return np.bincount(tokens, minlength=V + 1)
