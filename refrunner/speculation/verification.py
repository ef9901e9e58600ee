"""Which drafts the target accepts, and what each request gets: enqueued on the main stream between draw and report."""

from __future__ import annotations

import torch
from torch import Tensor

from ..input_batch import InputBatch
from ..kernels.speculation import accept_equal
from ..request_states import RequestStates
from ..sampling.gumbel import Sampled


class Verifier:
    """Verifies drafts that are no draws: a token is accepted if the target draws it, too, with its own noise.

    A draft then costs nothing in distribution, at any temperature: what a request gets is what it would have got
    without drafts, token for token. The chance of acceptance is the target's probability of the draft, which is what
    rejection sampling gives for a proposal that was certain.
    """

    def verify(self, sampled: Sampled, batch: InputBatch, states: RequestStates) -> Tensor:
        """How many tokens each request gets: int32 [N] on the device, 0 in the middle of a prefill; one launch.

        Args:
            sampled: the target's draws, one for each row of logits.
            batch: the step's inputs.
            states: the state table as it was before the step.
        """
        assert batch.logit_bounds is not None, "a runner that speculates uploads the bounds"
        num_emitted = torch.empty(batch.num_requests, dtype=torch.int32, device=batch.rows.device)
        accept_equal[(batch.num_requests,)](
            batch.rows, batch.query_start_loc, batch.logit_bounds, states.num_computed, states.total_len,
            states.num_drafts, states.token_ids, states.token_ids.stride(0), sampled.token_ids, num_emitted,
        )  # fmt: skip
        return num_emitted
