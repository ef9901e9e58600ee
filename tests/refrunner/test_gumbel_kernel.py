"""The sampler against the noise contract: random bits, noise, draws and log-probabilities."""

import math
import mmap
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.kernels.gumbel import PURPOSE_TARGET, gumbel_noise, random_words
from mrv2.refrunner.kernels.launch import kernel
from mrv2.refrunner.oracle.noise import Purpose, exponential, words
from mrv2.refrunner.oracle.rounding import NOISE_ERROR, UNIT_ROUNDOFF
from mrv2.refrunner.sampling import blocks
from mrv2.refrunner.sampling import gumbel as module

pytestmark = pytest.mark.usefixtures("compiled_kernels")

SEEDS = (0, 1, -1, 2**32, -(2**32), 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 0x0123456789ABCDEF)
POSITIONS = (0, 1, 255, 2**31 - 1)
MAP_NORESERVE = 0x4000  # of Linux; older modules mmap do not name it


def signed(seed):
    return (seed + 2**63) % 2**64 - 2**63


@kernel
def write_words(seed_ptr, position, first_token, purpose, high_ptr, low_ptr, BLOCK: tl.constexpr):
    seed = tl.load(seed_ptr)
    lane = tl.arange(0, BLOCK)
    tl.store(high_ptr + lane, random_words(seed, position, first_token, purpose, 0, BLOCK).to(tl.int64))
    tl.store(low_ptr + lane, random_words(seed, position, first_token, purpose, 1, BLOCK).to(tl.int64))


