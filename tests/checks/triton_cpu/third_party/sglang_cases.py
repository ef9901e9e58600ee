"""Kernels of sglang: cache indices and memory, sampling, speculation, layers, attention."""

from __future__ import annotations

from typing import Any

import torch

from .cases import Cases, Draw, starts

CASES = Cases()
_OPS = "sglang.kernels.ops"
_INT64 = torch.int64


# Indices and memory of the KV cache


@CASES.of(f"{_OPS}.attention.kv_indices")
def flat_indices(module: Any, draw: Draw) -> None:
    requests, page = draw.one_of(1, 3, 5), draw.one_of(1, 1, 4)
    table, lengths = draw.ints(0, 99, 8, 700), draw.ints(1, draw.one_of(20, 600, 200), requests)
    first, out = draw.ints(0, 50, requests), torch.zeros(int(lengths.sum()), dtype=torch.int32)
    module.create_flashinfer_kv_indices_triton[(requests,)](
        table, draw.distinct(requests, 8), lengths, starts(lengths), first, out, 700, ENTRY_PAGE_SIZE=page
    )


@CASES.of(f"{_OPS}.attention.kv_indices")
def indices_of_chunks(module: Any, draw: Draw) -> None:
    requests = draw.one_of(1, 3, 5)
    table, lengths = draw.ints(0, 99, 8, 700), draw.ints(1, 600, requests)
    out = torch.zeros(int(lengths.sum()), dtype=torch.int32)
    module.create_chunked_prefix_cache_kv_indices[(requests,)](
        table, draw.distinct(requests, 8), draw.ints(0, 50, requests), lengths, starts(lengths), out, 700
    )


@CASES.of(f"{_OPS}.attention.kv_indices")
def indices_of_pages(module: Any, draw: Draw) -> None:
    requests = draw.one_of(1, 3, 5)
    table, out = draw.ints(0, 9999, 8, 4300), torch.full((requests, 80), -1, dtype=torch.int32)
    lengths = draw.ints(1, draw.one_of(100, 300, 4300), requests)
    module.create_flashmla_kv_indices_triton[(requests, 2)](
        table, draw.distinct(requests, 8), lengths, None, out, 4300, 80, PAGED_SIZE=64
    )


@CASES.of(f"{_OPS}.attention.metadata")
def number_of_splits(module: Any, draw: Draw) -> None:
    requests, heads = draw.one_of(1, 3, 5), draw.one_of(4, 8, 32)
    lengths, out = draw.ints(1, 5000, requests), torch.zeros(2 * requests, dtype=torch.int32)
    module.get_num_kv_splits_triton[(1,)](out, lengths, requests, 2, heads, 4, 16, 108, MAX_NUM_SEQ=8)


@CASES.of(f"{_OPS}.attention.metadata")
def joined_page_tables(module: Any, draw: Draw) -> None:
    requests, drafts = draw.one_of(1, 2, 3), 2
    first, second = draw.ints(0, 99, requests, 300), draw.ints(0, 99, requests * drafts, 6)
    joined = torch.zeros(requests * drafts, 306, dtype=torch.int32)
    lengths = draw.ints(1, 300, requests), draw.ints(1, 6, requests * drafts)
    module.prepare_swa_spec_page_table_triton(joined, first, second, *lengths, drafts)


@CASES.of(f"{_OPS}.attention.position")
def positions(module: Any, draw: Draw) -> None:
    requests = draw.one_of(1, 3, 6)
    lengths = draw.ints(1, draw.one_of(9, 40, 700), requests)
    module.compute_position_triton(draw.ints(0, 100, requests), lengths, int(lengths.sum()))


@CASES.of(f"{_OPS}.attention.pad")
def padded_sequences(module: Any, draw: Draw) -> None:
    lengths, hidden = draw.ints(1, 9, draw.one_of(1, 3, 4)), draw.one_of(4, 10, 17)
    tokens = draw.floats(int(lengths.sum()), hidden, dtype=draw.one_of(torch.float32, torch.float16, torch.bfloat16))
    module.pad_sequence_with_mask(tokens, starts(lengths)[:-1], lengths, 9)


