"""Figures of both runners on this GPU: what a step costs the host, and whether the device ever waits for it.

Usage: python -m mrv2.ci.gpu.runner_speed FILE [--tiny]     FILE gets the figures as JSON; --tiny: a small model

The model has the shape of Qwen3-0.6B and made-up weights. Both runners get the same weights, settings and requests, in
one process, and take turns. Each round is driven several times: as it is, for seconds; with a clock at the phases, for
the host's time in each; and, of fewer steps, under the profiler and as it is. The profiler tells what the device did,
and slows the host down; the device needs the same time without it, and what it does not need of a step is idle.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from mrv2.ci.bench.device_time import FIRST_STEPS, LAST_STEPS, DeviceTime, profiled
from mrv2.ci.bench.drive import Asked, Round, collector_at_rest, drive, requests_of
from mrv2.ci.bench.sides import SIDES, Side, fallbacks
from mrv2.ci.bench.traces import Arrival, poisson
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.kv_groups import FULL_ATTENTION
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import TINY_CONFIG
from mrv2.refrunner.models.weights import expected_tensors
from mrv2.refrunner.phases import HostClock, observed

from .results import environment
from .speculation import SHAPE

WINDOWS = (FULL_ATTENTION,)
#: Sides take turns in this order, so that a drift of the machine meets both.
TURNS = ("v2", "v1", "v1", "v2")
#: How often the steps that were profiled are driven without the profiler; the median counts.
REPEATS = 5


@dataclass(frozen=True)
class Workload:
    """What is asked for.

    Attributes:
        doc: one line.
        trace: who comes when.
        sampling: of all requests.
        shortened: the same at a smaller size, for the profiler.
    """

    doc: str
    trace: tuple[Arrival, ...]
    sampling: SamplingParams
    shortened: tuple[Arrival, ...]


def at_once(requests: int, prompt: int, output: int) -> tuple[Arrival, ...]:
    """Requests that all come at the start."""
    return (Arrival(0.0, prompt, output),) * requests


def staggered(requests: int, output: int) -> tuple[Arrival, ...]:
    """Requests that all come at the start, with prompts of 1 to 16 tokens."""
    return tuple(Arrival(0.0, 1 + number % 16, output) for number in range(requests))


DRAWN = SamplingParams(temperature=0.8)
WORKLOADS = {
    "decode, 1 request": Workload(
        "decode with a batch of 1", at_once(1, 32, 256), DRAWN, at_once(1, 32, 48)
    ),
    "decode, 32 requests": Workload(
        "decode with a batch of 32", at_once(32, 32, 192), DRAWN, at_once(32, 32, 40)
    ),
    "decode, 256 requests": Workload(
        "decode with a batch of 256, whose requests need further KV blocks at different times",
        staggered(256, 128), DRAWN, staggered(256, 40),
    ),
    "decode, 256 in lockstep": Workload(
        "the same with prompts of one length: every 16 steps all requests need another block at once",
        at_once(256, 8, 128), DRAWN, at_once(256, 8, 40),
    ),
    "churn": Workload(
        "short answers: requests come and go in nearly every step",
        poisson(240, 1, rate=4000.0), DRAWN, poisson(100, 1, rate=4000.0),
    ),
    "penalties, 64 requests": Workload(
        "each draw depends on the whole history",
        at_once(64, 32, 128), replace(DRAWN, repetition_penalty=1.2), at_once(64, 32, 32),
    ),
    "long prompts": Workload(
        "prefill of long prompts, one token each: the model's time is nearly all there is",
        at_once(8, 1500, 1), DRAWN, at_once(6, 1500, 1),
    ),
}  # fmt: skip


def weights(model: LlamaConfig, device: str) -> dict[str, Tensor]:
    """Made-up weights, the same ones every time, in bfloat16 on a GPU."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return {
        name: (torch.randn(shape, generator=generator, device=device) * 0.02).to(dtype)
        for name, shape in expected_tensors(model)
    }


def settings(device: str, *, tiny: bool) -> RunnerConfig:
    """Of both runners, for all workloads."""
    on_gpu = device == "cuda"
    return RunnerConfig(
        device=device, dtype="bfloat16" if on_gpu else "float32", attention="triton",
        graph_mode="full" if on_gpu else "eager",
        max_num_reqs=8 if tiny else 256, max_num_batched_tokens=128 if tiny else 2048,
        max_model_len=256 if tiny else 2048, num_kv_blocks=400 if tiny else 8000,
    )  # fmt: skip


def small(trace: Sequence[Arrival]) -> tuple[Arrival, ...]:
    """Of a size for the CPU."""
    return tuple(replace(one, prompt=min(one.prompt, 40), output=min(one.output, 6)) for one in trace[:10])


def measure(
    side: Side, config: RunnerConfig, requests: Sequence[Asked]
) -> tuple[Round, dict[str, float], dict[str, int]]:
    """One round as it is, with the peaks of memory, and the host's µs a step in each phase of another one."""
    on_gpu = config.device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_peak_host_memory_stats()
    plain = drive(side, config, WINDOWS, requests)
    peaks = {"device bytes": torch.cuda.max_memory_allocated(), "pinned bytes": pinned("peak")} if on_gpu else {}
    clock = HostClock()
    with observed(clock):
        clocked = drive(side, config, WINDOWS, requests)
    host = {which.value: nanoseconds / 1e3 / clocked.steps for which, nanoseconds in clock.nanoseconds.items()}
    return plain, host, peaks


