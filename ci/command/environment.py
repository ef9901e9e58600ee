"""Where a command runs: versions, build and device, without importing anything heavy unless asked to."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mrv2.checks.findings import JSON

REQUIRED = ("torch", "triton", "numpy", "scipy", "hypothesis", "pytest", "pytest-xdist", "rich", "typer", "jsonschema")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "model": ("transformers", "gguf", "safetensors", "tokenizers", "accelerate"),
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
    return "compiled for the GPU" if devices else "interpreted (no CUDA device)"


def _driver() -> str | None:
    """Version of the NVIDIA kernel driver, from the file that it publishes."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found.group(1) if found else "unknown"


def compiler() -> str | None:
    """The C compiler and the first line of its ``--version``, or ``None``."""
    names = (os.environ.get("CC", "").split()[:1] or []) + ["cc", "gcc", "clang"]
    for name in names:
        path = shutil.which(name)
        if path:
            return _compiler_version(name, path)
    return None


def _compiler_version(name: str, path: str) -> str:
    """A compiler that is there but does not answer is named without a version."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        answer = ""
    lines = answer.splitlines()
    return f"{name}: {lines[0]}" if lines else f"{name} (gives no version)"
