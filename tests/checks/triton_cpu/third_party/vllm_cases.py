"""Kernels of vLLM's GPU model runner: input preparation, block tables, sampling, speculation."""

from __future__ import annotations

from typing import Any

import torch

from .cases import Cases, Draw, starts

CASES = Cases()
_RUNNER = "vllm.v1.worker.gpu"
_INT64 = torch.int64


class _Batch:
    """Requests of one step: rows of the state table, and how many tokens each has."""

    def __init__(self, draw: Draw, *, most: int = 9) -> None:
        self.requests = draw.one_of(1, 3, 6)
        self.rows = self.requests + 2
        self.mapping = draw.distinct(self.requests, self.rows)
        self.lengths = draw.ints(1, most, self.requests)
        self.query_start = starts(self.lengths)
        self.tokens = int(self.query_start[-1])
        self.prefill = draw.ints(4, 20, self.rows)
        self.computed = draw.ints(0, 20, self.rows)
        self.token_ids = draw.ints(0, 50, self.rows, 64)
        self.drafts = draw.ints(0, 4, self.requests).minimum(self.lengths - 1)
        self.logits_start = starts(self.drafts + 1)
        self.logits = int(self.logits_start[-1])
        self.expanded = self.mapping.repeat_interleave(self.drafts + 1)
        self.local = torch.cat([torch.arange(n + 1, dtype=torch.int32) for n in self.drafts.tolist()])
        self.positions = draw.ints(0, 1000, self.logits, dtype=_INT64)
        self.vocabulary = draw.one_of(33, 1000, 1500)
        self.values = draw.floats(self.logits, self.vocabulary, scale=3.0)


# Input preparation


