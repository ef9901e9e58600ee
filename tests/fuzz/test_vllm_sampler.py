"""vLLM's own sampling kernel under audit, where its file is: see ``fetch_vllm.py``."""

import os
from pathlib import Path

import numpy as np
import pytest

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.vllm_sampler import VllmSampler, _murmur3, vllm_gumbel
from mrv2.stats.audit import audit, settings

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


@needs_vllm
def test_its_float32_noise_ends_and_its_row_state_has_32_bits():
    """What the audit must find in 0.33: noise up to 33 log(2), and keys that share all noise."""
    with triton_cpu.enabled():
        report = audit(VllmSampler(vllm_gumbel(Path(FOLDER))), settings(layers=("noise",)))
    failed = {test.first.name for test in report.audit.decision.failed}
    assert "mass of a tail 25 nats down" in failed
    assert "mass of a tail 20 nats down" not in failed
    assert "no two keys have the same noise" in failed
    assert {"32-bit noise", "row state of 32 bits"} <= {cause.kind for cause in report.causes}
