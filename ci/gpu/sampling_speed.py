"""Time of the sampling kernels on this machine's GPU, beside torch and beside reading the logits once.

    python -m mrv2.ci.gpu.sampling_speed FILE [--sweep] [--near]

``--sweep`` tries many ways to divide rows, ``--near`` those around today's for small batches, with the tokens compared.
Before anything is timed, the draws are compared with those of the exact path, bit for bit. Every figure is microseconds
per call: a CUDA graph holds many calls over rotating inputs, and the median of its replays counts. Exit codes: 0, 1 a
draw differs, 2 no GPU or a wrong call.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from mrv2.checks.findings import JSON
from mrv2.ci.command.environment import describe
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.refrunner.kernels.logits_processing import BIAS, TOP_P
from mrv2.refrunner.sampling import gumbel
from mrv2.refrunner.sampling.blocks import GPU_FEW_BLOCKS, GPU_LIST_CHUNK, GPU_MOST_PARTS, Parts, parts_of
from mrv2.refrunner.sampling.gumbel import Processed, Sampled

VOCAB = 151_936
BATCHES = (1, 8, 16, 32, 64, 128, 256, 1024)
ROTATED_BYTES = 2**28  # several times the cache
GRAPH_US = 1500.0  # work in one graph
REPLAYS = 7


def main(arguments: list[str]) -> int:
    """Check, measure and write; returns the exit code."""
    files = [argument for argument in arguments if argument not in ("--sweep", "--near")]
    if len(files) != 1 or not torch.cuda.is_available():
        sys.stderr.write(
            "usage, on a machine with CUDA: python -m mrv2.ci.gpu.sampling_speed FILE [--sweep] [--near]\n"
        )
        return 2
    record: dict[str, Any] = {"environment": describe(), "gpu": torch.cuda.get_device_name(), "vocabulary": VOCAB}

    def keep() -> None:
        Path(files[0]).write_text(json.dumps(record, indent=1) + "\n")

    record["different draws"] = different = differences("cuda")
    keep()
    sys.stdout.write(f"draws that differ from the exact path: {different}\n")
    record["copy TB/s"] = round(copy_bandwidth(), 3)
    sys.stdout.write(f"copy: {record['copy TB/s']} TB/s\n")
    record["table"] = table()
    keep()
    if "--near" in arguments:
        record["near"] = near = around_today(NEAR, "cuda")
        different["near"] = sum(line["differ"] for line in near)
        keep()
    if "--sweep" in arguments:
        record["sweep"] = sweep()
        keep()
    return int(any(different.values()))


# Same draws


def cases(device: str, count: int, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """Logits [count, vocab_size] of many kinds, by name."""
    generator = torch.Generator(device).manual_seed(1)
    normal = torch.randn(count, vocab_size, generator=generator, device=device)
    yield "normal", normal
    yield "bfloat16", (4 * normal).bfloat16()
    yield "wide", 30 * normal
    yield "equal", torch.zeros_like(normal)
    peaked = normal.clone()
    peaked[:, [5, 5 + vocab_size // 2]] = 30.0
    yield "two peaks", peaked
    yield "masked", torch.where(normal > 2.0, normal, float("-inf"))
    spoiled = normal.clone()
    spoiled[::2, 3] = float("nan")
    spoiled[1::3, 7] = float("inf")
    spoiled[5::7] = float("-inf")
    yield "spoiled", spoiled


def differences(device: str, count: int = 64, vocab_size: int = VOCAB) -> dict[str, int]:
    """Rows whose token, or whose count of NaN, is not that of the exact path, by kind of logits."""
    found = {}
    for (name, logits), staged in itertools.product(cases(device, count, vocab_size), (False, True)):
        temperatures = torch.tensor([0.0, 1e-3, 0.5, 1.0, 1.0, 3.0, 50.0, 1e25], device=device).repeat(count // 8 + 1)
        draw = drawing(logits, temperatures[:count].contiguous(), staged)
        expected = draw(statistics=False, rivals=0)
        wrong = (draw(statistics=False) != expected) | (draw() != expected)
        found[name + " staged" * staged] = int(wrong.any(dim=0).sum())
    return found


def drawing(logits: Tensor, temperatures: Tensor, staged: bool = False) -> Callable[..., Tensor]:
    """One draw per row, with a filter in every second row if ``staged``; gives the tokens."""
    count, device = len(logits), logits.device
    rows = torch.arange(count, dtype=torch.int32, device=device)
    positions, seeds = rows % 1000 + 5, torch.arange(count, device=device) * 0x9E3779B97F4A7C1
    processed = Processed(rows * 0, logits, rows)
    if staged:
        stages = rows % 2 * TOP_P.value + rows % 3 // 2 * BIAS.value
        processed = Processed(stages, logits.float() / 0.7, rows * 0 + (1 << 28))

    def draw(parts: Parts | None = None, **options: Any) -> Tensor:
        told, parts = Sampled.empty(count, device), parts or parts_of(device, *logits.shape)
        gumbel.launch(logits, rows, positions, temperatures, seeds, processed, told, parts, **options)
        return told.result

    return draw


# Times


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Median time of one of the calls, which are the same on other inputs, replayed from a graph."""
    calls[0]()
    torch.cuda.synchronize()
    start = time.perf_counter()
    calls[0]()
    torch.cuda.synchronize()
    repeats = max(2, min(200, int(GRAPH_US / max(1.0, (time.perf_counter() - start) * 1e6 - 30.0)) + 1))
    turns = [calls[turn % len(calls)] for turn in range(max(repeats, len(calls)))]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in turns:
            call()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(turns))
    return float(statistics.median(times))


