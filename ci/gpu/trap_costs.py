"""What the sync trap adds to a decode step of a 0.6B shape, split by cause.

    python -m mrv2.ci.gpu.trap_costs OUT.json        # in the folder of a checkout, on a machine with a GPU

Each part of the trap is on by itself in some blocks of steps. A step takes longer the longer its requests have become,
so the blocks come in the order of a Latin square: each part has each place once, and a drift adds the same to all. How
much is left of it shows by a part that is none ("nothing, again"). Steps are taken in two ways: one ahead of the
device, as an engine does, where the host can meet a full launch queue; and with an idle device before each step, where
the host alone is measured.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from mrv2.checks.cuda import order_patches, sync_trap
from mrv2.checks.cuda.sync_trap import CudaTrap, cuda_sync_trap
from mrv2.checks.hooks.patching import Patches
from mrv2.checks.hot_path import hot_path
from mrv2.refrunner.api import NewRequest, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.weights import expected_tensors

#: The shape of a model of 0.6 thousand million parameters.
SHAPE = LlamaConfig(
    vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_layers=28, num_heads=16, num_kv_heads=8,
    head_dim=128, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=40_960, tie_word_embeddings=True,
)  # fmt: skip
BATCH = 256
#: Steps of a block, and how many of them come first and do not count: a patched class is a new one to the interpreter.
BLOCK, NOT_COUNTED = 8, 1
WARM_UP = 10

#: Milliseconds of the host for each of so many steps.
Way = Callable[[ModelRunner, Step, int], list[float]]


def decoding(shape: LlamaConfig = SHAPE, batch: int = BATCH) -> tuple[ModelRunner, Step]:
    """A runner with random weights whose requests are in their decode, and the step that decodes them all."""
    config = RunnerConfig(
        max_num_reqs=batch, max_num_batched_tokens=batch * 8, max_model_len=512, num_kv_blocks=batch * 32 + 1,
        device="cuda", dtype="bfloat16", attention="triton",
    )  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = {
        name: torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16) * 0.02
        for name, size in expected_tensors(shape)
    }
    runner = ModelRunner(config, shape, tensors)
    names = [f"r{index}" for index in range(batch)]
    blocks = {name: (tuple(range(1 + index * 32, 33 + index * 32)),) for index, name in enumerate(names)}
    asked = tuple(NewRequest(name, (5, 6, 7, 8), 4) for name in names)
    runner.execute(Step(new=asked, scheduled=dict.fromkeys(names, 4), new_blocks=blocks)).result()
    return runner, Step(scheduled=dict.fromkeys(names, 1))


@torch.inference_mode()
def ahead(runner: ModelRunner, step: Step, count: int) -> list[float]:
    """Results are taken one step later."""
    took, handle = [], None
    for _ in range(count):
        begin = time.perf_counter()
        following = runner.execute(step)
        took.append((time.perf_counter() - begin) * 1e3)
        if handle is not None:
            handle.result()
        handle = following
    if handle is not None:
        handle.result()
    return took


@torch.inference_mode()
def idle(runner: ModelRunner, step: Step, count: int) -> list[float]:
    """The device has done everything before each step."""
    took = []
    for _ in range(count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        handle = runner.execute(step)
        took.append((time.perf_counter() - begin) * 1e3)
        handle.result()
    return took


# The parts of the trap


@contextlib.contextmanager
def trap_with(*, calls: bool, order: bool, triton: bool) -> Iterator[None]:
    """The trap with some of its wrappers."""
    patches = Patches()
    if not calls:
        patches.set(sync_trap, "CALLS", ())
    if not order:
        patches.set(order_patches.OrderPatches, "apply", lambda self: None)
    if not triton:
        patches.set(CudaTrap, "_patch_triton", lambda self: None)
    try:
        with cuda_sync_trap():
            yield
    finally:
        patches.undo()


PARTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "nothing": contextlib.nullcontext,
    "nothing, again": contextlib.nullcontext,
    "trap without wrappers": partial(trap_with, calls=False, order=False, triton=False),
    "trap, calls of the table": partial(trap_with, calls=True, order=False, triton=False),
    "trap, events and streams": partial(trap_with, calls=False, order=True, triton=False),
    "trap, Triton launches": partial(trap_with, calls=False, order=False, triton=True),
    "trap": partial(trap_with, calls=True, order=True, triton=True),
}


@contextlib.contextmanager
def hot(runner: ModelRunner) -> Iterator[None]:
    """Each step is in a hot path."""
    runner.execute = hot_path("decode")(runner.execute)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del runner.execute


def blocks_of(runner: ModelRunner, step: Step, way: Way, rounds: int) -> dict[str, list[list[float]]]:
    """The counted steps of each part, by block."""
    way(runner, step, WARM_UP)
    names = list(PARTS)
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with PARTS[name](), hot(runner):
                found[name].append(way(runner, step, BLOCK)[NOT_COUNTED:])
    return found


def summary(found: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Of each part the milliseconds of a step, and their share beyond those of nothing.

    Twice: by the median of each block, and by its least step, which what else runs on the machine disturbs less.
    """
    rows: dict[str, dict[str, float]] = {name: {} for name in found}
    kinds: dict[str, Callable[[Sequence[float]], float]] = {"median": statistics.median, "least": min}
    for kind, of_block in kinds.items():
        means = {name: statistics.mean(map(of_block, blocks)) for name, blocks in found.items()}
        for name, mean in means.items():
            rows[name] |= {f"{kind}, ms": round(mean, 4), f"{kind}, share": round(mean / means["nothing"] - 1, 5)}
    drift = [round(statistics.median(block), 3) for block in found["nothing"]]
    return {"parts": rows, "ms of nothing, block after block": drift}


def calls_of_a_step(runner: ModelRunner, step: Step) -> dict[str, int]:
    """How often each function of the trap is called in one step."""
    counts: Counter[str] = Counter()
    folder = str(Path(sync_trap.__file__).parent)

    def seen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            counts[frame.f_code.co_qualname] += 1

    with PARTS["trap"](), hot(runner), torch.inference_mode():
        runner.execute(step).result()
        sys.setprofile(seen)
        try:
            handle = runner.execute(step)
        finally:
            sys.setprofile(None)
        handle.result()
    return dict(counts.most_common())


@torch.inference_mode()
def device_ms(runner: ModelRunner, step: Step, count: int = 8) -> float:
    """Milliseconds from step to step when nothing but the device holds the host up."""
    ahead(runner, step, 2)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    ahead(runner, step, count)
    torch.cuda.synchronize()
    return round((time.perf_counter() - begin) / count * 1e3, 4)


def measure(make: Callable[[], tuple[ModelRunner, Step]] = decoding, rounds: int = len(PARTS)) -> dict[str, Any]:
    """All figures.

    Args:
        make: gives a runner in its decode, and the step; called for each way, so that the requests begin anew.
        rounds: blocks of each part; as many as there are parts for a whole Latin square.
    """
    figures: dict[str, Any] = {"batch": BATCH, "bar": 0.03}
    for name, way in (("ahead of the device", ahead), ("device idle before each step", idle)):
        runner, step = make()
        figures[name] = summary(blocks_of(runner, step, way, rounds))
        figures.setdefault("calls of the trap in a step", calls_of_a_step(runner, step))
        figures.setdefault("ms from step to step", device_ms(runner, step))
        runner.close()
    return figures


def main(path: str) -> None:
    """Measure, and write what was found."""
    document = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, **measure()}
    Path(path).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
