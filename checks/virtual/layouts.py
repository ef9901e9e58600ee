"""Shape, strides and type of a tensor as one interned object, with the bytes it touches.

Everything that depends only on the layout (which bytes, whether a copy of it is one transfer, what an operator's
output looks like) is computed once per layout and then found by identity. That keeps the cost of an operation flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..events import ByteRange

#: A strided tensor with more runs than this is described by its bounding box, and its accesses are only possible ones.
MAX_RUNS = 1024
#: Layouts remembered before the table starts anew; programs whose shapes change all the time must not grow it.
MAX_LAYOUTS = 1 << 16
_SMALL = 1 << 26


class Layout:
    """How a tensor lies in memory; two tensors of equal layout share one object.

    Attributes:
        shape: as torch gives it.
        stride: in elements.
        dtype: element type.
        nbytes: bytes of a dense tensor of this shape.
        runs: byte ranges relative to the first element, sorted and disjoint.
        span: bytes from the first element to the end of the last.
        exact: whether ``runs`` holds no byte that the tensor does not touch.
        contiguous: row-major without gaps.
        dense: some order of the dimensions is without gaps, so that a copy between equals is one transfer.
    """

    __slots__ = ("contiguous", "dense", "dtype", "exact", "nbytes", "preserved", "runs", "shape", "span", "stride")

    def __init__(self, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.runs, self.exact = _runs(shape, stride, dtype.itemsize)
        self.span = self.runs[-1][1] if self.runs else 0
        # Memory that nobody touches costs nothing; torch's meta tensors import half of its compiler.
        small = self.nbytes + self.span <= _SMALL
        model = torch.empty_strided(shape, stride, dtype=dtype, device="cpu" if small else "meta")
        self.contiguous = model.is_contiguous()
        kept = torch.empty_like(model)
        self.dense = kept.stride() == stride
        # The strides that a copy of such a tensor gets under torch.preserve_format.
        self.preserved: tuple[int, ...] = kept.stride()

    def ranges(self, address: int) -> tuple[ByteRange, ...]:
        """The bytes touched by a tensor of this layout whose first element lies at ``address``."""
        runs = self.runs
        if len(runs) == 1:
            low, high = runs[0]
            return ((address + low, address + high),)
        return tuple((address + low, address + high) for low, high in runs)

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


_layouts: dict[tuple[torch.Size, tuple[int, ...], torch.dtype], Layout] = {}


def intern_layout(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> Layout:
    """The layout object of these three."""
    key = (shape, stride, dtype)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= MAX_LAYOUTS:
            _layouts.clear()
        found = _layouts[key] = Layout(torch.Size(shape), tuple(stride), dtype)
    return found


def row_major(shape: Sequence[int], dtype: torch.dtype) -> Layout:
    """The layout of a contiguous tensor."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return intern_layout(torch.Size(shape), tuple(reversed(stride)), dtype)


def layout_of(tensor: Tensor) -> Layout:
    """The layout of a plain tensor; called below the modes."""
    return intern_layout(tensor.shape, tensor.stride(), tensor.dtype)


def tensor_ranges(tensor: Tensor) -> tuple[ByteRange, ...]:
    """The bytes of a plain tensor."""
    return layout_of(tensor).ranges(tensor.data_ptr())


def _runs(shape: torch.Size, stride: tuple[int, ...], itemsize: int) -> tuple[tuple[ByteRange, ...], bool]:
    if 0 in shape:
        return (), True
    dimensions = sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1 and step > 0)
    run = 1
    while dimensions and dimensions[0][0] <= run:
        step, size = dimensions.pop(0)
        run += step * (size - 1)
    if math.prod(size for _, size in dimensions) > MAX_RUNS:
        extent = sum(step * (size - 1) for step, size in dimensions) + run
        return ((0, extent * itemsize),), False
    starts = np.zeros(1, np.int64)
    for step, size in dimensions:
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * step).ravel()
    return _merged(np.unique(starts), run, itemsize), True


def _merged(starts: np.ndarray[tuple[int], np.dtype[np.int64]], run: int, itemsize: int) -> tuple[ByteRange, ...]:
    """Runs of ``run`` elements at sorted starts; windows that overlap or touch become one."""
    cuts = np.flatnonzero(np.diff(starts) > run)
    first = starts[np.concatenate(([0], cuts + 1))]
    last = starts[np.concatenate((cuts, [len(starts) - 1]))] + run
    return tuple(zip((first * itemsize).tolist(), (last * itemsize).tolist(), strict=True))
