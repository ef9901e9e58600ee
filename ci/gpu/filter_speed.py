"""Time of the filters and of the likeliest tokens on this machine's GPU, beside torch and reading the logits once.

    python -m mrv2.ci.gpu.filter_speed FILE

What is timed is the runner's own sampler, with all its launches: the logits divided by the temperature, the thresholds,
the draw. Before, its tokens are compared with those of the exact path, bit for bit, its thresholds with masses in
float64, and its log-probabilities with a log-softmax in float64. For how times are taken, their unit and the exit codes
see `sampling_speed`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from mrv2.checks.findings import JSON
from mrv2.ci.command.environment import describe
from mrv2.ci.gpu.sampling_speed import VOCAB, cases, copy_bandwidth, inputs, microseconds, shown
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.input_batch import InputBatch
from mrv2.refrunner.kernels.order import LOWEST
from mrv2.refrunner.request_states import RequestStates
from mrv2.refrunner.sampling import gumbel, logprobs, sampler
from mrv2.refrunner.sampling.gumbel import Processed
from mrv2.refrunner.sampling.logprobs import Asker, LogprobReport, Reported, report_logprobs, row_statistics
from mrv2.refrunner.sampling_params import MAX_LOGPROB_IDS
from mrv2.refrunner.staging import PackedUpload, PinnedRing

BATCHES = (1, 32, 256, 1024)
PEAKED = 4.0  # so many times a standard normal number: most of the mass is in few tokens, as in a real model's logits
TEMPERATURE, MIN_P, TOP_K, TOP_P = 0.8, 0.05, 50, 0.9
COLUMNS = (5, 20)
COMPARED = 64  # rows of each kind of logits
VALUE_ERROR = 1e-4  # of a log-probability, whose sum of exp has as many terms as the vocabulary tokens

Measure = Callable[[list[Callable[[], object]]], float]


def main(arguments: list[str]) -> int:
    """Check, measure and write; returns the exit code."""
    if len(arguments) != 1 or not torch.cuda.is_available():
        sys.stderr.write("usage, on a machine with CUDA: python -m mrv2.ci.gpu.filter_speed FILE\n")
        return 2
    bandwidth = copy_bandwidth()
    record: dict[str, Any] = {"environment": describe(), "gpu": torch.cuda.get_device_name(), "vocabulary": VOCAB}
    record |= {"copy TB/s": round(bandwidth, 3), "wrong rows": differences("cuda"), "table": []}
    sys.stdout.write(f"copy: {record['copy TB/s']} TB/s; rows that are wrong: {record['wrong rows']}\n")
    for count in BATCHES:
        tensors = inputs(count, torch.float32)
        limit: dict[str, JSON] = {"B": count, "read limit": 4 * count * VOCAB / bandwidth / 1e6}
        peaked = [PEAKED * tensor for tensor in tensors]
        for line in (
            *filter_lines(tensors, "normal", microseconds),
            *filter_lines(peaked, "peaked", microseconds),
            *report_lines(tensors, microseconds),
        ):
            record["table"].append(limit | line)
            sys.stdout.write(shown(limit | line) + "\n")
            sys.stdout.flush()
        Path(arguments[0]).write_text(json.dumps(record, indent=1) + "\n")
    return int(any(record["wrong rows"].values()))


# What torch offers


def torch_min_p(logits: Tensor) -> Tensor:
    """One token of each row, int64 [N], that min-p leaves."""
    probability = (logits / TEMPERATURE).softmax(1)
    kept = probability.masked_fill(probability < MIN_P * probability.amax(1, keepdim=True), 0.0)
    return kept.multinomial(1)[:, 0]


def torch_top_k(logits: Tensor) -> Tensor:
    """One of the k likeliest tokens."""
    values, ids = logits.topk(TOP_K)
    return ids.gather(1, (values / TEMPERATURE).softmax(1).multinomial(1))[:, 0]


def torch_top_p(logits: Tensor) -> Tensor:
    """One of the fewest tokens whose probabilities reach p."""
    values, ids = (logits / TEMPERATURE).sort(dim=1, descending=True)
    return ids.gather(1, _nucleus(values.softmax(1)).multinomial(1))[:, 0]


def torch_all(logits: Tensor) -> Tensor:
    """The three one after another; what follows top-k has k tokens a row only."""
    values, ids = logits.topk(TOP_K)
    probability = (values / TEMPERATURE).softmax(1)
    probability = probability.masked_fill(probability < MIN_P * probability[:, :1], 0.0)
    return ids.gather(1, _nucleus(probability / probability.sum(1, keepdim=True)).multinomial(1))[:, 0]


def torch_likeliest(columns: int, logits: Tensor) -> Tensor:
    """The largest logits of each row, [N, columns]."""
    return logits.topk(columns).values


def torch_report(columns: int, logits: Tensor) -> Tensor:
    """The largest log-probabilities of each row, [N, columns]."""
    return logits.log_softmax(1).topk(columns).values


def _nucleus(probability: Tensor) -> Tensor:
    """Descending probabilities, 0 from where those before reach p."""
    return probability.masked_fill(probability.cumsum(1) - probability >= TOP_P, 0.0)


def by_torch(program: Callable[[Tensor], Tensor], tensors: list[Tensor], measure: Measure) -> float | str:
    """Time of a program of torch; if it cannot be captured, what torch says."""
    try:
        return measure([lambda x=x: program(x) for x in tensors])  # type: ignore[misc]
    except RuntimeError as error:
        return f"not captured: {str(error).splitlines()[0]}"


@dataclass(frozen=True)
class Case:
    """Parameters of every request of a batch, and a program of torch that draws with the same."""

    settings: Mapping[str, Any]
    baseline: Callable[[Tensor], Tensor]


CASES = {
    "min-p": Case({"min_p": MIN_P}, torch_min_p),
    "top-k": Case({"top_k": TOP_K}, torch_top_k),
    "top-p": Case({"top_p": TOP_P}, torch_top_p),
    "min-p, top-k, top-p": Case({"min_p": MIN_P, "top_k": TOP_K, "top_p": TOP_P}, torch_all),
}


# The runner's sampler


class Batch:
    """A sampler and a step's worth of requests that differ in nothing but their seeds."""

    def __init__(self, case: Case, count: int, vocab_size: int, device: str) -> None:
        config = RunnerConfig(
            max_num_reqs=count, max_num_batched_tokens=max(16, count), max_model_len=16, device=device
        )
        where = Device(device)
        self._sampler = sampler.Sampler(config, where, vocab_size)
        self._states = RequestStates(config, where, vocab_size)
        rows = [self._add(number, case.settings) for number in range(count)]
        self._upload(where)
        on_device = torch.tensor(rows, dtype=torch.int32, device=device)
        self._batch = cast(
            "InputBatch",
            SimpleNamespace(
                host_rows=np.array(rows, dtype=np.int32), host_logit_bounds=np.arange(count + 1, dtype=np.int32),
                logit_rows=on_device, logit_offsets=None, sample_positions=torch.ones_like(on_device),
            ),
        )  # fmt: skip

    def _add(self, number: int, settings: Mapping[str, Any]) -> int:
        params = SamplingParams(temperature=TEMPERATURE, seed=number, **settings)
        request = NewRequest(str(number), (0,), 1, params)
        row = self._states.add(request)
        self._sampler.add(row, request)
        return row

    def _upload(self, device: Device) -> None:
        upload = PackedUpload()
        self._states.pack(upload)
        self._sampler.pack(upload)
        upload.send(PinnedRing(device))
        self._states.apply(upload)
        self._sampler.apply(upload, self._states)

    def sample(self, logits: Tensor) -> Tensor:
        """Tokens int32 [N] of logits float32 [N, V]; enqueues all that a step of the runner does here."""
        return self._sampler.sample(logits, self._batch, self._states).token_ids

    def compared(self, logits: Tensor) -> tuple[Tensor, Tensor, Processed]:
        """Tokens, those of the exact path, and what both were drawn from."""
        with mock.patch.object(sampler, "sample", wraps=gumbel.sample) as observed:
            tokens = self.sample(logits)
        *others, drawn_from = observed.call_args.args
        # What rows with filters alone are drawn from is nowhere stored. By a number torch would not divide on a GPU: it
        # multiplies with the reciprocal, whose last bit differs.
        processed = replace(drawn_from, logits=logits / torch.full_like(logits[:, :1], TEMPERATURE))
        from_everything = (*others, replace(drawn_from, maxima=None))
        return tokens, gumbel.draw(*from_everything, rivals=0)[0], processed


