"""Runs the kernels under NVIDIA's compute-sanitizer, and says what it found; or that it was not run, and why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Options of each kind of check. Hazards are wanted one by one, with the values of both sides: replicas of one element
#: store it twice, as Triton lays out small tensors, and equal values do no harm.
TOOLS = {
    "memcheck": ("--print-limit", "100"),
    "racecheck": ("--racecheck-report", "hazard", "--print-limit", "4000"),
}
#: Seconds for one tool.
LIMIT = 110
#: An error or hazard names the kernel, as ``at name+0x50`` or, in older versions, ``at 0x50 in name``.
_KERNEL = re.compile(r"\bat (?:0x\w+ in )?(?:void )?([A-Za-z_]\w*)(?:\+0x|\()")
_HEAD = re.compile(r"^=+ (Invalid .*|(?:Error|Warning|Info): .*(?:[Hh]azard|[Rr]ace).*)$", re.MULTILINE)
_VALUES = re.compile(r"Current Value *: *(-?\w+) *, *Incoming Value *: *(-?\w+)")
_PLANTED = "planted"
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^/\s()]+/)+")


def find_tool() -> str | None:
    """The tool's path: from PATH, a CUDA toolkit, or the package ``nvidia-cuda-sanitizer-api``."""
    found = shutil.which("compute-sanitizer")
    return found or next((str(path) for path in _candidates() if os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[Path]:
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    for root in (*roots, *sorted(Path("/usr/local").glob("cuda*"), reverse=True)):
        yield root / "bin" / "compute-sanitizer"
        yield root / "compute-sanitizer" / "compute-sanitizer"
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        yield from Path(folder).rglob("compute-sanitizer")


def judge(output: str, code: int | None) -> dict[str, Any]:
    """What one run of a tool says.

    Args:
        output: everything that it printed.
        code: its exit code; None if it ran out of time.

    Returns:
        ``outcome``: ``passed`` (all kernels ran, and only the planted fault was found), ``failed`` (a kernel of ours is
        at fault, or the planted fault was not found), or ``not run``; ``why``; ``steps``; ``errors`` by kernel;
        ``same_value_stores`` by kernel: two threads store one value to one place, which is no fault.
    """
    steps = re.search(r"^steps (\d+)$", output, re.MULTILINE)
    blocks = _HEAD.split(output)[1:]
    errors: Counter[str] = Counter()
    harmless: Counter[str] = Counter()
    for head, body in zip(blocks[::2], blocks[1::2], strict=True):
        (harmless if _stores_one_value(head, body) else errors)[_kernel_of(head + body)] += 1
    found = {"steps": int(steps[1]) if steps else 0, "errors": dict(errors), "same_value_stores": dict(harmless)}
    if code is None:
        return {"outcome": "not run", "why": f"no end within {LIMIT} seconds", **found}
    if steps is None and not errors:
        return {"outcome": "not run", "why": _last_lines(output), **found}
    ours = sorted(kernel for kernel in errors if kernel != _PLANTED)
    if ours:
        return {"outcome": "failed", "why": f"faults in {', '.join(ours)}", **found}
    if _PLANTED not in errors:
        return {"outcome": "failed", "why": "the planted fault was not found", **found}
    return {"outcome": "passed", "why": "nothing but the planted fault", **found}


def _stores_one_value(head: str, body: str) -> bool:
    """Whether a hazard is between two stores of equal values."""
    values = _VALUES.search(body)
    return "WAW" in head and values is not None and values[1] == values[2]


def _kernel_of(text: str) -> str:
    found = _KERNEL.search(text)
    return found[1] if found else "unknown"


def _last_lines(output: str) -> str:
    return " | ".join(line.strip("= ") for line in output.strip().splitlines()[-4:])


def run(tool: str, kind: str, log: Path) -> dict[str, Any]:
    """One kind of check; everything that the tool printed goes to the log."""
    command = [tool, "--tool", kind, *TOOLS[kind], sys.executable, "-m", "mrv2.ci.gpu.sanitized", kind]
    # The caching allocator hands out pieces of larger blocks, between which a checker sees no bounds.
    environment: Mapping[str, str] = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as output:
        try:
            done = subprocess.run(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT, check=False
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    text = log.read_text(errors="replace")
    # Names of files, and not where they are: a record is kept, and speaks of no machine's folders.
    return {**judge(text, code), "tail": [_FOLDERS.sub("", line) for line in text.splitlines()[-12:]]}


def main(target: str) -> int:
    """Write what all kinds of check found to a file."""
    tool = find_tool()
    results = {kind: run(tool, kind, Path(f"{target}.{kind}.log")) for kind in TOOLS} if tool else {}
    outcomes = {result["outcome"] for result in results.values()} or {"not run"}
    worst = next(name for name in ("failed", "not run", "passed") if name in outcomes)
    record = {"tool": tool, "outcome": worst, "checks": results}
    if tool is None:
        record["why"] = "compute-sanitizer is neither on PATH nor in a CUDA toolkit nor installed as a package"
    Path(target).write_text(json.dumps(record))
    print(f"compute-sanitizer: {worst}", *(f"{kind}: {result['why']}" for kind, result in results.items()), sep="; ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
