"""The parameter tables of the sampler: a row holds its owner's values, and nothing of a former owner's."""

import pytest

from mrv2.refrunner import staging
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


def test_lists_are_sorted_and_counted():
    tables = make_tables()
    params = {
        "logit_bias": ((9, 1.0), (2, -1.0)), "stop_token_ids": (7, 3), "min_tokens": 4, "top_k": 6, "top_p": 0.5,
        "bad_words": ((4, 5, 8), (1,)), "logprobs": 3, "prompt_logprobs": -1, "logprob_token_ids": (6, 5),
        "allowed_token_ids": (0, 33, 69),
    }  # fmt: skip
    tables.add(2, request(**params))
    flush(tables)
    numbers = tables.numbers.gpu[2].tolist()
    assert numbers[1:] == [6, 3, 7, 2, 2, 4, 1, 2, 2]
    assert tables.bias_tokens.gpu[2, :2].tolist() == [2, 9] and tables.bias_values.gpu[2, :2].tolist() == [-1.0, 1.0]
    assert tables.stops.gpu[2, :2].tolist() == [3, 7] and tables.logprob_ids.gpu[2, :2].tolist() == [6, 5]
    assert tables.allowed.gpu[2].tolist() == [1, 2, 1 << 5]
    words = tables.bad_words.gpu[2].tolist()
    assert words[:2] == [1, 8] and words[128:131] == [0, 0, 2] and words[257:259] == [4, 5]


def test_a_plain_request_stages_no_list():
    tables = make_tables()
    tables.add(1, request())
    assert int(tables.stages[1]) == 0
    flush(tables)
    assert tables.numbers.gpu[1].tolist() == [0, VOCAB, 3, 3, 0, 0, 0, 0, 0, 0]
    assert not any(table.gpu.any() for table in (tables.allowed, tables.bias_tokens, tables.stops, tables.bad_words))


class Launches:
    """Stands where the kernel is and counts launches."""

    def __init__(self):
        self.programs = []

    def __getitem__(self, grid):
        self.programs.append(grid[0])
        return lambda *arguments, **constants: None


def test_all_tables_take_one_launch(monkeypatch):
    launches = Launches()
    monkeypatch.setattr(staging, "apply_staged_writes", launches)
    tables = make_tables()
    for row in (0, 2):
        tables.add(row, request(temperature=1.0, seed=1, logit_bias=((2, 1.0),), stop_token_ids=(3,), top_k=2))
    flush(tables)
    assert launches.programs == [2 * 6]  # numbers, reals, seed, two lists of biases, stops
    flush(tables)
    assert launches.programs == [2 * 6]
