"""Writes the table of third-party kernels into the README of ``checks/triton_cpu``.

    MRV2_THIRD_PARTY_KERNELS=FOLDER python -m tests.checks.triton_cpu.third_party.table

Everything in it was measured by the run that wrote it.
"""

from __future__ import annotations

import collections
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
import triton

from .cases import SIZES, Case, Draw
from .fetch import PACKAGES
from .harness import Comparison, Launch, Verdict
from .loader import loading
from .packages import CASES, ROOTS, folder

_README = Path(__file__).parents[4] / "checks" / "triton_cpu" / "README.md"
_BEGIN, _END = "<!-- third-party kernels -->\n", "<!-- end of third-party kernels -->\n"

#: Of a kernel's launches, the verdict that says most.
_WORST_FIRST = (
    Verdict.DIFFERENT,
    Verdict.REFUSED,
    Verdict.REJECTED,
    Verdict.NO_REFERENCE,
    Verdict.COMPLETED,
    Verdict.IDENTICAL,
)


def main() -> None:
    """Run all cases and write the table."""
    where, missing = folder()
    if missing:
        sys.exit(missing)
    launches: dict[str, list[Launch]] = collections.defaultdict(list)
    with loading(where, ROOTS) as load:
        for case in CASES:
            launches[case.module] += _launches(case, load(case.module))
    _write(_table(launches))


def _launches(case: Case, module: object) -> list[Launch]:
    comparison = Comparison()
    for size in range(SIZES):
        draw = Draw(size)
        with comparison.watching(draw.reached):
            case.run(module, draw)
    return comparison.launches


def _table(launches: dict[str, list[Launch]]) -> str:
    everything = [launch for some in launches.values() for launch in some]
    kernels = {(launch.module, launch.kernel) for launch in everything}
    versions = ", ".join(f"{package.name} {package.version}" for package in PACKAGES)
    counts = collections.Counter(launch.verdict for launch in everything)
    told = "; ".join(f"{verdict.value}: {counts[verdict]}" for verdict in reversed(_WORST_FIRST) if counts[verdict])
    torch_version = torch.__version__.partition("+")[0]
    made_with = f"triton {triton.__version__}, torch {torch_version} and numpy {np.__version__}"
    lines = [
        f"{len(kernels)} kernels of {versions}, {len(everything)} launches ({told}), with {made_with}:",
        "",
        "| module | kernels | launches, programs | result | times faster |",
        "|---|---|---|---|---|",
        *(_row(module, some) for module, some in launches.items()),
    ]
    return "\n".join(lines) + "\n"


def _row(module: str, launches: list[Launch]) -> str:
    by_kernel: dict[str, list[Launch]] = collections.defaultdict(list)
    for launch in launches:
        by_kernel[launch.kernel].append(launch)
    by_verdict: dict[Verdict, list[str]] = collections.defaultdict(list)
    for kernel, some in by_kernel.items():
        by_verdict[min((launch.verdict for launch in some), key=_WORST_FIRST.index)].append(kernel)
    speed_ups = [launch.speed_up for launch in launches if launch.speed_up]
    cells = (
        f"`{module}`",
        " ".join(f"`{kernel}`" for kernel in by_kernel),
        f"{len(launches)}, {sum(launch.programs for launch in launches)}",
        _result(by_verdict),
        f"{statistics.median(speed_ups):.0f}" if speed_ups else "",
    )
    return f"| {' | '.join(cells)} |"


def _result(by_verdict: dict[Verdict, list[str]]) -> str:
    """One verdict if all kernels share it; else that of each kernel that is not simply identical."""
    if len(by_verdict) == 1:
        return next(iter(by_verdict)).value
    told = [verdict for verdict in _WORST_FIRST if verdict in by_verdict and verdict is not Verdict.IDENTICAL]
    return "; ".join(f"{verdict.value}: {' '.join(f'`{name}`' for name in by_verdict[verdict])}" for verdict in told)


def _write(table: str) -> None:
    before, begin, rest = _README.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        sys.exit(f"{_README} lacks the lines {_BEGIN.strip()} and {_END.strip()}")
    _README.write_text(f"{before}{begin}\n{table}\n{end}{after}")


if __name__ == "__main__":
    main()
