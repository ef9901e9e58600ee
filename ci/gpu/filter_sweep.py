"""Times of single launches of the filters and of the likeliest tokens, by ways to divide the work; and exactness.

    python -m mrv2.ci.gpu.filter_sweep FILE

Thresholds are compared with those of the searches in whole rows, bit for bit, before anything is timed.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from mrv2.ci.gpu import filter_speed
from mrv2.ci.gpu.filter_speed import CASES, Batch
from mrv2.ci.gpu.sampling_speed import VOCAB, cases, inputs, microseconds
from mrv2.refrunner.kernels.launch import Kernel
from mrv2.refrunner.kernels.nucleus import FOUND
from mrv2.refrunner.sampling import filters, sampler

Launch = tuple[Any, tuple[int, ...], list[Any], dict[str, Any]]
DEVICE = "cuda"


@contextmanager
def whole_rows() -> Iterator[None]:
    """Neither lists nor groups have room for anything."""
    search, grouping = filters.search_of, sampler.grouping_of
    narrow = {"most": 0, "likely": 1, "list": 2}
    with (
        mock.patch.object(filters, "search_of", lambda *shape: replace(search(*shape), slots=1)),
        mock.patch.object(sampler, "grouping_of", lambda *shape: replace(grouping(*shape), **narrow)),
    ):
        yield


def thresholds(case: filter_speed.Case, logits: Tensor) -> Tensor:
    """int32 [N]."""
    return Batch(case, len(logits), logits.shape[1], DEVICE).compared(logits)[2].thresholds


def inexact(count: int, vocab_size: int) -> dict[str, int]:
    """Thresholds that differ from those of whole rows, by kind of logits."""
    found = {}
    for (kind, logits), (name, case) in ((a, b) for a in cases(DEVICE, count, vocab_size) for b in CASES.items()):
        fast = thresholds(case, logits.float())
        with whole_rows():
            found[f"{kind}, {name}"] = int((fast != thresholds(case, logits.float())).sum())
    return found


def launches(call: Callable[[], object]) -> dict[str, Launch]:
    """The launches of a call, by name."""
    found: dict[str, Launch] = {}
    run = Kernel.run

    def note(self: Kernel, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        found[self.fn.__name__] = (self, grid, list(args), dict(kwargs))
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    with mock.patch.object(Kernel, "run", note):
        call()
    return found


def timed(launch: Launch, grid: tuple[int, ...] | None = None, change: dict[str, Any] | None = None) -> float | str:
    """Of one launch alone, perhaps with other arguments."""
    kernel, own_grid, args, kwargs = launch
    names = list(kernel.arg_names)
    args, kwargs = list(args), dict(kwargs)
    for name, value in (change or {}).items():
        if name in names[: len(args)]:
            args[names.index(name)] = value
        else:
            kwargs[name] = value
    kwargs.pop("debug", None)
    try:
        return round(microseconds([lambda: kernel[grid or own_grid](*args, **kwargs)]), 1)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error)[:80]}"


def divided(block: int, parts: int) -> tuple[int, int]:
    """Number of parts and blocks of each."""
    blocks = -(-VOCAB // block)
    each = -(-blocks // min(parts, blocks))
    return -(-blocks // each), each


Note = Callable[..., None]


def main(arguments: list[str]) -> int:
    """Check, measure, write."""
    record: dict[str, Any] = {"inexact": inexact(16, VOCAB), "times": []}
    print("inexact:", {name: number for name, number in record["inexact"].items() if number}, flush=True)

    def note(**line: Any) -> None:
        record["times"].append(line)
        print("  ".join(f"{name} {value}" for name, value in line.items()), flush=True)
        Path(arguments[0]).write_text(json.dumps(record, indent=1) + "\n")

    for count in (1, 32, 1024):
        logits = inputs(count, torch.float32)[0]
        sweep_filters(count, logits, note)
        sweep_reports(count, logits, note)
    return int(any(record["inexact"].values()))


def sweep_filters(count: int, logits: Tensor, note: Note) -> None:
    """Of each case."""
    for name, case in CASES.items():
        batch = Batch(case, count, VOCAB, DEVICE)
        batch.sample(logits)
        found = launches(partial(batch.sample, logits))
        # From the last one to the first: each of them leaves what it reads as it was.
        for kernel in ("sample_blocks", "settle_nucleus", "ask_by_sample"):
            if kernel in found:
                note(B=count, case=name, kernel=kernel, us=timed(found[kernel]))
        if name == "top-p":
            note(B=count, case=name, asked=count_asked(found))
            sweep_passes(count, found, note)
        for kernel in ("find_thresholds", "process_logits"):
            note(B=count, case=name, kernel=kernel, us=timed(found[kernel]))
        if name in ("top-k", "top-p"):
            for warps, tile in ((4, 8), (4, 4), (2, 8), (2, 4)):
                us = timed(found["find_thresholds"], None, {"num_warps": warps, "TILE": tile})
                note(B=count, case=name, kernel="find_thresholds", warps=warps, tile=tile, us=us)


def count_asked(found: dict[str, Launch]) -> list[int]:
    """Tokens in question: in a row on average, and at most."""
    kernel, _, args, _ = found["weigh_rows"]
    state = args[list(kernel.arg_names).index("state_ptr")][:, FOUND.value].float()
    return [int(state.mean()), int(state.max())]


def sweep_passes(count: int, found: dict[str, Launch], note: Note) -> None:
    """Of top-p."""
    shapes = ((512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16))
    for block, warps in ((1024, 4), (1024, 8), (2048, 4), (4096, 8)):
        us = timed(found["settle_nucleus"], None, {"BLOCK": block, "num_warps": warps})
        note(B=count, kernel="settle_nucleus", block=block, warps=warps, us=us)
    several = (2, 8) if count == 1024 else (1024 // count, 2048 // count)
    for (block, warps), parts in itertools.product(shapes, several):
        number, each = divided(block, parts)
        change = {"BLOCK": block, "num_warps": warps, "part_blocks": each}
        us = timed(found["weigh_rows"], (count, number), change)
        note(B=count, kernel="weigh_rows", block=block, warps=warps, parts=number, us=us)
    for sample, warps in ((8192, 8), (8192, 16), (16384, 16), (32768, 32)):
        us = timed(found["ask_by_sample"], None, {"SAMPLE": sample, "num_warps": warps})
        note(B=count, kernel="ask_by_sample", sample=sample, warps=warps, us=us)


def sweep_reports(count: int, logits: Tensor, note: Note) -> None:
    """Of the likeliest tokens."""
    found = launches(partial(filter_speed.report, logits, torch.zeros(2, count, device=DEVICE), 20))
    for kernel in ("survey", "select_top", "report_top"):
        note(B=count, kernel=kernel, us=timed(found[kernel]))
    for warps, tile in ((8, 16), (8, 32), (4, 8)):
        us = timed(found["select_top"], None, {"num_warps": warps, "TILE": tile})
        note(B=count, kernel="select_top", warps=warps, tile=tile, us=us)
    several = (2, 4) if count == 1024 else (1024 // count, 512 // count)
    for (block, warps), parts in itertools.product(((1024, 4), (2048, 4), (4096, 8)), several):
        number, each = divided(block, min(parts, 128))
        above = torch.zeros(count, number, dtype=torch.int32, device=DEVICE)
        change = {"BLOCK": block, "num_warps": warps, "part_blocks": each, "num_parts": number, "above_ptr": above}
        us = timed(found["survey"], (count, number), change)
        note(B=count, kernel="survey", block=block, warps=warps, parts=number, us=us)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
