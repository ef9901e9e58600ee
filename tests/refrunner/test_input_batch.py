"""The step's inputs: what is gathered for real lanes, in any order of the batch, and what the padding holds."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.refrunner import input_batch as module
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.input_batch import InputBatchBuilder, padded
from mrv2.refrunner.request_states import RequestStates
from mrv2.refrunner.scheduled import gather
from mrv2.refrunner.staging import PackedUpload, PinnedRing

VOCAB, ROWS, LENGTH, BLOCK_SIZE, TOKENS = 97, 4, 24, 4, 20


@dataclass
class Live:
    """One request as the test knows it: all its tokens, how many are computed, and its blocks."""

    tokens: list
    computed: int
    blocks: list


class Batches:
    """State table and builder, filled by the test."""

    def __init__(self, pad_to=1, poison=False, length=LENGTH):
        self.config = RunnerConfig(
            max_num_reqs=ROWS,
            max_num_batched_tokens=TOKENS,
            max_model_len=length,
            block_size=BLOCK_SIZE,
            pad_to=pad_to,
            poison=poison,
        )
        self.device = Device("cpu")
        self.ring = PinnedRing(self.device)
        self.states = RequestStates(self.config, self.device, VOCAB)
        self.builder = InputBatchBuilder(self.config, self.device, VOCAB)
        self.live = {}

    def add(self, name, tokens, computed, blocks):
        row = self.states.add(NewRequest(name, tuple(tokens), 1, SamplingParams(), computed))
        self.builder.block_tables.append(row, [blocks])
        self.live[name] = Live(list(tokens), computed, list(blocks))

    def build(self, scheduled):
        upload = PackedUpload()
        self.states.pack(upload)
        self.builder.block_tables.pack(upload)
        computed = {name: request.computed for name, request in self.live.items()}
        total = {name: len(request.tokens) for name, request in self.live.items()}
        known = gather(tuple(scheduled), Step(scheduled=scheduled), self.states.row_of, computed, total, total)
        layout = self.builder.plan(known, upload)
        upload.send(self.ring)
        self.states.apply(upload)
        self.builder.block_tables.apply(upload)
        return self.builder.build(layout, self.states, upload)


def ramp(length, start=10):
    return list(range(start, start + length))


def check_real_lanes(batches, batch, scheduled):
    """Compare with the inputs computed lane by lane from the test's own lists."""
    bounds = np.cumsum([0, *scheduled.values()])
    live = [batches.live[name] for name in scheduled]
    spans = [(r, range(r.computed, r.computed + n)) for r, n in zip(live, scheduled.values(), strict=True)]
    tokens = int(bounds[-1])
    assert (batch.request_ids, batch.num_requests, batch.num_tokens) == (tuple(scheduled), len(scheduled), tokens)
    assert batch.rows.tolist() == batch.host_rows.tolist() == [batches.states.row_of[name] for name in scheduled]
    assert batch.query_start_loc[: len(bounds)].tolist() == bounds.tolist()
    assert batch.input_ids[:tokens].tolist() == [r.tokens[p] for r, span in spans for p in span]
    assert batch.positions[:tokens].tolist() == [p for _, span in spans for p in span]
    slots = [r.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for r, span in spans for p in span]
    assert batch.slot_mapping[0, :tokens].tolist() == slots
    assert batch.seq_lens[: len(spans)].tolist() == [span.stop for _, span in spans]
    assert batch.sample_positions.tolist() == [span.stop for _, span in spans]
    assert batch.logit_lanes.tolist() == (bounds[1:] - 1).tolist()
    for table, request in zip(batch.block_table[0].tolist(), live, strict=False):
        assert table[: len(request.blocks)] == request.blocks


def check_padding(batches, batch):
    pad_to, count, tokens = batches.config.pad_to, batch.num_requests, batch.num_tokens
    requests, lanes = padded(count, pad_to), padded(tokens, pad_to)
    assert batch.query_start_loc.tolist()[count:] == [tokens] * (requests - count + 1)
    assert batch.query_start_loc.tolist() == batch.host_query_start_loc.tolist()
    assert batch.seq_lens.tolist()[count:] == [0] * (requests - count)
    assert batch.seq_lens.tolist() == batch.host_seq_lens.tolist()
    assert batch.block_table.shape[1] == requests
    assert not batch.block_table[:, count:].any()
    assert batch.input_ids.shape == batch.positions.shape == batch.slot_mapping[0].shape == (lanes,)
    assert batches.builder.block_tables.slot_mapping[:, tokens:].eq(-1).all()
    assert ((batch.input_ids >= 0) & (batch.input_ids < VOCAB)).all()
    assert ((batch.positions >= 0) & (batch.positions < LENGTH)).all()
    if batches.config.poison:
        assert batch.input_ids[tokens:].eq(VOCAB - 1).all()
        assert batch.positions[tokens:].eq(LENGTH - 1).all()