@CASES.of(f"{_RUNNER}.input_batch")
def prefill_inputs(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    ids, following = torch.zeros(batch.tokens, dtype=torch.int32), draw.ints(0, 9, 3, batch.rows)
    prefill = batch.computed + draw.ints(0, 9, batch.rows) + (draw.size == 0)
    module.prepare_prefill_inputs(
        ids, following, batch.mapping, batch.query_start, batch.token_ids, prefill, batch.computed
    )


@CASES.of(f"{_RUNNER}.input_batch")
def positions_and_lengths(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    positions, lengths = torch.zeros(batch.tokens, dtype=_INT64), draw.ints(5, 9, batch.requests + 4)
    module.prepare_pos_seq_lens(batch.mapping, batch.query_start, batch.computed, positions, lengths)


@CASES.of(f"{_RUNNER}.input_batch")
def sampled_and_draft_tokens(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    lengths = (batch.computed[batch.mapping.long()] + batch.lengths).to(torch.int32)
    module.combine_sampled_and_draft_tokens(
        draw.ints(0, 50, batch.tokens),
        batch.mapping,
        draw.ints(0, 50, batch.rows, dtype=_INT64),
        batch.query_start,
        lengths,
        batch.prefill,
        draw.ints(0, 50, batch.rows, 3, dtype=_INT64),
        batch.logits_start,
        batch.logits,
    )


@CASES.of(f"{_RUNNER}.input_batch")
def sampled_and_rejected(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    sampled, lengths = draw.ints(1, 4, batch.requests), draw.ints(2, 22, batch.requests)
    module.get_num_sampled_and_rejected(sampled, lengths, batch.logits_start, batch.mapping, batch.prefill)


@CASES.of(f"{_RUNNER}.input_batch")
def after_the_step(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    mapping = batch.mapping.clone()
    mapping[1:2] = -1  # skipped
    module.post_update(
        mapping,
        batch.computed,
        draw.ints(0, 50, batch.rows, dtype=_INT64),
        draw.one_of(None, draw.ints(0, 3, batch.rows, 50), draw.ints(0, 3, batch.rows, 50)),
        draw.ints(0, 50, batch.requests, 4, dtype=_INT64),
        draw.ints(0, 5, batch.requests),
        draw.ints(0, 3, batch.requests),
        batch.query_start,
        batch.token_ids,
        draw.ints(0, 60, batch.rows),
    )


@CASES.of(f"{_RUNNER}.input_batch")
def computed_tokens(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    module.post_update_num_computed_tokens(batch.mapping, batch.computed, batch.query_start)


@CASES.of(f"{_RUNNER}.input_batch")
def expanded_mapping(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    module.expand_idx_mapping(batch.mapping, batch.logits, batch.logits_start, 4)


@CASES.of(f"{_RUNNER}.cp_utils")
def local_lengths(module: Any, draw: Draw) -> None:
    count = draw.one_of(1, 5, 200)
    out, lengths = torch.full((256,), 7, dtype=torch.int32), draw.ints(0, 500, 256)
    module.prepare_dcp_local_seq_lens(out, lengths, count, 4, draw.one_of(0, 1, 3), draw.one_of(1, 2, 8))


# Block tables: each kernel follows addresses that it finds in memory


def _tables(module: Any, draw: Draw) -> Any:
    """Two groups of block tables with some blocks in them, written through the module's own staging."""
    device = torch.device("cpu")
    tables = module.BlockTables([16, 32], 6, 64, [12, 8], device, cp_size=draw.one_of(1, 1, 2))
    draw.reaches(*(table.gpu for table in tables.block_tables), *tables.input_block_tables)
    for row in range(6):
        blocks = draw.ints(1, 90, 2, 7).tolist()
        tables.append_block_ids(row, (blocks[0], blocks[1][: row + 1]), overwrite=row % 2 == 0)
    return tables


@CASES.of(f"{_RUNNER}.block_table")
def staged_writes(module: Any, draw: Draw) -> None:
    _tables(module, draw).apply_staged_writes()


@CASES.of(f"{_RUNNER}.block_table")
def gathered_tables(module: Any, draw: Draw) -> None:
    tables = _tables(module, draw)
    tables.apply_staged_writes()
    tables.gather_block_tables(draw.distinct(draw.one_of(1, 3, 5), 6), 6)


@CASES.of(f"{_RUNNER}.block_table")
def slots(module: Any, draw: Draw) -> None:
    tables = _tables(module, draw)
    tables.apply_staged_writes()
    batch = _Batch(draw)
    mapping = draw.distinct(batch.requests, 6)
    tables.compute_slot_mappings(mapping, batch.query_start, draw.ints(0, 16, batch.tokens, dtype=_INT64), 64)


@CASES.of(f"{_RUNNER}.buffer_utils")
def staged_rows(module: Any, draw: Draw) -> None:
    staged = module.StagedWriteTensor(
        (6, 40), draw.one_of(torch.int32, torch.int64, torch.float32), torch.device("cpu")
    )
    for row in draw.distinct(draw.one_of(1, 3, 6), 6).tolist():
        staged.stage_write(row, row, draw.ints(0, 99, row + 3).tolist())
    staged.apply_write()


# Sampling


@CASES.of(f"{_RUNNER}.sample.gumbel")
def temperature(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    temperatures = draw.uniform(batch.rows) + 0.1
    temperatures[1] = 0.0
    module.apply_temperature(batch.values, batch.expanded, temperatures)


@CASES.of(f"{_RUNNER}.sample.gumbel")
def gumbel(module: Any, draw: Draw) -> None:
    _gumbel(module, draw, use_fp64=False)


@CASES.of(f"{_RUNNER}.sample.gumbel")
def gumbel_in_double_precision(module: Any, draw: Draw) -> None:
    _gumbel(module, draw, use_fp64=True)


def _gumbel(module: Any, draw: Draw, *, use_fp64: bool) -> None:
    batch = _Batch(draw)
    temperatures, seeds = draw.uniform(batch.rows), draw.ints(-(2**62), 2**62, batch.rows, dtype=_INT64)
    temperatures[0] = 0.0
    dtype = draw.one_of(torch.float32, torch.bfloat16, torch.float32)
    cache = draw.one_of(None, None, torch.zeros(batch.rows, 4, batch.vocabulary))
    module.gumbel_sample(
        batch.values.to(dtype),
        batch.expanded,
        temperatures,
        seeds,
        batch.positions,
        apply_temperature=True,
        is_drafting=draw.size == 1,
        logits_cache=cache,
        logits_cache_col=None if cache is None else batch.local,
        use_fp64=use_fp64,
    )


@CASES.of(f"{_RUNNER}.sample.min_p")
def min_p(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    module.apply_min_p(batch.values, batch.expanded, draw.uniform(batch.rows) * 0.2)


@CASES.of(f"{_RUNNER}.sample.penalties")
def penalties(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    module.apply_penalties(
        batch.values,
        batch.expanded,
        draw.ints(0, batch.vocabulary, batch.logits + 1),
        batch.local,
        draw.uniform(batch.rows) + 0.6,
        draw.uniform(batch.rows),
        draw.uniform(batch.rows),
        draw.ints(-(2**31), 2**31, batch.rows, (batch.vocabulary + 31) // 32),
        draw.ints(0, 3, batch.rows, batch.vocabulary),
    )


@CASES.of(f"{_RUNNER}.sample.penalties")
def counts(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    prompt = draw.ints(1, 40, batch.rows)
    bits, output = torch.ones(batch.rows, 2, dtype=torch.int32), torch.ones(batch.rows, 50, dtype=torch.int32)
    module.bincount(batch.mapping, batch.token_ids, prompt, prompt + draw.ints(0, 20, batch.rows), bits, output, 64)


@CASES.of(f"{_RUNNER}.sample.logprob")
def logprobs(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    sampled = draw.ints(0, batch.vocabulary, batch.logits, dtype=_INT64)
    module.compute_topk_scores(batch.values, draw.one_of(0, 5, 20), sampled)


@CASES.of(f"{_RUNNER}.sample.bad_words")
def bad_words(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    words = draw.ints(0, 3, batch.rows, 6)  # of one, two and three tokens, out of three tokens: some match
    module.apply_bad_words(
        batch.values,
        batch.expanded,
        words,
        torch.tensor([0, 1, 3, 6], dtype=torch.int32).repeat(batch.rows, 1),
        draw.ints(1, 4, batch.rows),
        draw.ints(0, 3, batch.rows, 64),
        draw.ints(2, 10, batch.rows),
        draw.ints(10, 40, batch.rows),
        draw.ints(0, 3, batch.logits + 1),
        batch.local,
        3,
    )


@CASES.of(f"{_RUNNER}.sample.logit_bias")
def logit_bias(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    width = 8

    def some_tokens() -> torch.Tensor:
        return torch.stack([draw.distinct(width, batch.vocabulary) for _ in range(batch.rows)])

    module.apply_logit_bias(
        batch.values,
        batch.expanded,
        batch.positions,
        draw.ints(0, width, batch.rows) * draw.ints(0, 2, batch.rows),
        some_tokens(),
        draw.ints(0, width, batch.rows),
        some_tokens(),
        draw.floats(batch.rows, width),
        draw.ints(0, 2000, batch.rows),
        draw.ints(0, width, batch.rows),
        draw.ints(0, 2, batch.rows),
        some_tokens(),
        check_all_masked_rows=draw.size == 2,
    )


@CASES.of(f"{_RUNNER}.structured_outputs")
def grammar(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    words = (batch.vocabulary + 31) // 32
    rows = torch.cat([torch.arange(n + 1, dtype=torch.int32) + 5 * i for i, n in enumerate(batch.drafts.tolist())])
    module._apply_grammar_bitmask_kernel[(batch.logits, 2)](
        batch.values,
        batch.values.stride(0),
        rows,
        batch.logits_start,
        draw.ints(-(2**31), 2**31, batch.logits, words),
        words,
        batch.vocabulary,
        MASK_STRIDE=5,
        BLOCK_SIZE=1024,
    )


@CASES.of(f"{_RUNNER}.metrics.logits")
def nans(module: Any, draw: Draw) -> None:
    batch = _Batch(draw)
    batch.values[draw.uniform(*batch.values.shape) < 0.1] = float("nan")
    module.get_num_nans(batch.values)


# Speculation


def _rejection(module: Any, draw: Draw, *, block_verification: bool) -> None:
    batch, steps = _Batch(draw), 3
    temperatures = draw.uniform(batch.rows) + 0.3
    temperatures[:1] = 0.0
    draft = draw.one_of(None, 0, 0)
    module.rejection_sample(
        batch.values,
        None if draft is None else draw.floats(batch.rows, steps, batch.vocabulary, scale=3.0),
        draw.ints(0, batch.vocabulary, batch.logits, dtype=_INT64),
        batch.logits_start,
        batch.positions,
        batch.mapping,
        batch.expanded,
        batch.local,
        temperatures,
        draw.ints(0, 2**60, batch.rows, dtype=_INT64),
        steps,
        use_block_verification=block_verification,
    )


@CASES.of(f"{_RUNNER}.spec_decode.rejection_sampler_utils")
def rejection(module: Any, draw: Draw) -> None:
    _rejection(module, draw, block_verification=False)


@CASES.of(f"{_RUNNER}.spec_decode.rejection_sampler_utils")
def rejection_of_blocks(module: Any, draw: Draw) -> None:
    _rejection(module, draw, block_verification=True)
