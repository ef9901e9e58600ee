"""Triton kernels on a machine without a GPU: compiled for the CPU while a command runs, and watched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from mrv2.checks.findings import Finding, RunVerdict, combine, verdict_of
from mrv2.ci.stages.base import StageResult


@contextlib.contextmanager
def compiled_kernels(interpreted: set[str] | None = None) -> Iterator[list[Finding]]:
    """Within this scope launches on tensors in host memory run compiled for the CPU, their accesses checked.

    Args:
        interpreted: is given the names of kernels that cannot be compiled and run in Triton's interpreter instead.

    Yields:
        What is wrong with kernels: lanes outside of all memory, programs in conflict, NaNs in an argmax. It grows as
        kernels run. Where ``TRITON_INTERPRET`` is set, or Triton is missing, nothing changes and nothing is found.
    """
    try:
        from triton import knobs

        from mrv2.checks import triton_cpu
    except ImportError:
        yield []
        return
    if knobs.runtime.interpret:
        yield []
        return
    with triton_cpu.enabled() as session:
        if interpreted is not None:
            session.interpreted = interpreted
        yield session.findings


def with_findings(result: StageResult, found: list[Finding]) -> StageResult:
    """A stage's result with findings of the kernels that it ran; they can only make it worse."""
    if not found:
        return result
    verdict: RunVerdict = combine([result.verdict, verdict_of(found)])
    return replace(result, verdict=verdict, findings=(*result.findings, *found))
