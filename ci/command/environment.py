"""Where a command runs: versions, build and device, without importing anything heavy unless asked to."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrv2.checks.findings import JSON

REQUIRED = ("torch", "triton", "numpy", "scipy", "hypothesis", "pytest", "pytest-xdist", "rich", "typer", "jsonschema")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "model": ("transformers", "gguf", "safetensors", "tokenizers", "accelerate"),
    "grammar": ("llguidance",),
    "report": ("jinja2", "matplotlib"),
    "cluster": ("ray",),
    "dev": ("build", "import-linter", "mypy", "ruff", "setuptools"),
}
_DRIVER = Path("/proc/driver/nvidia/version")


def version_of(package: str) -> str | None:
    """Version of an installed distribution, from its metadata; ``None`` if it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that matter to a result; ``None`` for one that is absent."""
    return {name: version_of(name) for name in (*REQUIRED, *EXTRAS["model"])}


def describe() -> dict[str, JSON]:
    """The ``environment`` of a report."""
    return {
        "mrv2": version_of("mrv2") or "not installed",
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "packages": package_versions(),
    }


def import_fault(module: str) -> str | None:
    """Why a module cannot be imported, or ``None`` if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a broken install raises anything
        return f"{type(error).__name__}: {error}"
    return None


@dataclass(frozen=True)
class Accelerator:
    """What torch and the system say about CUDA.

    Attributes:
        build: ``"CPU build"``, ``"CUDA 13.0 build"``, or why torch cannot be imported.
        devices: name of each CUDA device that works.
        driver: version of the kernel driver, if one is loaded.
        triton: how Triton kernels run here.
    """

    build: str
    devices: tuple[str, ...]
    driver: str | None
    triton: str

    @property
    def interprets(self) -> bool:
        """Whether some Triton kernel may run in Triton's interpreter here: the fallback where none runs on a GPU."""
        return not self.devices or "interpreted" in self.triton


def accelerator() -> Accelerator:
    """Ask torch, which is imported for it, and the system."""
    driver = _driver()
    fault = import_fault("torch")
    if fault:
        return Accelerator(f"not usable ({fault})", (), driver, _triton_mode(()))
    import torch

    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    devices = tuple(torch.cuda.get_device_name(index) for index in range(_device_count()))
    return Accelerator(build, devices, driver, _triton_mode(devices))


def _device_count() -> int:
    """Usable CUDA devices; a driver that is too old counts as none."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _triton_mode(devices: tuple[str, ...]) -> str:
    """How a Triton kernel would run."""
    if import_fault("triton"):
        return "not at all: triton cannot be imported"
    if os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "yes", "on", "y"}:
        return "interpreted (TRITON_INTERPRET is set)"
    if devices:
        return "compiled for the GPU"
    if kernel_compiler().fault:
        return "interpreted, hundreds of times slower (no CUDA device, no C compiler)"
    return "compiled for the CPU (no CUDA device); a kernel that cannot be is interpreted"


def _driver() -> str | None:
    """Version of the NVIDIA kernel driver, from the file that it publishes."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found.group(1) if found else "unknown"


@dataclass(frozen=True)
class Tool:
    """Something that compiling kernels for the CPU needs.

    Attributes:
        text: what there is.
        fault: why it cannot be used as it is, and what to do; empty if it can.
    """

    text: str
    fault: str = ""


#: What says how kernels are compiled; it imports triton.
_COMPILING = "mrv2.checks.triton_cpu"


def kernel_compiler() -> Tool:
    """The C compiler that kernels are compiled with for the CPU, and the first line of its ``--version``."""
    if import_fault(_COMPILING):
        return Tool("not asked for", "triton cannot be imported")
    from mrv2.checks.triton_cpu.compiler import find_compiler
    from mrv2.checks.triton_cpu.errors import NoCompiler

    try:
        return Tool(_compiler_version(find_compiler().command))
    except NoCompiler as error:
        return Tool("none", f"{error.subject}: kernels are interpreted. Instead: {error.remedy}")


def kernel_cache() -> Tool:
    """The folder that keeps compiled kernels; it need not be there yet, and is not made."""
    if import_fault(_COMPILING):
        return Tool("not asked for", "triton cannot be imported")
    from mrv2.checks.triton_cpu.cache import Cache, UnsafeCache, folder

    place = folder()
    if place is None:
        return Tool("none", f"the user has no home folder: {_AGAIN}")
    there = next(path for path in (place, *place.parents) if path.exists())
    try:
        if there == place:
            Cache(place)
    except UnsafeCache as error:
        return Tool(str(place), f"{error.rule}. Instead: {error.remedy}")
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Tool(str(place), "" if writable else f"it cannot be written to: {_AGAIN}")


_AGAIN = "each process compiles its kernels again. Instead: set MRV2_CACHE_DIR to a folder of your own"


def _compiler_version(command: Sequence[str]) -> str:
    """A compiler that is there but does not answer is named without a version."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return f"{shlex.join(command)} (gives no version)"
    lines = done.stdout.splitlines()
    return f"{shlex.join(command)}: {lines[0]}" if lines else f"{shlex.join(command)} (gives no version)"
