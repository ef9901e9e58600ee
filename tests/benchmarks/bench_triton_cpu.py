"""What Triton on the CPU costs: a launch, against the interpreter, a cold and a warm variant. Medians.

Run as ``python tests/benchmarks/bench_triton_cpu.py``. It asserts nothing, and its name keeps it out of the tests.
Processor time is measured, that of the compiler included, so that other work on the machine shows little.
"""

import dataclasses
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from mrv2.checks.hooks.patching import Patches
from mrv2.checks.triton_cpu import enabled
from mrv2.checks.triton_cpu.prepared import Prepared
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.kernels.launch import interpret
from mrv2.refrunner.llm import LLM, default_config
from mrv2.refrunner.models.tiny import tiny_checkpoint

ROUNDS, CALLS = 60, 50


@dataclasses.dataclass
class Launch:
    """One launch of a kernel of the runner, with tensors of its own."""

    kernel: JITFunction
    args: tuple[Any, ...]
    grid: Any
    kwargs: dict[str, Any]


@triton.jit
def small(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c_ptr + lanes, tl.load(a_ptr + lanes, mask=lanes < n) + tl.load(b_ptr + lanes, mask=lanes < n), lanes < n)


SAMPLING = [
    SamplingParams(max_tokens=4),
    SamplingParams(max_tokens=4, temperature=1.0, seed=1, logprobs=3, prompt_logprobs=1),
    SamplingParams(max_tokens=4, temperature=2.5, seed=1, top_k=20, top_p=0.8, min_p=0.01, logprobs=-1),
    SamplingParams(max_tokens=4, repetition_penalty=1.3, bad_words=((1,), (2, 3)), logit_bias=((7, 1.5),)),
]


def launches_of_the_runner() -> list[Launch]:
    """The first launch of each kernel in a generation of four requests on the tiny model, all features among them."""
    found: dict[str, Launch] = {}
    stock = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if self.__name__ not in found:
            found[self.__name__] = Launch(self, tuple(map(_copied, args)), grid, kwargs)
        return stock(self, *args, grid=grid, warmup=warmup, **kwargs)

    run.runs_on_cpu = True  # type: ignore[attr-defined]
    checkpoint = tiny_checkpoint()
    config = dataclasses.replace(
        default_config(checkpoint), device="cpu", max_model_len=64, attention="triton", poison=True
    )
    patches = Patches()
    with enabled():
        stock = JITFunction.run
        patches.set(JITFunction, "run", run)
        try:
            with LLM(checkpoint, config) as engine:
                prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]
                engine.generate(prompts, SAMPLING)
        finally:
            patches.undo()
    return list(found.values())


def _copied(value: Any) -> Any:
    """A tensor with memory of its own, laid out as before."""
    if not isinstance(value, torch.Tensor):
        return value
    empty = torch.empty(0, dtype=value.dtype)
    return empty.set_(value.untyped_storage().clone(), value.storage_offset(), value.shape, value.stride())


def microseconds(program: Callable[[], object], rounds: int = ROUNDS, calls: int = CALLS) -> float:
    """Median processor time of a call."""
    times = []
    program()
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            program()
        times.append((time.process_time() - start) / calls * 1e6)
    return statistics.median(times)


def compiled_launch(launch: Launch) -> Callable[[], object]:
    """Launch it through Triton's own syntax; the tensors are the same each time."""
    return lambda: launch.kernel[launch.grid](*launch.args, **launch.kwargs)


def floor() -> None:
    """A launch of one program over eight elements, with and without checks."""
    x, y, out = torch.ones(8), torch.ones(8), torch.zeros(8)
    for check in (True, False):
        with enabled(check=check):
            took = microseconds(lambda: small[(1,)](x, y, out, 8, BLOCK=8), 200)
        print(f"{'launch floor':26s}{'with log and check' if check else 'without':20s}{took:8.1f} µs")


def against_the_interpreter(launches: list[Launch]) -> None:
    """Each kernel of the runner."""
    factors = []
    for launch in launches:
        times = []
        for check in (True, False):
            with enabled(check=check):
                times.append(microseconds(compiled_launch(launch), 30, 20))

        def interpreted(launch: Launch = launch) -> None:
            interpret(launch.kernel, launch.grid, launch.args, launch.kwargs)

        slow = microseconds(interpreted, 5, 1)
        factors.append(slow / times[0])
        print(
            f"{launch.kernel.__name__:26s}checked {times[0]:8.1f} µs   unchecked {times[1]:8.1f} µs   "
            f"interpreter {slow / 1000:8.1f} ms   factor {factors[-1]:7.0f}"
        )
    print(f"{'median factor':26s}{statistics.median(factors):.0f}")


def builds(launches: list[Launch]) -> None:
    """Milliseconds to build each variant with an empty cache, and to load it from a full one."""
    cold, warm = [], []
    for launch in launches:
        for times in (cold, warm):
            kernel = Prepared(launch.kernel)
            start = _processor_time()
            kernel.kernel(kernel.bind(launch.args, launch.kwargs), audit=True)
            times.append((_processor_time() - start) * 1000)
    for name, times in (("cold", cold), ("warm", warm)):
        print(f"{name} variant, median {statistics.median(times):.1f} ms, largest {max(times):.1f} ms")


def _processor_time() -> float:
    """Seconds of this process and of those that it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    floor()
    launches = launches_of_the_runner()
    against_the_interpreter(launches)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, MRV2_CACHE_DIR=folder):
        builds(launches)


if __name__ == "__main__":
    main()
