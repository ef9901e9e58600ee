"""vLLM's own sampling kernel under audit, where its file is: see ``fetch_vllm.py``."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.vllm_sampler import VllmSampler, _murmur3, vllm_gumbel
from mrv2.stats.audit import audit, settings
from mrv2.stats.noise import enumerate_transform
from mrv2.stats.noise_keys import Keys, duplicate_rows
from mrv2.stats.targets import Purpose

FOLDER = os.environ.get("MRV2_VLLM")
needs_vllm = pytest.mark.skipif(not FOLDER, reason="MRV2_VLLM names no folder with vLLM's sampler; see fetch_vllm.py")


def murmur3_of_text(data, seed):
    """MurmurHash3_x86_32 as its author published it, byte by byte."""
    state, mask = seed, 0xFFFFFFFF
    for start in range(0, len(data), 4):
        key = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & mask
        key = ((key << 15) | (key >> 17)) * 0x1B873593 & mask
        state ^= key
        state = (((state << 13) | (state >> 19)) & mask) * 5 + 0xE6546B64 & mask
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> shift)) * factor & mask
    return state ^ (state >> 16)


def test_its_bits_are_murmur3_of_seed_position_and_token():
    seed, position, token = 0x0123456789ABCDEF, 77, 4242
    data = seed.to_bytes(8, "little") + position.to_bytes(4, "little") + token.to_bytes(4, "little")
    given = _murmur3(np.array([seed], np.uint64), np.array([position]), np.array([token]), 0)
    assert given.tolist() == [murmur3_of_text(data, 0)]


@needs_vllm
@pytest.mark.parametrize("double", [False, True])
def test_draws_follow_the_bits(double):
    random = np.random.default_rng(0)
    logits = random.normal(size=(16, 2500)).astype(np.float32)
    keys = random.integers(0, 2**64, 16, dtype=np.uint64), random.integers(0, 2**31, 16)
    with triton_cpu.enabled():
        sampler = VllmSampler(vllm_gumbel(Path(FOLDER)), double=double)
        drawn = sampler.sample(logits, np.ones(16, np.float32), *keys)
        words = sampler.words(keys[0][:, None], keys[1][:, None], np.arange(2500))
        noise = sampler.noise(words.ravel()).reshape(words.shape)
    assert (drawn == (logits + noise).argmax(axis=1)).all()


# What is wrong in 0.33, as the page stats/VLLM.md explains it.
OF_NUMBERS = {"contract: NaN is never drawn", "contract: a row without a possible id"}
OF_KEYS = {"noise: no two keys have the same noise"}
OF_32_BITS = {"noise: mass of a tail 23.25 nats down", "noise: mass of a tail 25 nats down"}


@needs_vllm
@pytest.mark.parametrize(
    ("double", "failed"), [(False, OF_NUMBERS | OF_KEYS | OF_32_BITS), (True, OF_NUMBERS | OF_KEYS)]
)
def test_what_its_audit_finds_and_what_holds(double, failed):
    with triton_cpu.enabled():
        sampler = VllmSampler(vllm_gumbel(Path(FOLDER)), double=double)
        report = audit(sampler, settings(), clock=time.process_time)
    assert {f"{test.layer}: {test.first.name}" for test in report.audit.decision.failed} == failed
    ran = {result.layer for result in report.audit.results if not result.not_run}
    assert ran == {"contract", "noise", "replay", "distribution"}
    kinds = {cause.kind for cause in report.causes}
    assert double or {"32-bit noise", "row state of 32 bits"} <= kinds


@needs_vllm
@pytest.mark.parametrize("double", [False, True])
def test_keys_that_an_engine_uses(double):
    """Below position 2**20: pairs among random seeds as of 32 bits in float32, none in float64; none within a seed."""
    random, count = np.random.default_rng(5), 2**18
    with triton_cpu.enabled():
        sampler = VllmSampler(vllm_gumbel(Path(FOLDER)), double=double)
    keys = Keys(random.integers(0, 2**64, count, dtype=np.uint64), random.integers(0, 2**20, count))
    pairs = len(duplicate_rows(sampler, keys, (Purpose.TARGET,), 151_936))
    assert pairs == 0 if double else 0 < pairs < 30, "8 expected of 32 bits"
    one_seed = Keys(np.full(count, random.integers(0, 2**63, dtype=np.uint64)), np.arange(count))
    assert duplicate_rows(sampler, one_seed, (Purpose.TARGET, Purpose.DRAFT), 151_936) == []


@needs_vllm
@pytest.mark.parametrize("double", [False, True])
def test_a_nan_takes_the_tokens_before_it(double):
    """On the CPU, where a maximum is taken from left to right; on a GPU its order decides which tokens a NaN takes."""
    rows = np.zeros((4, 1500), np.float32)
    rows[1, 7], rows[2], rows[3] = np.nan, np.nan, -np.inf
    with triton_cpu.enabled():
        sampler = VllmSampler(vllm_gumbel(Path(FOLDER)), double=double)
        keys = np.arange(4, dtype=np.uint64), np.arange(4)
        assert sampler.sample(rows, np.zeros(4, np.float32), *keys).tolist() == [0, 8, 1023, 0]
        assert sampler.sample(rows[2:3, :129], np.zeros(1, np.float32), *(part[:1] for part in keys)) == 129


@needs_vllm
@pytest.mark.skipif(not os.environ.get("MRV2_LONG"), reason="three minutes of a core; MRV2_LONG=1")
def test_every_word_of_its_float32_noise():
    with triton_cpu.enabled():
        errors = enumerate_transform(VllmSampler(vllm_gumbel(Path(FOLDER))).noise, 32, 32)
    assert errors.words == 2**32 and errors.not_finite == errors.turns == 0
    assert errors.winning_error < 2.2e-6 and errors.losing_error == pytest.approx(0.2877, abs=1e-3)
