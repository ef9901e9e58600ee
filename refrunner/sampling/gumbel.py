"""Host side of the Gumbel-max sampler."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.draw import combine_blocks, sample_blocks
from .blocks import LAUNCH, Parts, parts_of
from .maxima import Maxima

# More than three bounds that reach the best score are rare, and all exact scores are a few times the work.
RIVALS = 8

#: Rows of ``Sampled.drawn``.
TOKEN, NAN_COUNT, FIRST_NAN, EXHAUSTED, LOGPROB = range(5)


@dataclass(frozen=True)
class Sampled:
    """One drawn token per row, on the device of the logits, written on the current stream.

    Attributes:
        drawn: int32 [5, N], what the host is told of the draws, in one piece for one copy: token, number of NaN logits,
            token id of the first one (any number if there is none), 1 if no token was left to draw, bits of the
            log-probability. Without log-probabilities [4, N].
        result: int32 [4, N], the first four of them.
        logprobs: float32 [N], the last one: the token's log-probability (natural logarithm), or its logit.
        statistics: float32 [2, N]: the row's largest value, and the logarithm of the sum of exp(value - largest).
    """

    drawn: Tensor
    result: Tensor
    logprobs: Tensor
    statistics: Tensor

    @staticmethod
    def empty(count: int, device: torch.device) -> Sampled:
        """For so many rows; nothing is drawn."""
        drawn = torch.empty(LOGPROB + 1, count, dtype=torch.int32, device=device)
        result, logprobs = drawn.split((LOGPROB, 1))  # both begin at a multiple of 16 bytes, whatever the count
        statistics = torch.empty(2, count, dtype=torch.float32, device=device)
        return Sampled(drawn, result, logprobs[0].view(torch.float32), statistics)

    @property
    def token_ids(self) -> Tensor:
        """int32 [N]."""
        return self.result[0]


@dataclass(frozen=True)
class Processed:
    """What the parameters made of the logits.

    Attributes:
        stages: int32 [R], stages of each row of the tables; any stride.
        logits: float32 [N, V], dense, through all stages and divided by the temperature; undefined in rows without a
            stage of ``kernels.logits_processing.STORED``, and empty if no row has one. Where that is, what is drawn
            from are the model's own, divided by the temperature.
        thresholds: int32 [N], see ``kernels.filters``; the lowest integer in rows without a filter.
        maxima: of the rows that have filters only, which are then not read again as a whole; None if they are to be.
    """

    stages: Tensor
    logits: Tensor
    thresholds: Tensor
    maxima: Maxima | None = None


def sample(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    processed: Processed | None = None,
    *,
    report_processed: bool = False,
    report_logarithm: bool = True,
) -> Sampled:
    """Draw one token per row of logits and report its value; enqueues two launches and waits for nothing.

    Args:
        logits: float32 [N, V], unit stride in V; not modified.
        rows: int32 [N], row of the parameter tables that each logits row belongs to.
        positions: int32 [N], number of tokens before the one drawn.
        temperature: float32 [R], any stride; 0 is greedy.
        seeds: int64 [R], the 64 bits of the seed.
        processed: draws come from these logits in the rows that have a stage; None if no row has.
        report_processed: report values of what was drawn from, not of ``logits``.
        report_logarithm: report log-probabilities, not logits.
    """
    count = len(logits)
    sampled = Sampled.empty(count, logits.device)
    parts = parts_of(logits.device, count, logits.shape[1])
    launch(
        logits, rows, positions, temperature, seeds, processed or _unprocessed(logits), sampled, parts,
        report_processed=report_processed, report_logarithm=report_logarithm,
    )  # fmt: skip
    return sampled


def draw(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    processed: Processed | None = None,
    *,
    rivals: int = RIVALS,
) -> Tensor:
    """The tokens of :func:`sample` without their values, which costs less; returns its ``Sampled.result``.

    Args:
        logits: [N, V], float32, float16 or bfloat16; as all that follows, see :func:`sample`.
        rivals: how many bounds a part of a row leaves open before every score of it is computed exactly; 0 computes
            them at once, which changes nothing and takes several times as long.
    """
    nothing = torch.empty(0, dtype=torch.float32, device=logits.device)
    result = torch.empty(LOGPROB, len(logits), dtype=torch.int32, device=logits.device)
    tokens = Sampled(result, result, nothing, nothing)
    parts = parts_of(logits.device, *logits.shape)
    processed = processed or _unprocessed(logits)
    launch(
        logits, rows, positions, temperature, seeds, processed, tokens, parts, statistics=False, rivals=rivals
    )  # fmt: skip
    return tokens.result


def launch(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    processed: Processed,
    sampled: Sampled,
    parts: Parts,
    *,
    report_processed: bool = False,
    report_logarithm: bool = False,
    statistics: bool = True,
    rivals: int = RIVALS,
) -> None:
    """Enqueue the two launches of :func:`sample` and :func:`draw`, whose arguments these are.

    Args:
        sampled: what is written; only its ``result`` without ``statistics``.
        parts: how a row is divided; for ``processed.maxima`` it must have been divided alike.
    """
    count, vocab_size = logits.shape
    # What is reported as processed is not what the maxima were found in.
    maxima = None if report_processed else processed.maxima
    if maxima is None:
        floats = torch.empty(4 if statistics else 2, count, parts.number, dtype=torch.float32, device=logits.device)
        ints = torch.empty(3, count, parts.number, dtype=torch.int32, device=logits.device)
        group, groups, lists, num_groups = 0, ints, ints, 0
    else:
        floats, ints, group, groups = maxima.floats, maxima.ints, maxima.group, maxima.groups
        lists, num_groups = torch.empty_like(groups), groups.shape[1]
    bounds = torch.empty(count, parts.number, parts.lanes, dtype=torch.float32, device=logits.device)
    stages = processed.stages
    common = (
        logits, logits.stride(0), processed.logits, processed.thresholds, rows, positions, stages, stages.stride(0),
        temperature, temperature.stride(0), seeds, floats, ints, bounds, lists,
    )  # fmt: skip
    sample_blocks[(count, parts.number)](
        *common, groups, vocab_size, num_groups, parts.number, parts.blocks, count * parts.number,
        PROCESSED=report_processed, STATISTICS=statistics, RIVALS=rivals, GROUPS=parts.groups, SEARCH=parts.search,
        LANES=parts.lanes, BLOCK=parts.block, FEW=parts.few, CHUNK=parts.chunk, GROUP=group, num_warps=parts.warps,
        **LAUNCH,
    )  # fmt: skip
    combine_blocks[(count,)](
        *common, sampled.result, sampled.logprobs, sampled.statistics, vocab_size, num_groups, count, parts.number,
        parts.blocks, PROCESSED=report_processed, STATISTICS=statistics, LOGARITHM=report_logarithm,
        GROUPS=parts.groups, LANES=parts.lanes, BLOCK=parts.block, PARTS=parts.most, GROUP=group, **LAUNCH,
    )  # fmt: skip


def _unprocessed(logits: Tensor) -> Processed:
    """No stage in any row: all rows read one zero, and the other two are never read."""
    zero = torch.zeros(1, dtype=torch.int32, device=logits.device)
    return Processed(zero.expand(2), logits, zero)