@kernel
def write_noise(high_ptr, low_ptr, noise_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    high, low = tl.load(high_ptr + lane).to(tl.uint32), tl.load(low_ptr + lane).to(tl.uint32)
    tl.store(noise_ptr + lane, gumbel_noise(high, low))


def kernel_words(seed, position, first_token, device="cpu", block=16, purpose=0):
    high, low = torch.zeros(2, block, dtype=torch.int64, device=device)
    seeds = torch.tensor([signed(seed)], device=device)
    write_words[(1,)](seeds, position, first_token, purpose, high, low, BLOCK=block)
    high, low = (part.cpu().numpy().astype(np.uint64) for part in (high, low))
    return (high << np.uint64(32)) | low


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_bits_of_a_draw_are_the_contracts(device, seed, position):
    for first_token in (0, 16, 2**31 - 16):
        expected = words(seed, position, np.arange(first_token, first_token + 16), Purpose.TARGET)
        assert np.array_equal(kernel_words(seed, position, first_token, device), expected)


@pytest.mark.parametrize("purpose", Purpose)
def test_purposes_have_bits_of_their_own(purpose):
    expected = words(7, 3, np.arange(16), purpose)
    assert np.array_equal(kernel_words(7, 3, 0, purpose=int(purpose)), expected)
    assert PURPOSE_TARGET.value == Purpose.TARGET


def bit_patterns():
    """Words at the ends, at every power of two and beside it, around the switches of the formula, and random ones."""
    powers = [1 << bit for bit in range(64)]
    edges = [0, 2**64 - 1, 2**63, 2**32, 2**40, 2**39, 3 << 38, 2**62, 3 << 62]
    near = [word + step for word in (*powers, *edges) for step in (-2, -1, 0, 1, 2)]
    near += [2**64 - power for power in powers]
    random = np.random.default_rng(0).integers(0, 2**64, 1500, dtype=np.uint64)
    small = [int(word) >> int(shift) for word, shift in zip(random, np.arange(len(random)) % 64, strict=True)]
    return np.array(sorted({word % 2**64 for word in (*near, *random.tolist(), *small)}), dtype=np.uint64)


def kernel_noise(patterns, device):
    block = 4096
    high, low = torch.zeros(2, block, dtype=torch.int64)
    high[: len(patterns)] = torch.from_numpy((patterns >> np.uint64(32)).astype(np.int64))
    low[: len(patterns)] = torch.from_numpy((patterns & np.uint64(0xFFFFFFFF)).astype(np.int64))
    noise = torch.empty(block, device=device)
    write_noise[(1,)](high.to(device), low.to(device), noise, BLOCK=block)
    return noise[: len(patterns)].cpu().numpy()


def test_the_noise_is_accurate_over_the_whole_range(device):
    patterns = bit_patterns()
    exact, noise = -np.log(exponential(patterns)), kernel_noise(patterns, device)
    assert np.isfinite(noise).all()
    excess = np.abs(noise - exact) - (NOISE_ERROR + 2 * UNIT_ROUNDOFF * np.abs(exact))
    assert excess.max() <= 0, f"word {patterns[excess.argmax()]:#x}"


def test_the_ends_of_the_noise(device):
    ends = kernel_noise(np.array([0, 2**64 - 1], np.uint64), device)
    assert ends == pytest.approx([65 * np.log(2), -np.log(65 * np.log(2))], rel=1e-6)


def test_more_noise_for_a_smaller_word(device):
    patterns = bit_patterns()
    noise, coarse = kernel_noise(patterns, device), np.diff(patterns.astype(np.float64)) / patterns[:-1].clip(1) > 1e-4
    assert (np.diff(noise)[coarse] <= 0).all()


@dataclass
class Draw:
    """One row of a batch of draws."""

    temperature: float = 1.0
    seed: int = 0
    position: int = 5


def sample(logits, draws, rows=None):
    """Sample a batch whose requests live in the given rows of larger, poisoned parameter tables."""
    rows = list(range(len(draws))) if rows is None else rows
    temperature, seeds = torch.full((16,), float("nan")), torch.full((16,), -99)
    for row, draw in zip(rows, draws, strict=True):
        temperature[row], seeds[row] = draw.temperature, signed(draw.seed)
    positions = torch.tensor([draw.position for draw in draws], dtype=torch.int32)
    places = torch.tensor(rows, dtype=torch.int32)
    sampled = module.sample(logits, *(table.to(logits.device) for table in (places, positions, temperature, seeds)))
    return sampled.token_ids.tolist(), sampled.logprobs.tolist()


@pytest.fixture(scope="session")
def check_draws(judge_draw):
    """Samples, and judges every token and logprob."""

    def check(logits, draws, rows=None):
        tokens, logprobs = sample(logits, draws, rows)
        for row, draw, token, logprob in zip(logits, draws, tokens, logprobs, strict=True):
            params = SamplingParams(temperature=draw.temperature, seed=draw.seed)
            judge_draw(row, params, draw.position, token, logprob)
        return tokens

    return check


def random_logits(count, vocab_size, seed=0, spread=4.0, device="cpu"):
    logits = np.random.default_rng(seed).normal(size=(count, vocab_size)) * spread
    return torch.from_numpy(logits.astype(np.float32)).to(device)


@pytest.mark.parametrize("block", [4, 64, 2**17])
@pytest.mark.parametrize("vocab_size", [1, 2, 3, 4, 5, 63, 64, 65, 257])
def test_draws_are_the_oracles(check_draws, monkeypatch, vocab_size, block):
    """Vocabularies that are no multiple of four or of the block, and rows of one and of many blocks."""
    if vocab_size // block > 20:
        block = 16
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    draws = [Draw(0.0), Draw(0.7, 11, 3), Draw(1.0, -5, 2**31 - 1), Draw(30.0, 2**64 - 1, 0)]
    check_draws(random_logits(len(draws), vocab_size), draws)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_of_64_bits(check_draws, device, seed):
    draws = [Draw(1.0, seed, position) for position in POSITIONS]
    check_draws(random_logits(1, 130, device=device).expand(len(draws), -1), draws)


def test_every_half_of_the_seed_and_the_position_matter(check_draws):
    keys = [Draw(1.0, 1, 5), Draw(1.0, 1 + 2**32, 5), Draw(1.0, 1 + 2**63, 5), Draw(1.0, 1, 6)]
    logits = torch.zeros(1, 4096).expand(len(keys), -1)
    assert len(set(check_draws(logits, keys))) == len(keys)


@given(
    st.lists(
        st.tuples(
            st.sampled_from((0.0, 1e-30, 1e-3, 0.5, 1.0, 2.0, 1e30)),
            st.integers(-(2**63), 2**64 - 1),
            st.integers(0, 99),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 90),
    st.sampled_from((0.01, 3.0, 80.0)),
    st.sampled_from((16, 32, 128)),
)
@settings(max_examples=30)
def test_any_batch_of_draws(check_draws, draws, vocab_size, spread, block):
    batch = [Draw(*draw) for draw in draws]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CPU_BLOCK", block)
        check_draws(random_logits(len(batch), vocab_size, vocab_size, spread), batch)


@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize(("first", "second"), [(0, 1), (3, 4), (1, 15), (5, 9)])
def test_the_lowest_id_wins_a_greedy_tie(check_draws, monkeypatch, first, second, block):
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    logits = torch.zeros(1, 16)
    logits[0, [first, second]] = 2.5
    assert check_draws(logits, [Draw(0.0)]) == [first]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("block", [4, 16])
def test_rows_without_a_finite_logit_still_give_a_token(device, monkeypatch, temperature, block):
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    rows = torch.full((3, 10), float("-inf"), device=device)
    rows[1] = float("nan")
    rows[2, 7] = float("inf")
    tokens, logprobs = sample(rows, [Draw(temperature)] * 3)
    assert tokens == [0, 0, 7]
    assert np.isnan(logprobs).all()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("block", [4, 16])
def test_nan_and_minus_infinity_lose(device, monkeypatch, temperature, block):
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    for spoiler in (float("nan"), float("-inf")):
        logits = torch.full((1, 10), spoiler, device=device)
        logits[0, 6] = -50.0
        tokens, logprobs = sample(logits, [Draw(temperature, 3)])
        assert tokens == [6]
        # A softmax over NaN has no value; over minus infinity, all of it is here.
        assert np.isnan(logprobs[0]) if np.isnan(spoiler) else logprobs == [0.0]


def test_logits_may_be_strided_and_are_left_alone(check_draws, device):
    wide = random_logits(6, 150, device=device)
    view = wide[::2, 20:90]
    before = wide.clone()
    draws = [Draw(0.0), Draw(1.0, 4), Draw(0.6, 5)]
    assert sample(view, draws) == sample(view.contiguous(), draws)
    check_draws(view, draws)
    assert torch.equal(wide, before)


def test_rows_beyond_two_billion_elements():
    """Offsets leave 32 bits; the memory is reserved only, and two of its pages are ever touched."""
    stride, vocab_size = 2**31 + 64, 64
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    with mmap.mmap(-1, 4 * (stride + vocab_size), flags=flags) as memory:
        logits = torch.frombuffer(memory, dtype=torch.float32).as_strided((2, vocab_size), (stride, 1))
        logits.copy_(random_logits(2, vocab_size))
        draws = [Draw(0.0), Draw(1.0, 8)]
        found, expected = sample(logits, draws), sample(logits.contiguous(), draws)
        del logits
    assert found == expected


@pytest.mark.parametrize("block", [16, 2**17])
def test_a_draw_depends_on_nothing_beside_it(monkeypatch, block):
    """Alone or in a batch, in any order and any row of the tables: the same token and the same logprob, bit for bit."""
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    logits = random_logits(5, 100)
    draws = [Draw(0.0), Draw(0.7, 3, 9), Draw(1.0, 3, 9), Draw(1.0, -4, 2), Draw(2.0, 2**40, 7)]
    together = sample(logits, draws)
    alone = [sample(logits[i : i + 1], [draws[i]], rows=[9]) for i in range(5)]
    assert together == ([tokens[0] for tokens, _ in alone], [logprobs[0] for _, logprobs in alone])
    order = [3, 0, 4, 2, 1]
    shuffled = sample(logits[order], [draws[i] for i in order], rows=[12, 3, 7, 0, 15])
    assert shuffled == tuple([values[i] for i in order] for values in together)


def test_greedy_takes_no_notice_of_the_seed():
    logits = random_logits(1, 50).expand(3, -1)
    tokens, _ = sample(logits, [Draw(0.0, seed) for seed in (0, 1, -1)])
    assert tokens == [int(logits[0].argmax())] * 3


def test_a_draw_with_the_noise_of_another_seed_is_noticed(check_draws, judge_draw):
    """Control of the comparison that the tests above rest on."""
    logits = torch.zeros(300)
    token = check_draws(logits[None], [Draw(1.0, 2)])[0]
    with pytest.raises(AssertionError):
        judge_draw(logits, SamplingParams(temperature=1.0, seed=1), 5, token, -math.log(300))
    with pytest.raises(AssertionError):
        judge_draw(logits, SamplingParams(temperature=1.0, seed=2), 5, token, -math.log(301))
