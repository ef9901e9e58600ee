"""Audits samplers on this machine's GPU: draws and counts stay on the device.

    python -m mrv2.ci.gpu.sampler_audit FOLDER [PACKAGES]

Writes ``sampler_audit.json`` into FOLDER: draws per second of the reference sampler at V = 200,000, counted, and of its
kernels alone, which bound it; and the whole audit of it with the profile "pr"; with PACKAGES, a folder that holds vLLM
unpacked, the draws and the audit of its ``gumbel_sample``.
Exit codes: 0 all passed, 1 something failed, 2 no GPU or a wrong call, 3 inconclusive.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mrv2.checks.findings import JSON, RunVerdict, combine
from mrv2.checks.report.plain import plain
from mrv2.ci.command.environment import describe
from mrv2.ci.report.audit_json import metrics_of
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.fuzz.targets.vllm_sampler import VllmSampler, vllm_gumbel
from mrv2.stats.audit import audit, settings
from mrv2.stats.distributions import cliff
from mrv2.stats.report import screen
from mrv2.stats.targets import CountingTarget

SPEED_VOCAB = 200_000
SPEED_DRAWS = 4_000_000
EXIT_CODES = {RunVerdict.PASS: 0, RunVerdict.SUSPICIOUS: 0, RunVerdict.FAIL: 1, RunVerdict.INCONCLUSIVE: 3}


def main(arguments: list[str]) -> int:
    """Audit and write; returns the exit code."""
    import torch

    if not 1 <= len(arguments) <= 2 or not torch.cuda.is_available():
        sys.stderr.write("usage, on a machine with CUDA: python -m mrv2.ci.gpu.sampler_audit FOLDER [PACKAGES]\n")
        return 2
    record: dict[str, JSON] = {"environment": describe(), "gpu": torch.cuda.get_device_name()}
    record["reference: draws per second of the kernels alone"] = kernel_speed()
    verdicts = []
    samplers: dict[str, Callable[[], CountingTarget]] = {"reference": lambda: ReferenceSampler(device="cuda")}
    if len(arguments) == 2:
        packages = Path(arguments[1])
        samplers["vllm"] = lambda: VllmSampler(vllm_gumbel(packages), "cuda")
        samplers["vllm, float64"] = lambda: VllmSampler(vllm_gumbel(packages), "cuda", double=True)
    for name, make in samplers.items():
        sampler = make()
        record[f"{name}: draws per second"] = speed(sampler)
        sys.stdout.write(f"{name}: {record[f'{name}: draws per second']:,} draws/s at V = {SPEED_VOCAB:,}\n")
        report = audit(sampler, settings(vocab_size=SPEED_VOCAB))
        verdicts.append(report.verdict if name == "reference" else RunVerdict.PASS)
        record[f"{name}: verdict"] = report.verdict.value
        record[f"{name}: audit"] = metrics_of(report)
        record[f"{name}: screen"] = [*screen(report)]
        sys.stdout.write("\n".join(screen(report)) + "\n\n")
        sys.stdout.flush()
        # After each sampler, so that a run that is cut off has told what it saw.
        (Path(arguments[0]) / "sampler_audit.json").write_text(json.dumps(plain(record), indent=1) + "\n")
    return EXIT_CODES[combine(verdicts)]


def speed(sampler: CountingTarget, draws: int = SPEED_DRAWS, vocab_size: int = SPEED_VOCAB) -> int:
    """Draws per second of a cliff, counted; the first call is not timed."""
    logits = cliff(vocab_size, 18.0).logits
    sampler.count(logits, 1.0, 1, 0, max(1, draws // 100))
    start = time.perf_counter()
    counts = sampler.count(logits, 1.0, 2, 0, draws)
    seconds = time.perf_counter() - start
    assert int(np.sum(counts)) == draws
    return round(draws / seconds)


def kernel_speed(draws: int = SPEED_DRAWS, vocab_size: int = SPEED_VOCAB, device: str = "cuda") -> int:
    """Draws per second of the reference's kernels on one row that all draws share, nothing counted."""
    import torch

    from mrv2.refrunner.sampling import gumbel

    row = torch.from_numpy(cliff(vocab_size, 18.0).logits).to(device)
    count = max(1, min(draws, 2**30 // vocab_size))
    rows = torch.zeros(count, dtype=torch.int32, device=device)
    positions = torch.arange(count, dtype=torch.int32, device=device)
    warmth, seeds = torch.ones(1, device=device), torch.ones(1, dtype=torch.int64, device=device)

    def launch() -> None:
        gumbel.draw(row.expand(count, -1), rows, positions, warmth, seeds)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    launch()
    wait()
    start = time.perf_counter()
    for _ in range(-(-draws // count)):
        launch()
    wait()
    return round(-(-draws // count) * count / (time.perf_counter() - start))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
