"""Which drafts the target accepts, and what each request gets: enqueued on the main stream between draw and report."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels.rejection import accept_by_chance, judge_drafts, recover_tokens
from ..kernels.speculation import accept_equal
from ..request_states import SequenceState
from ..sampling.blocks import LAUNCH, row_block_of
from ..sampling.gumbel import Processed, Sampled
from ..sampling.logprobs import Reported
from ..sampling.tables import ParameterTables


class Verifier:
    """Verifies the drafts of a step. How depends on whether they are draws (``RunnerConfig.verification``).

    Drafts that are no draws: a token is accepted if the target draws it, too, with its own noise. What a request gets
    is then what it would have got without drafts, token for token, at any temperature. The chance of acceptance is the
    target's probability of the draft, which is what rejection sampling gives for a proposal that was certain.

    Drafts that are draws: rejection sampling, see ``kernels.rejection``.

    Attributes:
        draft_logits: float32 [R, K, V] on the device, what each draft of a row was drawn from, its temperature
            included; None if drafts are no draws. Written by proposers on the main stream, stale beyond ``num_drafts``
            and for requests at temperature 0.
    """

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        self._drafts = config.drafts
        self._in_blocks = config.verification == "block"
        self.draft_logits: Tensor | None = None
        if config.draws_drafts:
            shape = (config.max_num_reqs, config.drafts, vocab_size)
            self.draft_logits = torch.zeros(shape, dtype=torch.float32, device=device.torch_device)

    def verify(
        self,
        logits: Tensor,
        processed: Processed,
        sampled: Sampled,
        reported: Reported,
        tables: ParameterTables,
        batch: InputBatch,
        states: SequenceState,
    ) -> Tensor:
        """How many tokens each request gets: int32 [N] on the device, 0 in the middle of a prefill.

        Args:
            logits: float32 [M, V], the target's.
            processed: what they are drawn from.
            sampled: the target's draws, one for each row of logits. Where a request gets another token instead, that
                and its value take their place.
            reported: the values that reports are about.
            tables: parameters of the requests.
            batch: the step's inputs.
            states: the state table as it was before the step.
        """
        num_emitted = torch.empty(batch.num_requests, dtype=torch.int32, device=batch.rows.device)
        if self.draft_logits is None:
            accept_equal[(batch.num_requests,)](
                batch.rows, batch.query_start_loc, batch.logit_bounds, states.num_computed, states.total_len,
                states.num_drafts, states.token_ids, states.token_ids.stride(0), sampled.token_ids, num_emitted,
            )  # fmt: skip
        else:
            judged, recovered, mass = self._judge(logits, processed, sampled, self.draft_logits, tables, batch, states)
            accept_by_chance[(batch.num_requests,)](
                batch.rows, batch.query_start_loc, batch.logit_bounds, states.num_computed, states.total_len,
                states.num_drafts, states.token_ids, states.token_ids.stride(0), tables.seeds,
                judged, recovered, mass, reported.logits, reported.logits.stride(0), reported.statistics,
                sampled.token_ids, sampled.logprobs, num_emitted, judged.shape[1], reported.statistics.shape[1],
                IN_BLOCKS=self._in_blocks, LOGARITHM=reported.logarithm,
            )  # fmt: skip
        return num_emitted

    def _judge(
        self,
        logits: Tensor,
        processed: Processed,
        sampled: Sampled,
        draft_logits: Tensor,
        tables: ParameterTables,
        batch: InputBatch,
        states: SequenceState,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ratios of each draft, tokens that would replace it, and the mass that those come from; two launches."""
        count, vocab_size = batch.num_logits, logits.shape[1]
        judged = torch.empty(3, count, dtype=torch.float32, device=logits.device)
        recovered = torch.empty(count, dtype=torch.int32, device=logits.device)
        mass = torch.empty(count, dtype=torch.float32, device=logits.device)
        temperature, stages, block = tables.temperature, processed.stages, row_block_of(logits.device, vocab_size)
        judge_drafts[(count,)](
            logits, logits.stride(0), processed.logits, processed.thresholds, stages, stages.stride(0),
            temperature, temperature.stride(0), batch.logit_rows, batch.logit_offsets, batch.sample_positions,
            states.num_drafts, states.token_ids, states.token_ids.stride(0), sampled.token_ids, draft_logits, judged,
            vocab_size, count, DRAFTS=self._drafts, BLOCK=block, **LAUNCH,
        )  # fmt: skip
        recover_tokens[(count,)](
            logits, logits.stride(0), processed.logits, processed.thresholds, stages, stages.stride(0),
            temperature, temperature.stride(0), tables.seeds, batch.logit_rows, batch.logit_offsets,
            batch.sample_positions, states.num_drafts, sampled.token_ids, draft_logits, judged, recovered, mass,
            vocab_size, count, IN_BLOCKS=self._in_blocks, DRAFTS=self._drafts, BLOCK=block, **LAUNCH,
        )  # fmt: skip
        return judged, recovered, mass
