"""Filters, likeliest tokens, ranks and log-probabilities against sorting in float64; only the noise is the oracle's.

A batch has a row of each kind of logits, most of them as real models never give them, and parameters at the ends of
their ranges; a third of the rows has no filter at all. `MRV2_SAMPLER_EXAMPLES=2000` is the long version.
"""

import dataclasses
import math
import os

import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.oracle.noise import gumbel
from mrv2.refrunner.oracle.rounding import NOISE_ERROR
from mrv2.refrunner.sampling import sampler
from mrv2.refrunner.sampling.filters import thresholds_of
from mrv2.refrunner.sampling.logprobs import LogprobReport

from .sampling_cases import make_bench

ROUNDS = max(1, int(os.environ.get("MRV2_SAMPLER_EXAMPLES", "25")) // 25)
MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
FILTER_BITS = 32 + 64 + 128
SMALLEST = np.float32(-np.inf)


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    with triton_cpu.enabled() as session:
        yield
    assert not session.findings


def kinds(size, rng):
    """Rows of logits, float32 [kinds, V]."""
    normal = rng.normal(size=size) * 4

    def some(share, value, row=normal):
        return np.where(rng.random(size) < share, value, row)

    one, infinite = np.full(size, -np.inf), normal.copy()
    one[size // 2], infinite[rng.integers(size)] = -7.5, np.inf
    peaks = np.full(size, -30.0)
    peaks[[0, -1]] = 3.0
    rows = [
        normal, np.round(normal / 3), np.sort(normal), np.sort(normal)[::-1], np.full(size, 0.5), peaks, one, infinite,
        some(0.3, np.nan), some(0.3, -np.inf), some(0.1, np.inf, some(0.1, np.nan)),
        some(0.5, 0.0, np.full(size, -0.0)),
        rng.normal(size=size) * 1e-40, np.full(size, -np.inf), np.full(size, np.nan), np.full(size, np.inf),
        np.exp(rng.uniform(-80, 80, size)) * rng.choice((-1, 1), size), some(0.5, 3.4e38, np.full(size, -3.4e38)),
        np.linspace(0, -28, size), 1.9999 + np.arange(size) * 2.0**-23,  # neighbours, which a division may make equal
    ]  # fmt: skip
    return np.stack(rows).astype(np.float32)


def drawn_params(size, rng):
    """Parameters at the ends of their ranges and in between."""
    filters = {}
    if rng.random() < 2 / 3:
        filters["top_k"] = int(rng.choice([0, 0, 1, 2, 8, 9, size // 2 + 1, size, size + 1, 512, 513, 2**31 - 1]))
        filters["top_p"] = float(rng.choice([1.0, 1.0, 1e-30, 1 - 2**-24, 1 - 2**-25, 0.5, 0.9, 0.999999, 1e-6]))
        filters["min_p"] = float(rng.choice([0.0, 0.0, 1.0, 1e-30, 0.05, 0.9999999]))
    temperature, seed = float(rng.choice([0.0, 1.0, 0.7, 1.3, 2.5, 1e-30, 1e30])), int(rng.integers(2**62))
    logprobs = [None, 0, 1, 8, 9, 20, min(size, 600), 1024, -1][rng.integers(9)]
    return SamplingParams(temperature=temperature, seed=seed, logprobs=logprobs, **filters)


def without_nan(row):
    return np.where(np.isnan(row), SMALLEST, row)


def weights(row):
    """exp(x - max) of [n], float64; an infinite maximum has all of it."""
    top = row.max()
    with np.errstate(invalid="ignore"):
        return np.where(row == top, 1.0, np.exp(row.astype(np.float64) - float(top)))


def kept_sets(row, params):
    """Tokens [V] that must be kept, and those that may be, for the errors that the kernels promise for top-p."""
    alive = row > SMALLEST
    if not alive.any():
        return alive, alive
    if params.min_p:
        alive &= row >= row.max() + np.float32(math.log(np.float32(params.min_p)))
    if 0 < params.top_k < len(row):
        alive &= row >= np.sort(row)[-params.top_k]
    share, ids = float(np.float32(params.top_p)), np.flatnonzero(alive)
    if share >= 1:
        return alive, alive
    values, mass = row[ids], weights(row)[ids]
    falling = np.argsort(-values, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(mass[falling])))
    first = np.searchsorted(-values[falling], -values, side="left")
    with np.errstate(invalid="ignore"):
        drop = np.where(mass > 0, row.max() - values.astype(np.float64), 0.0)
    drop[np.isnan(drop)] = 0.0
    error = 2.0**-19 + len(row) * 2.0**-39 + 2.0**-22 * (mass @ drop) / sums[-1]
    sets = [np.zeros(len(row), dtype=bool) for _ in range(2)]
    for kept, slack in zip(sets, (-error, error), strict=True):
        kept[ids] = (sums[first] / sums[-1] < share + slack) | (first == 0)
    return sets[0], sets[1]


def ordered(row):
    """The kernels' integers, by numpy."""
    bits = (row + np.float32(0)).view(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def logprobs_of(values):
    """float64 [V], or None where they are not numbers."""
    top = float(values.max())
    if not math.isfinite(top):
        return None
    made = (values.astype(np.float64) - top) - math.log(weights(values).sum())
    made[made < -3.4e38] = -np.inf
    return made


def faults(size, seed, mode):
    """What is wrong in one batch: a word for each fault, with the row."""
    rng = np.random.default_rng((size, seed))
    rows = kinds(size, rng)
    wide = torch.full((len(rows), size + 5), math.nan)  # strided, and a read behind a row shows
    wide[:, :size] = torch.from_numpy(rows)
    requests = [NewRequest(f"r{index}", (0,), 1, drawn_params(size, rng)) for index in range(len(rows))]
    bench = make_bench(requests, size, rows=len(rows), logprobs_mode=mode, poison=seed % 2 == 0)
    made, output = bench.processed(wide[:, :size]), bench.sample(wide[:, :size])
    asked = [(request.sampling.logprobs, 0) for request in requests]
    told = zip(output.token_ids.tolist(), output.logprobs.tolist(), output.report.entries(asked), strict=True)
    for index, (token, drawn, entry) in enumerate(told):
        params, stages = requests[index].sampling, int(bench.sampler.tables.stages[bench.batch.host_rows[index]])
        with np.errstate(all="ignore"):
            processed = without_nan(rows[index]) / np.float32(params.temperature or 1)
        kept = processed > SMALLEST
        if stages & FILTER_BITS:
            kept &= ordered(processed) >= int(made.thresholds[index])
            surely, possibly = kept_sets(processed, params)
            if (surely & ~kept).any() or (kept & ~possibly).any():
                yield "kept", index, params
        if not is_best(np.where(kept, processed, SMALLEST), token, params):
            yield "token", index, params
        values = np.where(kept, processed, SMALLEST) if mode.startswith("processed") else rows[index]
        if entry is not None:
            yield from ((word, index, params) for word in report_faults(values, mode, token, drawn, entry, params))


def is_best(values, token, params):
    """Whether a token has the largest score, up to the error of the noise; token 0 where there is nothing to draw."""
    if not (values > SMALLEST).any():
        return token == 0
    scores = values.astype(np.float64)
    if not params.temperature:
        return token == int(np.argmax(scores))
    with np.errstate(invalid="ignore"):
        scores += gumbel(params.seed, 1, len(values))
    best = scores.max()
    return scores[token] == best or scores[token] >= best - NOISE_ERROR - 2.0**-22 * (abs(best) + 50)


def report_faults(told_values, mode, token, drawn, entry, params):
    """What is wrong in the report of one row, whose values are float32 [V]."""
    values = without_nan(told_values)
    if entry.rank != 1 + (values > values[token]).sum():
        yield "rank"
    ids = np.lexsort((np.arange(len(values)), -values.astype(np.float64)))[: max(params.logprobs, 0)]
    if params.logprobs >= 0 and list(entry.token_ids) != ids.tolist():
        yield "likeliest"
    expected = values.astype(np.float64) if mode.endswith("logits") else logprobs_of(values)
    if expected is None or (mode == "raw_logprobs" and np.isnan(told_values).any()):
        return
    listed = np.array((entry.value, *entry.values))
    wanted = expected[[token, *entry.token_ids]]
    if not np.allclose(listed, wanted, rtol=4e-7, atol=2e-5):
        yield "values"
    if entry.value != drawn and values[token] > SMALLEST:
        yield "value of the drawn one"


@pytest.mark.parametrize(("size", "mode"), [(1, 3), (33, 1), (33, 2), (1025, 0)])
def test_everything_is_that_of_sorting(size, mode):
    for seed in range(ROUNDS):
        assert list(faults(size, seed, MODES[(mode + seed) % 4])) == []


def test_a_threshold_that_is_too_high_shows(monkeypatch):
    monkeypatch.setattr(sampler, "thresholds_of", lambda *arguments: thresholds_of(*arguments) + 1)
    assert "kept" in {word for word, *_ in faults(33, 0, "raw_logits")}


def test_nan_that_is_reported_shows(monkeypatch):
    def with_nan(self, asked):
        return [
            entry and dataclasses.replace(entry, values=[*map(told, entry.values)]) for entry in entries(self, asked)
        ]

    def told(value):
        return math.nan if value == -math.inf else value

    entries = LogprobReport.entries
    monkeypatch.setattr(LogprobReport, "entries", with_nan)
    assert {word for word, *_ in faults(33, 0, "processed_logits")} == {"values"}


def test_a_row_alone_gets_the_same_bits():
    rng = np.random.default_rng(3)
    rows = torch.from_numpy(kinds(257, rng))
    requests = [NewRequest(f"r{index}", (0,), 1, drawn_params(257, rng)) for index in range(len(rows))]
    together = make_bench(requests, 257, rows=len(rows)).sample(rows)
    for index in range(0, len(rows), 3):
        former = dataclasses.replace(requests[index - 1], request_id="former")
        alone = make_bench([requests[index]], 257, before=[former]).sample(rows[index : index + 1])
        assert alone.token_ids.tolist() == together.token_ids[index : index + 1].tolist()
        assert alone.logprobs.numpy().tobytes() == together.logprobs[index : index + 1].numpy().tobytes()
