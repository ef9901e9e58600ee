"""Records small traces with torch.profiler, for the tests of ``mrv2 trace analyze``.

Usage: python -m mrv2.ci.gpu.record_traces FOLDER [--device cpu] [NAME ...]

FOLDER gets NAME.json.gz for each trace, and ``facts.json`` with what is known of them without looking: how many steps
they hold, how many waits and pageable copies the program has in each. Traces keep all events of the sorts that an
analyzer reads; further arguments of events, and paths of this machine, are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mrv2.ci.command.kernels import compiled_kernels
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.baseline_v1.runner import BaselineRunner
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import TINY_CONFIG
from mrv2.refrunner.models.weights import expected_tensors

from .speculation import SHAPE

STEPS, WARM_STEPS, REQUESTS = 6, 8, 4
#: Bytes of the large copies: more than a driver stages for pageable memory, so that they wait.
LARGE = 4 * 2**20
CATEGORIES = frozenset(
    {
        "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "gpu_user_annotation",
        "cpu_op", "python_function",
    }
)  # fmt: skip
ARGUMENTS = frozenset(
    {"correlation", "stream", "device", "bytes", "External id", "Python id", "Python parent id", "External Id"}
)
#: What a path of this machine begins with.
_FOLDERS = re.compile(r"(/[^ /:]+)+/(site-packages|dist-packages|lib/python3\.\d+)/")
RUNNERS: Mapping[Any, str] = MappingProxyType({ModelRunner: "refrunner", BaselineRunner: "baseline_v1"})
Facts = dict[str, Any]


def main() -> None:
    """Record the traces that were asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m mrv2.ci.gpu.record_traces")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TRACES)}")
    options = parser.parse_intermixed_args()
    if unknown := set(options.names) - set(TRACES):
        parser.error(f"no trace is called {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    facts = {}
    for name in options.names or TRACES:
        with compiled_kernels() if options.device == "cpu" else nullcontext():
            facts[name] = TRACES[name](options.folder / f"{name}.json.gz", options.device)
        size = (options.folder / f"{name}.json.gz").stat().st_size
        print(f"{name}: {size / 1000:.0f} kB, {facts[name]}", flush=True)
    (options.folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


def record_decode(
    path: Path, device: str, model: LlamaConfig, dtype: str, make: Callable[..., Any] = ModelRunner
) -> Facts:
    """Decode steps of a runner with graphs, where there are any; every step is one turn of the engine."""
    engine = _engine(device, model, dtype, make)
    for number in range(REQUESTS):
        engine.add(f"r{number}", tuple(range(1 + number, 9 + number)), SamplingParams(max_tokens=64))
    for _ in range(WARM_STEPS):
        engine.advance()

    def run() -> None:
        for _ in range(STEPS):
            engine.advance()

    _record(path, run)
    engine.close()
    return {"steps": STEPS, "annotated": True, "runner": RUNNERS[make]}


def record_arrivals(path: Path, device: str) -> Facts:
    """Steps with a prefill in every second one, of a runner without graphs."""
    engine = _engine(device, TINY_CONFIG, "float32", ModelRunner, graphs=False)

    def arrive(number: int) -> None:
        if number % 2 == 0:
            engine.add(f"r{number}", tuple(range(1, 20)), SamplingParams(max_tokens=4, temperature=0.7, seed=1))
        engine.advance()

    for number in range(WARM_STEPS):
        arrive(number)

    def run() -> None:
        for number in range(WARM_STEPS, WARM_STEPS + STEPS):
            arrive(number)

    _record(path, run)
    engine.close()
    return {"steps": STEPS, "annotated": True, "runner": RUNNERS[ModelRunner]}


def record_ordinary(path: Path, device: str, *, marked: bool = False) -> Facts:
    """A loop as many people write it: an upload from pageable memory, a branch on the device, a ``.cpu()``."""
    weights = torch.randn(1024, 1024, device=device)
    inputs = [torch.randn(LARGE // 4096, 1024) for _ in range(STEPS)]

    def step(number: int) -> None:
        hidden = inputs[number].to(device, non_blocking=True)
        for _ in range(4):
            hidden = torch.relu(hidden @ weights)
        if hidden.max().item() > 0:
            hidden = hidden / hidden.max()
        hidden[:16].cpu()

    def run() -> None:
        for number in range(STEPS):
            with record_function("step") if marked else nullcontext():
                step(number)

    run()
    _record(path, run, with_stack=True)
    return {
        "steps": STEPS, "annotated": marked, "items per step": 1, "pageable uploads per step": 1,
        "waiting downloads per step": 2, "runner": None,
    }  # fmt: skip


def _engine(device: str, model: LlamaConfig, dtype: str, make: Callable[..., Any], *, graphs: bool = True) -> Engine:
    generator = torch.Generator(device).manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator, device=device) * 0.02 for name, shape in expected_tensors(model)
    }
    mode = "full" if graphs and device == "cuda" else "eager"
    config = RunnerConfig(
        device=device, attention="triton", dtype=dtype, max_num_reqs=REQUESTS, max_num_batched_tokens=64,
        max_model_len=128, block_size=16, num_kv_blocks=64, graph_mode=mode,
    )  # fmt: skip
    return Engine(make(config, model, weights), config)


def _record(path: Path, run: Callable[[], None], *, with_stack: bool = False) -> None:
    """Profile a function and write what an analyzer needs of the trace; the profiler warms up on nothing first."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities):
        pass
    with profile(activities=activities, with_stack=with_stack) as profiler:
        run()
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(whole))
        trimmed = trim(json.loads(whole.read_text()))
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(trimmed, separators=(",", ":")).encode())


def trim(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The events and arguments that an analyzer reads, with paths as they are on every machine."""
    kept = {name: trace[name] for name in ("schemaVersion", "deviceProperties", "displayTimeUnit") if name in trace}
    return {**kept, "traceEvents": [_trimmed(event) for event in trace["traceEvents"] if _matters(event)]}


def _matters(event: Mapping[str, Any]) -> bool:
    return event.get("ph") == "M" or (event.get("ph") == "X" and event.get("cat") in CATEGORIES)


def _trimmed(event: Mapping[str, Any]) -> dict[str, Any]:
    if event["ph"] == "M":
        return dict(event)
    arguments = {name: value for name, value in event.get("args", {}).items() if name in ARGUMENTS}
    name = _FOLDERS.sub("", str(event["name"])).replace(f"{Path.cwd()}/", "")
    return {**{key: value for key, value in event.items() if key != "args"}, "name": name, "args": arguments}


TRACES: Mapping[str, Callable[[Path, str], Facts]] = MappingProxyType(
    {
        "v2_tiny": lambda path, device: record_decode(path, device, TINY_CONFIG, "float32"),
        "v2_tiny_arrivals": record_arrivals,
        "v2_06b": lambda path, device: record_decode(path, device, SHAPE, "bfloat16"),
        "v1_tiny": lambda path, device: record_decode(path, device, TINY_CONFIG, "float32", BaselineRunner),
        "v1_06b": lambda path, device: record_decode(path, device, SHAPE, "bfloat16", BaselineRunner),
        "ordinary": record_ordinary,
        "ordinary_marked": lambda path, device: record_ordinary(path, device, marked=True),
    }
)


if __name__ == "__main__":
    main()
