"""Whether the trap reports what waits, and nothing else, for thousands of calls of torch that no table names.

    python -m mrv2.ci.gpu.trap_survey OUT.json        # in the folder of a checkout

The calls are those of ``operator_waits``. Each is measured behind a parked kernel, and made once more behind one in a
hot path of its own. What the trap may only suspect (it depends on what else is going on) is counted apart.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from mrv2.checks.cuda.sync_trap import CudaTrap, cuda_sync_trap
from mrv2.checks.findings import Verdict
from mrv2.checks.hot_path import hot_path

from .operator_waits import _cycles, operators, waits

_MILLISECONDS = (10, 80)


def survey(calls: Iterable[tuple[str, Callable[[], object]]], trap: CudaTrap) -> dict[str, Any]:
    """Measure calls, and compare with what the trap says.

    Args:
        calls: by name; each is made some four times.
        trap: open.

    Returns:
        how many calls waited and did not, which were missed, and which reported without waiting.
    """
    cycles = tuple(map(_cycles, _MILLISECONDS))
    truth: dict[str, bool] = {}
    raised: dict[str, str] = {}
    for name, call in calls:
        try:
            truth[name] = waits(call, cycles)
            _make_hot(name, call, cycles[0])
        except Exception as error:  # noqa: BLE001 - what a sample raises is its own affair
            truth.pop(name, None)
            raised[name] = f"{type(error).__name__}: {error}"[:200]
    return {**_compared(truth, trap), "raised": raised}


def _make_hot(name: str, call: Callable[[], object], cycles: int) -> None:
    torch.cuda.synchronize()
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
    with hot_path(name):
        kept = call()
    del kept


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


def main(path: str) -> None:
    """Measure, and write what was found."""
    from tests.checks.sync.relatives import calls

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        everything = itertools.chain(calls(), operators("cuda"))
        with cuda_sync_trap() as trap:
            found = survey(everything, trap)
    document = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, **found}
    Path(path).write_text(json.dumps(document, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
