"""The pending result of a step: the only place where the host waits for the device."""

from __future__ import annotations

from .api import LogitsFault, StepOutput, TokenLogprobs
from .device import Device
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
        request_ids: tuple[str, ...],
        finished_prefill: frozenset[str],
        sampled: SamplerOutput,
        prompts: tuple[PromptReport, ...] = (),
    ) -> None:
        """Enqueue the download.

        Args:
            request_ids: requests of the batch, in the order of the draws.
            finished_prefill: those whose draw counts; the others are still in the middle of their prefill.
            sampled: the draws, on the device.
            prompts: reports on prompts that this step has completed.
        """
        self._drawn = {index: name for index, name in enumerate(request_ids) if name in finished_prefill}
        self._asked = [(params.logprobs, len(params.logprob_token_ids)) for params in sampled.sampling]
        self._prompts = prompts
        report = () if sampled.report is None else sampled.report.tensors()
        self._copies, self._done = device.download((sampled.sampled.result, sampled.logprobs, *report))
        self._output: StepOutput | None = None

    def result(self) -> StepOutput:
        """Wait for the copies; later calls return the same output."""
        if self._output is None:
            self._done.synchronize()
            tokens, nan_counts, first_nans, exhausted = self._copies[0].tolist()
            logprobs = self._copies[1].tolist()
            faults = {
                name: LogitsFault(nan_counts[index], first_nans[index] if nan_counts[index] else None, bool(empty))
                for (index, name) in self._drawn.items()
                if (empty := exhausted[index]) or nan_counts[index]
            }
            self._output = StepOutput(
                token_ids={name: (tokens[index],) for index, name in self._drawn.items()},
                logprobs={name: (logprobs[index],) for index, name in self._drawn.items()},
                top_logprobs=self._top_logprobs(),
                prompt_logprobs={report.request_id: report.entries() for report in self._prompts},
                faults=faults,
            )
        return self._output

    def _top_logprobs(self) -> dict[str, tuple[TokenLogprobs, ...]]:
        if len(self._copies) == 2:
            return {}
        entries = LogprobReport.of_tensors(self._copies[2:]).entries(self._asked)
        pairs = ((name, entries[index]) for index, name in self._drawn.items())
        return {name: (entry,) for name, entry in pairs if entry is not None}


class EmptyOutput:
    """The result of a step that scheduled no token."""

    def result(self) -> StepOutput:
        """Nothing was drawn."""
        return StepOutput({}, {})
