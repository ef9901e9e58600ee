"""Kernels of liger-kernel: layers and losses of a training step, forward and backward, by its autograd functions."""

from __future__ import annotations

from typing import Any

import torch

from .cases import Cases, Draw

CASES = Cases()
_OPS = "liger_kernel.ops"


def _there_and_back(function: Any, draw: Draw, *arguments: Any) -> None:
    """Apply an autograd function, then run its backward with random gradients."""
    arguments = tuple(
        item.requires_grad_() if isinstance(item, torch.Tensor) and item.is_floating_point() else item
        for item in arguments
    )
    results = function.apply(*(item.clone() if isinstance(item, torch.Tensor) else item for item in arguments))
    results = results if isinstance(results, tuple) else (results,)
    results = tuple(result for result in results if result is not None and result.requires_grad)
    torch.autograd.backward(results, [draw.floats(*result.shape, dtype=result.dtype) for result in results])


def _rows(draw: Draw, *, scale: float = 1.0) -> torch.Tensor:
    """Shape (rows, columns), in one of three types."""
    dtype = draw.one_of(torch.float32, torch.float16, torch.bfloat16)
    return draw.floats(draw.one_of(1, 4, 3), draw.one_of(8, 100, 257), dtype=dtype, scale=scale)


def _row(draw: Draw, like: torch.Tensor) -> torch.Tensor:
    return draw.floats(like.shape[-1], dtype=like.dtype)


# Norms


@CASES.of(f"{_OPS}.rms_norm")
def rms_norm(module: Any, draw: Draw) -> None:
    rows = _rows(draw)
    mode = draw.one_of("llama", "gemma", "none")
    _there_and_back(module.LigerRMSNormFunction, draw, rows, _row(draw, rows), 1e-6, draw.one_of(0.0, 1.0, 0.0), mode)


