"""Kernels that between them make Triton's front end print every operation, and the reference runner's own.

Each has a golden file for each version of Triton that has what it uses, in ``golden/<version>/<name>.ttir``: what the
front end of that version prints, so that the reader is tested on all versions whichever is installed. To write those of
the installed version again, after a kernel here was changed or a version was added::

    python -m tests.checks.triton_cpu.golden_kernels

from the root of the repository, once with each version; ``PYTHONPATH`` may name a folder with another Triton.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

from mrv2.checks.triton_cpu import frontend
from mrv2.refrunner.kernels import block_table, draw, input_prep, staged_write

GOLDEN = Path(__file__).parent / "golden"
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


@dataclass(frozen=True)
class Case:
    """One variant of a kernel; ``versions`` are the first and last minor version of Triton 3 that compile it."""

    kernel: Any
    signature: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[int, int] = (6, 99)

    @property
    def here(self) -> bool:
        """Whether the installed Triton compiles it."""
        return self.versions[0] <= VERSION[1] <= self.versions[1]

    def ttir(self) -> str:
        return frontend.ttir(self.kernel, self.signature, self.constants, self.options)


@triton.jit
def floats(p, q):
    lanes = tl.arange(0, 16)
    x = tl.load(p + lanes)
    y = tl.exp(x) + tl.exp2(x) + tl.log(x) + tl.log2(x) + tl.sin(x) + tl.cos(x) + tl.erf(x)
    y += tl.sqrt(x) + tl.rsqrt(x) + tl.sqrt_rn(x) + tl.div_rn(x, y) + tl.floor(x) + tl.ceil(x) + tl.abs(x)
    y += tl.fma(x, x, y) + tl.sigmoid(x) + tl.fdiv(x, y) + x % y - (-x) * x / y
    y += tl.clamp(x, 0.0, 1.0) + tl.clamp(x, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    y += tl.minimum(x, y) + tl.maximum(x, y)
    y += tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL) + tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    tl.store(q + lanes, y)


@triton.jit
def comparisons(p, r, n):
    lanes = tl.arange(0, 16)
    x, i = tl.load(p + lanes), tl.load(r + lanes)
    u = i.to(tl.uint32)
    y = tl.where(x > 0, x, 1.0) + tl.where(x >= 0, x, 1.0) + tl.where(x < 2, x, 1.0)
    y += tl.where(x <= 0, x, 1.0) + tl.where(x == 0, x, 1.0) + tl.where(x != 2, x, 1.0)
    i += (i > n).to(tl.int32) + (i >= n) + (i < n) + (i <= n) + (i == n) + (i != n)
    i += (u > 3).to(tl.int32) + (u >= 3) + (u < 4) + (u <= 5)
    tl.store(p + lanes, tl.where(n > 3, y, x))
    tl.store(r + lanes, i)


@triton.jit
def integers(r, n):
    lanes = tl.arange(0, 16)
    i = tl.load(r + lanes)
    i += i // n + i % n + i * i - i & i | i ^ i << 2 >> n
    u = i.to(tl.uint32)
    u += u // 3 + u % n.to(tl.uint32) >> 2
    u += tl.umulhi(u, u) + tl.minimum(u, u + 1) + tl.maximum(u, u + 5)
    i += tl.minimum(i, n) + tl.maximum(i, n) + tl.abs(i) + tl.cdiv(i, 3) + (~i)
    tl.store(r + lanes, i + u.to(tl.int32) // 2 + i.to(tl.int64) * 5)


@triton.jit
def casts(p, r, h, b):
    lanes = tl.arange(0, 16)
    x, i = tl.load(p + lanes), tl.load(r + lanes)
    tl.store(h + lanes, x.to(tl.float16))
    tl.store(b + lanes, x.to(tl.bfloat16))
    tl.store(h + lanes, x.to(tl.float16, fp_downcast_rounding="rtz"))
    tl.store(p + lanes, tl.load(h + lanes).to(tl.float32) + x.to(tl.float64) + i.to(tl.uint32) + i)
    tl.store(
        r + lanes, x.to(tl.int32) + x.to(tl.uint32) + x.to(tl.int8) + i.to(tl.uint8) + x.to(tl.int32, bitcast=True)
    )
    tl.store(p + lanes, x.to(tl.float8e5).to(tl.float32) + x.to(tl.float8e4nv).to(tl.float16))
    tl.store(p + lanes, x.to(tl.float8e5, fp_downcast_rounding="rtz").to(tl.float32))


@triton.jit
def constants(p, h, r):
    lanes = tl.arange(0, 16)
    x = tl.load(p + lanes)
    x = x * float("inf") + 1e-45 - float("nan") + 0.1 + 3.4e38 + 1e-10
    tl.store(p + lanes, x)
    tl.store(h + lanes, tl.load(h + lanes) + float("-inf") + 0.1)
    tl.store(r + lanes, tl.full((16,), -7, tl.int64) + tl.load(r + lanes) * 9223372036854775807)


@triton.jit
def loads(p, q, n):
    lanes = tl.program_id(0) * 16 + tl.num_programs(2) + tl.arange(0, 16)
    mask = lanes < n
    a = tl.load(p + lanes)
    b = tl.load(p + lanes, mask=mask, cache_modifier=".cg")
    c = tl.load(p + lanes, mask=mask, other=0.5, cache_modifier=".ca", eviction_policy="evict_last", volatile=True)
    tl.store(q + lanes, a, cache_modifier=".wb")
    tl.store(q + lanes, b + c, mask=mask, eviction_policy="evict_first")
    tl.store(q, tl.load(p + 1) + tl.load(p, mask=n > 3))


@triton.jit
def pointers_to_pointers(table, n):
    inner = tl.load(table + tl.program_id(1))
    tl.store(inner, tl.load(inner + n) + 1.0)
    tl.store(table + tl.arange(0, 4), tl.load(table + 4 + tl.arange(0, 4)))


@triton.jit
def pointers(addresses, r):
    target = tl.load(addresses + tl.program_id(1)).to(tl.pointer_type(tl.float32))
    tl.store(target + tl.arange(0, 16), 1.0)
    numbers = (r + tl.arange(0, 16)).to(tl.int64)
    tl.store(numbers.to(tl.pointer_type(tl.int64)), numbers)
    tl.store(r.to(tl.pointer_type(tl.int8)), 1)


@triton.jit
def tuples(pair, scale, n):
    tl.store(pair[0] + n, pair[1] * scale[1].to(tl.float32) + scale[0])


@triton.jit
def _sums(a, b, c, d):
    return a + c, tl.maximum(b, d)


@triton.jit
def reductions(p, r):
    rows, columns = tl.arange(0, 8)[:, None], tl.arange(0, 16)[None, :]
    x = tl.load(p + rows * 16 + columns)
    i = tl.load(r + rows * 16 + columns)
    out = tl.arange(0, 8)
    tl.store(p + out, tl.sum(x, 1) + tl.max(x, 1) + tl.min(x, 1))
    tl.store(r + out, tl.argmax(x, 1) + tl.argmin(x, 1, tie_break_left=False) + tl.xor_sum(i, 1))
    tl.store(r + out[:, None], tl.max(i, 1, keep_dims=True))
    a, b = tl.reduce((x, x * 2), 0, _sums)
    tl.store(p + tl.arange(0, 16), a + b)
    tl.store(p, tl.sum(x))


@triton.jit
def scans(p):
    lanes = tl.arange(0, 16)
    x = tl.load(p + lanes)
    a, b = tl.associative_scan((x, x + 1), 0, _sums, reverse=True)
    tl.store(p + lanes, tl.cumsum(x, 0) + tl.cumprod(x, 0, reverse=True) + a * b)


@triton.jit
def shapes(p):
    rows, columns = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    x = tl.load(p + rows * 8 + columns)
    tl.store(p + tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :], tl.trans(x))
    y = tl.permute(tl.reshape(x, (2, 2, 8)), (2, 0, 1))
    flat = tl.arange(0, 32)
    tl.store(p + flat, tl.reshape(y, (32,)) + tl.reshape(x, (32,), can_reorder=True))
    a, b = tl.split(tl.reshape(x, (16, 2)))
    tl.store(p + flat, tl.reshape(tl.join(b, a), (32,)) + tl.cat(a, b, can_reorder=True) + tl.interleave(a, b))
    tl.store(p + tl.arange(0, 1), tl.broadcast_to(tl.sum(x), (1,)))


@triton.jit
def one_element(p, r):
    x = tl.load(p + tl.arange(0, 1))
    tl.store(r, tl.reshape(x, ()))


@triton.jit
def lookups(p, r, n):
    lanes = tl.arange(0, 16)
    i = tl.load(r + lanes)
    tl.store(r + tl.arange(0, 8), tl.histogram(i, 8) + tl.histogram(i, 8, mask=lanes < n))
    tl.store(p + lanes, tl.gather(tl.load(p + lanes), i, 0))


@triton.jit
def sorting(p):
    lanes = tl.arange(0, 8)
    x = tl.load(p + lanes)
    tl.store(p + lanes, tl.sort(x, descending=True) + tl.flip(x, 0))


@triton.jit
def products(h, p, b):
    tile = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    x, y, z = tl.load(h + tile), tl.load(p + tile), tl.load(b + tile)
    sums = tl.dot(x, x, acc=y)
    sums = tl.dot(y, y, sums, input_precision="ieee") + tl.dot(y, y, input_precision="tf32x3", max_num_imprecise_acc=3)
    tl.store(p + tile, sums + tl.dot(z, z).to(tl.float32))


@triton.jit
def scaled_products(a, b, c, s, p):
    lanes = tl.arange(0, 128)
    left = tl.load(a + lanes[:, None] * 64 + tl.arange(0, 64)[None, :])
    right = tl.load(b + lanes[:, None] * 128 + lanes[None, :])
    other = tl.load(c + lanes[:, None] * 128 + lanes[None, :])
    scale = tl.load(s + lanes[:, None] * 4 + tl.arange(0, 4)[None, :])
    sums = tl.dot_scaled(left, scale, "e2m1", right, None, "e4m3")
    sums = tl.dot_scaled(other, None, "e5m2", right, scale, "e4m3", acc=sums, fast_math=True)
    tl.store(p + lanes[:, None] * 128 + lanes[None, :], sums)


@triton.jit
def atomics(p, h, r, u, n):
    lanes = tl.arange(0, 16)
    i, x = tl.load(r + lanes), tl.load(p + lanes)
    tl.atomic_and(r + lanes, i)
    tl.atomic_or(r + lanes, i)
    tl.atomic_xor(r + lanes, i)
    tl.atomic_xchg(p + lanes, x)
    tl.atomic_max(r + lanes, i)
    tl.atomic_min(r + lanes, i, mask=lanes < n)
    tl.atomic_max(u + lanes, i.to(tl.uint32))
    tl.atomic_min(u + lanes, i.to(tl.uint32))
    tl.atomic_max(p + lanes, x)
    tl.atomic_add(h + lanes, x.to(tl.float16), sem="relaxed", scope="sys")
    tl.atomic_add(r, 1, sem="release", scope="gpu")
    tl.store(r + lanes, tl.atomic_cas(r + lanes, i, i, sem="acquire", scope="cta"))


@triton.jit
def ordered_accesses(r, n):
    lanes = tl.arange(0, 16)
    value = tl.atomic_load(r, sem="acquire")
    tl.atomic_store(r, value, sem="release", scope="sys", mask=n > 3)
    tl.store(r + lanes, tl.atomic_load(r + lanes, mask=lanes < n))
    tl.store(r, tl.atomic_poll(r, 1))


@triton.jit
def loops(p, n, m):
    lanes = tl.arange(0, 16)
    total, count = tl.zeros((16,), tl.float32), 0
    for i in range(0, n, 2):
        total += tl.load(p + i + lanes)
        count += i
    while count > 0:
        count = count // 2 - 1
        total += count
    for i in tl.range(m, num_stages=3, loop_unroll_factor=2, disallow_acc_multi_buffer=True, flatten=True):
        tl.store(p + i, 1.0)
    for _ in range(m.to(tl.int64), 7):
        if n > 5:
            total *= 2
    if n > 5 and m < 3:
        total = total * 3
    elif m > 7:
        total = total + 1
        tl.store(p, 2.0)
    tl.store(p + lanes, total)


@triton.jit
def early_return(p, n):
    if n == 7:
        return
    if n > 7:
        if n > 9:
            return
        tl.store(p, 3.0)
    tl.store(p, 1.0)


@triton.jit(noinline=True)
def _outlined(x, p):
    tl.store(p, x)
    return x * 2, x + 1


@triton.jit
def calls(p, n):
    a, b = _outlined(n, p)
    tl.store(p + 1, a + b)
    _outlined(a, p + 2)


@triton.jit
def _distance(a, b):
    if a > b:
        return a - b, a
    else:  # noqa: RET505 - Triton wants both
        return b - a, b


@triton.jit
def mapped(r):
    lanes = tl.arange(0, 16)
    a, b = tl.map_elementwise(_distance, tl.load(r + lanes), lanes * 3)
    tl.store(r + lanes, a + b)


@triton.jit
def assembly(r, p):
    lanes = tl.arange(0, 16)
    tl.store(r + lanes, tl.inline_asm_elementwise("add.u32 $0, $1, $2;", "=r,r,r", [lanes, lanes], tl.int32, True, 1))
    a, b = tl.inline_asm_elementwise(
        """{ // both
        mov.b32 $0, "$2";
        }""",
        "=r,=r,r",
        [lanes],
        dtype=(tl.int32, tl.float32),
        is_pure=False,
        pack=1,
    )
    tl.store(p + lanes, a + b)
    tl.store(r, tl.inline_asm_elementwise("mov.u32 $0, %clock;", "=r", [], tl.int32, False, 1))


@triton.jit
def libraries(p, seed):
    lanes = tl.arange(0, 16)
    x = tl.load(p + lanes)
    tl.store(p + lanes, libdevice.log1p(x) + libdevice.pow(x, x) + tl.rand(seed, lanes))


@triton.jit
def messages(p, n):
    lanes = tl.arange(0, 16)
    x = tl.load(p + lanes)
    tl.device_assert(x > 0, 'a "quoted" \\ message\nof two lines, é')
    tl.device_print("values", x, n, hex=True)
    tl.device_print("nothing")
    tl.assume(n > 0)
    tl.debug_barrier()
    tl.store(p + lanes, x)


@triton.jit
def hints(r, n):
    lanes = tl.arange(0, 16)
    i = tl.load(r + lanes)
    tl.store(r + tl.multiple_of(i, [16]), tl.max_contiguous(tl.max_constancy(i * 3, [4]), [2]))
    tl.store(r + tl.multiple_of(n * 2, 16), 1)


@triton.jit
def block_pointers(p, n):
    block = tl.make_block_ptr(p, (n, n), (n, 1), (0, 0), (16, 16), (1, 0))
    total = tl.load(block, boundary_check=(0, 1), padding_option="nan")
    for _ in range(n):
        block = tl.advance(block, (16, 0))
        total += tl.load(block, boundary_check=(1,), padding_option="zero")
    tl.store(block, total, boundary_check=(0,))
    tl.store(block, total)


@triton.jit
def descriptors(given, rows, p, r, n):
    x = given.load([0, n])
    given.store([n, 0], x)
    made = tl.make_tensor_descriptor(p, [n, n], [n, 1], [16, 16], padding_option="nan")
    made.store([n, n], made.load([0, 0]) + 1)
    made.atomic_add([n, n], made.load([0, 0]))
    picked = tl.load(r + tl.arange(0, 16))
    rows.scatter(rows.gather(picked, n), picked, n)


_F32, _F16, _I32 = "*fp32", "*fp16", "*i32"
_TILES = {"given": "tensordesc<fp16[16,16]>", "rows": "tensordesc<fp32[1,16]>"}

CASES: dict[str, Case] = {
    "floats": Case(floats, {"p": _F32, "q": _F32}),
    "comparisons": Case(comparisons, {"p": _F32, "r": _I32, "n": "i32"}),
    "integers": Case(integers, {"r": _I32, "n": "i32"}),
    "casts": Case(casts, {"p": _F32, "r": _I32, "h": _F16, "b": "*bf16"}),
    "constants": Case(constants, {"p": _F32, "h": _F16, "r": "*i64"}),
    "loads": Case(loads, {"p": _F32, "q": _F32, "n": "i32"}),
    "pointers_to_pointers": Case(pointers_to_pointers, {"table": "**fp32", "n": "i64"}, versions=(6, 8)),
    "pointers": Case(pointers, {"addresses": "*u64", "r": "*i64"}),
    "tuples": Case(tuples, {"pair": (_F32, "fp32"), "scale": ("constexpr", "i32"), "n": "i32"}, {(1, 0): 3}),
    "reductions": Case(reductions, {"p": _F32, "r": _I32}),
    "scans": Case(scans, {"p": _F32}),
    "shapes": Case(shapes, {"p": _F32}),
    "one_element": Case(one_element, {"p": _F32, "r": _I32}),
    "lookups": Case(lookups, {"p": _F32, "r": _I32, "n": "i32"}),
    "sorting": Case(sorting, {"p": _F32}),
    "products": Case(products, {"h": _F16, "p": _F32, "b": "*i8"}),
    "scaled_products": Case(scaled_products, {"a": "*u8", "b": "*fp8e4nv", "c": "*fp8e5", "s": "*u8", "p": _F32}),
    "atomics": Case(atomics, {"p": _F32, "h": _F16, "r": _I32, "u": "*u32", "n": "i32"}),
    "ordered_accesses": Case(ordered_accesses, {"r": _I32, "n": "i32"}, versions=(9, 99)),
    "loops": Case(loops, {"p": _F32, "n": "i32", "m": "i32"}),
    "early_return": Case(early_return, {"p": _F32, "n": "i32"}),
    "calls": Case(calls, {"p": _I32, "n": "i32"}),
    "mapped": Case(mapped, {"r": _I32}),
    "assembly": Case(assembly, {"r": _I32, "p": _F32}),
    "libraries": Case(libraries, {"p": _F32, "seed": "i64"}),
    "messages": Case(messages, {"p": _F32, "n": "i32"}, options={"debug": True, "sanitize_overflow": False}),
    "sanitized": Case(tuples, {"pair": (_F32, "fp32"), "scale": ("i32", "i32"), "n": "i32"}, options={"debug": True}),
    "hints": Case(hints, {"r": _I32, "n": "i32"}),
    "block_pointers": Case(block_pointers, {"p": _F32, "n": "i32"}, versions=(6, 8)),
    "descriptors": Case(descriptors, {**_TILES, "p": _F32, "r": _I32, "n": "i32"}),
}


def _runner_case(kernel: Any, numbers: tuple[str, ...] = (), longs: tuple[str, ...] = (), **constants: int) -> Case:
    """A kernel of the reference runner: pointers to int32 but for those to int64, and int32 numbers."""
    kinds = dict.fromkeys(kernel.arg_names, "*i32")
    kinds |= dict.fromkeys(numbers, "i32") | dict.fromkeys(longs, "*i64")
    return Case(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)


_FLOATS = ("logits_ptr", "processed_ptr", "temperature_ptr", "float_ptr", "bound_ptr", "value_ptr", "statistics_ptr")


def _sampler_case(kernel: Any, numbers: tuple[str, ...], **constants: int) -> Case:
    case = _runner_case(kernel, numbers, ("seed_ptr",) if "seed_ptr" in kernel.arg_names else (), **constants)
    kinds = {name: "*fp32" if name in _FLOATS else kind for name, kind in case.signature.items()}
    return Case(kernel, kinds, constants)


OF_BLOCK_TABLES = (
    "group_stride", "block_table_stride", "batch_group_stride", "batch_table_stride", "num_requests", "columns",
    "capacity",
)  # fmt: skip
OF_SAMPLER = ("logits_stride", "stages_stride", "temperature_stride", "vocab_size", "num_groups")
BLOCKS_SAMPLED = {
    "PROCESSED": 1, "STATISTICS": 1, "RIVALS": 8, "GROUPS": 4, "SEARCH": 8, "LANES": 16, "BLOCK": 64, "FEW": 1,
    "CHUNK": 8, "GROUP": 16,
}  # fmt: skip
BLOCKS_COMBINED = {
    "PROCESSED": 1, "STATISTICS": 1, "LOGARITHM": 1, "GROUPS": 4, "LANES": 16, "BLOCK": 64, "PARTS": 8, "GROUP": 16,
}  # fmt: skip
RUNNER = {
    "sample_blocks": _sampler_case(
        draw.sample_blocks, (*OF_SAMPLER, "num_parts", "part_blocks", "plane"), **BLOCKS_SAMPLED
    ),
    "combine_blocks": _sampler_case(
        draw.combine_blocks, (*OF_SAMPLER, "count", "num_parts", "part_blocks"), **BLOCKS_COMBINED
    ),
    "prepare_block_tables": _runner_case(
        block_table.prepare_block_tables,
        OF_BLOCK_TABLES,
        ("slot_mapping_ptr",),
        BLOCK_SIZE=16,
        BLOCK=64,
    ),
    "prepare_inputs": _runner_case(
        input_prep.prepare_inputs, ("token_ids_stride", "num_requests", "max_model_len"), ("positions_ptr",), BLOCK=64
    ),
    "post_update": _runner_case(input_prep.post_update, ("token_ids_stride", "max_model_len")),
    "apply_staged_writes": _runner_case(staged_write.apply_staged_writes, longs=("targets_ptr",), BLOCK=64),
}


CASES |= RUNNER


def portable(text: str) -> str:
    """TTIR in which files of this repository and of Triton have names that do not depend on the machine."""
    text = re.sub(r'"[^"]*/site-packages/triton/|"[^"]*/triton/(?=language/)', '"triton/', text)
    return text.replace(f'"{Path(__file__).parents[3]}/', '"')


def write() -> None:
    """Write the golden files of the installed version."""
    folder = GOLDEN / f"{VERSION[0]}.{VERSION[1]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        if case.here:
            (folder / f"{name}.ttir").write_text(portable(case.ttir()))


if __name__ == "__main__":  # by its own name, which is part of the names of device functions
    importlib.import_module("tests.checks.triton_cpu.golden_kernels").write()
