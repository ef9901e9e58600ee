"""Reports of log-probabilities against their oracle: values, ids, ranks; drawn tokens and tokens of a prompt."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.oracle.rounding import UNIT_ROUNDOFF
from mrv2.refrunner.oracle.sampling import filtered, log_softmax, process, report
from mrv2.refrunner.sampling.logprobs import LogprobReport, row_statistics

from .sampling_cases import batches, make_bench, make_logits, params

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    with triton_cpu.enabled() as session:
        yield
    assert not session.findings


@st.composite
def reporting(draw, vocab_size):
    """Any parameters, and something to report."""
    ids = st.lists(st.integers(0, vocab_size - 1), max_size=3).map(tuple)
    wanted = draw(st.sampled_from((None, -1, 0, 1, 3, 80)))
    return dataclasses.replace(draw(params(vocab_size)), logprobs=wanted, logprob_token_ids=draw(ids))


def values_of(row, request, mode):
    """What a mode reports, float64 [V]."""
    values = row.astype(np.float64)
    if mode.startswith("processed"):
        made = process(row, request, request.token_ids)
        values = np.where(filtered(made, request.sampling).possibly, made, -np.inf).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return log_softmax(values) if mode.endswith("logprobs") else values


def error_of(row):
    """The bound of ``oracle.rounding`` on a float32 log-softmax, for all tokens of a row."""
    finite = row[np.isfinite(row)].astype(np.float64)
    return UNIT_ROUNDOFF * (4 * np.abs(finite).max(initial=0) + 4 * np.ptp(finite) + 80) if len(finite) else 0.0


def check(told, expected, values, error):
    """A report agrees if each value does, and ids and ranks are right for values that close."""
    assert told.token_ids == expected.token_ids or close(values[list(told.token_ids)], expected.values, error)
    assert close(told.values, expected.values, error) and close(told.fixed, expected.fixed, error)
    assert close([told.value], [expected.value], error)
    assert len(set(told.token_ids)) == len(told.token_ids)


def close(ours, theirs, error):
    return np.allclose(np.array(ours), np.array(theirs), rtol=0, atol=error, equal_nan=True)


@given(batches(reporting), st.sampled_from(MODES))
@QUICK
def test_reports_are_the_oracles(case, mode):
    requests, logits = case
    if any(request.sampling.top_p < 1 for request in requests) and mode.startswith("processed"):
        requests = [
            dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, top_p=1.0))
            for request in requests
        ]  # which tokens are kept is another test's; here one on the line would change every value
    logits = torch.where(logits.isnan(), -1.0, logits)
    output = make_bench(requests, logits.shape[1], logprobs_mode=mode).sample(logits)
    asked = [(request.sampling.logprobs, len(request.sampling.logprob_token_ids)) for request in requests]
    entries = output.report.entries(asked) if output.report else [None] * len(requests)
    for index, (request, told) in enumerate(zip(requests, entries, strict=True)):
        sampling, row = request.sampling, logits[index].numpy()
        assert (told is None) == (sampling.logprobs is None and not sampling.logprob_token_ids)
        values, token = values_of(row, request, mode), int(output.token_ids[index])
        error = error_of(process(row, request, request.token_ids)) + error_of(row)
        assert close([float(output.logprobs[index])], [values[token]], error)
        if told is not None and not np.isnan(values).any():
            check(told, report(values, token, sampling.logprobs, sampling.logprob_token_ids), values, error)
            base = values_of(row, request, mode.replace("logprobs", "logits"))
            assert told.rank == 1 + (base > base[token]).sum()


def test_ties_are_in_order_of_their_ids():
    request = NewRequest("a", (0,), 1, SamplingParams(logprobs=5))
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 0.0]])
    (told,) = make_bench([request], 7).sample(logits).report.entries([(5, 0)])
    assert told.token_ids == (1, 3, 0, 2, 4) and told.rank == 1


def test_many_entries_are_sorted():
    """More than are sorted in one turn, from a row that is anything but sorted."""
    logits = make_logits("ties", 1, 257, 3)
    request = NewRequest("a", (0,), 1, SamplingParams(logprobs=200))
    (told,) = make_bench([request], 257).sample(logits).report.entries([(200, 0)])
    expected = report(log_softmax(logits[0].numpy()), told.token_ids[0], 200)
    assert told.token_ids == expected.token_ids


def test_a_report_changes_neither_logits_nor_tokens():
    logits = make_logits("normal", 2, 70, 9)
    before = logits.clone()
    sampling = SamplingParams(temperature=1.0, seed=3, top_k=4, repetition_penalty=1.5)
    requests = [NewRequest(name, (1, 2), 1, sampling) for name in "ab"]
    plain = make_bench(requests, 70).sample(logits)
    told = [dataclasses.replace(r, sampling=dataclasses.replace(sampling, logprobs=3)) for r in requests]
    asked = make_bench(told, 70, logprobs_mode="processed_logprobs").sample(logits)
    assert torch.equal(logits, before)
    assert asked.token_ids.tolist() == plain.token_ids.tolist()


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 5, 33, 257])
def test_statistics_of_rows(vocab_size):
    logits = make_logits("normal", 3, vocab_size, vocab_size)
    logits[1, 0] = float("-inf") if vocab_size > 1 else 0.0
    largest, log_sum = row_statistics(logits).double()
    assert largest.tolist() == logits.amax(dim=1).tolist()
    exact = logits.double().logsumexp(dim=1) - largest
    assert (log_sum - exact).abs().max() < 1e-6


def test_a_log_softmax_of_a_row_is_nowhere():
    """The report's tensors have as many columns as entries were asked for, not as the vocabulary has tokens."""
    request = NewRequest("a", (0,), 1, SamplingParams(logprobs=2))
    output = make_bench([request], 5000).sample(make_logits("normal", 1, 5000, 1))
    assert all(tensor.numel() < 200 for tensor in output.report.tensors())


def test_reports_survive_their_download():
    report_ = LogprobReport(torch.ones(1, 2), torch.ones(1, 3), torch.ones(1), None)
    full = dataclasses.replace(report_, full=torch.ones(1, 4))
    assert LogprobReport.of_tensors(report_.tensors()) == report_
    assert len(full.tensors()) == 4 and LogprobReport.of_tensors(full.tensors()).full is full.full


def test_modes_are_checked():
    with pytest.raises(ConfigurationError, match="logprobs_mode='cooked'"):
        RunnerConfig(logprobs_mode="cooked")
