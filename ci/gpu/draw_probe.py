"""Where the time of a small batch's draw goes: today's two launches beside other ways to divide the same work.

    python -m mrv2.ci.gpu.draw_probe FILE

Every way gives the tokens of the exact path, which is checked first. Microseconds a call in a CUDA graph, inputs out of
the cache. Exit codes: 0, 1 a draw differs, 2 no GPU or a wrong call.
"""
# ruff: noqa: ANN001, C901  # kernels, as in refrunner/kernels

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mrv2.ci.gpu.sampling_speed import drawing, inputs, microseconds, timed_draw
from mrv2.refrunner.kernels import draw as kernels
from mrv2.refrunner.kernels.launch import kernel
from mrv2.refrunner.sampling.blocks import LAUNCH

VOCAB = 151_936
UNIT = 128
best_of_groups, screen, search_all, settle = (
    kernels.best_of_groups, kernels.screen, kernels.search_all, kernels.settle,
)  # fmt: skip
_OFFSET, _RELATIVE, _UNIT, _NO_TOKEN = kernels._OFFSET, kernels._RELATIVE, kernels._UNIT, kernels._NO_TOKEN


@kernel
def parameters(index, logits_ptr, rows_ptr, positions_ptr, temperature_ptr, seed_ptr) -> tuple:  # type: ignore[type-arg]
    """What `sample_blocks` calls a row, of a row without stages."""
    table_row = tl.load(rows_ptr + index).to(tl.int64)
    stages = tl.full([], 0, tl.int32)
    return (
        logits_ptr, logits_ptr, rows_ptr, stages, tl.load(temperature_ptr + table_row), tl.load(seed_ptr + table_row),
        tl.load(positions_ptr + index),
    )  # fmt: skip


