"""Faults planted in the sampler, each of which must show in what one fixed batch gives: the tests' own control."""

import dataclasses
import os

import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.fuzz.mutants import Mutation, mutated_package
from mrv2.refrunner.api import NewRequest, SamplingParams

from .sampling_cases import make_bench, make_logits

V = 70
WARM = {"temperature": 0.8, "seed": 12}
SETS = (
    {"allowed_token_ids": tuple(range(0, V, 2)), "min_tokens": 4, "stop_token_ids": (2, 40), "logprobs": 5},
    {
        "logit_bias": ((3, 1.5), (60, -2.0), (66, 1.0)),
        "repetition_penalty": 1.5,
        "bad_words": ((9, 9), (7, 8, 50)),
        **WARM,
    },
    {"frequency_penalty": 0.9, "presence_penalty": 0.2, "top_p": 0.7, **WARM},
    {"top_k": 6, "min_p": 0.02, "logprobs": 5, **WARM},
)
PROCESSING, FILTERS, STATE = "kernels/logits_processing.py", "kernels/filters.py", "kernels/penalty_state.py"
REPORTS, TABLES, MIN_LEN = "kernels/logprobs.py", "sampling/tables.py", "length < tl.load(numbers_ptr + MIN_LEN)"
ORDER, NUCLEUS = "kernels/order.py", "kernels/nucleus.py"
# By what goes wrong: the file, the text, and what replaces it.
MUTATIONS = {
    "no listed token is found": (PROCESSING, "token < first_token + BLOCK)", "token < first_token)"),
    "repetition favours the unlikely": (PROCESSING, "divided, logit * repetition", "divided, divided"),
    "the prompt does not count as repeated": (PROCESSING, "produced | mask_bit(mask_ptr, token, inside)", "produced"),
    "bad words end a token early": (PROCESSING, "length - size + lane", "length - size + lane - 1"),
    "stop tokens are free a token early": (PROCESSING, MIN_LEN, MIN_LEN.replace("length", "length + 1")),
    "top-k keeps one fewer": (FILTERS, "NUMBERS + COLUMN_TOP_K)", "NUMBERS + COLUMN_TOP_K) - 1"),
    "top-p is squared": (NUCLEUS, "total.to(tl.float64) * share", "total.to(tl.float64) * share * share"),
    "the prompt counts as output": (STATE, "mask=known & ~prompt", "mask=known"),
    "what is drawn is not counted": (STATE, "tl.load(count_ptr) + 1", "tl.load(count_ptr)"),
    "ranks begin at 0": (REPORTS, "1 + tl.sum(above", "tl.sum(above"),
    "the highest id comes first among equals": (REPORTS, "+ other) < token)", "+ other) > token)"),
    "the minimum counts the prompt": (TABLES, "request.prompt_len + sampling.min_tokens", "sampling.min_tokens"),
    "biases are not sorted": (TABLES, "sorted(sampling.logit_bias)", "list(sampling.logit_bias)[::-1]"),
}
# Each mutant compiles the kernels of a package of its own, ten seconds in all; the suite shows one of them.
ALL = bool(os.environ.get("MRV2_SAMPLER_MUTANTS"))
RUN = tuple(MUTATIONS) if ALL else ("top-k keeps one fewer",)
NOTHING = (ORDER, "FIXED_POINT = tl.constexpr(1099511627776.0)  # 2**40", "FIXED_POINT = tl.constexpr(2.0**40)")


def outcome(package):
    """All that the batch gives: kept logits, tokens, reports, and the counts after the draw."""
    requests = [
        NewRequest(f"r{index}", (9, 7, 8, 7, 8), 2, SamplingParams(**params)) for index, params in enumerate(SETS)
    ]
    logits = make_logits("ties", len(SETS), V, 2)
    logits[0, [2, 40]] = 20.0
    logits[1, 7:9] = -2.0
    logits[2, 7:10] += 6
    logits[3] = torch.linspace(-1.0, 1.0, V)
    bench = make_bench(requests, V, package=package)
    processed, output = bench.processed(logits), bench.sample(logits)
    bench.sampler.post_update(bench.batch, output, bench.states)
    tensors = (processed.logits, processed.thresholds, output.token_ids, output.logprobs)
    entries = output.report.entries([(params.get("logprobs"), 0) for params in SETS])
    told = [entry and dataclasses.astuple(entry) for entry in entries]  # the class is the package's own
    counts = bench.sampler._penalties.counts[bench.batch.host_rows]
    return [np.nan_to_num(tensor.numpy()).tolist() for tensor in (*tensors, counts)], told


@pytest.fixture(scope="module")
def right():
    with triton_cpu.enabled():
        return outcome("mrv2.refrunner")


def outcome_of_mutant(file, old, new):
    with mutated_package(Mutation("sampler", file, old, new, "see MUTATIONS")) as package, triton_cpu.enabled():
        return outcome(package)


@pytest.mark.skipif(not ALL, reason="MRV2_SAMPLER_MUTANTS=1 runs it")
def test_a_change_of_nothing_does_not_show(right):
    assert outcome_of_mutant(*NOTHING) == right


@pytest.mark.parametrize("fault", RUN)
def test_a_planted_fault_shows(right, fault):
    assert outcome_of_mutant(*MUTATIONS[fault]) != right
