import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.stats.decision import run_audit
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.logprob import accuracy, error_bound, oracle_log_softmax, ranks, telltale_rows
from mrv2.stats.logprob_layer import LogprobLayer

V = 5000
PLAN = AuditPlan(V, seed=4)


def float32_log_softmax(logits, block=1024, serial=True):
    """The order of a GPU kernel: a tree inside each block, then one block after another, all in float32."""
    top = logits.max(axis=1, keepdims=True)
    total = np.zeros(len(logits), np.float32)
    for start in range(0, logits.shape[1], block):
        part = np.exp(logits[:, start : start + block] - top)
        part = np.pad(part, ((0, 0), (0, block - part.shape[1])))
        while part.shape[1] > 1:
            part = part[:, ::2] + part[:, 1::2]
        total = (total + part[:, 0]).astype(np.float32)
    return (logits - top) - np.log(total)[:, np.newaxis]


class Good:
    """Everything the layer asks for, in float32."""

    block, serial, processed_logprobs = 1024, True, False

    def logprobs(self, logits, temperature):
        return float32_log_softmax(logits)

    def ranks(self, logits, tokens):
        return ranks(logits, tokens)

    def prompt_logprobs(self, logits, tokens):
        return self.logprobs(logits[:-1], None)[np.arange(len(tokens) - 1), tokens[1:]]

    def peak_bytes(self, logits, temperature):
        return 2 * logits.nbytes


def failed(target):
    decision = run_audit([LogprobLayer(2)], target, PLAN, Silent()).decision
    return {test.first.name: test.first for test in decision.failed}


def test_correct_values_pass():
    decision = run_audit([LogprobLayer(2)], Good(), PLAN, Silent()).decision
    assert decision.verdict is RunVerdict.PASS and len(decision.tests) == 2 * 9 + 5


def test_after_the_temperature_passes_where_it_is_promised():
    class Processed(Good):
        processed_logprobs = True

        def logprobs(self, logits, temperature):
            return float32_log_softmax((logits / temperature[:, np.newaxis]).astype(np.float32))

        def prompt_logprobs(self, logits, tokens):
            return Good().prompt_logprobs(logits, tokens)

    assert not failed(Processed())
    Processed.processed_logprobs = False
    found = failed(Processed())["temperature: every value within its bound"]
    assert found.evidence["matches the other convention"] is True


def _bfloat16(self, logits, temperature):
    return (float32_log_softmax(logits).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _one_number(self, logits, temperature):
    top = logits.max(axis=1)
    whole = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
    return logits - whole.astype(np.float32)[:, np.newaxis]


def _without_shift(self, logits, temperature):
    with np.errstate(all="ignore"):
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def _ranks_of_ties(self, logits, tokens):
    return (logits >= logits[np.arange(len(tokens)), tokens][:, np.newaxis]).sum(axis=1)


def _next_row(self, logits, tokens):
    return float32_log_softmax(logits)[np.arange(1, len(tokens)), tokens[1:]]


def _token_before(self, logits, tokens):
    return float32_log_softmax(logits)[np.arange(len(tokens) - 1), tokens[:-1]]


PLANTED = {
    "bfloat16 result": {"logprobs": _bfloat16},
    "one number for the denominator": {"logprobs": _one_number},
    "row of the neighbour": {"logprobs": lambda self, x, t: np.roll(float32_log_softmax(x), 1, axis=0)},
    "no shift": {"logprobs": _without_shift},
    "ranks of ties": {"ranks": _ranks_of_ties},
    "prompt off by one": {"prompt_logprobs": _next_row},
    "prompt tokens off by one": {"prompt_logprobs": _token_before},
    "float64 copies": {"peak_bytes": lambda self, x, t: 5 * x.nbytes},
}


def planted(name):
    return type("Planted", (Good,), PLANTED[name])()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bfloat16 result", "flat tail: every value within its bound"),
        ("one number for the denominator", "offset: every value within its bound"),
        ("row of the neighbour", "each row gets its own values"),
        ("no shift", "offset: every value within its bound"),
        ("ranks of ties", "ranks count the logits above"),
        ("prompt off by one", "each prompt token gets its own value"),
        ("prompt tokens off by one", "each prompt token gets its own value"),
        ("float64 copies", "peak memory of log-probabilities"),
    ],
)
def test_planted_faults(name, expected):
    found = failed(planted(name))
    assert expected in found
    if name.startswith("prompt"):
        moved = [1, 0] if name == "prompt off by one" else [0, -1]
        assert found[expected].evidence["values belong to (row, token) moved by"] == moved
    if name == "row of the neighbour":
        evidence = found[expected].evidence
        assert evidence["have the values of rows"] == [(row - 1) % 12 for row in evidence["rows"]]


def test_the_bound_holds_and_is_nearly_attained():
    """The worst input known for a serial sum: a flat tail 21.62 nats down, 256 blocks."""
    row = np.full((1, 262_144), -21.62, np.float32)
    row[0, 0] = 0.0
    oracle = oracle_log_softmax(row)
    serial = accuracy(float32_log_softmax(row), oracle, error_bound(row, 1024, serial=True))
    assert 0.5 < serial.ratio <= 1.0 and serial.largest == pytest.approx(1.5e-5, rel=0.1)
    assert accuracy(float32_log_softmax(row), oracle, error_bound(row, 1024, serial=False)).ratio > 2.0


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_bound_holds_on_random_rows(offset):
    rows = (np.random.default_rng(0).normal(0, 3, (8, 20_000)) + offset).astype(np.float32)
    found = accuracy(float32_log_softmax(rows), oracle_log_softmax(rows), error_bound(rows, 1024, serial=True))
    assert 0.01 < found.ratio < 0.5


def test_masked_tokens_and_nan():
    rows = np.array([[0.0, -np.inf, np.nan, 1.0]], np.float32)
    oracle = oracle_log_softmax(rows)
    assert np.isneginf(oracle[0, 1:3]).all() and np.exp(oracle).sum() == pytest.approx(1.0)
    bound = error_bound(rows, 4, False)
    assert np.isfinite(bound).all()
    assert accuracy(np.zeros((1, 4)), oracle, bound).support == 2
    assert accuracy(np.full((1, 4), np.nan), oracle, bound).ratio == np.inf
    with pytest.raises(ArgumentError):
        oracle_log_softmax(np.full((1, 3), -np.inf))


def test_telltale_rows_differ_everywhere():
    rows = telltale_rows(5, 200, np.random.default_rng(0))
    for one in range(5):
        for other in range(one):
            assert (np.abs(rows[one] - rows[other]) > 1.0).all()


def test_a_target_without_log_probabilities_is_not_asked():
    assert LogprobLayer().run(object(), PLAN, Silent()).not_run