def filter_lines(tensors: list[Tensor], kind: str, measure: Measure) -> list[dict[str, JSON]]:
    """Times of a draw behind each of the filters; of all its launches, without the last two, and of the first one.

    The last two are the draw, and what is between them and the first one finds the thresholds.

    Args:
        tensors: float32 [N, V] each, on the device.
        kind: what these logits are, for the record.
        measure: gives the time of one of some calls.
    """
    lines: list[dict[str, JSON]] = []
    count, vocab_size = tensors[0].shape
    for name, case in CASES.items():
        batch = Batch(case, count, vocab_size, str(tensors[0].device))
        draws: list[Callable[[], object]] = [lambda x=x, batch=batch: batch.sample(x) for x in tensors]  # type: ignore[misc]
        line: dict[str, JSON] = {"filters": name, "logits": kind, "drawn": measure(draws)}
        with ExitStack() as without:
            without.enter_context(mock.patch.object(sampler, "sample", mock.MagicMock()))
            line["thresholds known"] = measure(draws)
            without.enter_context(mock.patch.object(sampler, "thresholds_of", mock.MagicMock()))
            line["processed"] = measure(draws)
        line["torch"] = by_torch(case.baseline, tensors, measure)
        lines.append(line)
    return lines


# The likeliest tokens


