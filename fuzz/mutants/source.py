"""Mutants of a runner: its package once more, with one small change in the source of one file.

The original files are never touched. The changed file is written to a temporary folder, and the package is imported
again: that file from there, all others from where they are. A copy of the reference runner gets a name of its own, so
that mutants and the original live side by side in one process; a copy of any other package takes the place of the
original for a while, since its modules may name each other by it. Kernels in files that are not changed need not be
compiled once more.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGE = "mrv2.refrunner"
_COPIES = itertools.count()


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
    text = (package_folder(PACKAGE) / mutation.file).read_text(encoding="utf-8")
    name = f"mrv2_mutant_{mutation.name}_{next(_COPIES)}"
    with changed_package(PACKAGE, name, {mutation.file: _mutated_text(mutation, text)}):
        yield name


@contextmanager
def changed_package(package: str, name: str, changes: Mapping[str, str]) -> Iterator[None]:
    """Import a package with changes in some of its files for the length of the scope.

    Args:
        package: the original.
        name: of the changed one; that of the original lets it stand in its place, and modules of the original that
            were imported before come back after the scope. Whoever holds objects of them still has those.
        changes: the new text of files, by their paths inside the package.

    Raises:
        ModuleNotFoundError: there is no such package.
    """
    folder = package_folder(package)
    with tempfile.TemporaryDirectory(prefix="mrv2-mutant-") as place, standing_aside(name):
        replaced = {folder / file: _write(text, file, Path(place), folder) for file, text in changes.items()}
        finder = _Finder(name, folder, replaced)
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module(name)
            yield
        finally:
            sys.meta_path.remove(finder)


def package_folder(package: str) -> Path:
    """Where a package lives; it is not imported, only those around it.

    Raises:
        ModuleNotFoundError: there is none of that name.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package named {package!r}", name=package)
    return Path(next(iter(spec.submodule_search_locations)))


@contextmanager
def standing_aside(name: str) -> Iterator[None]:
    """Scope in which no module of a package is imported, and whose own are forgotten at its end.

    Args:
        name: of the package, or of a module.
    """
    kept = _take_out(name)
    parent, _, child = name.rpartition(".")
    around = sys.modules.get(parent)
    attribute = None if around is None else vars(around).get(child)
    try:
        yield
    finally:
        _take_out(name)
        sys.modules.update(kept)
        if around is not None:
            vars(around).pop(child, None)
            vars(around).update({child: attribute} if attribute is not None else {})


def _take_out(name: str) -> dict[str, ModuleType]:
    names = [module for module in sys.modules if module == name or module.startswith(f"{name}.")]
    return {module: sys.modules.pop(module) for module in names}


def _mutated_text(mutation: Mutation, text: str) -> str:
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: its old text must occur once in {mutation.file}, found {count} times; "
            "a mutant that changes nothing would look like a fault that nobody catches; write the text as it is now"
        )
    return text.replace(mutation.old, mutation.new)


def _write(text: str, file: str, place: Path, original: Path) -> Path:
    """Write a file of the package below a folder, in packages of the same names: reports name files by them."""
    outside = [folder.name for folder in original.parents if (folder / "__init__.py").is_file()]
    written = place.joinpath(*reversed(outside), original.name, file)
    written.parent.mkdir(parents=True, exist_ok=True)
    for package in written.relative_to(place).parents[:-1]:
        (place / package / "__init__.py").touch()
    written.write_text(text, encoding="utf-8")
    return written


class _Finder(MetaPathFinder):
    """Finds the modules of one mutant: the files of the original, but for those that are replaced.

    Args:
        name: of the mutant's package.
        folder: of the original.
        replaced: the file to load in the place of a file of the original.
    """

    def __init__(self, name: str, folder: Path, replaced: Mapping[Path, Path]) -> None:
        self._name = name
        self._folder = folder
        self._replaced = replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        if fullname != self._name and not fullname.startswith(f"{self._name}."):
            return None
        inner = fullname.removeprefix(self._name).strip(".")
        place = self._folder.joinpath(*inner.split(".")) if inner else self._folder
        if place.is_dir():
            return self._spec(fullname, place / "__init__.py", [str(place)])
        file = place.with_suffix(".py")
        return self._spec(fullname, file) if file.is_file() else None

    def _spec(self, name: str, file: Path, folders: list[str] | None = None) -> ModuleSpec | None:
        place = self._replaced.get(file, file)
        return importlib.util.spec_from_file_location(name, place, submodule_search_locations=folders)
