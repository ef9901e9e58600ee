"""Mutants of the reference runner: copies of its package with one small change in the source.

The original modules are never touched. A mutant's package is copied to a temporary folder, changed there, and
imported under a name of its own, so mutants and the original live side by side in one process.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "mrv2.refrunner"


@dataclass(frozen=True)
class Mutation:
    """One change to one file.

    Attributes:
        name: an identifier.
        file: path inside the runner's package.
        old: text that must occur exactly once.
        new: what replaces it.
        doc: the fault in one line, as a bug report would put it.
    """

    name: str
    file: str
    old: str
    new: str
    doc: str


@contextmanager
def mutated_package(mutation: Mutation) -> Iterator[str]:
    """Import a mutated copy of the runner's package for the length of the scope.

    Yields:
        the name of the package; it is importable inside the scope and forgotten after it.

    Raises:
        ValueError: the text to change is not there exactly once; the mutation is out of date.
    """
    with tempfile.TemporaryDirectory(prefix="mrv2-mutant-") as folder:
        copy = Path(folder) / Path(_package_folder()).name
        shutil.copytree(_package_folder(), copy, ignore=shutil.ignore_patterns("__pycache__"))
        _rewrite(copy / mutation.file, mutation)
        name = f"mrv2_mutant_{mutation.name}_{Path(folder).name.rsplit('-', 1)[-1]}"
        _import_package(name, copy)
        try:
            yield name
        finally:
            for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
                del sys.modules[module]


def _package_folder() -> str:
    (folder,) = importlib.import_module(PACKAGE).__path__
    return str(folder)


def _rewrite(path: Path, mutation: Mutation) -> None:
    text = path.read_text(encoding="utf-8")
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: its old text must occur once in {mutation.file}, found {count} times; "
            "a mutant that changes nothing would look like a fault that nobody catches; write the text as it is now"
        )
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def _import_package(name: str, folder: Path) -> None:
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
