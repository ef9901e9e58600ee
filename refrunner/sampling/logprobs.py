"""Host side of the reports on log-probabilities: for drawn tokens and for tokens of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..api import TokenLogprobs
from ..kernels.logprobs import combine_sums, report_all, report_top, select_top, sum_exponentials, survey
from ..sampling_params import FULL_VOCABULARY, MAX_LOGPROB_IDS
from .blocks import LAUNCH, block_of, grouping_of, power_of_two, row_block_of, survey_of

_FIRST_VALUE = 1 + MAX_LOGPROB_IDS


@dataclass(frozen=True)
class Reported:
    """The values that n rows of logits are judged by, on the device.

    Attributes:
        logits: float32 [n, V], unit stride in V.
        thresholds: int32 [n], lowest integer of ``kernels.order.ordered`` that counts; all others are minus infinity.
        statistics: float32 [2, n]: largest value, logarithm of the sum of exp(value - largest).
        logarithm: whether log-probabilities are reported, not values.
    """

    logits: Tensor
    thresholds: Tensor
    statistics: Tensor
    logarithm: bool


@dataclass(frozen=True)
class Asker:
    """What to report for each row, in tables.

    Attributes:
        rows: int32 [n], row of the tables below.
        wanted: int32 [R], any stride: 1 + number of likeliest tokens, 0 for no report.
        num_fixed: int32 [R], any stride.
        fixed: int32 [R, 128], token ids to report in any case.
    """

    rows: Tensor
    wanted: Tensor
    num_fixed: Tensor
    fixed: Tensor


@dataclass(frozen=True)
class LogprobReport:
    """Reports of n rows; on the device, and after a download on the host.

    Attributes:
        token_ids: int32 [n, K], likeliest first.
        values: float32 [n, 1 + 128 + K]: the token's own, those of the fixed ids, those of ``token_ids``.
        ranks: int32 [n].
        full: float32 [m, V], of the rows that asked for the whole vocabulary, in order; None if none did.
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor
    full: Tensor | None

    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, in the order that :meth:`of_tensors` takes."""
        tensors = (self.token_ids, self.values, self.ranks)
        return tensors if self.full is None else (*tensors, self.full)

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor]) -> LogprobReport:
        """A report of the copies of another one's tensors."""
        token_ids, values, ranks, *full = tensors
        return cls(token_ids, values, ranks, full[0] if full else None)

    def entries(self, asked: Sequence[tuple[int | None, int]]) -> list[TokenLogprobs | None]:
        """The reports as plain values, of tensors on the host.

        Args:
            asked: of each row, what ``SamplingParams.logprobs`` says, and the number of fixed ids.
        """
        full = iter(() if self.full is None else self.full)
        return [
            None if logprobs is None and not fixed else self._entry(index, logprobs or 0, fixed, full)
            for index, (logprobs, fixed) in enumerate(asked)
        ]

    def _entry(self, index: int, logprobs: int, num_fixed: int, full: Iterator[Tensor]) -> TokenLogprobs:
        own, *fixed = self.values[index, : 1 + num_fixed].tolist()
        if logprobs == FULL_VOCABULARY:
            values = next(full).tolist()
            ids = list(range(len(values)))
        else:
            values = self.values[index, _FIRST_VALUE : _FIRST_VALUE + logprobs].tolist()
            ids = self.token_ids[index, :logprobs].tolist()
        return TokenLogprobs(own, int(self.ranks[index]), tuple(ids), tuple(values), tuple(fixed))


