"""Finds the program that a replay file or an argument names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from mrv2.checks.findings import JSON
from mrv2.ci.stages.workloads import quick_workload
from mrv2.fuzz.every_edge import every_edge
from mrv2.fuzz.programs import MODEL, RunnerProgram, workload_as_json, workload_from_json
from mrv2.fuzz.targets.named import OWN_TARGETS, REFERENCE
from mrv2.refrunner.models.checkpoint import load_checkpoint

from .targets import is_target, resolve_program, resolve_target

NEW_TOKENS = 6


def program_of_file(named: Mapping[str, JSON]) -> Callable[[], object]:
    """The program of a replay file: a function, or a target at work.

    Args:
        named: ``{"callable": "package.module:function"}`` or ``{"target": ..., "workload": {...}}``, checked already.

    Raises:
        InputError: it cannot be found.
        CheckError: the workload is none.
    """
    if "callable" in named:
        reference = str(named["callable"])
        return resolve_program(f"program {reference!r} of the replay file", reference)
    workload = workload_from_json(cast(Mapping[str, JSON], named["workload"]))
    return RunnerProgram(resolve_target(str(named["target"]), "the replay file's target"), workload)


def program_of_argument(reference: str) -> Callable[[], object]:
    """The program that an argument names: a function, or a target, which then runs the quick workload.

    Raises:
        InputError: it cannot be found.
    """
    if reference not in OWN_TARGETS and not is_target(f"TARGET {reference!r}", reference):
        return resolve_program(f"TARGET {reference!r}", reference)
    vocab_size = load_checkpoint(MODEL).config.vocab_size
    return RunnerProgram(resolve_target(reference, "TARGET"), quick_workload(vocab_size, 0, NEW_TOKENS))


def every_edge_of_argument(reference: str) -> Callable[[], object]:
    """The same; the reference runner, whose settings are known, runs in each way in which it orders its work.

    Raises:
        InputError: it cannot be found.
    """
    return every_edge(resolve_target(reference, "TARGET")) if reference == REFERENCE else program_of_argument(reference)


def name_for_file(reference: str, program: Callable[[], object]) -> dict[str, JSON]:
    """How a replay file names the program of an argument; the inverse of ``program_of_file``."""
    if isinstance(program, RunnerProgram):
        return {"target": reference, "workload": workload_as_json(program.workload)}
    return {"callable": reference}
