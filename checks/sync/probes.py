"""Calls of which it was measured on an H200 whether they make the host wait.

Each probe is one call on fresh tensors. They are the common table of the virtual device, of the trap on a GPU, and of
the calibration that measures them anew: a kernel is parked in front, and a call that takes as long as the kernel waits.

Measured with torch 2.11 and driver 580: 96 calls, 47 of which wait.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor


@dataclass
class Bench:
    """Tensors that the probes use, made before the kernel is parked.

    Attributes:
        x: [64] float32 on the device; ``square``: [16, 16] float32, well conditioned; ``many``: [1000, 100] int64.
        index: [8] int64 on the device, below 8; ``mask``: [64] bool on the device, 8 of them true.
        zero: 0-dim int64 on the device.
        page, pin: [64] float32 in pageable and in pinned host memory; ``big_page``, ``big_pin``: 16 MiB of each.
        gapped: [64, 32] view of every second column of pinned memory.
        event, stream, other: recorded event; current stream; another stream.
    """

    x: Tensor
    square: Tensor
    many: Tensor
    index: Tensor
    mask: Tensor
    zero: Tensor
    page: Tensor
    pin: Tensor
    big_page: Tensor
    big_pin: Tensor
    gapped: Tensor
    event: Any
    stream: Any
    other: Any


def make_bench() -> Bench:
    """The tensors of one probe, on the device that is there; all of it is on the device when this returns."""
    index = torch.arange(8, device="cuda")
    mask = torch.zeros(64, dtype=torch.bool, device="cuda")
    mask[:8] = True
    bench = Bench(
        x=torch.linspace(0, 1, 64, device="cuda"),
        square=torch.eye(16, device="cuda") * 2,
        many=torch.arange(100_000, device="cuda").reshape(1000, 100) % 977,
        index=index,
        mask=mask,
        zero=torch.zeros((), dtype=torch.int64, device="cuda"),
        page=torch.arange(64, dtype=torch.float32),
        pin=torch.arange(64, dtype=torch.float32).pin_memory(),
        big_page=torch.zeros(4 << 20),
        big_pin=torch.zeros(4 << 20).pin_memory(),
        gapped=torch.zeros(64, 64).pin_memory()[:, ::2],
        event=torch.cuda.Event(),
        stream=torch.cuda.current_stream(),
        other=torch.cuda.Stream(),
    )
    torch.cuda.synchronize()
    return bench


Call: TypeAlias = Callable[[Bench], object]


def _assign(tensor: Tensor, index: Any, value: Any) -> None:
    tensor[index] = value


def _record_and_synchronize(bench: Bench) -> None:
    bench.event.record()
    bench.event.synchronize()


def _record_and_query(bench: Bench) -> bool:
    bench.event.record()
    return bool(bench.event.query())


#: Calls that wait, by the name that they have in the table of measurements.
WAITING: Mapping[str, Call] = MappingProxyType(
    {
        "item": lambda b: b.x[0].item(),
        "int()": lambda b: int(b.zero),
        "bool()": lambda b: bool(b.zero),
        "float()": lambda b: float(b.x[0]),
        "if any": lambda b: 1 if b.mask.any() else 0,
        "tolist": lambda b: b.x.tolist(),
        "cpu": lambda b: b.x.cpu(),
        "to_cpu": lambda b: b.x.to("cpu"),
        "numpy_after_cpu": lambda b: b.x.cpu().numpy(),
        "nonzero": lambda b: b.mask.nonzero(),
        "where1": lambda b: torch.where(b.mask),
        "masked_select": lambda b: torch.masked_select(b.x, b.mask),
        "boolidx": lambda b: b.x[b.mask],
        "boolidx_assign_tensor": lambda b: _assign(b.x, b.mask, b.square[0, :8]),
        "cpu_idx_on_gpu": lambda b: b.x[torch.tensor([1, 2])],
        "setitem_pyfloat": lambda b: _assign(b.x, 3, 2.0),
        "setitem_cpu_tensor_scalar": lambda b: _assign(b.x, 3, torch.tensor(2.0)),
        "setitem_list": lambda b: _assign(b.x, [1, 2], 2.0),
        "slice_by_gpu_scalar": lambda b: b.x[: b.zero],
        "select_by_gpu_scalar": lambda b: b.x.select(0, b.zero),  # type: ignore[arg-type]
        "unique": lambda b: b.many.unique(),
        "repeat_interleave_tensor": lambda b: torch.repeat_interleave(b.x[:8], b.index),
        "equal": lambda b: torch.equal(b.x, b.x + 1),
        "allclose": lambda b: torch.allclose(b.x, b.x + 1),
        "repr": lambda b: repr(b.x),
        "bincount": lambda b: torch.bincount(b.index),
        "bincount_minlength": lambda b: torch.bincount(b.index, minlength=16),
        "histc": lambda b: torch.histc(b.x, bins=4),
        "one_hot": lambda b: torch.nn.functional.one_hot(b.index),
        "tensor_list_dev": lambda b: torch.tensor([1.0, 2.0], device="cuda"),
        "tensor_scalar_dev": lambda b: torch.tensor(1.0, device="cuda"),
        "as_tensor_np": lambda b: torch.as_tensor(b.page.numpy(), device="cuda"),
        "page.cuda()": lambda b: b.page.cuda(),
        "pagebig_nb": lambda b: b.big_page.to("cuda", non_blocking=True),
        "pin.cuda()": lambda b: b.pin.cuda(),
        "copy_ gpu<-pin": lambda b: b.x.copy_(b.pin),
        "copy_ page<-gpu nb": lambda b: b.page.copy_(b.x, non_blocking=True),
        "cuda.synchronize": lambda b: torch.cuda.synchronize(),
        "accel.sync": lambda b: torch.accelerator.synchronize(),
        "stream.synchronize": lambda b: b.stream.synchronize(),
        "event.synchronize": _record_and_synchronize,
        "empty_cache": lambda b: torch.cuda.empty_cache(),
        "linalg.inv": lambda b: torch.linalg.inv(b.square),
        "linalg.solve": lambda b: torch.linalg.solve(b.square, b.square),
        "isin": lambda b: torch.isin(b.many[0], b.many),
        "pickle": lambda b: torch.save(b.x, io.BytesIO()),
        "x.__contains__": lambda b: 0.5 in b.x,
    }
)

#: Calls that do not wait.
FREE: Mapping[str, Call] = MappingProxyType(
    {
        "to_cpu_nb": lambda b: b.x.to("cpu", non_blocking=True),
        "boolidx_assign_scalar": lambda b: _assign(b.x, b.mask, 0.0),
        "multinomial": lambda b: torch.multinomial(b.x, 4),
        "topk": lambda b: b.x.topk(4),
        "sort": lambda b: b.x.sort(),
        "cumsum": lambda b: b.x.cumsum(0),
        "repeat_interleave_outsize": lambda b: torch.repeat_interleave(b.x[:8], b.index, output_size=28),
        "one_hot_n": lambda b: torch.nn.functional.one_hot(b.index, 8),
        "full": lambda b: torch.full((4,), 2.0, device="cuda"),
        "arange": lambda b: torch.arange(4, device="cuda"),
        "page.cuda_nb": lambda b: b.page.cuda(non_blocking=True),
        "pin_nb": lambda b: b.pin.to("cuda", non_blocking=True),
        "pinbig_nb": lambda b: b.big_pin.to("cuda", non_blocking=True),
        "copy_ gpu<-page nb": lambda b: b.x.copy_(b.page, non_blocking=True),
        "copy_ gpu<-pin nb": lambda b: b.x.copy_(b.pin, non_blocking=True),
        "copy_ pin<-gpu nb": lambda b: b.pin.copy_(b.x, non_blocking=True),
        "noncontig pin nb": lambda b: b.gapped.to("cuda", non_blocking=True),
        "dtype-mix pin->gpu nb": lambda b: b.x.to(torch.float16).copy_(b.pin, non_blocking=True),
        "event.query": _record_and_query,
        "stream.query": lambda b: b.stream.query(),
        "wait_stream": lambda b: b.other.wait_stream(b.stream),
        "pin_memory()": lambda b: b.page.pin_memory(),
        "empty_pinned_new": lambda b: torch.empty(64, pin_memory=True),
        "big_alloc_cudaMalloc": lambda b: torch.empty(32 << 20, dtype=torch.uint8, device="cuda"),
        "mem_get_info": lambda b: torch.cuda.mem_get_info(),
        "memory_allocated": lambda b: torch.cuda.memory_allocated(),
        "inv_ex": lambda b: torch.linalg.inv_ex(b.square),
        "clamp_tensor": lambda b: b.x.clamp(max=b.x[1]),
        "add_cpu_scalar_tensor": lambda b: b.x + torch.tensor(1.0),
        "randperm": lambda b: torch.randperm(8, device="cuda"),
        "manual_seed": lambda b: torch.cuda.manual_seed(1),
        "bernoulli": lambda b: torch.bernoulli(b.x),
        "nested_pad": lambda b: torch.nn.utils.rnn.pad_sequence([b.x[:2], b.x[:4]]),
        "assert_async": lambda b: torch._assert_async(b.mask.any()),
        "deepcopy": lambda b: copy.deepcopy(b.x),
        "iter": lambda b: list(iter(b.x[:4])),
        "hash": lambda b: hash(b.x),
        "len": lambda b: len(b.x),
        "scatter": lambda b: torch.zeros_like(b.x).scatter(0, b.index, b.x[:8]),
        "index_select": lambda b: b.x.index_select(0, b.index),
        "max_dim": lambda b: b.square.max(dim=0),
        "std": lambda b: b.x.std(),
        "quantile": lambda b: b.x.quantile(0.5),
        "median": lambda b: b.x.median(),
        "mode": lambda b: b.x.mode(),
        "kthvalue": lambda b: b.x.kthvalue(3),
        "searchsorted": lambda b: torch.searchsorted(b.x, b.x[:4]),
        "cdist": lambda b: torch.cdist(b.square, b.square),
        "tensor_split": lambda b: b.x.tensor_split(4),
    }
)