@CASES.of(f"{_OPS}.rms_norm")
def rms_norm_of_blocks(module: Any, draw: Draw) -> None:
    rows = draw.floats(draw.one_of(3, 16, 40), draw.one_of(8, 100, 200))
    weight, result, scales = _row(draw, rows), torch.empty_like(rows), torch.empty(len(rows))
    module._block_rms_norm_forward_kernel[((len(rows) + 15) // 16,)](
        *(result, result.stride(0), rows, rows.stride(0), weight, 1, scales, 1, *rows.shape, 1e-6, 0.0),
        casting_mode=0,
        elementwise_affine=True,
        BLOCK_SIZE=256,
        BLOCK_ROW=16,
    )


@CASES.of(f"{_OPS}.fused_add_rms_norm")
def fused_add_rms_norm(module: Any, draw: Draw) -> None:
    rows = _rows(draw)
    residual = draw.floats(*rows.shape, dtype=rows.dtype)
    mode = draw.one_of("llama", "gemma", "none")
    _there_and_back(module.LigerFusedAddRMSNormFunction, draw, rows, residual, _row(draw, rows), 1e-6, 0.0, mode)


@CASES.of(f"{_OPS}.layer_norm")
def layer_norm(module: Any, draw: Draw) -> None:
    rows = _rows(draw)
    _there_and_back(module.LigerLayerNormFunction, draw, rows, _row(draw, rows), _row(draw, rows), 1e-6)


@CASES.of(f"{_OPS}.group_norm")
def group_norm(module: Any, draw: Draw) -> None:
    batch = draw.floats(draw.one_of(1, 2, 2), 6, draw.one_of(4, 10, 33))
    weight, bias = draw.floats(6), draw.floats(6)
    _there_and_back(module.LigerGroupNormFunction, draw, batch, weight, bias, 6, draw.one_of(1, 3, 2), 1e-6)


@CASES.of(f"{_OPS}.poly_norm")
def poly_norm(module: Any, draw: Draw) -> None:
    rows = _rows(draw)
    weight, bias = draw.floats(3, dtype=rows.dtype), draw.floats(dtype=rows.dtype)
    _there_and_back(module.LigerPolyNormFunction, draw, rows, weight, bias, 1e-6)


@CASES.of(f"{_OPS}.dyt")
def dynamic_tanh(module: Any, draw: Draw) -> None:
    rows = _rows(draw)
    alpha = draw.floats(1, dtype=rows.dtype)
    _there_and_back(module.LigerDyTFunction, draw, rows, alpha, _row(draw, rows), _row(draw, rows))


# Activations


@CASES.of(f"{_OPS}.swiglu")
def swiglu(module: Any, draw: Draw) -> None:
    gate = _rows(draw)
    _there_and_back(module.LigerSiLUMulFunction, draw, gate, draw.floats(*gate.shape, dtype=gate.dtype))


@CASES.of(f"{_OPS}.swiglu")
def swiglu_of_one_tensor(module: Any, draw: Draw) -> None:
    _there_and_back(module.LigerFusedGateUpSiLUMulFunction, draw, _rows(draw)[:, : draw.one_of(8, 100, 256)])


@CASES.of(f"{_OPS}.geglu")
def geglu(module: Any, draw: Draw) -> None:
    gate = _rows(draw)
    _there_and_back(module.LigerGELUMulFunction, draw, gate, draw.floats(*gate.shape, dtype=gate.dtype))


@CASES.of(f"{_OPS}.relu_squared")
def relu_squared(module: Any, draw: Draw) -> None:
    _there_and_back(module.LigerReLUSquaredFunction, draw, _rows(draw))


@CASES.of(f"{_OPS}.softmax")
def softmax(module: Any, draw: Draw) -> None:
    _there_and_back(module.LigerSoftmaxFunction, draw, _rows(draw, scale=3.0))


@CASES.of(f"{_OPS}.softmax", rejected=True)
def softmax_in_several_blocks(module: Any, draw: Draw) -> None:
    """No caller comes here: a block holds every row that is allowed."""
    rows = _rows(draw)
    result, gradient = torch.empty_like(rows), draw.floats(*rows.shape, dtype=rows.dtype)
    block, stride = draw.one_of(4, 32, 64), rows.stride(0)
    module._softmax_multi_block_forward_kernel[(len(rows),)](
        result, stride, rows, stride, rows.shape[1], BLOCK_SIZE=block
    )
    module._softmax_backward(gradient, result, block, 4, True)


@CASES.of(f"{_OPS}.sparsemax")
def sparsemax(module: Any, draw: Draw) -> None:
    _there_and_back(module.LigerSparsemaxFunction, draw, _rows(draw).float(), -1)


@CASES.of(f"{_OPS}.multi_token_attention")
def masks_of_attention(module: Any, draw: Draw) -> None:
    scores = draw.floats(2, draw.one_of(4, 9, 20), draw.one_of(4, 9, 20))
    module._mask_inf_forward(scores)
    module._mask_zero_backward(scores)


# Positions


def _heads(draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, shape (batch, heads, tokens, head size)."""
    tokens, size = draw.one_of(2, 5, 3), draw.one_of(8, 16, 24)
    return draw.floats(2, draw.one_of(2, 4, 3), tokens, size), draw.floats(2, draw.one_of(1, 2, 3), tokens, size)


@CASES.of(f"{_OPS}.rope")
def rope(module: Any, draw: Draw) -> None:
    queries, keys = _heads(draw)
    angles = draw.floats(1, *queries.shape[2:])
    _there_and_back(module.LigerRopeFunction, draw, queries, keys, angles.cos(), angles.sin())


@CASES.of(f"{_OPS}.rope", conflicts=True)
def rope_of_one_token(module: Any, draw: Draw) -> None:
    """Sequences of one token: a fault of the package.

    It takes the stride of the tokens for the distance of one sequence's token from the next sequence's. PyTorch may say
    anything of the stride of a dimension of size one, and says the size of a head: programs overlap.
    """
    queries, keys = draw.floats(2, draw.one_of(2, 4, 3), 1, 8), draw.floats(2, 1, 1, 8)
    angles = draw.floats(1, 1, 8)
    module.rope_forward(queries, keys, angles.cos(), angles.sin())


@CASES.of(f"{_OPS}.qwen2vl_mrope")
def rope_of_three_sections(module: Any, draw: Draw) -> None:
    queries, keys = _heads(draw)
    angles = draw.floats(3, 2, *queries.shape[2:])
    _there_and_back(module.LigerQwen2VLMRopeFunction, draw, queries, keys, angles.cos(), angles.sin(), [2, 1, 1])


@CASES.of(f"{_OPS}.llama4_rope")
def rope_of_complex_numbers(module: Any, draw: Draw) -> None:
    queries, keys = (heads.transpose(1, 2).contiguous() for heads in _heads(draw))
    angles = draw.floats(queries.shape[1], queries.shape[-1] // 2)
    _there_and_back(module.LigerLlama4RopeFunction, draw, queries, keys, torch.polar(torch.ones_like(angles), angles))


# Losses


@CASES.of(f"{_OPS}.cross_entropy")
def cross_entropy(module: Any, draw: Draw) -> None:
    logits = _rows(draw, scale=3.0)
    targets = draw.ints(0, logits.shape[1], len(logits), dtype=torch.int64)
    targets[1:2] = -100  # ignored
    smoothing, cap = draw.one_of(0.0, 0.1, 0.0), draw.one_of(None, None, 30.0)
    _there_and_back(
        module.LigerCrossEntropyFunction, draw, logits, targets, None, -100, 1e-4, smoothing, "mean", cap, True
    )


@CASES.of(f"{_OPS}.kl_div")
def divergence(module: Any, draw: Draw) -> None:
    rows = _rows(draw).float()
    guess, truth = rows.log_softmax(-1), draw.floats(*rows.shape).softmax(-1)
    _there_and_back(module.LigerKLDivLossFunction, draw, guess, truth, draw.one_of("batchmean", "none", "sum"))


@CASES.of(f"{_OPS}.tvd")
def total_variation(module: Any, draw: Draw) -> None:
    rows = _rows(draw).float()
    _there_and_back(module.LigerTVDLossFunction, draw, rows.softmax(-1), draw.floats(*rows.shape).softmax(-1))


@CASES.of(f"{_OPS}.jsd")
def jensen_shannon(module: Any, draw: Draw) -> None:
    rows = _rows(draw).float()
    guess, truth = rows.log_softmax(-1), draw.floats(*rows.shape).log_softmax(-1)
    labels = draw.ints(0, 3, len(rows), dtype=torch.int64)
    stride, losses, gradient = rows.stride(0), torch.zeros_like(rows), torch.empty_like(rows)
    module._jsd_kernel[(len(rows),)](
        *(guess, stride, truth, stride, losses, stride, gradient, stride, labels),
        beta=draw.one_of(0.5, 0.0, 1.0),
        n_non_ignore=len(rows),
        ignore_index=1,
        n_cols=rows.shape[1],
        BLOCK_SIZE=draw.one_of(8, 64, 512),
        HAS_LABEL=draw.size > 0,
    )


@CASES.of(f"{_OPS}.grpo_loss")
def selected_log_softmax(module: Any, draw: Draw) -> None:
    logits, tokens = _completions(draw)
    module.fused_selective_log_softmax(logits, tokens, 0.9, draw.ints(0, 2, *tokens.shape))


@CASES.of(f"{_OPS}.grpo_loss")
def policy_loss(module: Any, draw: Draw) -> None:
    logits, tokens = _completions(draw)
    old, reference = draw.floats(*tokens.shape, scale=0.1) - 3, draw.floats(*tokens.shape, scale=0.1) - 3
    mask, level = draw.ints(0, 2, *tokens.shape), draw.one_of("token", "token", "sequence")
    mask[:, 0] = 1
    options = (0.9, 0.04, 0.2, 0.4, False, "grpo", None, True, level)
    _there_and_back(
        module.GrpoLossFunction, draw, logits, old, reference, tokens, draw.floats(len(tokens)), mask, *options
    )


def _completions(draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, shape (batch, tokens + 1, vocabulary), and tokens, shape (batch, tokens)."""
    batch, tokens, vocabulary = draw.one_of(1, 2, 2), draw.one_of(3, 4, 6), draw.one_of(9, 100, 2100)
    logits = draw.floats(batch, tokens + 1, vocabulary, scale=2.0)
    return logits, draw.ints(0, vocabulary, batch, tokens, dtype=torch.int64)


# The rest


@CASES.of(f"{_OPS}.experimental.embedding")
def embedding(module: Any, draw: Draw) -> None:
    table = draw.floats(20, draw.one_of(8, 17, 40))
    _there_and_back(module.LigerEmbeddingFunction, draw, table, draw.ints(0, 20, draw.one_of(3, 9, 30)))


@CASES.of(f"{_OPS}.attn_res", ordered=True)
def residual_attention(module: Any, draw: Draw) -> None:
    """Adds the gradients of weights atomically."""
    size = draw.one_of(8, 30, 65)
    blocks = draw.floats(draw.one_of(1, 3, 5), 2, 3, size)
    _there_and_back(module.LigerAttnResFunction, draw, blocks, draw.floats(size), draw.floats(size), 1e-6)


@CASES.of(f"{_OPS}.fused_moe_kernels")
def histogram_of_experts(module: Any, draw: Draw) -> None:
    tokens, tiles = draw.one_of(5, 32, 50), draw.one_of(1, 2, 4)
    counts, experts = torch.full((6, tiles), 9, dtype=torch.int32), draw.ints(0, 6, tokens, 3)
    module._moe_router_histogram_kernel[(tiles,)](
        *(experts, counts, tokens), E=6, n_tiles=tiles, TOKENS_PER_TILE=16, K_POW2=4, K=3, E_POW2=8
    )
