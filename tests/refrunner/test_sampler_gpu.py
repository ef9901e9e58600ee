"""The sampler on a GPU against its oracle: vocabularies of real models, every stage, every report.

Each test runs on the virtual device too, with a small vocabulary, so that it is known to work before a GPU is at hand.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.oracle.noise import gumbel
from mrv2.refrunner.oracle.rounding import NOISE_ERROR, UNIT_ROUNDOFF
from mrv2.refrunner.oracle.sampling import filtered, log_softmax, process, report

from .sampling_cases import make_bench, make_logits

PLACES = [
    pytest.param((virtual_device, 257), id="virtual"),
    *(pytest.param((nullcontext, size), id=f"gpu-{size}", marks=pytest.mark.gpu) for size in (257, 49_152, 151_936)),
]


def requests_of(vocab_size):
    """One request for each kind of stage, one with all of them, and one with none."""
    warm = {"temperature": 0.8, "seed": 2**63 + 5}
    lists = {
        "allowed_token_ids": tuple(range(0, vocab_size, 2)), "logit_bias": tuple((t, 0.3) for t in range(0, 200, 3)),
        "bad_words": ((8,), (4, 6), (1, 4, 10)), "min_tokens": 9, "stop_token_ids": tuple(range(90, 110)),
    }  # fmt: skip
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.4}
    filters = {"top_k": 50, "top_p": 0.9, "min_p": 0.001}
    sets = [
        {},
        {**warm, **lists},
        {**warm, **penalties},
        {**warm, **filters},
        {**warm, **lists, **penalties, **filters},
    ]
    reports = [{"logprobs": count} for count in (None, 0, -1, 20, 5)]
    return [
        NewRequest(f"r{index}", (3, 1, 4, 1, 4), 3, SamplingParams(**params, **reports[index]))
        for index, params in enumerate(sets)
    ]


@pytest.fixture(params=PLACES)
def drawn(request):
    """Requests, logits on the host, processed logits and thresholds, the output, and its reports."""
    place, vocab_size = request.param
    requests, logits = requests_of(vocab_size), make_logits("normal", 5, vocab_size, 11)
    with place():
        bench, there = make_bench(requests, vocab_size, device="cuda"), logits.to("cuda")
        processed, output = bench.processed(there), bench.sample(there)
        asked = [(each.sampling.logprobs, 0) for each in requests]
        tensors = tuple(tensor.cpu() for tensor in output.report.tensors())
        entries = type(output.report).of_tensors(tensors).entries(asked)
        host = [tensor.cpu().numpy() for tensor in (processed.logits, output.token_ids, output.logprobs, there)]
    return requests, logits.numpy(), *host, entries


def test_the_device_does_what_the_oracle_does(drawn):
    requests, logits, processed, tokens, logprobs, after, entries = drawn
    assert np.array_equal(after, logits)
    for index, request in enumerate(requests):
        sampling, token = request.sampling, int(tokens[index])
        expected = process(logits[index], request, request.token_ids)
        if index:
            assert np.array_equal(processed[index], expected), "a stage rounds differently"
        kept = filtered(expected, sampling)
        noise = gumbel(sampling.seed, 5, len(expected)) if sampling.temperature else np.zeros(len(expected))
        scores = expected.astype(np.float64) + noise
        best = scores[kept.surely].max()
        assert kept.possibly[token]
        assert scores[token] >= best - (NOISE_ERROR + 8 * UNIT_ROUNDOFF * (abs(best) + 50))
        values = log_softmax(logits[index])
        assert abs(float(logprobs[index]) - values[token]) < 1e-5
        if sampling.logprobs is not None:
            told, right = entries[index], report(values, token, sampling.logprobs)
            assert (told.token_ids, told.rank) == (right.token_ids, right.rank)
            assert np.abs(np.array(told.values) - np.array(right.values)).max(initial=0.0) < 1e-5


def test_rows_of_a_batch_are_alone(drawn):
    """The greedy row has no neighbour's parameters."""
    _, logits, _, tokens, *_ = drawn
    assert int(tokens[0]) == int(torch.from_numpy(logits[0]).argmax())
