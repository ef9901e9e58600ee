"""Log-probabilities of the tokens of a prompt, computed beside its prefill.

The logits of all lanes of a prefill would be [T, V] at once. They are computed for ``prompt_logprobs_chunk`` lanes at a
time instead, reported and dropped, so the peak does not grow with the prompt. A prompt that is computed in several
steps leaves its reports on the host, step by step; they go out with the request's first token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..api import NewRequest, TokenLogprobs
from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels.logits_processing import TOP_PROMPT_LOGPROBS
from ..request_states import SequenceState
from ..sampling_params import FULL_VOCABULARY
from .logprobs import LogprobReport, Reported, report_logprobs, row_statistics
from .sampler import SamplerStages


@dataclass
class PromptReport:
    """The reports of one prompt so far.

    Attributes:
        request_id: whose it is.
        prompt_len: tokens of the prompt.
        logprobs: how many likeliest tokens are asked for.
        num_fixed: how many fixed ones.
        pieces: reports of neighbouring tokens on their way to the host, in the order of the prompt.
    """

    request_id: str
    prompt_len: int
    logprobs: int
    num_fixed: int
    pieces: list[tuple[Tensor, ...]]

    def entries(self) -> tuple[TokenLogprobs | None, ...]:
        """The reports as plain values, once the step that completes them has been waited for.

        All pieces were downloaded on one stream and before that step's own result. The first token was given after
        nothing: None.
        """
        entries: list[TokenLogprobs | None] = [None]
        for piece in self.pieces:
            report = LogprobReport.of_tensors(piece)
            entries += report.entries([(self.logprobs, self.num_fixed)] * len(report.ranks))
        return tuple(entries)


class PromptLogprobs:
    """Reports of the prompts that are being computed, by the row of their request."""

    def __init__(self, config: RunnerConfig, device: Device, sampler: SamplerStages) -> None:
        self._chunk = config.prompt_logprobs_chunk
        self._logarithm = config.logprobs_mode.endswith("logprobs")
        self._device = device
        self._sampler = sampler
        self._reports: dict[int, PromptReport] = {}

    def add(self, row: int, request: NewRequest) -> None:
        """Begin a report, if the request wants one; a resumed request has had its own with its first token."""
        wanted, prompt_len = request.sampling.prompt_logprobs, request.prompt_len
        if wanted is not None and len(request.token_ids) == prompt_len:
            num_fixed = len(request.sampling.logprob_token_ids)
            self._reports[row] = PromptReport(request.request_id, prompt_len, wanted, num_fixed, [])

    def remove(self, row: int) -> None:
        """Drop what there is of a report whose request leaves."""
        self._reports.pop(row, None)

    def advance(
        self, batch: InputBatch, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor], states: SequenceState
    ) -> tuple[PromptReport, ...]:
        """Enqueue the reports on the step's lanes.

        Args:
            batch: the step's inputs.
            hidden: [padded T, hidden], the model's last states.
            compute_logits: from [n, hidden] to float32 logits [n, V].
            states: the state table; the tokens of prompts do not change in it.

        Returns:
            the reports that are complete now.
        """
        complete = []
        for index, row in enumerate(batch.host_rows.tolist()):
            if row in self._reports:
                begin, end = (int(lane) for lane in batch.host_query_start_loc[index : index + 2])
                computed = int(batch.host_seq_lens[index]) - (end - begin)
                self._report(row, hidden[begin:end], computed, compute_logits, states)
                if batch.host_seq_lens[index] >= self._reports[row].prompt_len:
                    complete.append(self._reports.pop(row))
        return tuple(complete)

    def _report(
        self,
        row: int,
        hidden: Tensor,
        computed: int,
        compute_logits: Callable[[Tensor], Tensor],
        states: SequenceState,
    ) -> None:
        """Report on the tokens that follow the lanes of one request, the first of them at position ``computed``."""
        count = min(len(hidden), self._reports[row].prompt_len - 1 - computed)  # after the last comes the first draw
        for start in range(0, count, self._chunk):
            lanes = hidden[start : min(start + self._chunk, count)]
            position = computed + start + 1
            # A copy: a part's alignment would change with the place, and kernels would be compiled anew.
            tokens = states.token_ids[row, position : position + len(lanes)].clone()
            self._report_chunk(row, tokens, compute_logits(lanes))

    def _report_chunk(self, row: int, tokens: Tensor, logits: Tensor) -> None:
        """Report on tokens int32 [n], drawn from logits [n, V], which nobody holds after this call."""
        report = self._reports[row]
        full = range(len(logits)) if report.logprobs == FULL_VOCABULARY else ()
        reported = Reported(logits, self._sampler.no_threshold, row_statistics(logits), self._logarithm)
        rows = torch.full((len(logits),), row, dtype=torch.int32, device=logits.device)
        asker = self._sampler.asker(rows, TOP_PROMPT_LOGPROBS.value)
        found = report_logprobs(reported, tokens, asker, report.logprobs, full)
        copies, _ = self._device.download(found.tensors())
        report.pieces.append(copies)