def on_device(side: Side, config: RunnerConfig, requests: Sequence[Asked]) -> dict[str, Any]:
    """What the device did in a step, from the profiler, and how much of a step it idles without the profiler."""

    def run() -> Round:
        return drive(side, config, WINDOWS, requests)

    device = profiled(run)
    if device is None:
        return {}
    step = median(steady_microseconds(run().taken) for _ in range(REPEATS))
    return {
        "device, profiled": device.as_json(),
        "device, not profiled": {
            "microseconds a step": step,
            "busy share": device.busy / device.steps / step,
            "idle share": idle_share(device, step),
        },
    }


def steady_microseconds(taken: Sequence[int]) -> float:
    """µs a step in the middle of a run, as :mod:`mrv2.ci.bench.device_time` cuts it out.

    Args:
        taken: when the output of each step was on the host, in ns.
    """
    middle = taken[FIRST_STEPS : len(taken) - LAST_STEPS] if len(taken) > FIRST_STEPS + LAST_STEPS + 1 else taken
    return (middle[-1] - middle[0]) / 1e3 / (len(middle) - 1)


def idle_share(device: DeviceTime, step: float) -> float:
    """Share of a step of so many µs that is neither work nor one of the gaps up to 5 µs of the profiled steps."""
    return max(0.0, 1 - (device.microseconds - device.idle_in_gaps) / device.steps / step)


def pinned(which: str) -> int:
    """Bytes of pinned memory in use, ``"current"`` or ``"peak"``."""
    return int(torch.cuda.host_memory_stats().get(f"allocated_bytes.{which}", 0))


def figures(round_: Round, host: Mapping[str, float]) -> dict[str, Any]:
    """One side's figures as JSON."""
    tokens = sum(len(answer.token_ids) for answer in round_.answers.values())
    return {
        "steps": round_.steps,
        "microseconds a step": round_.nanoseconds / 1e3 / round_.steps,
        "tokens a second": tokens / (round_.nanoseconds / 1e9),
        "cores used": round_.cpu_nanoseconds / round_.nanoseconds,
        "host microseconds a step": {**host, "without waits": sum(host.values()) - host.get("mrv2.wait", 0.0)},
    }


def compare(
    workload: Workload, sides: Mapping[str, Side], config: RunnerConfig, vocab_size: int, *, tiny: bool
) -> dict[str, Any]:
    """Drive all sides through a workload in turns; figures of each round."""
    trace, short = (small(part) if tiny else part for part in (workload.trace, workload.shortened))
    requests, shortened = (requests_of(part, vocab_size, 1, workload.sampling) for part in (trace, short))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    rounds: dict[str, Round] = {}
    for side in sides.values():
        drive(side, config, WINDOWS, shortened)  # warms whatever the first use costs
    for name in TURNS:
        plain, host, peaks = measure(sides[name], config, requests)
        measured = config.device == "cuda" and name not in rounds
        device = on_device(sides[name], config, shortened) if measured else {}
        found[name].append(figures(plain, host) | device | peaks)
        rounds[name] = plain
    ours, theirs = (rounds[name].answers for name in sides)
    same = sum(answer.token_ids == theirs[request].token_ids for request, answer in ours.items())
    return {"what": workload.doc, "requests": len(requests), "same tokens": same, **found}


def main(file: str, *options: str) -> int:
    """Measure all workloads, print a table, and write the figures."""
    tiny = "--tiny" in options
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TINY_CONFIG if tiny else replace(SHAPE, tie_word_embeddings=True)
    config = settings(device, tiny=tiny)
    begin, load = time.perf_counter(), [os.getloadavg()]
    tensors = weights(model, device)
    sides, held = {}, {}
    for name, make in SIDES.items():
        before = pinned("current") if device == "cuda" else 0
        sides[name] = make(config, model, tensors)
        held[name] = pinned("current") - before if device == "cuda" else None
        print(f"[{time.perf_counter() - begin:.0f} s] {name} is ready", flush=True)
    results = {}
    for name, workload in WORKLOADS.items():
        with collector_at_rest():
            results[name] = compare(workload, sides, config, model.vocab_size, tiny=tiny)
        print(f"[{time.perf_counter() - begin:.0f} s] {name}: {results[name]['same tokens']} of "
              f"{results[name]['requests']} requests with the same tokens", flush=True)  # fmt: skip
        for side in sides:
            print(f"  {side}: {_line(results[name][side])}", flush=True)
    load.append(os.getloadavg())
    told = [line for name, side in sides.items() for line in fallbacks(name, side, config)]
    content = {
        "environment": environment(), "settings": asdict(config), "model": asdict(model), "fallbacks": told,
        "load of the machine before and after": load, "pinned bytes after startup": held, "workloads": results,
    }  # fmt: skip
    Path(file).write_text(json.dumps(content, indent=1) + "\n")
    print(f"fallbacks: {told or 'none'}; written to {file}")
    return 1 if told else 0


def _line(rounds: Sequence[Mapping[str, Any]]) -> str:
    best = min(rounds, key=lambda one: one["microseconds a step"])
    line = (
        f"{best['microseconds a step']:.0f} us a step, host {best['host microseconds a step']['without waits']:.0f}, "
        f"{best['tokens a second']:.0f} tokens/s"
    )
    device = rounds[0].get("device, profiled")
    if device:
        step = device["per step"]
        line += (
            f"; profiled: idle {100 * device['idle share in gaps over 5 us']:.1f} %, {step['launches']:.1f} launches, "
            f"{step['uploads']:.1f} uploads of {step['upload bytes']:.0f} bytes; "
            f"not profiled: idle {100 * rounds[0]['device, not profiled']['idle share']:.1f} %"
        )
    return line


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
