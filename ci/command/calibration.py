"""``mrv2 doctor --calibrate``: which calls of torch wait on this GPU, and what rules and trap say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mrv2.checks.findings import JSON, RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.json_report import Report, write_report

from .environment import accelerator, describe
from .progress import Display
from .shared import notes, output

if TYPE_CHECKING:  # torch takes seconds to import
    from mrv2.checks.cuda.calibrate import Measured


def show_calibration(json: Path | None) -> RunVerdict:
    """Measure, print what differs, and write it as JSON if a file is named.

    Returns:
        FAIL if the trap missed a call that waits or reported one that does not, SUSPICIOUS if only the table of rules
        (which the virtual device follows) differs from this machine, else PASS.

    Raises:
        CheckError: there is no CUDA device.
    """
    from mrv2.checks.cuda.calibrate import calibrate
    from mrv2.checks.cuda.sync_trap import require_cuda
    from mrv2.checks.sync.probes import FREE, WAITING

    require_cuda("mrv2 doctor --calibrate")
    display = Display(notes(), 1)
    with display.live():
        progress = display.start("calibration")
        progress.start(2 * (len(WAITING) + len(FREE)))
        measured = calibrate(progress.advance)
    verdict = verdict_of(measured)
    try:
        if json:
            write_report(json, _as_report(measured, verdict))
    finally:
        _print(measured, verdict)
    return verdict


def verdict_of(measured: Sequence[Measured]) -> RunVerdict:
    """What a calibration says of the trap and of the rules."""
    if not measured:
        return RunVerdict.INCONCLUSIVE
    if not all(one.trapped for one in measured):
        return RunVerdict.FAIL
    return RunVerdict.PASS if all(one.as_in_table for one in measured) else RunVerdict.SUSPICIOUS


def _print(measured: Sequence[Measured], verdict: RunVerdict) -> None:
    console = output()
    differing = [one for one in measured if not (one.as_in_table and one.trapped)]
    waiting = [one for one in measured if one.waits]
    device = accelerator()
    screen.line(console, f"measured on   {', '.join(device.devices)}, driver {device.driver}, torch {device.build}")
    screen.line(console, f"calls         {len(measured)}, of which {len(waiting)} wait here")
    screen.line(console, f"torch warns   of {sum(one.warns for one in waiting)} of these")
    screen.line(console, f"trap reports  {sum(bool(one.codes) for one in waiting)} of these")
    if differing:
        columns = ("call", "waits here", "by the rules", "torch warns", "trap", "host ms")
        screen.table(console, columns, map(_row, differing))
    said = "all as in the rules"
    if differing:
        said = f"not as in the rules or not trapped: {screen.count(len(differing), 'call')}"
    screen.line(console, f"{verdict.value}: {said}")


def _row(one: Measured) -> tuple[str, ...]:
    told = ", ".join(one.codes) or "-"
    return one.name, _yes(one.waits), _yes(one.expected), _yes(one.warns), told, f"{one.host_ms:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _as_report(measured: Sequence[Measured], verdict: RunVerdict) -> Report:
    device = accelerator()
    environment: dict[str, JSON] = {
        **describe(), "torch_build": device.build, "cuda_devices": list(device.devices), "cuda_driver": device.driver
    }  # fmt: skip
    rows: list[JSON] = [
        {
            "call": one.name, "waits": one.waits, "expected": one.expected, "torch_warns": one.warns,
            "reported": list(one.codes), "host_ms": one.host_ms,
        }
        for one in measured
    ]  # fmt: skip
    return Report("doctor", environment, verdict, metrics={"calibration": rows})
