"""Whose code a file is, a library's or the program's own, and what a file is called on every machine.

Libraries are known by where they are installed, never by how a path is spelled: a user's folder may be called
``triton`` as well. Nothing is imported to find out.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
from dataclasses import replace
from pathlib import Path

from .findings import Finding, Site

#: The folder of this toolkit's detectors, as it is spelled, by which code objects know it, and as it really is; what
#: else of the toolkit runs on the virtual device is a program like any other.
TOOLKIT = tuple({f"{Path(file).parent}/" for file in (__file__, os.path.realpath(__file__))})
#: In the folder of the standard library there may be folders of installed packages.
_INSTALLED = ("site-packages/", "dist-packages/")
#: Code without a file: of the interpreter itself, and what old versions of numpy generate.
_WITHOUT_FILE = ("<frozen ", "<__array")


@functools.cache
def folder_of(package: str) -> tuple[str, ...]:
    """The folder of an installed package, as it is spelled and as it really is; nothing if it is not installed."""
    spec = importlib.util.find_spec(package)
    folders = () if spec is None else tuple(spec.submodule_search_locations or ())
    return tuple({f"{folder}/" for found in folders for folder in (found, os.path.realpath(found))})


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file belongs to torch, Triton, numpy or this toolkit, which call on behalf of the program."""
    folders = (*TOOLKIT, *folder_of("torch"), *folder_of("triton"), *folder_of("numpy"))
    return file.startswith((*_WITHOUT_FILE, *folders)) or os.path.realpath(file).startswith(folders)


@functools.cache
def is_standard(file: str) -> bool:
    """Whether a file belongs to Python's standard library."""
    for name in ("stdlib", "platstdlib"):
        folder = sysconfig.get_path(name)
        for top in {f"{folder}/", f"{os.path.realpath(folder)}/"}:
            if file.startswith(top) and not file.removeprefix(top).startswith(_INSTALLED):
                return True
    return False


@functools.cache
def portable_path(file: str) -> str:
    """A file from its outermost package on, as in ``refrunner/kernels/gumbel.py``, wherever that is installed."""
    path = Path(file)
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return str(path.relative_to(top))


def portable(finding: Finding) -> Finding:
    """A finding whose files are named the same on every machine, so that its fingerprint is too."""
    where, other, allocation = map(_portable_sites, (finding.where, finding.other, finding.allocation))
    return replace(finding, where=where, other=other, allocation=allocation)


def _portable_sites(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    return tuple(replace(site, file=portable_path(site.file)) for site in sites)