@CASES.of(f"{_OPS}.attention.pad")
def padded_queries(module: Any, draw: Draw) -> None:
    lengths = draw.ints(1, 5, draw.one_of(1, 3, 4))
    queries, padded = draw.floats(int(lengths.sum()), 3, 70), torch.zeros(len(lengths), 5, 3, 70)
    module.pad_draft_extend_query(queries, padded, lengths, starts(lengths))


@CASES.of(f"{_OPS}.memory.allocator")
def extended_pages(module: Any, draw: Draw) -> None:
    requests, page = draw.one_of(1, 3, 4), draw.one_of(4, 16, 64)
    before = draw.ints(0, 100, requests, dtype=_INT64)
    after = before + draw.ints(1, 300, requests, dtype=_INT64)
    free, out = draw.distinct(200, 500, _INT64), torch.zeros(int((after - before).sum()), dtype=_INT64)
    module.alloc_extend_kernel[(requests,)](
        before, after, draw.ints(0, 999, requests, dtype=_INT64), free, out, bs_upper=4, page_size=page
    )


@CASES.of(f"{_OPS}.memory.allocator")
def decoded_pages(module: Any, draw: Draw) -> None:
    requests = draw.one_of(1, 3, 7)
    lengths, last = draw.ints(1, 40, requests, dtype=_INT64), draw.ints(0, 999, requests, dtype=_INT64)
    module.alloc_decode_kernel[(requests,)](
        lengths, last, draw.distinct(20, 500, _INT64), torch.zeros(requests, dtype=_INT64), bs_upper=8, page_size=4
    )


@CASES.of(f"{_OPS}.memory.allocator")
def cleared_pages(module: Any, draw: Draw) -> None:
    page = draw.one_of(1, 4, 16)
    pages = draw.distinct(draw.one_of(1, 5, 9), 12, _INT64) * page
    module.get_and_clear_swa_pages(pages, draw.ints(0, 99, 12 * page, dtype=_INT64), page, draw.size == 2)


@CASES.of(f"{_OPS}.memory.common")
def pool_of_tokens(module: Any, draw: Draw) -> None:
    requests = draw.one_of(1, 3, 4)
    before, more = draw.ints(1, 30, requests), draw.ints(1, draw.one_of(20, 40, 700), requests)
    prefixes = [draw.ints(0, 99, int(length), dtype=_INT64) for length in before.tolist()]
    draw.reaches(*prefixes)
    addresses = torch.tensor([prefix.data_ptr() for prefix in prefixes], dtype=torch.uint64)
    table, places = torch.zeros(6, 800, dtype=torch.int32), draw.ints(0, 999, int(more.sum()), dtype=_INT64)
    module.write_req_to_token_pool_triton[(requests,)](
        table, draw.distinct(requests, 6), addresses, before, before + more, more, places, 800
    )


@CASES.of(f"{_OPS}.memory.common")
def last_places(module: Any, draw: Draw) -> None:
    requests, dtype = draw.one_of(1, 3, 300), draw.one_of(_INT64, torch.int32, _INT64)
    table, rows = draw.ints(0, 999, 8, 40), draw.ints(0, 8, requests, dtype=dtype)
    lengths = draw.ints(0, 40, requests, dtype=dtype)
    module.get_last_loc_triton_safe(table, rows, lengths)
    module.get_last_loc_triton(table, rows[:256], lengths[:256].clamp(min=1))


