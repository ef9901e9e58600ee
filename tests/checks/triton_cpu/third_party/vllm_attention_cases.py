"""Kernels of vLLM outside its GPU model runner: attention, and the sampler of the older runner."""

from __future__ import annotations

from typing import Any

import torch

from .cases import Cases, Draw, starts

CASES = Cases()
_INT64 = torch.int64
_OPS = "vllm.v1.attention.ops"


# Attention over a paged cache


def _attention(module: Any, draw: Draw, *, segments: bool, descriptors: bool, dtype: torch.dtype) -> None:
    requests, heads, size, page = draw.one_of(1, 2, 3), draw.one_of(1, 4, 4), 16, 16
    queries = torch.ones(requests, dtype=torch.int32) if segments else draw.ints(1, 9, requests)
    lengths = queries + draw.ints(0, draw.one_of(9, 40, 70), requests)
    tokens, pages = int(queries.sum()), 8
    keys, values = (draw.floats(pages * requests, page, max(1, heads // 2), size, dtype=dtype) for _ in range(2))
    query = draw.floats(tokens, heads, size, dtype=dtype)
    parts = 4
    scratch = (torch.zeros(tokens, heads, parts, size), *torch.zeros(2, tokens, heads, parts))
    module.unified_attention(
        *(query, keys, values, torch.zeros_like(query), starts(queries), int(queries.max()), lengths),
        *(int(lengths.max()), size**-0.5, True, (draw.one_of(-1, -1, 20), 0)),
        draw.distinct(requests * pages, requests * pages).view(requests, pages),
        draw.one_of(0, 0, 30.0),
        *(None, None, None),
        **(dict(zip(_SCRATCH, (64, parts, *scratch), strict=True)) if segments else {}),
        use_td=descriptors,
    )


_SCRATCH = (
    "seq_threshold_3D", "num_par_softmax_segments", "softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum",
)  # fmt: skip


@CASES.of(f"{_OPS}.triton_unified_attention")
def attention(module: Any, draw: Draw) -> None:
    dtype = draw.one_of(torch.float32, torch.float16, torch.float32)
    _attention(module, draw, segments=False, descriptors=False, dtype=dtype)


@CASES.of(f"{_OPS}.triton_unified_attention")
def attention_of_descriptors(module: Any, draw: Draw) -> None:
    _attention(module, draw, segments=False, descriptors=True, dtype=torch.float32)


@CASES.of(f"{_OPS}.triton_unified_attention")
def attention_in_segments(module: Any, draw: Draw) -> None:
    _attention(module, draw, segments=True, descriptors=False, dtype=torch.float32)


@CASES.of(f"{_OPS}.triton_merge_attn_states")
def merged_states(module: Any, draw: Draw) -> None:
    tokens, heads, size = draw.one_of(1, 3, 4), 2, draw.one_of(8, 20, 64)
    outputs, sums = draw.floats(3, tokens, heads, size), draw.floats(3, heads, tokens, scale=3.0)
    sums[1, 0, 0] = float("-inf")
    module.merge_attn_states(outputs[0], outputs[1], sums[1], outputs[2], sums[2], sums[0])


@CASES.of(f"{_OPS}.triton_reshape_and_cache_flash")
def cached_keys(module: Any, draw: Draw) -> None:
    tokens, heads, size, page = draw.one_of(1, 3, 9), 2, draw.one_of(8, 20, 64), 4
    keys, values = draw.floats(tokens, heads, size), draw.floats(tokens, heads, size)
    caches = torch.zeros(2, 6, page, heads, size)
    slots, count = draw.distinct(tokens, 6 * page, _INT64), heads * size
    slots[1:2] = -1  # padding
    strides = (*keys.stride()[:1], *values.stride()[:1], caches.stride(1), caches.stride(3), 0, 0, caches.stride(2))
    module.reshape_and_cache_kernel_flash[(tokens, (count + 31) // 32)](
        *(keys, values, caches[0], caches[1], slots, torch.ones(1), torch.ones(1), *strides, heads, size, page, 1),
        USE_HEAD_MAJOR_LAYOUT=False,
        FP8_KV_CACHE=False,
        TILE_SIZE=32,
    )


@CASES.of(f"{_OPS}.triton_prefill_attention")
def attention_of_prompts(module: Any, draw: Draw) -> None:
    lengths = draw.ints(1, draw.one_of(9, 40, 70), draw.one_of(1, 2, 2))
    tokens = int(lengths.sum())
    queries, keys, values = (draw.floats(tokens, heads, 16) for heads in (2, 1, 1))
    module.context_attention_fwd(
        queries, keys, values, torch.zeros_like(queries), starts(lengths)[:-1], lengths, int(lengths.max()), True
    )


# The older runner's sampler


class _Drafts:
    """Some draft tokens of each request."""

    def __init__(self, draw: Draw) -> None:
        self.requests, self.most, self.vocabulary = draw.one_of(1, 3, 5), 3, draw.one_of(9, 100, 300)
        counts = draw.ints(1, self.most + 1, self.requests)
        self.ends = counts.cumsum(0).to(torch.int32)
        self.count = int(counts.sum())
        self.tokens = draw.ints(0, self.vocabulary, self.count)
        self.target = draw.floats(self.count, self.vocabulary, scale=2.0).softmax(-1)
        self.guess = draw.floats(self.count, self.vocabulary, scale=2.0).softmax(-1)
        self.out = torch.full((self.requests, self.most + 1), -1, dtype=torch.int32)
        self.bonus = draw.ints(0, self.vocabulary, self.requests, 1)
        self.greedy = draw.uniform(self.requests) < 0.5


@CASES.of("vllm.v1.sample.rejection_sampler")
def greedy_rejection(module: Any, draw: Draw) -> None:
    drafts = _Drafts(draw)
    best = drafts.tokens.clone().to(_INT64)
    best[::3] += 1
    module.rejection_greedy_sample_kernel[(drafts.requests,)](
        *(drafts.out, drafts.ends, drafts.tokens, best, drafts.bonus, draw.one_of(None, None, drafts.greedy)),
        *(drafts.most, None, None),
        SYNTHETIC_MODE=False,
    )


@CASES.of("vllm.v1.sample.rejection_sampler")
def random_rejection(module: Any, draw: Draw) -> None:
    drafts = _Drafts(draw)
    module.rejection_random_sample_kernel[(drafts.requests,)](
        *(drafts.out, drafts.ends, drafts.tokens, draw.one_of(None, drafts.guess, drafts.guess), drafts.target),
        *(drafts.bonus, draw.ints(0, 9, drafts.count), draw.uniform(drafts.count, dtype=torch.float64)),
        *(torch.zeros_like(drafts.greedy), drafts.most, drafts.vocabulary, None),
        NO_DRAFT_PROBS=draw.size == 0,
        SYNTHETIC_MODE=False,
    )


@CASES.of("vllm.v1.sample.rejection_sampler")
def recovered_tokens(module: Any, draw: Draw) -> None:
    drafts = _Drafts(draw)
    module.sample_recovered_tokens_kernel[(drafts.requests, drafts.most)](
        *(torch.zeros_like(drafts.tokens), drafts.ends, drafts.tokens, draw.one_of(None, drafts.guess, drafts.guess)),
        *(drafts.target, 1 / (draw.uniform(drafts.requests, drafts.vocabulary) + 0.01), drafts.vocabulary),
        BLOCK_SIZE=128,
        NO_DRAFT_PROBS=draw.size == 0,
        USE_FP64_GUMBEL=False,
    )


@CASES.of("vllm.v1.sample.rejection_sampler")
def expanded(module: Any, draw: Draw) -> None:
    drafts = _Drafts(draw)
    module.expand_kernel[(drafts.requests,)](
        torch.zeros(drafts.count), draw.floats(drafts.requests).round(), drafts.ends, 0, 1, MAX_NUM_TOKENS=4
    )
