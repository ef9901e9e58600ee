"""Mutants of the reference runner: its package once more, with one small change in the source of one file.

The original modules are never touched. The changed file is written to a temporary folder, and the package is imported
again under a name of its own: that file from there, all others from where they are. So mutants and the original live
side by side in one process, and kernels in files that are not changed need not be compiled once more.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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
    """Import a mutated twin of the runner's package for the length of the scope.

    Yields:
        the name of the package; it is importable inside the scope and forgotten after it.

    Raises:
        ValueError: the text to change is not there exactly once; the mutation is out of date.
    """
    with tempfile.TemporaryDirectory(prefix="mrv2-mutant-") as folder:
        changed = _write(_mutated_text(mutation), mutation.file, Path(folder))
        name = f"mrv2_mutant_{mutation.name}_{Path(folder).name.rsplit('-', 1)[-1]}"
        finder = _Finder(name, {_package_folder() / mutation.file: changed})
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module(name)
            yield name
        finally:
            sys.meta_path.remove(finder)
            for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
                del sys.modules[module]


def _package_folder() -> Path:
    (folder,) = importlib.import_module(PACKAGE).__path__
    return Path(folder)


def _mutated_text(mutation: Mutation) -> str:
    text = (_package_folder() / mutation.file).read_text(encoding="utf-8")
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: its old text must occur once in {mutation.file}, found {count} times; "
            "a mutant that changes nothing would look like a fault that nobody catches; write the text as it is now"
        )
    return text.replace(mutation.old, mutation.new)


def _write(text: str, file: str, folder: Path) -> Path:
    """Write a file of the package below a folder, in packages of the same names: reports name files by them."""
    written = folder / _package_folder().name / file
    written.parent.mkdir(parents=True)
    for package in written.relative_to(folder).parents[:-1]:
        (folder / package / "__init__.py").touch()
    written.write_text(text, encoding="utf-8")
    return written


class _Finder(MetaPathFinder):
    """Finds the modules of one mutant: the files of the original, but for those that are replaced.

    Args:
        name: of the mutant's package.
        replaced: the file to load in the place of a file of the original.
    """

    def __init__(self, name: str, replaced: dict[Path, Path]) -> None:
        self._name = name
        self._replaced = replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        if fullname != self._name and not fullname.startswith(f"{self._name}."):
            return None
        place = _package_folder().joinpath(*fullname.split(".")[1:])
        if place.is_dir():
            return self._spec(fullname, place / "__init__.py", [str(place)])
        file = place.with_suffix(".py")
        return self._spec(fullname, file) if file.is_file() else None

    def _spec(self, name: str, file: Path, folders: list[str] | None = None) -> ModuleSpec | None:
        place = self._replaced.get(file, file)
        return importlib.util.spec_from_file_location(name, place, submodule_search_locations=folders)