def report_logprobs(
    reported: Reported, tokens: Tensor, asker: Asker, columns: int, full_rows: Sequence[int]
) -> LogprobReport:
    """Enqueue the reports: three launches, and one for each run of rows that ask for the whole vocabulary.

    Args:
        reported: what the rows are judged by.
        tokens: int32 [n], the tokens that are there.
        asker: what to report.
        columns: K, the largest number of likeliest tokens that a row asks for.
        full_rows: rows that ask for the whole vocabulary.
    """
    logits = reported.logits
    count, vocab_size = logits.shape
    columns = max(1, min(columns, vocab_size))
    # Not parts of one tensor: their alignment would change with the batch, and the kernel would be compiled anew.
    found_ids, ids = (torch.empty(count, columns, dtype=torch.int32, device=logits.device) for _ in range(2))
    found = torch.empty(count, columns, dtype=torch.float32, device=logits.device)
    values = torch.empty(count, _FIRST_VALUE + columns, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(count, dtype=torch.int32, device=logits.device)
    _select(reported, tokens, asker, found_ids, found, ranks)
    report_top[(count,)](
        logits, logits.stride(0), reported.thresholds, reported.statistics, asker.rows,
        asker.wanted, asker.wanted.stride(0), asker.fixed, asker.num_fixed, asker.num_fixed.stride(0), tokens,
        found_ids, found, ids, values, vocab_size, count, columns,
        LOGARITHM=reported.logarithm, FIXED=MAX_LOGPROB_IDS, **LAUNCH,
    )  # fmt: skip
    return LogprobReport(ids, values, ranks, _whole_rows(reported, full_rows) if len(full_rows) else None)


def _select(reported: Reported, tokens: Tensor, asker: Asker, ids: Tensor, values: Tensor, ranks: Tensor) -> None:
    """Enqueue two launches that find the likeliest tokens, in no order, and the ranks."""
    logits, (count, columns), device = reported.logits, ids.shape, ids.device
    vocab_size = logits.shape[1]
    grouping, parts = grouping_of(device, vocab_size), survey_of(device, count, vocab_size)
    num_groups = -(-vocab_size // grouping.group)
    maxima, listed = (torch.empty(count, num_groups, dtype=torch.int32, device=device) for _ in range(2))
    above = torch.empty(count, parts.number, dtype=torch.int32, device=device)
    found = torch.empty(2, count, grouping.list, dtype=torch.int32, device=device)
    survey[(count, parts.number)](
        logits, logits.stride(0), reported.thresholds, asker.rows, asker.wanted, asker.wanted.stride(0), tokens,
        maxima, above, vocab_size, num_groups, parts.number, parts.blocks, BLOCK=parts.block, GROUP=grouping.group,
        num_warps=parts.warps, **LAUNCH,
    )  # fmt: skip
    select_top[(count,)](
        logits, logits.stride(0), reported.thresholds, asker.rows, asker.wanted, asker.wanted.stride(0),
        maxima, above, listed, found, torch.empty_like(ids), ids, values, ranks, vocab_size, num_groups, parts.number,
        count, columns, MOST=grouping.most, LIST=grouping.list, PARTS=parts.most, GROUPS=power_of_two(num_groups),
        GROUP=grouping.group, TILE=grouping.tile, BLOCK=row_block_of(device, vocab_size), **LAUNCH,
    )  # fmt: skip


def row_statistics(logits: Tensor) -> Tensor:
    """Statistics of :class:`Reported` for float32 logits [n, V], dense; two launches, no log-softmax in memory."""
    count, vocab_size = logits.shape
    block = block_of(logits.device, vocab_size)
    num_blocks = -(-vocab_size // block)
    shares = torch.empty(2, count, num_blocks, dtype=torch.float32, device=logits.device)
    statistics = torch.empty(2, count, dtype=torch.float32, device=logits.device)
    sum_exponentials[(count, num_blocks)](
        logits, shares, vocab_size, num_blocks, count * num_blocks, BLOCK=block, **LAUNCH
    )
    combine_sums[(count,)](shares, statistics, count, num_blocks, BLOCKS=power_of_two(num_blocks), **LAUNCH)
    return statistics


def _whole_rows(reported: Reported, rows: Sequence[int]) -> Tensor:
    logits = reported.logits
    vocab_size = logits.shape[1]
    out = torch.empty(len(rows), vocab_size, dtype=torch.float32, device=logits.device)
    block = block_of(logits.device, vocab_size)
    for place, first, count in _runs(rows):
        report_all[(count, -(-vocab_size // block))](
            logits, logits.stride(0), reported.thresholds, reported.statistics, out, first, place,
            reported.statistics.shape[1], vocab_size, LOGARITHM=reported.logarithm, BLOCK=block, **LAUNCH,
        )  # fmt: skip
    return out


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring rows together: place of the first in ``rows``, the first, and how many."""
    place = 0
    while place < len(rows):
        end = place + 1
        while end < len(rows) and rows[end] == rows[end - 1] + 1:
            end += 1
        yield place, rows[place], end - place
        place = end