@pytest.mark.parametrize("order", ["abc", "cba", "bca", "b", "ca"])
@pytest.mark.parametrize("pad_to", [1, 7])
def test_prefill_chunk_and_decode_in_any_order(order, pad_to):
    batches = Batches(pad_to)
    batches.add("a", ramp(6), 0, [5, 9])
    batches.add("b", ramp(9, 40), 4, [3, 8, 1])
    batches.add("c", ramp(5, 70), 4, [7, 2])
    counts = {"a": 6, "b": 3, "c": 1}
    scheduled = {name: counts[name] for name in order}
    batch = batches.build(scheduled)
    check_real_lanes(batches, batch, scheduled)
    check_padding(batches, batch)


def test_the_newest_token_comes_from_the_sampler():
    """A token that only the device knows stands in ``last_sampled``; the token table may not have it yet."""
    batches = Batches()
    batches.add("a", ramp(3), 0, [5])
    batches.build({"a": 3})
    row = batches.states.row_of["a"]
    batches.states.num_computed[row] = 3
    batches.states.total_len[row] = 4
    batches.states.last_sampled[row] = 88
    batches.states.token_ids[row, 3] = 11
    batches.live["a"] = Live([*ramp(3), 88], 3, [5])
    check_real_lanes(batches, batches.build({"a": 1}), {"a": 1})


def test_the_last_lane_of_the_longest_sequence():
    batches = Batches()
    batches.add("a", ramp(LENGTH), LENGTH - 1, ramp(LENGTH // BLOCK_SIZE, 1))
    check_real_lanes(batches, batches.build({"a": 1}), {"a": 1})


@pytest.mark.parametrize("length", [250, 300, 700])
def test_far_into_a_long_sequence(length):
    """Positions beyond a byte and beyond a kernel's block, those of the draw included."""
    batches = Batches(length=length)
    blocks = ramp(-(-length // BLOCK_SIZE), 3)
    batches.add("a", [token % VOCAB for token in range(length)], length - 12, blocks)
    batches.add("b", ramp(3), 0, [1])
    scheduled = {"b": 3, "a": 12}
    check_real_lanes(batches, batches.build(scheduled), scheduled)


def test_buffers_keep_their_addresses():
    batches = Batches(pad_to=4)
    batches.add("a", ramp(8), 0, [5, 6])
    first, second = batches.build({"a": 2}), batches.build({"a": 5})
    for name in ("input_ids", "positions", "seq_lens", "query_start_loc", "block_table", "slot_mapping"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr()


@pytest.mark.parametrize("poison", [False, True])
def test_a_smaller_batch_leaves_nothing_of_a_larger_one(poison):
    batches = Batches(pad_to=5, poison=poison)
    for index, name in enumerate("abcd"):
        batches.add(name, ramp(5, 10 * index), 0, [2 * index + 1, 2 * index + 2])
    batches.build(dict.fromkeys("abcd", 5))
    for scheduled in ({"d": 1}, {"b": 2, "a": 1}, {"c": 5}):
        batch = batches.build(scheduled)
        check_real_lanes(batches, batch, scheduled)
        check_padding(batches, batch)


@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_requests_longer_than_a_kernel_block(monkeypatch, lanes):
    monkeypatch.setattr(module, "LANES", lanes)
    batches = Batches()
    batches.add("a", ramp(15), 2, [5, 9, 4, 6])
    batches.add("b", ramp(3, 50), 0, [1])
    scheduled = {"a": 13, "b": 3}
    check_real_lanes(batches, batches.build(scheduled), scheduled)


@pytest.mark.parametrize(("count", "multiple", "expected"), [(0, 4, 0), (1, 4, 4), (4, 4, 4), (5, 4, 8), (7, 1, 7)])
def test_padded(count, multiple, expected):
    assert padded(count, multiple) == expected


@st.composite
def workloads(draw):
    """Live requests with some tokens computed, and a part of them scheduled in any order within the budget."""
    requests, budget, scheduled = {}, TOKENS, {}
    for index in range(draw(st.integers(1, ROWS))):
        total = draw(st.integers(1, LENGTH))
        requests[f"r{index}"] = (total, draw(st.integers(0, total - 1)))
    for name in draw(st.permutations(sorted(requests))):
        total, computed = requests[name]
        if budget and (not scheduled or draw(st.booleans())):
            scheduled[name] = draw(st.integers(1, min(budget, total - computed)))
            budget -= scheduled[name]
    return requests, scheduled, draw(st.sampled_from((1, 3, 8))), draw(st.booleans()), draw(st.integers(0, 2**32))


@given(workloads())
@settings(max_examples=25)
def test_any_batch(workload):
    requests, scheduled, pad_to, poison, seed = workload
    random = np.random.default_rng(seed)
    batches = Batches(pad_to, poison)
    blocks = (random.permutation(ROWS * LENGTH // BLOCK_SIZE) + 1).tolist()
    for name, (total, computed) in requests.items():
        held = [blocks.pop() for _ in range(-(-total // BLOCK_SIZE))]
        batches.add(name, random.integers(0, VOCAB, total).tolist(), computed, held)
    batches.builder._input_ids.random_(0, VOCAB, generator=torch.Generator().manual_seed(seed))
    batch = batches.build(scheduled)
    check_real_lanes(batches, batch, scheduled)
    check_padding(batches, batch)
