"""Whether the trap reports what waits, and nothing else, for thousands of calls of torch that no table names.

    python -m mrv2.ci.gpu.trap_survey TRUTH.json OUT.json        # in the folder of a checkout

The calls are those of ``operator_waits``, and the truth is what that has measured on the same machine. Each is made
once in a hot path of its own; what surely waits is reported whether or not the device is busy. Suspicions are counted
apart, since they depend on what else is going on.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from mrv2.checks.cuda.sync_trap import CudaTrap, cuda_sync_trap
from mrv2.checks.findings import Verdict
from mrv2.checks.hot_path import hot_path

from .operator_waits import RELATIVES, operators


def survey(
    calls: Iterable[tuple[str, Callable[[], object]]], truth: Mapping[str, Any], trap: CudaTrap
) -> dict[str, Any]:
    """Make calls in hot paths, and compare what the trap says with what was measured.

    Args:
        calls: by name; each is made twice, the first time so that its kernels are loaded.
        truth: by name, whether it waits; anything but true and false is left out.
        trap: open.

    Returns:
        how many calls wait, which were missed, and which were reported and do not wait.
    """
    made: dict[str, bool] = {}
    for name, call in calls:
        if isinstance(truth.get(name), bool) and _made(name, call):
            made[name] = truth[name]
    return _compared(made, trap)


def _made(name: str, call: Callable[[], object]) -> bool:
    """Make a call in a hot path of its own; says whether it could be made."""
    try:
        kept = call()
        torch.cuda.synchronize()
        with hot_path(name):
            kept = call()
        del kept
    except Exception:  # noqa: BLE001 - what a sample raises is its own affair
        return False
    return True


def _compared(truth: dict[str, bool], trap: CudaTrap) -> dict[str, Any]:
    told: dict[str, list[str]] = {}
    suspected: dict[str, list[str]] = {}
    for finding in trap.watch.findings:
        kept = told if finding.verdict is Verdict.VIOLATION else suspected
        said = f"{finding.code} {finding.evidence['operation']}"
        kept.setdefault(str(finding.evidence["hot path"]), []).append(said)
    return {
        "calls": len(truth),
        "waiting": sum(truth.values()),
        "missed": sorted(name for name, waited in truth.items() if waited and name not in told),
        "reported, not waiting": {name: told[name] for name, waited in truth.items() if not waited and name in told},
        "suspected": suspected,
        "reported": {name: told[name] for name, waited in truth.items() if waited and name in told},
    }


def truth_of(document: Mapping[str, Any], part: str, names: Iterable[str]) -> dict[str, Any]:
    """Whether calls wait, from a file of ``operator_waits`` or from the short form of it that the tests keep."""
    measured = document[part]
    if "waiting" in measured:
        waiting = set(measured["waiting"])
        return {name: name in waiting for name in names}
    return {name: measured.get(name, measured.get(name.partition(": ")[2])) for name in names}


def main(truth: str, path: str) -> None:
    """Compare, and write what was found."""
    calls = importlib.import_module(RELATIVES).calls

    measured = json.loads(Path(truth).read_text())
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part, made in (("relatives", list(calls())), ("operators", list(operators("cuda")))):
            known = truth_of(measured, part, [name for name, _ in made])
            with cuda_sync_trap() as trap:
                found[part] = survey(made, known, trap)
    document = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, **found}
    Path(path).write_text(json.dumps(document, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
