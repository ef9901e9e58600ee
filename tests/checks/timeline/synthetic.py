"""Traces with known content, as a profiler would write them."""

import json
from pathlib import Path

HOST, THREAD, GPU = 100, 101, 0


def event(category, name, start, length, pid=HOST, tid=THREAD, **arguments):
    """One event; times in µs."""
    return {
        "ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": pid, "tid": tid, "args": arguments,
    }  # fmt: skip


class Recording:
    """Calls and the device work that they launch, with correlations.

    Args:
        platform: ``"cuda"`` or ``"hip"``.
        pid: of the host's process.
        device: that works.
    """

    def __init__(self, platform="cuda", pid=HOST, device=GPU):
        self.events = []
        self.platform, self.pid, self.device = platform, pid, device
        self.correlation = 0

    def range(self, name, start, length, category="user_annotation", tid=THREAD):
        self.events.append(event(category, name, start, length, self.pid, tid))

    def call(self, name, start, length, tid=THREAD):
        self.correlation += 1
        full = f"{self.platform}{name}"
        self.events.append(event("cuda_runtime", full, start, length, self.pid, tid, correlation=self.correlation))
        return self.correlation

    def work(self, category, name, start, length, correlation, stream=7, **arguments):
        self.events.append(
            event(category, name, start, length, self.device, stream, correlation=correlation, stream=stream,
                  device=self.device, **arguments)
        )  # fmt: skip

    def kernel(self, name, called, start, length, stream=7):
        self.work("kernel", name, start, length, self.call("LaunchKernel", called, 3), stream)

    def copy(self, way, called, start, length, size, memory="Pinned", took=3):
        name = f"Memcpy HtoD ({memory} -> Device)" if way == "up" else f"Memcpy DtoH (Device -> {memory})"
        self.work("gpu_memcpy", name, start, length, self.call("MemcpyAsync", called, took), bytes=size)


def decode(recording, steps=4, named=True, every=1000.0):
    """Steps of 1,000 µs: the host takes 400 µs from 0 on, waits for 100; the device works from 200 to 900.

    An upload, a kernel of the input, two of the model, one of the sampler, a download. Gaps: 20 µs behind the input's
    kernel, 2 µs between those of the model, and 300 µs between two steps.
    """
    for number in range(steps):
        at = 1000.0 + number * every
        if named:
            recording.range("mrv2.step", at, 500)
            recording.range("mrv2.scheduler", at, 50)
            recording.range("mrv2.staging", at + 50, 50)
            recording.range("mrv2.input_prep", at + 100, 40)
            recording.range("mrv2.forward", at + 140, 160)
            recording.range("mrv2.sampler", at + 300, 50)
            recording.range("mrv2.download", at + 350, 50)
            recording.range("mrv2.wait", at + 400, 100)
        recording.copy("up", at + 60, at + 200, 10, 4096)
        recording.kernel("gather_input_ids", at + 110, at + 210, 30)
        recording.kernel("gemm_first", at + 150, at + 260, 300)
        recording.kernel("gemm_second", at + 200, at + 562, 298)
        recording.kernel("sample_blocks", at + 310, at + 860, 30)
        recording.copy("down", at + 360, at + 890, 10, 64)
        recording.call("EventSynchronize", at + 400, 100)
    return recording


def write(path: Path, events, **header):
    """A trace file."""
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path
