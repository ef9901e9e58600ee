"""Time of each launch of a draw behind filters, on this machine's GPU, by torch.profiler.

    python -m mrv2.ci.gpu.filter_launches FILE

`filter_speed` times all of a draw in a graph, where launches overlap a little; this says where the time goes. FILE
gets, for each batch, filter and kind of logits, microseconds a draw by kernel. Exit codes: 0, 2 no GPU or a wrong call.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mrv2.ci.command.environment import describe
from mrv2.ci.gpu.filter_speed import BATCHES, CASES, PEAKED, Batch
from mrv2.ci.gpu.sampling_speed import VOCAB, inputs

ROUNDS = 3  # over all inputs, which are more than the cache holds


def main(arguments: list[str]) -> int:
    """Measure and write; returns the exit code."""
    if len(arguments) != 1 or not torch.cuda.is_available():
        sys.stderr.write("usage, on a machine with CUDA: python -m mrv2.ci.gpu.filter_launches FILE\n")
        return 2
    record: dict[str, Any] = {"environment": describe(), "gpu": torch.cuda.get_device_name(), "vocabulary": VOCAB}
    record["table"] = []
    for count in BATCHES:
        normal = inputs(count, torch.float32)
        for kind, tensors in (("normal", normal), ("peaked", [PEAKED * tensor for tensor in normal])):
            for name, case in CASES.items():
                launches = profiled(Batch(case, count, VOCAB, "cuda"), tensors)
                record["table"].append({"B": count, "filters": name, "logits": kind, "launches": launches})
        Path(arguments[0]).write_text(json.dumps(record, indent=1) + "\n")
    return 0


def profiled(batch: Batch, tensors: list[Tensor]) -> dict[str, float]:
    """Microseconds a draw, by kernel; the kernels are loaded before.

    Args:
        tensors: float32 [N, V] each, on the device.
    """
    batch.sample(tensors[0])
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as observed:
        for _ in range(ROUNDS):
            for logits in tensors:
                batch.sample(logits)
        torch.cuda.synchronize()
    return time_of_kernels(observed.events(), ROUNDS * len(tensors))


def time_of_kernels(events: Iterable[Any], draws: int) -> dict[str, float]:
    """Microseconds a draw, by kernel, from a profiler's events; what the host did is passed over."""
    total: Counter[str] = Counter()
    for event in events:
        if event.device_type.name == "CUDA":
            total[event.name] += event.device_time
    return {name: round(time / draws, 2) for name, time in total.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
