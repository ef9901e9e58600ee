"""The parameter tables of the sampler: a row holds its owner's values, and nothing of a former owner's."""

import pytest

from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.sampling.tables import SamplingTables
from mrv2.refrunner.staging import PackedUpload, PinnedRing

VOCAB = 70


def make_tables():
    return SamplingTables(RunnerConfig(max_num_reqs=4, max_model_len=12), Device("cpu"), VOCAB)


def request(prompt_len=3, **params):
    return NewRequest("a", (1,) * 5, prompt_len, SamplingParams(**params))


def flush(tables):
    upload = PackedUpload()
    tables.pack(upload)
    upload.send(PinnedRing(Device("cpu")))
    tables.apply(upload)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 0.123, 1e-30, 12.3456, 1e30])
def test_a_row_holds_the_parameters_of_its_owner(temperature):
    tables = make_tables()
    tables.add(2, request(temperature=3.0, seed=4))
    flush(tables)
    tables.add(2, request(temperature=temperature, seed=5))
    flush(tables)
    assert float(tables.temperature[2]) == pytest.approx(temperature, rel=1e-7)
    assert int(tables.seeds[2]) == 5
    tables.add(2, request())
    flush(tables)
    assert (float(tables.temperature[2]), int(tables.seeds[2])) == (0.0, 0)


@pytest.mark.parametrize(
    ("seed", "bits"),
    [(0, 0), (-1, -1), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1), (-(2**63), -(2**63))],
)
def test_seeds_keep_their_64_bits(seed, bits):
    tables = make_tables()
    tables.add(1, request(temperature=1.0, seed=seed))
    flush(tables)
    assert int(tables.seeds[1]) == bits
    assert bits % 2**64 == seed % 2**64


def test_a_poisoned_row_holds_nothing_usable():
    tables = make_tables()
    tables.add(3, request(temperature=1.0, seed=9))
    flush(tables)
    tables.poison(3)
    flush(tables)
    assert (float(tables.temperature[3]), int(tables.seeds[3])) == (1000.0, -1)


def test_a_row_that_changes_hands_within_one_flush_belongs_to_the_new_owner():
    tables = make_tables()
    tables.add(0, request(temperature=1.0, seed=9))
    tables.poison(0)
    tables.add(0, request(temperature=0.5, seed=2))
    flush(tables)
    assert (float(tables.temperature[0]), int(tables.seeds[0])) == (0.5, 2)