@CASES.of(f"{_OPS}.memory.virtual_slot")
def virtual_pages(module: Any, draw: Draw) -> None:
    count = draw.one_of(1, 20, 200)
    pages, there, back = draw.distinct(count, 256, _INT64), torch.full((256,), -1), torch.full((300,), -1)
    physical = torch.zeros(count, dtype=_INT64)
    grid = (2,)
    module.alloc_bind_inplace_kernel[grid](pages, there, back, physical, count, 50, BLOCK=128)
    module.free_unbind_inplace_kernel[grid](pages[: count // 2 + 1], there, back, physical, count // 2 + 1, BLOCK=128)


@CASES.of(f"{_OPS}.memory.gpu_tensor_hash")
def hash_of_memory(module: Any, draw: Draw) -> None:
    words = draw.ints(-(2**31), 2**31, draw.one_of(5, 700, 1500)).view(torch.uint32)
    tiles = (len(words) + 511) // 512
    sums, total = torch.zeros(tiles, dtype=torch.uint64), torch.zeros(1, dtype=torch.uint64)
    module.hash_tiles32_kernel_blocked[(tiles,)](
        *(words, sums, len(words)),
        seed1=0x243F6A88,
        seed2=0xB7E15163,
        FM_C1=module.FMIX32_C1,
        FM_C2=module.FMIX32_C2,
        POS_A=module.POS_C1,
        POS_B=module.POS_C2,
        TILE=512,
        BLOCK=256,
        USE_CG=True,
    )
    module.add_tree_reduce_u64_kernel[(1,)](sums, total, tiles, CHUNK=4)


# Sampling


@CASES.of(f"{_OPS}.sampling.murmur_hash")
def murmur_hash(module: Any, draw: Draw) -> None:
    rows, columns = draw.one_of(1, 3, 4), draw.one_of(7, 100, 1500)
    out = torch.zeros(rows, columns, dtype=torch.uint32)
    module.murmur_hash32_kernel[(rows, (columns + 1023) // 1024)](
        draw.ints(0, 2**62, rows, dtype=_INT64),
        draw.ints(0, 5000, rows, dtype=_INT64),
        torch.arange(columns),
        out,
        rows,
        columns,
        BLOCK_SIZE=1024,
    )


@CASES.of(f"{_OPS}.sampling.renorm_triton")
def renormalised(module: Any, draw: Draw) -> None:
    rows = draw.floats(draw.one_of(1, 3, 4), draw.one_of(7, 100, 1500)).softmax(-1)
    module._renorm_from_pivots(rows, rows.mean(-1))


@CASES.of(f"{_OPS}.sampling.temperature_softmax")
def softmax_in_splits(module: Any, draw: Draw) -> None:
    rows, columns, splits = draw.one_of(1, 3, 4), draw.one_of(300, 1000, 1500), 8
    logits, temperatures = draw.floats(rows, columns, scale=3.0), draw.uniform(rows) + 0.1
    maxima, sums = torch.zeros(rows, splits), torch.zeros(rows, splits)
    maximum, total, result = torch.zeros(rows), torch.zeros(rows), torch.zeros(rows, columns)
    module._partial_max_sumexp_kernel[(rows, splits)](
        logits, temperatures, maxima, sums, columns, columns, splits, BLOCK=256
    )
    module._combine_kernel[(rows,)](maxima, sums, maximum, total, splits, BLOCK=8)
    module._normalize_kernel[(rows, splits)](
        logits, temperatures, maximum, total, result, columns, columns, columns, BLOCK=256
    )


@CASES.of(f"{_OPS}.sampling.softcap_row_argmax")
def argmax_of_capped(module: Any, draw: Draw) -> None:
    logits = draw.floats(draw.one_of(1, 3, 4), draw.one_of(7, 100, 5000), scale=20.0)
    module.softcap_row_argmax(logits, 30.0, logits.shape[1] - 1, 10)


@CASES.of(f"{_OPS}.activation.softcap")
def capped(module: Any, draw: Draw) -> None:
    module.softcap_inplace_logits(draw.floats(draw.one_of(1, 3, 4), draw.one_of(7, 100, 900), scale=20.0), 30.0)


@CASES.of(f"{_OPS}.grammar.bitmask_ops")
def bitmask(module: Any, draw: Draw) -> None:
    rows, columns = draw.one_of(1, 3, 4), draw.one_of(40, 100, 5000)
    logits, words = draw.floats(rows, columns), (columns + 31) // 32
    module.apply_token_bitmask_inplace_kernel[(5,)](
        logits, draw.ints(-(2**31), 2**31, rows, words), None, rows, columns, columns, words, 5, 4096
    )


@CASES.of("sglang.srt.layers.logsumexp")
def log_sum_and_best(module: Any, draw: Draw) -> None:
    rows = draw.floats(draw.one_of(1, 3, 4), draw.one_of(7, 100, 900), scale=3.0)
    module.row_logsumexp(rows)
    module.row_logsumexp_topk(rows, draw.one_of(1, 5, 8))


# Speculation


@CASES.of(f"{_OPS}.speculative.row_argmax")
def argmax_of_rows(module: Any, draw: Draw) -> None:
    rows = draw.floats(draw.one_of(1, 2, 2), draw.one_of(70, 1000, 5000)).round(decimals=1)  # has ties
    module.row_argmax(rows)
    rows[0, 3] = float("nan")
    module.div_argmax(rows, draw.uniform(*rows.shape) + 0.1)


@CASES.of(f"{_OPS}.speculative.topk1")
def best_drafts(module: Any, draw: Draw) -> None:
    rows = draw.one_of(1, 3, 4)
    logits = draw.floats(rows, draw.one_of(70, 1000, 9000), dtype=draw.one_of(*_TYPES))
    module.draft_topk1_postprocess(logits, draw.ints(0, 99, rows, dtype=_INT64), torch.zeros(rows, 3).long(), 1)


_TYPES = torch.float32, torch.float16, torch.bfloat16


@CASES.of(f"{_OPS}.speculative.eagle")
def accepted_places(module: Any, draw: Draw) -> None:
    size = draw.one_of(1, 6, 16)
    accepted = torch.where(draw.uniform(size) < 0.6, torch.arange(size), -1)
    module.fill_accept_out_cache_loc[(size,)](
        accepted, draw.ints(0, 999, size, dtype=_INT64), torch.zeros(size, dtype=_INT64), 16
    )
    lengths, tokens = draw.ints(1, 4, size), draw.ints(0, 99, size * 4)
    module.fill_bonus_tokens[(size,)](tokens, lengths, torch.zeros(size, dtype=torch.int32), 4)


@CASES.of(f"{_OPS}.speculative.eagle")
def committed_tokens(module: Any, draw: Draw) -> None:
    rows, width = draw.one_of(1, 3, 5), 4
    accepted = torch.arange(rows * width, dtype=torch.int32).view(rows, width)
    module.prepare_verify_commit_outputs(
        draw.ints(0, 99, rows * width),
        accepted,
        draw.ints(1, width + 1, rows),
        draw.ints(1, 99, rows, dtype=_INT64),
        draw.one_of(0, 4, 4),
        draw.one_of(0, 0, 8),
    )


@CASES.of(f"{_OPS}.speculative.reject_sampling")
def verified_drafts(module: Any, draw: Draw) -> None:
    rows, slots, vocabulary = draw.one_of(1, 3, 4), 4, draw.one_of(7, 100, 700)
    target = draw.floats(rows, slots, vocabulary, scale=2.0).softmax(-1)
    guess = (target.log() + draw.floats(rows, slots, vocabulary, scale=0.5)).softmax(-1)
    candidates, indices = draw.ints(0, vocabulary, rows, slots), torch.arange(rows * slots).view(rows, slots).int()
    uniform = draw.uniform(rows, slots)
    module.speculative_sampling_classic_kernel[(rows,)](
        torch.full((rows * slots,), -1, dtype=torch.int32),
        torch.full((rows, slots), -1, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int32),
        *(candidates, indices, uniform, draw.uniform(rows), target, guess),
        *(*candidates.stride(), *indices.stride(), *uniform.stride(), *target.stride(), *guess.stride()),
        NUM_SLOTS=slots,
        VOCAB_SIZE=vocabulary,
        BLOCK_V=256,
        BLOCK_VERIFICATION=draw.size == 2,
        BLOCK_REDUCE=256,
    )


# Layers


def _tokens(draw: Draw) -> torch.Tensor:
    return draw.floats(draw.one_of(1, 3, 4), draw.one_of(8, 96, 256), dtype=draw.one_of(*_TYPES))


@CASES.of(f"{_OPS}.layernorm.fused_rmsnorm")
def rmsnorm(module: Any, draw: Draw) -> None:
    tokens = _tokens(draw)
    weights = draw.floats(2, tokens.shape[1], dtype=tokens.dtype)
    module.fused_rmsnorm(tokens, weights[0], 1e-6)
    module.fused_dual_residual_rmsnorm(tokens, draw.floats(*tokens.shape, dtype=tokens.dtype), *weights, 1e-6)


@CASES.of("sglang.srt.batch_invariant_ops.batch_invariant_ops")
def batch_invariant(module: Any, draw: Draw) -> None:
    tokens = _tokens(draw)
    module.log_softmax(tokens)
    module.rms_norm(tokens, draw.floats(tokens.shape[1], dtype=tokens.dtype))
    shape = (2, 3, draw.one_of(1, 5, 40))
    values, out = draw.floats(*shape), torch.zeros(shape[0], shape[2])
    module.mean_kernel[(out.numel(),)](values, out, *values.stride(), *out.stride(), *shape, 1024)


@CASES.of("sglang.srt.batch_invariant_ops.batch_invariant_ops")
def batch_invariant_product(module: Any, draw: Draw) -> None:
    dtype = draw.one_of(*_TYPES)
    left, right = draw.floats(draw.one_of(3, 20, 40), 70, dtype=dtype), draw.floats(70, 30, dtype=dtype)
    out, grid = torch.zeros(left.shape[0], 30, dtype=dtype), (2,)
    module.matmul_kernel_persistent[grid](
        *(left, right, out, None, left.shape[0], 30, 70),
        *(*left.stride(), *right.stride(), *out.stride()),
        BLOCK_SIZE_M=16,
        BLOCK_SIZE_N=16,
        BLOCK_SIZE_K=32,
        GROUP_SIZE_M=2,
        NUM_SMS=2,
        A_LARGE=False,
        B_LARGE=False,
        C_LARGE=False,
        HAS_BIAS=False,
    )


@CASES.of(f"{_OPS}.quantization.int8_kernel")
def int8(module: Any, draw: Draw) -> None:
    module.per_token_group_quant_int8(draw.floats(draw.one_of(1, 3, 4), 64, dtype=draw.one_of(*_TYPES)), 32)


@CASES.of(f"{_OPS}.quantization.int8_kernel")
def rounded_int8(module: Any, draw: Draw) -> None:
    module.per_token_quant_int8(draw.floats(draw.one_of(1, 3, 4), 60, dtype=draw.one_of(*_TYPES)), cal_sum=True)


@CASES.of(f"{_OPS}.quantization.awq_triton")
def four_bits(module: Any, draw: Draw) -> None:
    rows, columns, group = 16, draw.one_of(1, 2, 4), draw.one_of(16, 8, 16)
    words, zeros = (draw.ints(-(2**31), 2**31, count, columns) for count in (rows, rows // group))
    scales, out = draw.floats(rows // group, columns * 8, dtype=torch.float16), torch.zeros(rows, columns * 8).half()
    module.awq_dequantize_kernel[(4, 4)](
        words, scales, zeros, group, out, columns, rows, BLOCK_SIZE_X=1, BLOCK_SIZE_Y=4
    )


@CASES.of("sglang.test.kernels.moe_align")
def aligned_experts(module: Any, draw: Draw) -> None:
    experts, block = draw.one_of(2, 4, 8), 4
    chosen, room = draw.ints(0, experts, draw.one_of(3, 20, 50)), 100
    module.moe_align_block_size_triton(
        *(chosen, experts, block),
        torch.full((room,), len(chosen), dtype=torch.int32),
        torch.full((room // block,), -1, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )


# Attention


@CASES.of(f"{_OPS}.attention.merge_state")
def merged_states(module: Any, draw: Draw) -> None:
    shape = draw.one_of(1, 3, 4), 2, draw.one_of(8, 20, 64)
    dtype = draw.one_of(*_TYPES)
    sums = draw.floats(*shape[:2], scale=3.0), draw.floats(*shape[:2], scale=3.0)
    sums[0][0, 0] = float("-inf")
    values = draw.floats(*shape, dtype=dtype), draw.floats(*shape, dtype=dtype)
    module.merge_state_triton(values[0], sums[0], values[1], sums[1])


@CASES.of(f"{_OPS}.attention.prefill_attention")
def attention_of_prompts(module: Any, draw: Draw) -> None:
    lengths = draw.ints(1, draw.one_of(9, 40, 70), draw.one_of(1, 2, 2))
    dtype, tokens = draw.one_of(torch.float32, torch.float16, torch.float32), int(lengths.sum())
    queries, keys, values = (draw.floats(tokens, heads, 16, dtype=dtype) for heads in (2, 1, 1))
    module.context_attention_fwd(
        queries, keys, values, torch.zeros_like(queries), starts(lengths)[:-1], lengths, int(lengths.max()), True
    )
