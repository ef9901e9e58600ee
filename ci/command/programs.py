"""Finds the program that a replay file or an argument names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from mrv2.checks.findings import JSON
from mrv2.fuzz.programs import RunnerProgram, workload_from_json

from .targets import resolve_program, resolve_target


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
    return RunnerProgram(resolve_target(str(named["target"])), workload)
