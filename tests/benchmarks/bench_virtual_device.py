"""What the virtual device costs: medians, in microseconds per operation and steps per second.

Run as ``python tests/benchmarks/bench_virtual_device.py``. It asserts nothing, and its name keeps it out of the tests.
Short windows of processor time are measured, so that other work on the machine shows little.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

from mrv2.checks.events import EventSink
from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import ATTENTION_BACKENDS
from mrv2.refrunner.llm import LLM, default_config
from mrv2.refrunner.models.tiny import tiny_checkpoint

ROUNDS, CALLS = 200, 25
SCHEDULES = ("early", "late", "random", "starve:0")
NEW_TOKENS = 24


class Deaf(EventSink):
    """A sink that listens to nothing: what is left is the device itself."""

    findings: tuple[()] = ()
    number = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("lane", "operation", "allocate", "release", "sync"):
            return self.next
        return object.__getattribute__(self, name) if name in ("next", "number", "findings") else _nothing

    def next(self, *_: object, **__: object) -> int:
        self.number += 1
        return self.number


def _nothing(*_: object, **__: object) -> None:
    pass


def medians(device: str) -> dict[str, float]:
    """Microseconds of the four small operations, on 64 elements, and their mean."""
    x, y = torch.ones(64, device=device), torch.ones(64, device=device)
    programs: dict[str, Callable[[], object]] = {
        "x + y": lambda: x + y,
        "mul_": lambda: y.mul_(0.5),
        "view": lambda: y[3:40],
        "add_": lambda: x.add_(1),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            start = time.process_time()
            for _ in range(CALLS):
                program()
            times[name].append((time.process_time() - start) / CALLS * 1e6)
    found = {name: statistics.median(values) for name, values in times.items()}
    return found | {"mean": statistics.mean(found.values())}


def line(title: str, found: dict[str, float]) -> None:
    print(f"{title:32s}" + "".join(f"{name} {value:6.1f}   " for name, value in found.items()))


def decode(schedule: str, attention: str) -> tuple[float, float]:
    """Steps per second and operations per step of a greedy decode of four requests on the tiny model."""
    checkpoint = tiny_checkpoint()
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(virtual_device(schedule))
        config = dataclasses.replace(default_config(checkpoint), device="cuda", max_model_len=64, attention=attention)
        engine = stack.enter_context(LLM(checkpoint, config))
        engine.generate(prompts, SamplingParams(max_tokens=4))
        before = device.runtime.engine.submitted
        start = time.process_time()
        engine.generate(prompts, SamplingParams(max_tokens=NEW_TOKENS))
        took = time.process_time() - start
        operations = device.runtime.engine.submitted - before
    return NEW_TOKENS / took, operations / NEW_TOKENS


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    line("plain CPU", medians("cpu"))
    for schedule in SCHEDULES:
        for name, sink in (("device alone", Deaf()), ("with happens-before", None)):
            with virtual_device(schedule, sink=sink):
                line(f"{schedule}, {name}", medians("cuda"))
    for attention in ATTENTION_BACKENDS:
        for schedule in SCHEDULES:
            rate, operations = decode(schedule, attention)
            title = f"{schedule}, {attention} attention"
            print(f"{title:32s}tiny decode {rate:6.1f} steps/s, {operations:.0f} operations and marks per step")


if __name__ == "__main__":
    main()