def inputs(count: int, dtype: torch.dtype, vocab_size: int = VOCAB, device: str = "cuda") -> list[Tensor]:
    """Standard normal logits, as many tensors as it takes to leave the cache."""
    size = count * vocab_size * dtype.itemsize
    number = max(2, min(64, ROTATED_BYTES // size))
    number = 1 if device == "cpu" else number
    return [torch.randn(count, vocab_size, device=device).to(dtype) for _ in range(number)]


def copy_bandwidth() -> float:
    """TB/s of a large copy, bytes read plus bytes written."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    time_us = microseconds([lambda: torch.neg(source, out=target)])
    return 8 * source.numel() / time_us / 1e6


def timed_draw(tensors: list[Tensor], **options: Any) -> float:
    """Of a draw at temperature 1."""
    warm = torch.ones(len(tensors[0]), device="cuda")
    draws = [drawing(logits, warm) for logits in tensors]
    return microseconds([lambda draw=draw: draw(**options) for draw in draws])  # type: ignore[misc]


def table() -> list[dict[str, JSON]]:
    """Draws beside torch's argmax, by batch and type of the logits."""
    lines: list[dict[str, JSON]] = []
    for dtype, count in itertools.product((torch.float32, torch.bfloat16), BATCHES):
        tensors = inputs(count, dtype)
        line: dict[str, JSON] = {"B": count, "logits": str(dtype).removeprefix("torch.")}
        line["draw"] = timed_draw(tensors, statistics=False)
        with mock.patch.object(gumbel, "combine_blocks", mock.MagicMock()):
            line["its first launch"] = timed_draw(tensors, statistics=False)
        line["draw and log-probability"] = timed_draw(tensors)
        line["exact"] = timed_draw(tensors, statistics=False, rivals=0)
        line["argmax"] = microseconds([lambda x=x: x.argmax(dim=1) for x in tensors])  # type: ignore[misc]
        lines.append(line)
        sys.stdout.write(shown(line) + "\n")
        sys.stdout.flush()
    for draws in (100_000, 4_000_000):
        seconds = -time.perf_counter()
        ReferenceSampler(device="cuda").count(torch.randn(200_000).numpy(), 1.0, 1, 0, draws)
        sys.stdout.write(f"count of {draws} draws: {(seconds + time.perf_counter()) / draws * 1e6:.3f} us each\n")
    shared = torch.randn(1, 200_000, device="cuda").expand(5368, -1)
    line = {"B": 5368, "logits": "one row of 200,000, shared", "draw": timed_draw([shared], statistics=False)}
    sys.stdout.write(shown(line) + "\n")
    return [*lines, line]


def shown(line: dict[str, JSON]) -> str:
    """A line of a table as text."""
    return "  ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in line.items()
    )


SHAPES = ((1024, 4, 8), (2048, 4, 8), (2048, 4, 32), (2048, 4, 128), (4096, 4, 8), (4096, 8, 8))
NUMBERS = (1, 2, 3, 4, 8, 13, 15, 19, 25, 38, 75)
SWEPT = (
    *((count, torch.float32, False) for count in BATCHES),
    *((count, torch.float32, True) for count in (32, 1024)),
    *((count, torch.bfloat16, False) for count in (256, 1024)),
    (5368, torch.float32, False),
)


def sweep() -> list[dict[str, JSON]]:
    """Ways to divide rows, by batch; all of them, and as text the time by shape and number of parts."""
    lines: list[dict[str, JSON]] = []
    for count, dtype, told in SWEPT:
        tensors = inputs(count, dtype) if count < 5000 else [torch.randn(1, 200_000, device="cuda").expand(count, -1)]
        for block, warps, groups in SHAPES:
            found = []
            for parts in divisions(count, tensors[0].shape[1], block, warps, groups):
                time_us = timed_draw(tensors, parts=parts, statistics=told)
                found.append(f"{parts.number}: {time_us:.1f}")
                lines.append({"B": count, "logits": str(dtype), "statistics": told, "us": time_us, **asdict(parts)})
            sys.stdout.write(f"{count} {str(dtype)[6:]} {told:d} ({block}, {warps}, {groups})  {'  '.join(found)}\n")
            sys.stdout.flush()
    return lines


def divisions(count: int, vocab_size: int, block: int, warps: int, groups: int) -> Iterator[Parts]:
    """Numbers of parts that are worth a try."""
    blocks, seen = -(-vocab_size // block), set()
    for number in NUMBERS:
        each = -(-blocks // number)
        number = -(-blocks // each)
        if number not in seen and (60 <= number * count <= 6000 or number == 1):
            seen.add(number)
            yield Parts(
                number, GPU_MOST_PARTS, each, block, groups, 128, block // 4, warps, GPU_FEW_BLOCKS, GPU_LIST_CHUNK
            )


NEAR = (8, 16, 32, 64, 128, 256)
NEAR_SHAPES = ((2048, 4, 8), (2048, 4, 16), (1024, 4, 8))
FACTORS = (0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 2.0)


def around_today(batches: Iterable[int], device: str, vocab_size: int = VOCAB) -> list[dict[str, Any]]:
    """Times of divisions around today's, with the rows whose result is not that of today's; not timed on the CPU."""
    lines: list[dict[str, Any]] = []
    for count in batches:
        tensors = inputs(count, torch.float32, vocab_size, device)
        today = parts_of(torch.device("cuda"), count, vocab_size)
        temperatures = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0, 3.0, 10.0, 1.0], device=device).repeat(count // 8 + 1)
        draws = [drawing(tensors[0], temperatures[:count].contiguous(), staged) for staged in (False, True)]
        expected = [draw(parts=today, statistics=False) for draw in draws]
        for block, warps, groups in NEAR_SHAPES:
            found = []
            for parts in _around(today, vocab_size, block, warps, groups):
                both = zip(draws, expected, strict=True)
                differ = sum(int((draw(parts=parts, statistics=False) != one).any(dim=0).sum()) for draw, one in both)
                time_us = timed_draw(tensors, parts=parts, statistics=False) if device == "cuda" else float("nan")
                lines.append({"B": count, "us": time_us, "differ": differ, **asdict(parts)})
                found.append(f"{parts.number}: {time_us:.2f}{' DIFFERS' * bool(differ)}{'*' * (parts == today)}")
            sys.stdout.write(f"{count} ({block}, {warps}, {groups})  {'  '.join(found)}\n")
            sys.stdout.flush()
    return lines


def _around(today: Parts, vocab_size: int, block: int, warps: int, groups: int) -> Iterator[Parts]:
    """Numbers of parts around today's."""
    blocks = -(-vocab_size // block)
    numbers = {-(-blocks // -(-blocks // max(1, round(today.number * factor)))) for factor in FACTORS}
    for number in sorted(one for one in numbers if one <= GPU_MOST_PARTS):
        shape = {"blocks": -(-blocks // number), "block": block, "groups": groups, "lanes": block // 4, "warps": warps}
        yield replace(today, number=number, **shape)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
