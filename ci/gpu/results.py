"""Turns the JUnit file of a GPU run into a recorded result: one small JSON file that names machine and versions."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

EXIT_CODES = {"pass": 0, "fail": 1, "inconclusive": 3}


def read_junit(path: Path) -> dict[str, dict[str, Any]]:
    """Outcome and seconds of each test of a JUnit file, by ``module::name``.

    Outcomes are ``passed``, ``failed``, ``error`` and ``skipped``. What a test measured, and recorded as properties
    that hold JSON, is under ``figures``. A file that pytest never wrote holds no test.
    """
    if not path.exists():
        return {}
    tests: dict[str, dict[str, Any]] = {}
    # The file was written by the pytest run just before: it is not foreign input.
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314
        tags = {child.tag for child in case}
        outcome = next((name for name in ("error", "failure", "skipped") if name in tags), "passed")
        test = tests[f"{case.get('classname')}::{case.get('name')}"] = {
            "outcome": "failed" if outcome == "failure" else outcome,
            "seconds": float(case.get("time", 0)),
        }
        figures = {item.get("name"): json.loads(item.get("value", "null")) for item in case.iter("property")}
        if figures:
            test["figures"] = figures
    return tests


def verdict_of(counts: Counter[str]) -> str:
    """``fail`` if anything failed, ``pass`` if something passed, else ``inconclusive``."""
    if counts["failed"] or counts["error"]:
        return "fail"
    return "pass" if counts["passed"] else "inconclusive"


def environment() -> dict[str, Any]:
    """What the numbers depend on: GPUs, driver, and the versions of Python, torch, CUDA, triton and numpy."""
    return {
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        **{package: version(package) for package in ("torch", "triton", "numpy")},
    }


def _first_line(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return None


def main(junit: str, folder: str, command: str, *sections: str) -> int:
    """Write the result file, print where it is, and return the exit code of its verdict.

    Args:
        junit: file that pytest wrote.
        folder: for the result.
        command: that was run.
        sections: ``name=file`` of further parts, each a JSON file; one whose ``outcome`` is ``failed`` fails the run.
    """
    tests = read_junit(Path(junit))
    counts = Counter(test["outcome"] for test in tests.values())
    parts = {name: json.loads(Path(file).read_text()) for name, _, file in (item.partition("=") for item in sections)}
    counts["failed"] += sum(part.get("outcome") == "failed" for part in parts.values())
    now = datetime.now(UTC)
    result = {
        "schema": 1,
        "date": now.isoformat(timespec="seconds"),
        "command": command,
        "commit": _first_line("git", "rev-parse", "HEAD"),
        "verdict": verdict_of(counts),
        "counts": {name: counts[name] for name in ("passed", "failed", "error", "skipped")},
        "environment": environment(),
        "tests": tests,
        **parts,
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"{now:%Y%m%dT%H%M%SZ}.json")
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['verdict']}: {result['counts']}; written to {path}")
    return EXIT_CODES[verdict_of(counts)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
