"""Who proposes the drafts that the next step verifies; all on the device, on the main stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..attention.interface import AttentionBackend
from ..config import RunnerConfig
from ..input_batch import InputBatch
from ..kernels.speculation import propose_ngrams
from ..request_states import RequestStates
from ..staging import PackedUpload

#: Tokens that an n-gram proposal looks at, and places of the sequence that its program compares in one turn.
LONGEST_NGRAM = 4
PLACES = 256


class Proposer(Protocol):
    """Writes drafts behind the known tokens of the token table, and their number beside them."""

    @property
    def caches(self) -> tuple[AttentionBackend, ...]:
        """Keys and values of its own, by the target's KV blocks."""
        ...

    def add(self, row: int) -> None:
        """A request has got this row."""
        ...

    def plan(self, lanes: Sequence[int], rows: NDArray[np.int32], upload: PackedUpload) -> None:
        """Lay the proposals of a step out on the host and add what they need to its upload.

        Args:
            lanes: of each request, how many tokens a model has to compute before its first draft: those that the target
                computes, and the newest one; of a request that decodes, the two newest.
            rows: int32 [N], row of each request.
            upload: of the step.
        """
        ...

    def propose(
        self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor, states: RequestStates, upload: PackedUpload
    ) -> None:
        """Enqueue the proposals for the requests of a batch; the host never learns what they are.

        Args:
            batch: inputs of the step that has just run.
            num_emitted: int32 [N], tokens that each request got; 0 gets no draft.
            hidden: [padded T, H], the target's last hidden states.
            states: the state table, advanced by the step; ``num_drafts`` is 0 for these requests.
            upload: of the step.
        """
        ...

    def warm_up(self, batch: InputBatch, hidden: Tensor, states: RequestStates) -> None:
        """Load every kernel; no row's state changes.

        Args:
            batch: without a request.
            hidden: [padded T, H].
            states: the state table.
        """
        ...

    def capture(self, batch: InputBatch, states: RequestStates) -> None:
        """Record graphs, if ``RunnerConfig.graph_mode`` asks for them; ``batch`` is without a request."""
        ...

    def moved(self) -> list[str]:
        """Tensors that its graphs read and that are no longer where they were, a line each."""
        ...


class NgramProposer:
    """What followed the latest tokens when they last occurred; see ``kernels.speculation.propose_ngrams``.

    Source: Saxena 2023, "Prompt lookup decoding".
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._drafts, self._max_model_len = config.drafts, config.max_model_len

    @property
    def caches(self) -> tuple[AttentionBackend, ...]:
        """None."""
        return ()

    def add(self, row: int) -> None:
        """See :class:`Proposer`; nothing is kept for a row."""

    def plan(self, lanes: Sequence[int], rows: NDArray[np.int32], upload: PackedUpload) -> None:
        """See :class:`Proposer`; nothing is needed."""

    def propose(
        self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor, states: RequestStates, upload: PackedUpload
    ) -> None:
        """See :class:`Proposer`; one launch."""
        propose_ngrams[(batch.num_requests,)](
            batch.rows, num_emitted, states.total_len, states.num_drafts,
            states.token_ids, states.token_ids.stride(0), self._max_model_len,
            LONGEST=LONGEST_NGRAM, DRAFTS=self._drafts, BLOCK=PLACES,
        )  # fmt: skip

    def warm_up(self, batch: InputBatch, hidden: Tensor, states: RequestStates) -> None:
        """See :class:`Proposer`."""
        self.propose(batch, batch.rows, hidden, states, PackedUpload())

    def capture(self, batch: InputBatch, states: RequestStates) -> None:
        """See :class:`Proposer`; one launch is no graph."""

    def moved(self) -> list[str]:
        """See :class:`Proposer`."""
        return []
