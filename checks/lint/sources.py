"""Files as modules: their names, their syntax trees, and which module an import means. Nothing is imported or run.

A module is parsed when it is first needed. Besides the files that are to be judged, those of the same packages are
found on the way, since the types that a hot path uses are often declared elsewhere.
"""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import CheckError

#: Folders in which no program's own code is.
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
#: What stands at the top of a project; a package cannot reach beyond it.
_TOPS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
#: A package may have folders without __init__.py in between (namespace packages), but hardly more than these.
_LONGEST_GAP = 3


@dataclass(eq=False)
class Source:
    """A module: one file, parsed.

    Attributes:
        name: dotted name, counted from the folder of its outermost package.
        path: the file.
        tree: its syntax tree.
        text: its content.
        judged: it is one of those that findings are reported in.
    """

    name: str
    path: Path
    tree: ast.Module
    text: str
    judged: bool

    @property
    def label(self) -> str:
        """The file as findings name it, from its outermost package on: the same on every machine."""
        return _label(self.name, self.path)

    @property
    def package(self) -> str:
        """What relative imports in it start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass
class Sources:
    """All modules of a run.

    Attributes:
        broken: files that Python itself cannot parse, with the reason.
    """

    judged: dict[str, Path] = field(default_factory=dict)
    roots: list[Path] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    _parsed: dict[str, Source | None] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Judge a file, or all Python files of a folder.

        Raises:
            CheckError: there is no such file or folder, or it has no Python file.
        """
        files = list(_python_files(path))
        if not files:
            raise CheckError(
                f"PATH {path}",
                "it must be a Python file, or a folder with some",
                "a search that looked at nothing would find nothing, and that must not look like a pass",
                "the folder of the package that holds the hot path",
            )
        for file in files:
            top = import_root(file, path)
            if top not in self.roots:
                self.roots.append(top)
            self.judged.setdefault(_module_name(file, top), file)

    def module(self, name: str) -> Source | None:
        """The module of this name, parsed; ``None`` if it is not among the files, or cannot be parsed."""
        if name not in self._parsed:
            path = self.judged.get(name) or self._find(name)
            self._parsed[name] = self._parse(name, path) if path else None
        return self._parsed[name]

    def resolve(self, name: str) -> Source | None:
        """The same for a name as an import writes it: a project may map its packages to other folders."""
        found = self.module(name)
        while found is None and "." in name:
            name = name.partition(".")[2]
            found = self.module(name) if name.partition(".")[0] in self._tops else None
        return found

    def parsed(self) -> list[Source]:
        """The modules parsed so far."""
        return [source for source in self._parsed.values() if source is not None]

    @cached_property
    def _tops(self) -> frozenset[str]:
        """First names of the judged modules: a mapped package is one of theirs."""
        return frozenset(name.partition(".")[0] for name in self.judged)

    def _find(self, name: str) -> Path | None:
        if not all(name.split(".")):  # a relative import that leads out of its package
            return None
        relative = Path(*name.split("."))
        for root in self.roots:
            for candidate in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
                if candidate.is_file():
                    return candidate
        return None

    def _parse(self, name: str, path: Path) -> Source | None:
        try:
            with tokenize.open(path) as stream:
                text = stream.read()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes and the like are the business of other linters
                tree = ast.parse(text, str(path))
        except (SyntaxError, UnicodeError, ValueError, RecursionError, OSError) as error:
            self.broken[_label(name, path)] = f"{type(error).__name__}: {error}"
            return None
        return Source(name, path, tree, text, name in self.judged)


def _label(name: str, path: Path) -> str:
    parts = name.split(".")
    return "/".join([*parts, "__init__.py"] if path.name == "__init__.py" else [*parts[:-1], f"{parts[-1]}.py"])


def _python_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        if path.suffix == ".py":
            yield path.resolve()
        return
    for file in sorted(path.rglob("*.py")):
        inside = file.relative_to(path).parts[:-1]
        if not any(part in _SKIPPED or part.startswith(".") for part in inside) and file.is_file():
            yield file.resolve()


def import_root(file: Path, given: Path) -> Path:
    """The folder from which the file's module name counts: that of its outermost package, or the given folder."""
    package = None
    gap = 0
    for folder in file.parents:
        if (folder / "__init__.py").is_file():
            package, gap = folder, 0
        else:
            gap += 1
        if gap > _LONGEST_GAP or any((folder / top).exists() for top in _TOPS):
            break
    if package is not None:
        return package.parent
    given = given.resolve()
    return given if given.is_dir() else file.parent


def _module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def absolute(source: Source, node: ast.ImportFrom) -> str:
    """The module that a ``from ... import`` names."""
    if not node.level:
        return node.module or ""
    parts = source.package.split(".")
    base = parts[: len(parts) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])
