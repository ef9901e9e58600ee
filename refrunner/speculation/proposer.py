"""Who proposes the drafts that the next step verifies; all on the device, on the main stream."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..config import RunnerConfig
from ..input_batch import InputBatch
from ..kernels.speculation import propose_ngrams
from ..request_states import RequestStates

#: Tokens that an n-gram proposal looks at, and places of the sequence that its program compares in one turn.
LONGEST_NGRAM = 4
PLACES = 256


class Proposer(Protocol):
    """Writes drafts behind the known tokens of the token table, and their number beside them."""

    def propose(self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor, states: RequestStates) -> None:
        """Enqueue the proposals for the requests of a batch; the host never learns what they are.

        Args:
            batch: inputs of the step that has just run.
            num_emitted: int32 [N], tokens that each request got; 0 gets no draft.
            hidden: [padded T, H], the target's last hidden states.
            states: the state table, advanced by the step; ``num_drafts`` is 0 for these requests.
        """
        ...


class NgramProposer:
    """What followed the latest tokens when they last occurred; see ``kernels.speculation.propose_ngrams``.

    Source: Saxena 2023, "Prompt lookup decoding".
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._drafts, self._max_model_len = config.drafts, config.max_model_len

    def propose(self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor, states: RequestStates) -> None:
        """See :class:`Proposer`; one launch."""
        propose_ngrams[(batch.num_requests,)](
            batch.rows, num_emitted, states.total_len, states.num_drafts,
            states.token_ids, states.token_ids.stride(0), self._max_model_len,
            LONGEST=LONGEST_NGRAM, DRAFTS=self._drafts, BLOCK=PLACES,
        )  # fmt: skip
