"""Drafts from the logits of a model, one for each request at a time."""

from __future__ import annotations

from torch import Tensor

from ..kernels.rejection import draw_drafts
from ..request_states import RequestStates
from ..sampling.blocks import LAUNCH, row_block_of
from ..sampling.tables import ParameterTables


def draw_draft(
    logits: Tensor,
    offset: int,
    num_emitted: Tensor,
    rows: Tensor,
    tables: ParameterTables,
    states: RequestStates,
    draft_logits: Tensor | None,
) -> None:
    """Put the next draft of each request behind its known tokens and earlier drafts; one launch on the main stream.

    Args:
        logits: float32 [N, V], unit stride in V: what the draft model expects after those.
        offset: how many drafts each request has already.
        num_emitted: int32 [N]; a request with 0 gets no draft.
        rows: int32 [N], row of each request.
        tables: temperatures and seeds of the requests.
        states: the state table.
        draft_logits: float32 [R, K, V], where to keep what the draft is drawn from; None takes the largest logit.
    """
    count, vocab_size = logits.shape
    drawn = draft_logits is not None
    kept = logits if draft_logits is None else draft_logits
    draw_drafts[(count,)](
        logits, logits.stride(0), rows, num_emitted, states.total_len,
        tables.temperature, tables.temperature.stride(0), tables.seeds, kept, states.num_drafts,
        states.token_ids, states.token_ids.stride(0), vocab_size, states.token_ids.shape[1], offset,
        DRAFTS=kept.shape[1] if drawn else 0, DRAWN=drawn,
        BLOCK=row_block_of(logits.device, vocab_size), **LAUNCH,
    )  # fmt: skip
