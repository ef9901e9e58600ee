"""The sampler's stages against their oracle: processed logits to the last bit, kept sets, tokens, and faults."""

import dataclasses
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.kernels import filters
from mrv2.refrunner.oracle.noise import gumbel
from mrv2.refrunner.oracle.rounding import NOISE_ERROR, UNIT_ROUNDOFF
from mrv2.refrunner.oracle.sampling import filtered, process
from mrv2.refrunner.sampling import tables

from .sampling_cases import batches, make_bench, make_logits

# MRV2_SAMPLER_EXAMPLES=2000 is the long version.
QUICK = settings(
    max_examples=int(os.environ.get("MRV2_SAMPLER_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    with triton_cpu.enabled() as session:
        yield
    assert not session.findings


def one(logits, sampling, tokens=(0,), prompt_len=1, **config):
    """A bench with one request, and logits [1, V] for it."""
    request = NewRequest("a", tuple(tokens), prompt_len, sampling)
    return make_bench([request], len(logits), **config), torch.tensor([logits], dtype=torch.float32)


def oracle_rows(requests, logits):
    """Processed logits of each request, in float32: the contract to the last bit."""
    return [process(row, request, request.token_ids) for row, request in zip(logits.numpy(), requests, strict=True)]


def kept_of(bench, logits):
    """Processed logits [N, V] and the sets that the kernels keep, bool [N, V]; None without a stage."""
    made = bench.processed(logits)
    values = np.where(np.isnan(made.logits.numpy()), -np.inf, made.logits.numpy())
    kept = values > -np.inf
    for index, row in enumerate(bench.batch.host_rows):
        if bench.sampler.tables.stages[row] & tables.kernels.FILTERS.value:
            kept[index] &= order(values[index]) >= int(made.thresholds[index])
    return values, kept


def order(values):
    """What ``kernels.order.ordered`` says, with numpy."""
    bits = np.where(values == 0, np.float32(0), values).astype(np.float32).view(np.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def staged(bench):
    return bench.sampler.tables.stages[bench.batch.host_rows] != 0


@given(batches())
@QUICK
def test_processed_logits_are_the_oracles_to_the_last_bit(case):
    requests, logits = case
    bench = make_bench(requests, logits.shape[1])
    values, kept = kept_of(bench, logits)
    for index, expected in enumerate(oracle_rows(requests, logits)):
        if staged(bench)[index]:
            assert np.array_equal(values[index], expected), requests[index].sampling
            sets = filtered(expected, requests[index].sampling)
            assert not (sets.surely & ~kept[index]).any() and not (kept[index] & ~sets.possibly).any(), requests[
                index
            ].sampling


@given(batches())
@QUICK
def test_tokens_are_the_oracles(case):
    requests, logits = case
    bench = make_bench(requests, logits.shape[1])
    before = logits.clone()
    drawn = bench.sample(logits).token_ids.tolist()
    assert torch.equal(logits.nan_to_num(nan=7.0), before.nan_to_num(nan=7.0))
    for request, expected, token in zip(requests, oracle_rows(requests, logits), drawn, strict=True):
        judge(request, expected, token)


def judge(request, processed, token):
    """Asserts that a token is the largest score of what is kept, up to the error of the noise."""
    sampling, sets = request.sampling, filtered(processed, request.sampling)
    if not sets.possibly.any():
        assert token == 0
        return
    assert sets.possibly[token], (sampling, token)
    noise = np.zeros(len(processed))
    if sampling.temperature:
        noise = gumbel(sampling.seed, len(request.token_ids), len(processed))
    scores = processed.astype(np.float64) + noise
    best = scores[sets.surely].max(initial=-np.inf)
    error = NOISE_ERROR + 4 * UNIT_ROUNDOFF * (abs(best) + abs(float(processed[token])) + 50)
    assert scores[token] >= best - (error if sampling.temperature else 0), (sampling, token)
    if not sampling.temperature:
        assert token == int(np.argmax(np.where(sets.surely, scores, -np.inf)))


@given(batches(), st.permutations(range(4)))
@QUICK
def test_neighbours_order_and_rows_change_nothing(case, order_of):
    requests, logits = case
    order_of = [index for index in order_of if index < len(requests)]
    former = dataclasses.replace(requests[0], request_id="former")
    together = make_bench(requests, logits.shape[1]).sample(logits)
    poisoned = make_bench([requests[i] for i in order_of], logits.shape[1], before=[former], poison=True)
    shuffled = poisoned.sample(logits[order_of])
    assert shuffled.token_ids.tolist() == together.token_ids[order_of].tolist()
    assert shuffled.logprobs.numpy().tobytes() == together.logprobs[order_of].numpy().tobytes()


@given(batches(), st.sampled_from(("raw_logprobs", "processed_logprobs")))
@QUICK
def test_skipping_a_stage_is_running_it(case, mode):
    requests, logits = case
    plain = make_bench(requests, logits.shape[1], logprobs_mode=mode).sample(logits)
    forced = make_bench(requests, logits.shape[1], logprobs_mode=mode, force_sampler_stages=True).sample(logits)
    assert forced.token_ids.tolist() == plain.token_ids.tolist()
    assert np.array_equal(forced.logprobs.numpy(), plain.logprobs.numpy(), equal_nan=True)


def test_forced_stages_are_all_there():
    bench, logits = one([1.0, 2.0], SamplingParams(), force_sampler_stages=True)
    assert bench.sampler._stages(bench.batch) == tables.EVERY_STAGE
    assert one([1.0, 2.0], SamplingParams())[0].sampler._stages(bench.batch) == 0
    assert bench.processed(logits).logits.tolist() == logits.tolist()


@given(st.integers(0, 10**6), st.integers(1, 90), st.integers(0, 3))
@QUICK
def test_top_k_keeps_all_ties_of_the_kth(seed, k, digits):
    """Against sorting, with as many ties as a coarse grid makes."""
    logits = np.round(np.random.default_rng(seed).normal(size=70), digits).astype(np.float32)
    bench, row = one(logits.tolist(), SamplingParams(top_k=k, temperature=1.0, seed=1))
    _, kept = kept_of(bench, row)
    assert np.array_equal(kept[0], logits >= np.sort(logits)[::-1][min(k, 70) - 1])


@given(st.integers(0, 10**6), st.sampled_from((0.05, 0.3, 0.5, 0.8, 0.99)))
@QUICK
def test_top_p_keeps_the_smallest_set(seed, share):
    """Every kept logit has less than p above it, and the kept ones together reach p; equal ones go together."""
    logits = np.round(np.random.default_rng(seed).normal(size=257) * 3, 1).astype(np.float32)
    bench, row = one(logits.tolist(), SamplingParams(top_p=share, temperature=1.0, seed=1))
    _, kept = kept_of(bench, row)
    probability = np.exp(logits.astype(np.float64) - logits.max())
    probability /= probability.sum()
    lowest = logits[kept[0]].min()
    assert np.array_equal(kept[0], logits >= lowest)
    assert probability[logits > lowest].sum() < share + 1e-5
    assert probability[kept[0]].sum() >= share - 1e-5


def test_nan_has_no_weight():
    """Beside NaN, top-p keeps what it keeps without it."""
    logits = make_logits("normal", 1, 70, 4)
    sampling = SamplingParams(top_p=0.9, temperature=1.0, seed=1)
    logits[0, :65:5] = float("-inf")
    without = kept_of(make_bench([NewRequest("a", (0,), 1, sampling)], 70), logits)[1]
    logits[0, :65:5] = float("nan")  # an odd number: twice the least integer is zero
    beside = kept_of(make_bench([NewRequest("a", (0,), 1, sampling)], 70), logits)[1]
    assert np.array_equal(beside, without) and 1 < without.sum() < 40


def test_order_of_floats_and_integers_agree():
    values = np.array([-np.inf, -3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3e38, np.inf], dtype=np.float32)
    keys = order(values)
    assert (np.diff(keys.astype(np.int64)) >= 0).all() and keys[4] == keys[5]
    assert keys[0] > filters.LOWEST.value


STAGES = {
    "allowed": (SamplingParams(allowed_token_ids=(2, 3)), 2),
    "bias": (SamplingParams(logit_bias=((1, 100.0),)), 1),
    "minimum of tokens": (SamplingParams(stop_token_ids=(0,), min_tokens=2), 1),
    "repetition of the prompt": (SamplingParams(repetition_penalty=100.0), 2),
    "frequency": (SamplingParams(frequency_penalty=100.0), 0),
    "presence": (SamplingParams(presence_penalty=50.0), 0),
    "bad word": (SamplingParams(bad_words=((0,), (1, 1, 1))), 1),
    "bad words that end the sequence": (SamplingParams(bad_words=((0,), (0, 1, 1))), 2),
}


@pytest.mark.parametrize("name", STAGES)
def test_each_stage_moves_the_greedy_choice(name):
    """Prompt (0), output (1); logits fall with the id."""
    sampling, expected = STAGES[name]
    bench, logits = one([4.0, 3.0, 2.0, 1.0, -5.0], sampling, tokens=(0, 1), prompt_len=1)
    assert bench.sample(logits).token_ids.tolist() == [expected]


def test_stops_are_free_after_the_minimum():
    sampling = SamplingParams(stop_token_ids=(0,), min_tokens=2)
    for generated, expected in ((1, 1), (2, 0)):
        bench, logits = one([4.0, 3.0], sampling, tokens=(1,) * (1 + generated), prompt_len=1)
        assert bench.sample(logits).token_ids.tolist() == [expected]


def test_a_draw_is_counted_once_and_only_if_it_counts():
    sampling = SamplingParams(presence_penalty=1.0)
    requests = [NewRequest(name, (3, 3, 5), 2, sampling) for name in "ab"]
    bench = make_bench([*requests, NewRequest("c", (1,), 1)], 40)
    bench.batch.query_start_loc = torch.tensor([0, 3, 5, 6], dtype=torch.int32)  # b is still in its prefill
    output = bench.sample(torch.zeros(3, 40))
    a, b, c = bench.batch.host_rows.tolist()
    counts, mask = bench.sampler._penalties.counts, bench.sampler._penalties.prompt_mask
    assert (counts[a].nonzero().flatten().tolist(), int(mask[a, 0])) == ([5], 1 << 3)
    bench.sampler.post_update(bench.batch, output, bench.states)
    drawn = output.token_ids.tolist()
    assert counts[a, drawn[0]] == 1 + (drawn[0] == 5) and counts[a].sum() == 2
    assert counts[b].sum() == 1 and counts[c].sum() == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_faults_of_logits_are_located(temperature):
    sampling = SamplingParams(temperature=temperature, seed=4)
    requests = [NewRequest(f"r{index}", (1,), 1, sampling) for index in range(4)]
    requests[3] = dataclasses.replace(requests[3], sampling=dataclasses.replace(sampling, allowed_token_ids=(0,)))
    logits = torch.full((4, 33), -1.0)
    logits[1, [20, 9]] = float("nan")
    logits[2] = float("nan")
    logits[3, 0] = float("-inf")
    result = make_bench(requests, 33).sample(logits).sampled.result
    assert result[1].tolist() == [0, 2, 33, 0]
    assert result[2, 1:3].tolist() == [9, 0]
    assert result[3].tolist() == [0, 0, 1, 1]
    assert result[0, 2:].tolist() == [0, 0] and result[0, 1] not in (9, 20)
