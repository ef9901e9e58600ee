"""The pending result of a step: the only place where the host waits for the device."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .api import LogitsFault, StepOutput, TokenLogprobs
from .device import Device, Event
from .input_batch import InputBatch
from .phases import Phase, phase
from .sampling.gumbel import EXHAUSTED, LOGPROB, NAN_COUNT, TOKEN
from .sampling.logprobs import LogprobReport
from .sampling.prompt_logprobs import PromptReport
from .sampling.sampler import SamplerOutput


class AsyncOutput:
    """Downloads the drawn tokens behind the step, and waits only when asked for them.

    May be dropped at any time, ``result`` called or not; see :meth:`Device.download`.
    """

    def __init__(
        self,
        device: Device,
        batch: InputBatch,
        draws: NDArray[np.bool_],
        sampled: SamplerOutput,
        prompts: tuple[PromptReport, ...] = (),
    ) -> None:
        """Enqueue the download.

        Args:
            batch: of the step; only what the host knows of it.
            draws: bool [N], requests whose draws count; the others are still in the middle of their prefill.
            sampled: the draws, on the device.
            prompts: reports on prompts that this step has completed.
        """
        self._names, self._draws, self._bounds = batch.request_ids, draws, batch.host_logit_bounds
        self._prompts = prompts
        self._asked = [(params.logprobs, len(params.logprob_token_ids)) for params in sampled.sampling]
        report = () if sampled.report is None else sampled.report.tensors()
        counts = () if sampled.num_emitted is None else (sampled.num_emitted,)
        self._num_counts = len(counts)
        self._copies, self._done = device.download((sampled.sampled.drawn, *counts, *report))
        self._drafts: tuple[Mapping[str, int], Tensor, Event] | None = None
        self._output: StepOutput | None = None

    def add_drafts(self, device: Device, places: Mapping[str, int], drafts: Tensor) -> None:
        """Enqueue the download of proposals that the host needs to know; behind that of the tokens.

        Args:
            places: requests that are to be told, each with its place in the batch.
            drafts: int32 [N, K] on the device; -1 behind the last one of each request.
        """
        (copy,), done = device.download((drafts,))
        self._drafts = places, copy, done

    def result(self) -> StepOutput:
        """Wait for the copies; later calls return the same output."""
        if self._output is None:
            with phase(Phase.WAIT):
                self._done.synchronize()
            with phase(Phase.DOWNLOAD):
                self._output = self._read()
        return self._output

    def _read(self) -> StepOutput:
        """What the copies hold."""
        drawn = self._copies[0].numpy()
        logprobs, results = drawn[LOGPROB].view(np.float32), drawn[:LOGPROB]
        infinite = np.isnan(logprobs) | np.isposinf(logprobs)
        faulty = bool(results[NAN_COUNT].any() or results[EXHAUSTED].any() or infinite.any())
        rows = self._rows() if self._num_counts or faulty or len(self._copies) > 1 else {}
        return StepOutput(
            token_ids=self._of_requests(results[TOKEN], rows),
            logprobs=self._of_requests(logprobs, rows),
            top_logprobs=self._top_logprobs(rows),
            prompt_logprobs={report.request_id: report.entries() for report in self._prompts},
            faults=_faults(rows, results, infinite) if faulty else {},
            drafts=self._proposals(),
        )

    def _of_requests(self, values: NDArray[Any], rows: dict[str, tuple[int, int]]) -> dict[str, tuple[Any, ...]]:
        """What belongs to each request that draws: with drafts what its rows hold, and else its one value."""
        if self._num_counts:
            told = values.tolist()
            return {name: tuple(told[begin:end]) for name, (begin, end) in rows.items()}
        if self._draws.all():
            return dict(zip(self._names, zip(values.tolist(), strict=True), strict=True))
        return dict(zip(compress(self._names, self._draws), zip(values[self._draws].tolist()), strict=True))

    def _rows(self) -> dict[str, tuple[int, int]]:
        """Rows of logits, begin and end, whose tokens each request gets."""
        firsts = self._bounds[:-1]
        ends = firsts + (self._copies[1].numpy() if self._num_counts else 1)
        rows = zip(self._names, zip(firsts.tolist(), ends.tolist(), strict=True), strict=True)
        return dict(compress(rows, self._draws))

    def _proposals(self) -> dict[str, tuple[int, ...]]:
        if self._drafts is None:
            return {}
        places, copy, done = self._drafts
        with phase(Phase.WAIT):
            done.synchronize()
        rows = copy.tolist()
        return {name: tuple(token for token in rows[index] if token >= 0) for name, index in places.items()}

    def _top_logprobs(self, rows: dict[str, tuple[int, int]]) -> dict[str, tuple[TokenLogprobs, ...]]:
        reports = self._copies[1 + self._num_counts :]
        if not reports:
            return {}
        entries = LogprobReport.of_tensors(reports).entries(self._asked)
        told = {name: tuple(filter(None, entries[begin:end])) for name, (begin, end) in rows.items()}
        return {name: asked for name, asked in told.items() if asked}


class EmptyOutput:
    """The result of a step that scheduled no token."""

    def result(self) -> StepOutput:
        """Nothing was drawn."""
        return StepOutput({}, {})


def _faults(
    rows: dict[str, tuple[int, int]], results: NDArray[np.int32], infinite: NDArray[np.bool_]
) -> dict[str, tuple[LogitsFault, ...]]:
    nan_counts, first_nans, exhausted = results[NAN_COUNT:].tolist()
    faults: dict[str, tuple[LogitsFault, ...]] = {}
    for name, (begin, end) in rows.items():
        of_request = tuple(
            LogitsFault(
                nan_counts[row],
                first_nans[row] if nan_counts[row] else None,
                bool(exhausted[row]),
                row - begin,
                bool(infinite[row]) and not (nan_counts[row] or exhausted[row]),
            )
            for row in range(begin, end)
            if nan_counts[row] or exhausted[row] or infinite[row]
        )
        if of_request:
            faults[name] = of_request
    return faults
