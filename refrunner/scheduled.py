"""The requests of one step as arrays, gathered once from what the host knows of each, in the order of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .api import Step

Number = TypeVar("Number", np.int32, np.int64)


@dataclass(frozen=True)
class Scheduled:
    """N requests, before the step. Counters are upper bounds, as if every draft counted.

    Attributes:
        request_ids: their names.
        rows: int32 [N], row of each in the state table.
        counts: int32 [N], tokens that the step computes.
        drafts: int32 [N], how many of them are drafts.
        computed: int64 [N], tokens computed by earlier steps.
        draws: bool [N], whether all known tokens are computed now, so that the draw counts.
        decodes: bool [N], whether all tokens were computed before with which the request entered.
    """

    request_ids: tuple[str, ...]
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    drafts: NDArray[np.int32]
    computed: NDArray[np.int64]
    draws: NDArray[np.bool_]
    decodes: NDArray[np.bool_]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return int(self.counts.sum())

    def computed_after(self) -> Iterator[tuple[str, int]]:
        """Tokens of each computed once the step is."""
        return zip(self.request_ids, (self.computed + self.counts).tolist(), strict=True)

    def drawn(self) -> Iterator[tuple[str, int]]:
        """Requests whose draws count, with the number of tokens that they may draw."""
        return zip(compress(self.request_ids, self.draws), (1 + self.drafts[self.draws]).tolist(), strict=True)

    def drafted(self) -> Iterator[tuple[str, int]]:
        """Requests with drafts, and their number."""
        return filter(itemgetter(1), zip(self.request_ids, self.drafts.tolist(), strict=True))


def gather(
    names: Sequence[str],
    step: Step,
    row_of: Mapping[str, int],
    computed: Mapping[str, int],
    total: Mapping[str, int],
    prefill_len: Mapping[str, int],
) -> Scheduled:
    """Look up all requests of a step.

    Args:
        names: the requests, in the order of the batch.
        step: what each of them computes.
        row_of: their rows.
        computed: tokens of each computed by earlier steps.
        total: tokens of each that are known.
        prefill_len: tokens with which each entered.
    """
    before = _values(names, computed, np.int64)
    counts = _values(names, step.scheduled, np.int32)
    drafts = np.zeros(len(names), dtype=np.int32)
    if step.drafts:
        drafts[:] = [step.drafts.get(name, 0) for name in names]
    return Scheduled(
        request_ids=tuple(names),
        rows=_values(names, row_of, np.int32),
        counts=counts,
        drafts=drafts,
        computed=before,
        draws=before + counts >= _values(names, total, np.int64),
        decodes=before >= _values(names, prefill_len, np.int64),
    )


def _values(names: Sequence[str], numbers: Mapping[str, int], dtype: type[Number]) -> NDArray[Number]:
    return np.fromiter(map(numbers.__getitem__, names), dtype, len(names))