@kernel
def settle_row(
    row, bound, num_parts, part_blocks, vocab_size, GROUPS: tl.constexpr, LANES: tl.constexpr, ROW: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """As `settle`, over the lanes of all parts of a row."""
    temperature = row[4]
    lane = tl.arange(0, ROW)
    best_score = tl.full([], float("-inf"), tl.float32)
    best = tl.full([], _NO_TOKEN, tl.int32)
    line = tl.full([], float("-inf"), tl.float32)
    rivals = 1
    for _turn in range(8):
        if rivals > 0:
            chosen = tl.min(tl.where(bound == tl.max(bound, 0), lane, ROW), 0)
            begin = chosen // LANES * part_blocks * 128
            end = tl.minimum(begin + part_blocks * 128, vocab_size)
            for first_token in range(begin + chosen % LANES * 4, end, GROUPS * LANES * 4):
                best_score, best, _logits = best_of_groups(row, first_token, LANES * 4, end, best_score, best, GROUPS)
            line = best_score
            if temperature > 0.0:
                line = (best_score - _OFFSET - tl.abs(best_score) * _RELATIVE) * temperature
            bound = tl.where(lane == chosen, float("-inf"), bound)
            rivals = tl.sum((~(bound < line)).to(tl.int32), 0)
    return best_score, best, (rivals == 0) & (tl.abs(line) < float("inf"))


@kernel
def screen_deep(row, ahead, later, spread, begin, end, LANES: tl.constexpr) -> tl.tensor:
    """As `screen` without statistics, two blocks ahead."""
    BLOCK: tl.constexpr = LANES * 4
    top = tl.full([LANES], float("-inf"), tl.float32)
    for first_token in range(begin, end, BLOCK):
        token = first_token + 2 * BLOCK + tl.arange(0, BLOCK)
        logit = ahead
        ahead = later
        later = tl.load(row[0] + token, mask=token < end, other=float("-inf")).to(tl.float32)
        top = kernels.larger_or_nan(top, kernels.largest_bounds(logit, first_token, row, spread, LANES))
    return top


@kernel
def first(
    logits_ptr, logits_stride, rows_ptr, positions_ptr, temperature_ptr, seed_ptr, float_ptr, int_ptr, bound_ptr,
    counter_ptr, result_ptr, vocab_size, num_parts, part_blocks,
    WAY: tl.constexpr, HOIST: tl.constexpr, DEPTH: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr,
    ROW: tl.constexpr,
) -> None:  # fmt: skip
    """First launch of every way: 'read' reads only, 'parts' settles each part, 'rows' and 'one' store bounds."""
    LANES: tl.constexpr = BLOCK // 4
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    logits_ptr += index * logits_stride
    begin = part * part_blocks * 128
    end = tl.minimum(begin + part_blocks * 128, vocab_size)
    token = begin + tl.arange(0, BLOCK)
    ahead = tl.load(logits_ptr + token, mask=token < end, other=float("-inf")).to(tl.float32)
    if DEPTH == 2:
        later = tl.load(logits_ptr + token + BLOCK, mask=token + BLOCK < end, other=float("-inf")).to(tl.float32)
    if HOIST:
        tl.debug_barrier()
    if OVERLAP:
        gdc_launch_dependents()
    row = parameters(index, logits_ptr, rows_ptr, positions_ptr, temperature_ptr, seed_ptr)
    out = index * num_parts + part
    if WAY == "read":
        top = tl.full([BLOCK], float("-inf"), tl.float32)
        for first_token in range(begin, end, BLOCK):
            top = tl.maximum(top, ahead)
            token = first_token + DEPTH * BLOCK + tl.arange(0, BLOCK)
            if DEPTH == 2:
                ahead = later
                later = tl.load(logits_ptr + token, mask=token < end, other=float("-inf")).to(tl.float32)
            else:
                ahead = tl.load(logits_ptr + token, mask=token < end, other=float("-inf")).to(tl.float32)
        tl.store(float_ptr + out, tl.max(top, 0))
    else:
        spread = -_UNIT * row[4]
        cut = tl.full([], float("-inf"), tl.float32)
        if DEPTH == 2:
            bound = screen_deep(row, ahead, later, spread, begin, end, LANES)
        else:
            bound, _largest, _total = screen(row, ahead, cut, spread, begin, end, False, False, False, BLOCK)
        if WAY == "parts":
            best_score, best, settled = settle(row, bound, row[4], begin, end, 8, 8, BLOCK)
            if not settled:
                best_score, best, _missing, _first = search_all(row, begin, end, 128)
            tl.store(float_ptr + out, best_score)
            tl.store(int_ptr + out, best)
        else:
            tl.store(bound_ptr + out * LANES + tl.arange(0, LANES), bound)
            if WAY == "one":
                tl.debug_barrier()
                if tl.atomic_add(counter_ptr + index, 1) == num_parts - 1:
                    tl.debug_barrier()
                    lane = tl.arange(0, ROW)
                    bounds = tl.load(bound_ptr + index * num_parts * LANES + lane, mask=lane < num_parts * LANES,
                                     other=float("-inf"))  # fmt: skip
                    best_score, best, settled = settle_row(
                        row, bounds, num_parts, part_blocks, vocab_size, 16, LANES, ROW
                    )  # fmt: skip
                    if not settled:
                        best_score, best, _missing, _first = search_all(row, 0, vocab_size, 128)
                    tl.store(result_ptr + index, best)
                    tl.store(counter_ptr + index, 0)


@kernel
def second(
    logits_ptr, logits_stride, rows_ptr, positions_ptr, temperature_ptr, seed_ptr, float_ptr, int_ptr, bound_ptr,
    result_ptr, vocab_size, num_parts, part_blocks,
    WAY: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr, ROW: tl.constexpr,
) -> None:  # fmt: skip
    """Second launch of 'parts' and 'rows'."""
    LANES: tl.constexpr = BLOCK // 4
    index = tl.program_id(0).to(tl.int64)
    logits_ptr += index * logits_stride
    if WAY == "parts":
        if OVERLAP:
            gdc_wait()
        lane = tl.arange(0, 128)
        inside = lane < num_parts
        score = tl.load(float_ptr + index * num_parts + lane, mask=inside, other=float("-inf"))
        token = tl.load(int_ptr + index * num_parts + lane, mask=inside, other=2147483647)
        best = tl.min(tl.where(score == tl.max(score, 0), token, 2147483647), 0)
        tl.store(result_ptr + index, best)
    else:
        row = parameters(index, logits_ptr, rows_ptr, positions_ptr, temperature_ptr, seed_ptr)
        if OVERLAP:
            gdc_wait()
        lane = tl.arange(0, ROW)
        bounds = tl.load(bound_ptr + index * num_parts * LANES + lane, mask=lane < num_parts * LANES,
                         other=float("-inf"))  # fmt: skip
        _best_score, best, settled = settle_row(row, bounds, num_parts, part_blocks, vocab_size, 16, LANES, ROW)
        if not settled:
            _best_score, best, _missing, _first = search_all(row, 0, vocab_size, 128)
        tl.store(result_ptr + index, best)


@dataclass(frozen=True)
class Way:
    """One way to divide a draw: see `first`."""

    name: str
    block: int
    warps: int
    hoist: bool = True
    overlap: bool = False
    row_warps: int = 8
    depth: int = 1


ROW = 8192
WAYS = (
    Way("parts", 2048, 4, hoist=False), Way("parts", 2048, 4), Way("parts", 1024, 4), Way("parts", 2048, 8),
    Way("parts", 2048, 4, depth=2), Way("parts", 2048, 4, overlap=True), Way("rows", 2048, 4, hoist=False),
    Way("rows", 2048, 4), Way("rows", 1024, 4), Way("rows", 2048, 8), Way("rows", 2048, 4, depth=2),
    Way("rows", 1024, 4, depth=2), Way("rows", 1024, 4, overlap=True), Way("one", 1024, 4), Way("one", 2048, 8),
    Way("read", 2048, 4), Way("read", 2048, 4, depth=2),
)  # fmt: skip
NUMBERS = {1: (32, 75), 8: (16, 32, 66), 16: (8, 16, 32), 32: (4, 8, 12, 16, 20, 25, 32), 64: (2, 4, 6, 8, 12)}


def call(way: Way, logits: Tensor, temperatures: Tensor, number: int, launches: int = 2) -> Callable[[], Tensor]:
    """One draw per row; gives int32 [N] tokens."""
    count, device, vocab_size = len(logits), logits.device, logits.shape[1]
    rows = torch.arange(count, dtype=torch.int32, device=device)
    positions, seeds = rows % 1000 + 5, torch.arange(count, device=device) * 0x9E3779B97F4A7C1
    units = -(-vocab_size // (number * UNIT))
    number = -(-vocab_size // (units * UNIT))
    counter = torch.zeros(count, dtype=torch.int32, device=device)

    def run() -> Tensor:
        result = torch.empty(count, dtype=torch.int32, device=device)
        floats = torch.empty(count * number, device=device)
        ints = torch.empty(count * number, dtype=torch.int32, device=device)
        bounds = torch.empty(count * number * way.block // 4, device=device)
        first[(count, number)](
            logits, logits.stride(0), rows, positions, temperatures, seeds, floats, ints, bounds, counter, result,
            vocab_size, number, units, WAY=way.name, HOIST=way.hoist, DEPTH=way.depth, OVERLAP=way.overlap,
            BLOCK=way.block, ROW=ROW if way.name == "one" else 1, num_warps=way.warps, **LAUNCH,
        )  # fmt: skip
        if launches == 2 and way.name in ("parts", "rows"):
            options: dict[str, Any] = {"launch_pdl": True} if way.overlap else {}
            second[(count,)](
                logits, logits.stride(0), rows, positions, temperatures, seeds, floats, ints, bounds, result,
                vocab_size, number, units, WAY=way.name, OVERLAP=way.overlap, BLOCK=way.block,
                ROW=ROW if way.name == "rows" else 1, num_warps=way.row_warps if way.name == "rows" else 4,
                **LAUNCH, **options,
            )  # fmt: skip
        return result

    return run


def wrong(way: Way, device: str, count: int, number: int, vocab_size: int = VOCAB) -> int:
    """Rows whose token is not that of the exact path."""
    logits = torch.randn(count, vocab_size, device=device, generator=torch.Generator(device).manual_seed(3))
    temperatures = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0, 3.0, 10.0, 1.0], device=device).repeat(count // 8 + 1)
    expected = drawing(logits, temperatures[:count].contiguous())(statistics=False, rivals=0)[0]
    draw = call(way, logits, temperatures, number)
    return int((draw() != expected).sum() + (draw() != expected).sum())


def main(arguments: list[str]) -> int:
    """Check, measure and write; returns the exit code."""
    if arguments[:1] == ["--compile"]:
        return int(wrong(WAYS[int(arguments[1])], "cuda", 32, 8) > 0)
    if len(arguments) != 1 or not torch.cuda.is_available():
        sys.stderr.write("usage, on a machine with CUDA: python -m mrv2.ci.gpu.draw_probe FILE\n")
        return 2
    start = time.perf_counter()
    line = [sys.executable, "-m", "mrv2.ci.gpu.draw_probe", "--compile"]
    compiled = [subprocess.Popen([*line, str(index)]) for index in range(len(WAYS))]
    sys.stdout.write(f"compiled: {[process.wait() for process in compiled]}\n")
    lines: list[dict[str, Any]] = []
    failed = 0
    for count, numbers in sorted(NUMBERS.items(), key=lambda item: item[0] != 32):
        tensors = inputs(count, torch.float32, VOCAB)
        warm = torch.ones(count, device="cuda")
        sys.stdout.write(f"  the sampler's: {timed_draw(tensors, statistics=False):.2f}\n")
        for way in WAYS:
            shown = []
            for number in numbers:
                if way.name in ("rows", "one") and number * way.block > 4 * ROW:
                    continue
                different = 0 if way.name == "read" else wrong(way, "cuda", count, number)
                failed += different
                both = microseconds([call(way, logits, warm, number) for logits in tensors])
                one = microseconds([call(way, logits, warm, number, 1) for logits in tensors])
                lines.append({"B": count, "parts": number, "us": both, "first": one, "wrong": different, **asdict(way)})
                shown.append(f"{number}: {both:.2f} ({one:.2f}){' WRONG' * bool(different)}")
            sys.stdout.write(f"{time.perf_counter() - start:5.1f} s  B {count}  {way}\n    {'  '.join(shown)}\n")
            sys.stdout.flush()
        cached = [call(WAYS[1], tensors[0], warm, number) for number in numbers]
        told = [f"{microseconds([draw]):.2f}" for draw in cached]
        sys.stdout.write(f"  logits in the cache, settled by parts: {told}\n")
        Path(arguments[0]).write_text(json.dumps(lines, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
