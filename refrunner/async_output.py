"""The pending result of a step: the only place where the host waits for the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from .api import LogitsFault, StepOutput, TokenLogprobs
from .device import Device, Event
from .input_batch import InputBatch
from .phases import Phase, phase
from .sampling.logprobs import LogprobReport
from .sampling.prompt_logprobs import PromptReport
from .sampling.sampler import SamplerOutput

Value = TypeVar("Value", int, float)


class AsyncOutput:
    """Downloads the drawn tokens behind the step, and waits only when asked for them.

    May be dropped at any time, ``result`` called or not; see :meth:`Device.download`.
    """

    def __init__(
        self,
        device: Device,
        batch: InputBatch,
        finished_prefill: frozenset[str],
        sampled: SamplerOutput,
        prompts: tuple[PromptReport, ...] = (),
    ) -> None:
        """Enqueue the download.

        Args:
            batch: of the step; only what the host knows of it.
            finished_prefill: requests whose draw counts; the others are still in the middle of their prefill.
            sampled: the draws, on the device.
            prompts: reports on prompts that this step has completed.
        """
        firsts = zip(batch.request_ids, batch.host_logit_bounds.tolist(), strict=False)
        self._drawn = {name: (index, first) for index, (name, first) in enumerate(firsts) if name in finished_prefill}
        self._prompts = prompts
        self._asked = [(params.logprobs, len(params.logprob_token_ids)) for params in sampled.sampling]
        report = () if sampled.report is None else sampled.report.tensors()
        counts = () if sampled.num_emitted is None else (sampled.num_emitted,)
        self._num_counts = len(counts)
        self._copies, self._done = device.download((sampled.sampled.result, sampled.logprobs, *counts, *report))
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
        rows = self._rows()
        results, logprobs = self._copies[0].tolist(), self._copies[1].tolist()
        tokens = results[0]
        return StepOutput(
            token_ids=_parts(tokens, rows),
            logprobs=_parts(logprobs, rows),
            top_logprobs=self._top_logprobs(rows),
            prompt_logprobs={report.request_id: report.entries() for report in self._prompts},
            faults=_faults(rows, *results[1:]),
            drafts=self._proposals(),
        )

    def _rows(self) -> dict[str, tuple[int, int]]:
        """Rows of logits, begin and end, whose tokens each request gets."""
        counts = self._copies[2].tolist() if self._num_counts else None
        return {
            name: (first, first + (1 if counts is None else counts[index]))
            for name, (index, first) in self._drawn.items()
        }

    def _proposals(self) -> dict[str, tuple[int, ...]]:
        if self._drafts is None:
            return {}
        places, copy, done = self._drafts
        with phase(Phase.WAIT):
            done.synchronize()
        rows = copy.tolist()
        return {name: tuple(token for token in rows[index] if token >= 0) for name, index in places.items()}

    def _top_logprobs(self, rows: dict[str, tuple[int, int]]) -> dict[str, tuple[TokenLogprobs, ...]]:
        reports = self._copies[2 + self._num_counts :]
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


def _parts(values: list[Value], rows: dict[str, tuple[int, int]]) -> dict[str, tuple[Value, ...]]:
    """What belongs to each request; nearly always it is one value."""
    return {
        name: (values[begin],) if end - begin == 1 else tuple(values[begin:end]) for name, (begin, end) in rows.items()
    }


def _faults(
    rows: dict[str, tuple[int, int]], nan_counts: list[int], first_nans: list[int], exhausted: list[int]
) -> dict[str, tuple[LogitsFault, ...]]:
    faults: dict[str, tuple[LogitsFault, ...]] = {}
    if not any(nan_counts) and not any(exhausted):
        return faults
    for name, (begin, end) in rows.items():
        of_request = tuple(
            LogitsFault(
                nan_counts[row], first_nans[row] if nan_counts[row] else None, bool(exhausted[row]), row - begin
            )
            for row in range(begin, end)
            if nan_counts[row] or exhausted[row]
        )
        if of_request:
            faults[name] = of_request
    return faults
