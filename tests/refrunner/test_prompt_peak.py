"""Reports on a prompt take memory for a chunk of its logits, however long it is: a virtual device, and a GPU."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.models.config import LlamaConfig

from .prompt_peak import LIKELIEST, Prefill, bound, prefill, tokens_of
from .random_model import runner_of

SMALL = LlamaConfig(
    vocab_size=8192, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16,
    rope_theta=1e4, rms_norm_eps=1e-6, max_position_embeddings=256, tie_word_embeddings=True,
)  # fmt: skip
#: A model of 0.6 thousand million parameters; but of one layer, since more of them change nothing here.
LARGE = replace(
    SMALL, vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_heads=16, num_kv_heads=8, head_dim=128,
    rope_theta=1e6, max_position_embeddings=131_072,
)  # fmt: skip


@dataclass(frozen=True)
class Peaks:
    """Bytes: without reports, with them, with the whole step's lanes in one chunk; and the bound."""

    without: int
    reported: int
    whole: int
    bound: int
    reports: Prefill


def peaks(model, length, chunk, shorter, grain, **settings):
    """Of a prompt with reports; what it is compared with has as many lanes a step, so a shorter prompt will do."""
    tokens = tokens_of(length, model.vocab_size)
    runner = runner_of(model, max_num_reqs=1, prompt_logprobs_chunk=chunk, **settings)
    without, reported = prefill(runner, tokens[:shorter], None), prefill(runner, tokens, LIKELIEST)
    allowed = bound(runner.config, model, length, grain)
    del runner
    runner = runner_of(model, max_num_reqs=1, prompt_logprobs_chunk=settings["max_num_batched_tokens"], **settings)
    whole = prefill(runner, tokens[:shorter], LIKELIEST)
    return Peaks(without.peak, reported.peak, whole.peak, allowed, reported)


def check(found, model, length, chunk):
    """Chunks stay within the bound, and their absence would not; the measurement sees at least a chunk's logits."""
    assert chunk * model.vocab_size * 4 < found.reported <= found.without + found.bound
    assert found.whole > found.without + found.bound
    assert len(found.reports.reports) == length
    assert found.reports.reports[0] is None
    for report in found.reports.reports[1:]:
        assert math.isfinite(report.value)
        assert len(set(report.token_ids)) == LIKELIEST
        if report.rank <= LIKELIEST:
            assert report.values[report.rank - 1] == report.value


def test_a_chunk_is_all_that_is_in_memory():
    sizes = {"max_num_batched_tokens": 32, "max_model_len": 72, "num_kv_blocks": 6}
    with virtual_device("late"):
        found = peaks(SMALL, 64, 4, 32, 1, **sizes)
    check(found, SMALL, 64, 4)


@pytest.mark.gpu
def test_a_prompt_of_100_000_tokens(record_property):
    length, chunk, step = 100_000, 1024, 8192
    sizes = {"max_num_batched_tokens": step, "max_model_len": length + 8, "num_kv_blocks": 6300, "dtype": "bfloat16"}
    with torch.inference_mode():
        found = peaks(LARGE, length, chunk, 2 * step, 512, **sizes)
    figures = {
        "prompt": length, "vocabulary": LARGE.vocab_size, "lanes a step": step, "lanes a chunk": chunk,
        "logits of the whole prompt, bytes": length * LARGE.vocab_size * 4, "bound, bytes": found.bound,
        "peak without reports, bytes": found.without, "with reports": found.reported,
        "with all lanes of a step in one chunk": found.whole,
    }  # fmt: skip
    record_property("prompt_logprob_peak", json.dumps(figures))
    check(found, LARGE, length, chunk)