def report(logits: Tensor, statistics: Tensor, columns: int) -> LogprobReport:
    """The likeliest tokens of every row, in three launches, and the rank of token 0.

    Args:
        logits: float32 [N, V].
        statistics: float32 [2, N], which the runner has from the draw.
        columns: how many tokens.
    """
    count, device = len(logits), logits.device
    rows = torch.arange(count, dtype=torch.int32, device=device)
    nothing = torch.zeros_like(rows)
    fixed = torch.zeros(count, MAX_LOGPROB_IDS, dtype=torch.int32, device=device)
    asker = Asker(rows, nothing + 1 + columns, nothing, fixed)
    reported = Reported(logits, nothing + LOWEST.value, statistics, True)
    return report_logprobs(reported, nothing, asker, columns, ())


def report_lines(tensors: list[Tensor], measure: Measure) -> list[dict[str, JSON]]:
    """Times of the likeliest tokens and their log-probabilities, by how many; for the arguments see `filter_lines`."""
    statistics = [row_statistics(logits) for logits in tensors]
    lines: list[dict[str, JSON]] = []
    for columns in COLUMNS:
        reports = [_reporting(logits, of, columns) for logits, of in zip(tensors, statistics, strict=True)]
        line: dict[str, JSON] = {"likeliest": columns, "reported": measure(reports)}
        with mock.patch.object(logprobs, "report_top", mock.MagicMock()):
            line["likeliest found"] = measure(reports)
        line["torch topk"] = by_torch(partial(torch_likeliest, columns), tensors, measure)
        line["torch log_softmax, topk"] = by_torch(partial(torch_report, columns), tensors, measure)
        lines.append(line)
    return lines


