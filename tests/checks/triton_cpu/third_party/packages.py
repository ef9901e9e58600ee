"""Where the packages are, and all cases."""

from __future__ import annotations

import json
import os
from pathlib import Path

from . import flag_gems_cases, liger_cases, sglang_cases, vllm_attention_cases, vllm_cases
from .cases import Case
from .fetch import MANIFEST, PACKAGES, expected_manifest

CASES: list[Case] = [
    *vllm_cases.CASES,
    *vllm_attention_cases.CASES,
    *sglang_cases.CASES,
    *liger_cases.CASES,
    *flag_gems_cases.CASES,
]

ROOTS = tuple(package.module for package in PACKAGES)

_VARIABLE = "MRV2_THIRD_PARTY_KERNELS"
_HOW = "python tests/checks/triton_cpu/third_party/fetch.py FOLDER"


def folder() -> tuple[Path, str]:
    """The folder that ``fetch.py`` filled, and why it cannot be used; that is empty if it can."""
    name = os.environ.get(_VARIABLE, "")
    if not name:
        return Path(), f"{_VARIABLE} names no folder; fill one with: {_HOW}"
    manifest = Path(name) / MANIFEST
    if not manifest.is_file() or json.loads(manifest.read_text()) != expected_manifest():
        return Path(name), f"{_VARIABLE} names a folder that does not hold {expected_manifest()}; fill it with: {_HOW}"
    return Path(name), ""
