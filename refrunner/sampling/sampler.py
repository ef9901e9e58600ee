"""The sampler: parameters of every live request in tables of its own, and one token a request and step out of them.

The stages come in the order that ``SamplingParams`` documents. Each is skipped for a batch in which no request needs
it, and for every single row that does not; ``RunnerConfig.force_sampler_stages`` runs them all and must change nothing.
A mask of a grammar comes before all of them, on the logits that are reported as the model's own; see ``../grammar``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..api import NewRequest
from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels import logits_processing as kernels
from ..kernels.order import LOWEST
from ..request_states import SequenceState
from ..sampling_params import FULL_VOCABULARY, MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_BIASES, MAX_STOPS, SamplingParams
from ..speculation.verification import Verifier
from ..staging import PackedUpload
from .blocks import LAUNCH, block_of, grouping_of
from .filters import thresholds_of
from .gumbel import Processed, Sampled, sample
from .logprobs import Asker, LogprobReport, Reported, report_logprobs, row_statistics
from .maxima import find_maxima
from .penalties import PenaltyState
from .tables import EVERY_STAGE, ParameterTables, SamplingTables, mask_words


@dataclass(frozen=True)
class SamplerOutput:
    """What a step's draws are, on the device.

    Attributes:
        sampled: tokens and their log-probabilities, one for each row of logits.
        report: further log-probabilities, if a request asked for any.
        sampling: parameters behind each row of logits, in order; empty without a report.
        num_emitted: int32 [N], how many of its tokens each request gets, the first ones; None without speculation.
    """

    sampled: Sampled
    report: LogprobReport | None
    sampling: tuple[SamplingParams, ...]
    num_emitted: Tensor | None = None

    @property
    def token_ids(self) -> Tensor:
        """int32 [M]."""
        return self.sampled.token_ids

    @property
    def logprobs(self) -> Tensor:
        """float32 [M]."""
        return self.sampled.logprobs


class SamplerStages:
    """Everything between the logits of a step and its tokens; all of it is enqueued on the main stream.

    How the parameters of the rows come to the device is the business of whoever derives from this class.

    Attributes:
        tables: parameters of the live requests.
        verifier: of drafts; None without speculation.
        no_threshold: int32 [max(M, prompt_logprobs_chunk)] on the device, constant: the threshold that keeps all.
    """

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int, tables: ParameterTables) -> None:
        self.tables = tables
        lanes = max(config.max_logits, config.prompt_logprobs_chunk)
        self.no_threshold = torch.full((lanes,), LOWEST.value, dtype=torch.int32, device=device.torch_device)
        self._penalties = PenaltyState(config, device, vocab_size)
        self.verifier = Verifier(config, device, vocab_size) if config.drafts else None
        self._sampling: dict[int, SamplingParams] = {}
        self._processed_values = config.logprobs_mode.startswith("processed")
        self._logarithm = config.logprobs_mode.endswith("logprobs")

    def sample(self, logits: Tensor, batch: InputBatch, states: SequenceState) -> SamplerOutput:
        """Draw one token per row of logits: for each request its next one, and what comes after each draft.

        Args:
            logits: float32 [M, V]; not modified.
            batch: the step's inputs.
            states: the state table as it was before the step.
        """
        rows, positions, stages = batch.logit_rows, batch.sample_positions, self._stages(batch)
        processed = self._processed(logits, rows, positions, states, stages, batch.logit_offsets)
        sampled = self._draw(logits, rows, positions, processed)
        num_emitted = self._verify(logits, processed, sampled, batch, states)
        if not self.tables.reports[batch.host_rows].any():
            return SamplerOutput(sampled, None, (), num_emitted)
        host_rows = np.repeat(batch.host_rows, np.diff(batch.host_logit_bounds))
        sampling = tuple(self._sampling[row] for row in host_rows.tolist())
        report = self._report(self._reported(logits, processed, sampled), sampled, batch, sampling)
        return SamplerOutput(sampled, report, sampling, num_emitted)

    def warm_up(self, logits: Tensor, batch: InputBatch, states: SequenceState) -> SamplerOutput:
        """Launch every kernel of the sampler once, for rows of nobody; no row's state changes.

        Args:
            logits: float32 [n, V].
            batch: without a request.
            states: the state table.
        """
        nobody = torch.zeros(logits.shape[0], dtype=torch.int32, device=logits.device)
        self._penalties.warm_up(nobody, self.tables, states)
        offsets = None if self.verifier is None else nobody
        stages = EVERY_STAGE | kernels.FILTERED_ONLY.value
        processed = self._processed(logits, nobody, nobody, states, stages, offsets)
        self._draw(logits, nobody, nobody, processed)
        processed = replace(processed, maxima=None)
        sampled = self._draw(logits, nobody, nobody, processed)
        reported = self._reported(logits, processed, sampled)
        report_logprobs(reported, sampled.token_ids, self.asker(nobody, kernels.TOP_LOGPROBS.value), 1, (0,))
        row_statistics(logits)
        return SamplerOutput(sampled, None, (), self._verify(logits, processed, sampled, batch, states))

    def asker(self, rows: Tensor, column: int) -> Asker:
        """What the requests in these rows want reported, according to a column of their numbers."""
        fixed = self.tables.number(kernels.NUM_LOGPROB_IDS.value)
        return Asker(rows, self.tables.number(column), fixed, self.tables.logprob_ids.gpu)

    def _stages(self, batch: InputBatch) -> int:
        """Stages that some request of the batch needs."""
        return int(np.bitwise_or.reduce(self.tables.stages[batch.host_rows]))

    def _processed(
        self,
        logits: Tensor,
        rows: Tensor,
        positions: Tensor,
        states: SequenceState,
        stages: int,
        offsets: Tensor | None = None,
    ) -> Processed:
        """The logits to draw from, in at most nine launches; none if no row has a stage.

        Args:
            rows: int32 [M].
            positions: int32 [M], number of tokens before the one drawn.
            stages: those that some row needs.
            offsets: int32 [M], how many of those tokens are drafts; None if none is.
        """
        tables, (count, vocab_size) = self.tables, logits.shape
        maxima, thresholds = None, self.no_threshold
        if not stages:
            return Processed(tables.number(kernels.STAGES.value), logits, thresholds)
        grouping = grouping_of(logits.device, vocab_size)
        groups = torch.empty(count, -(-vocab_size // grouping.group), dtype=torch.int32, device=logits.device)
        stored = count if stages & kernels.STORED.value else 0
        processed = torch.empty(stored, vocab_size, dtype=torch.float32, device=logits.device)
        if stages & kernels.STORED.value:
            block = block_of(logits.device, vocab_size)
            kernels.process_logits[(count, -(-vocab_size // block))](
                logits, logits.stride(0), rows, positions, positions if offsets is None else offsets,
                tables.numbers.gpu, tables.reals.gpu,
                tables.allowed.gpu, tables.bias_tokens.gpu, tables.bias_values.gpu, tables.stops.gpu,
                tables.bad_words.gpu, self._penalties.prompt_mask, self._penalties.counts,
                states.token_ids, states.token_ids.stride(0), processed, groups, vocab_size, mask_words(vocab_size),
                groups.shape[1],
                BIASES=MAX_BIASES, STOPS=MAX_STOPS, WORDS=MAX_BAD_WORDS, WORD_TOKENS=MAX_BAD_WORD_TOKENS,
                DRAFTS=offsets is not None, BLOCK=block, GROUP=grouping.group, **LAUNCH,
            )  # fmt: skip
        if stages & kernels.FILTERED_ONLY.value:
            maxima = find_maxima(logits, rows, tables.numbers.gpu, tables.reals.gpu, groups, grouping.group)
        if stages & kernels.FILTERS.value:
            thresholds = thresholds_of(
                logits, processed, groups, rows, tables.numbers.gpu, tables.reals.gpu, stages, grouping
            )
        return Processed(tables.number(kernels.STAGES.value), processed, thresholds, maxima)

    def _draw(self, logits: Tensor, rows: Tensor, positions: Tensor, processed: Processed) -> Sampled:
        return sample(
            logits, rows, positions, self.tables.temperature, self.tables.seeds, processed,
            report_processed=self._processed_values, report_logarithm=self._logarithm,
        )  # fmt: skip

    def _verify(
        self, logits: Tensor, processed: Processed, sampled: Sampled, batch: InputBatch, states: SequenceState
    ) -> Tensor | None:
        if self.verifier is None:
            return None
        reported = self._reported(logits, processed, sampled)
        return self.verifier.verify(logits, processed, sampled, reported, self.tables, batch, states)

    def _reported(self, logits: Tensor, processed: Processed, sampled: Sampled) -> Reported:
        """The values that are reported. Where processed ones are, every row has a stage, if only to be copied."""
        if self._processed_values:
            return Reported(processed.logits, processed.thresholds, sampled.statistics, self._logarithm)
        return Reported(logits, self.no_threshold, sampled.statistics, self._logarithm)

    def _report(
        self, reported: Reported, sampled: Sampled, batch: InputBatch, sampling: tuple[SamplingParams, ...]
    ) -> LogprobReport:
        """Log-probabilities beyond those of the drawn tokens, which some request of the batch wants."""
        full = [index for index, params in enumerate(sampling) if params.logprobs == FULL_VOCABULARY]
        columns = max(params.logprobs or 0 for params in sampling)
        asker = self.asker(batch.logit_rows, kernels.TOP_LOGPROBS.value)
        return report_logprobs(reported, sampled.token_ids, asker, columns, full)


class Sampler(SamplerStages):
    """The sampler whose parameters have the rows of the state table, and change by staged writes.

    Within a step: ``add`` and ``remove`` on the host, then ``pack``, ``apply`` after the upload, ``sample`` after the
    forward pass, and ``post_update`` before the state table advances.
    """

    tables: SamplingTables

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        super().__init__(config, device, vocab_size, SamplingTables(config, device, vocab_size))
        self._poison = config.poison

    def add(self, row: int, request: NewRequest) -> None:
        """Stage the parameters of a request that has got this row, new or resumed."""
        self._sampling[row] = request.sampling
        self.tables.add(row, request)
        if self.tables.stages[row] & kernels.PENALTIES.value:
            self._penalties.add(row, len(request.token_ids))

    def remove(self, row: int) -> None:
        """Forget a row whose request leaves; work already enqueued may still read it."""
        del self._sampling[row]
        self._penalties.remove(row)
        if self._poison:
            self.tables.poison(row)

    def pack(self, upload: PackedUpload) -> None:
        """Add what was staged to the step's upload."""
        self.tables.pack(upload)
        self._penalties.pack(upload)

    def apply(self, upload: PackedUpload, states: SequenceState) -> None:
        """Bring the tables up to date; the state table is so already."""
        self.tables.apply(upload)
        self._penalties.apply(upload, self.tables, states)

    def warm_up(self, logits: Tensor, batch: InputBatch, states: SequenceState) -> SamplerOutput:
        """See :class:`SamplerStages`."""
        self.tables.warm_up()
        output = super().warm_up(logits, batch, states)
        self._penalties.advance(batch, output.token_ids, output.num_emitted, self.tables, states)
        return output

    def post_update(self, batch: InputBatch, output: SamplerOutput, states: SequenceState) -> None:
        """Take note of the draws, while the state table still shows the step's beginning."""
        if self._stages(batch) & kernels.PENALTIES.value:
            self._penalties.advance(batch, output.token_ids, output.num_emitted, self.tables, states)