def _reporting(logits: Tensor, statistics: Tensor, columns: int) -> Callable[[], object]:
    """The report as a call that enqueues its three launches and nothing else."""
    with mock.patch.object(sys.modules[__name__], "report_logprobs") as observed:
        report(logits, statistics, columns)
    arguments = observed.call_args.args
    return lambda: report_logprobs(*arguments)


# Same answers


def differences(device: str, count: int = COMPARED, vocab_size: int = VOCAB) -> dict[str, int]:
    """Wrong rows, by what is wrong and the kind of logits."""
    found = {}
    for kind, logits in cases(device, count, vocab_size):
        if kind == "spoiled":
            continue  # an infinite logit has no probability in float64 either
        logits = logits.float()
        for name, case in CASES.items():
            tokens, exact, processed = Batch(case, count, vocab_size, device).compared(logits)
            found[f"tokens, {name}, {kind}"] = int((tokens != exact).sum())
            found[f"thresholds, {name}, {kind}"] = int((~kept_rightly(processed, case.settings)).sum())
        for columns in COLUMNS:
            wrong = ~reported_rightly(logits, report(logits, row_statistics(logits), columns))
            found[f"{columns} likeliest, {kind}"] = int(wrong.sum())
    return found


def kept_rightly(processed: Processed, settings: Mapping[str, Any]) -> Tensor:
    """Whether each row's threshold keeps what it should: bool [N].

    What min-p and top-k keep must be the same tokens. What top-p keeps must have a mass of p, and without its lowest
    logits less, both but for the error that the kernel promises (`refrunner/kernels/filters.py`).
    """
    logits = processed.logits
    lowest = torch.full_like(logits[:, :1], float("-inf"))
    if "min_p" in settings:
        lowest = logits.amax(1, keepdim=True) + float(np.float32(math.log(np.float32(settings["min_p"]))))
    if "top_k" in settings:
        lowest = torch.maximum(lowest, logits.topk(settings["top_k"]).values[:, -1:])
    allowed, kept = logits >= lowest, logits >= _as_logits(processed.thresholds)[:, None]
    if "top_p" not in settings:
        return (kept == allowed).all(1)
    below = logits.double() - logits.amax(1, keepdim=True)
    weight = below.exp() * allowed
    last = torch.where(kept, logits, float("inf")).amin(1, keepdim=True)
    mass, needed = (weight * kept).sum(1), settings["top_p"] * weight.sum(1)
    spread = -torch.where(kept, below, 0.0).amin(1).clamp(min=-30.0)  # beyond it a weight is below 2**-40
    error = 2 * (2.0**-21 + 2.0**-23 * spread + logits.shape[1] * 2.0**-40) * weight.sum(1)
    fewer = (weight * (logits > last)).sum(1)
    enough: Tensor = (kept <= allowed).all(1) & (mass >= needed - error) & (fewer < needed + error)
    return enough


def _as_logits(thresholds: Tensor) -> Tensor:
    """Integers of `kernels.order.ordered` as the float32 numbers they stand for; the lowest as minus infinity."""
    bits = torch.where(thresholds < 0, thresholds ^ 0x7FFFFFFF, thresholds)
    values = bits.view(torch.float32)
    return torch.where(values == values, values, float("-inf"))


def reported_rightly(logits: Tensor, found: LogprobReport) -> Tensor:
    """Whether each row's report is right, against float64: bool [N]. Of equal logits any may be reported."""
    columns = found.token_ids.shape[1]
    expected = logits.double().log_softmax(1)
    values = expected.gather(1, found.token_ids.long())
    likeliest = (values == expected.topk(columns).values).all(1)
    told = found.values[:, [0, *range(1 + MAX_LOGPROB_IDS, 1 + MAX_LOGPROB_IDS + columns)]].double()
    exact = torch.cat([expected[:, :1], values], dim=1)
    close = ((told == exact) | ((told - exact).abs() <= VALUE_ERROR)).all(1)
    return likeliest & close & (found.ranks == 1 + (logits > logits[:, :1]).sum(1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
