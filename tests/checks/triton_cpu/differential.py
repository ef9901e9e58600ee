"""One launch in Triton's interpreter and as compiled kernel, on copies of the same tensors.

Results agree if every byte of every tensor does. NaNs count as equal: which of two NaNs an operation returns, and with
what sign, is up to the order of operands in a machine instruction, and a GPU returns one pattern always.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from mrv2.checks.hooks.triton_language import interpreted_language, rewritten
from mrv2.checks.triton_cpu.launcher import compiled, language_lock, pack_blocks
from mrv2.checks.triton_cpu.log import LaunchResult
from mrv2.checks.triton_cpu.variants import Binder

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(
    kernel: JITFunction,
    grid: Sequence[int],
    *args: Any,
    audit: bool = True,
    truncate_bf16: bool = True,
    memory: Sequence[torch.Tensor] = (),
    **kwargs: Any,
) -> LaunchResult:
    """Run both and compare all tensors among the arguments; the tensors themselves stay as they are.

    Args:
        kernel: decorated with ``triton.jit``.
        grid: one to three extents.
        args: of the kernel.
        audit: whether the compiled kernel checks and logs.
        truncate_bf16: whether it rounds float32 to bfloat16 as the interpreter does.
        memory: further tensors that it may touch through pointers in memory, compared with nothing.
        kwargs: of the kernel.

    Returns:
        What the compiled launch did.
    """
    expected, expected_keywords = copied((args, kwargs))
    got, got_keywords = copied((args, kwargs))
    interpret(kernel, grid, *expected, **expected_keywords)
    result = launch(kernel, grid, *got, audit=audit, truncate_bf16=truncate_bf16, memory=memory, **got_keywords)
    assert result.stopped is None, result.error()
    assert not len(result.strays), result.strays
    compare(tensors_of((got, got_keywords)), tensors_of((expected, expected_keywords)))
    return result


def interpret(kernel: JITFunction, grid: Sequence[int], *args: Any, **kwargs: Any) -> None:
    """Run a launch in Triton's interpreter."""
    bound = kernel.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    constant = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    extents = (*grid, 1, 1)[:3]
    builder = interpreter.interpreter_builder
    with language_lock, interpreted_language(), np.errstate(all="ignore"):
        values = {
            name: value if name in constant else interpreter._implicit_cvt(value)
            for name, value in bound.arguments.items()
        }
        builder.set_grid_dim(*extents)
        for index in itertools.product(*map(range, extents)):
            builder.set_grid_idx(*index)
            rewritten(kernel.fn)(**values)


def launch(
    kernel: JITFunction,
    grid: Sequence[int],
    *args: Any,
    audit: bool = True,
    truncate_bf16: bool = True,
    memory: Sequence[torch.Tensor] = (),
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> LaunchResult:
    """Run a launch as compiled kernel; ``options`` go to ``CompiledKernel.launch``."""
    binder = Binder(kernel)
    call = binder.bind(args, kwargs)
    built = compiled(binder.variant(call), audit=audit, truncate_bf16=truncate_bf16)
    blocks = pack_blocks(_range(tensor) for tensor in (*tensors_of((args, kwargs)), *memory) if tensor.numel())
    extents = (*grid, 1, 1)[:3]
    return built.launch(built.pack(call.words), extents, blocks=blocks, **(options or {}))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def compare(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Compare tensors in pairs, as the module says.

    Raises:
        AssertionError: naming the first lanes that differ.
    """
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        differs = _different(ours, theirs)
        if differs.any():
            places = differs.nonzero()[:5].tolist()
            shown = [f"{place}: {ours[tuple(place)].item()} for {theirs[tuple(place)].item()}" for place in places]
            raise AssertionError(f"tensor {number} ({ours.dtype}): {int(differs.sum())} differ; {'; '.join(shown)}")


def _different(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    bits = _BITS[ours.element_size()]
    differs = ours.view(bits) != theirs.view(bits)
    return differs & ~(ours.isnan() & theirs.isnan()) if ours.is_floating_point() else differs


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors among arguments, those within tuples and descriptors too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, TensorDescriptor):
        return [value.base]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, tuple | list) else []


def copied(value: Any, copies: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """Arguments with copies of the tensors; tensors that shared memory still do."""
    copies = {} if copies is None else copies
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() not in copies:
            copies[storage.data_ptr()] = storage.clone()
        copy = copies[storage.data_ptr()]
        fresh = torch.empty(0, dtype=value.dtype)
        return fresh.set_(copy, value.storage_offset(), value.size(), value.stride())
    if isinstance(value, TensorDescriptor):
        return TensorDescriptor(
            copied(value.base, copies), value.shape, value.strides, value.block_shape, value.padding
        )
    if isinstance(value, Mapping):
        return {name: copied(item, copies) for name, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(copied(item, copies) for item in value)
    return value
