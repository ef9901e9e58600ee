"""What compute-sanitizer watches: every kernel of the reference runner at work, and then a kernel with a planted fault.

The fault comes last, since the memory checker ends the process's use of the device with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from mrv2.fuzz.programs import MODEL, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver

#: Steps of the runner; a sanitised kernel takes some hundred times as long.
STEPS = 12
_PLANTED = {
    "memcheck": """extern "C" __global__ void planted(int *out) { out[threadIdx.x + 1024] = 1; }""",
    "racecheck": """extern "C" __global__ void planted(int *out) {
        __shared__ int shared[64];
        shared[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] = shared[63 - threadIdx.x];
    }""",
}


def run_kernels(steps: int = STEPS) -> int:
    """Drive the runner, with attention as Triton kernels; returns how many steps it made.

    Raises:
        RuntimeError: it crashed.
    """
    workload = random_workload(256, 7, steps)
    runner = ReferenceTarget().build({"model": MODEL, "device": "cuda", "attention": "triton", **workload.capacities})
    trace = Driver(runner, workload).run()
    torch.cuda.synchronize()
    if trace.crash is not None:
        raise RuntimeError(f"the runner crashed: {trace.crash.error}")
    return len(trace.steps)


def run_planted(tool: str) -> None:
    """Launch a kernel with the kind of fault that a tool looks for: it writes out of bounds, or lacks a barrier."""
    launch: Callable[..., None] = torch.cuda._compile_kernel(_PLANTED[tool], "planted")
    launch(grid=(1, 1, 1), block=(64, 1, 1), args=(torch.zeros(64, dtype=torch.int32, device="cuda"),))
    torch.cuda.synchronize()


if __name__ == "__main__":
    print(f"steps {run_kernels()}", flush=True)
    run_planted(sys.argv[1])
