"""The tree keeps its promises: sizes, documentation, packages, and nothing unsafe or private in the sources."""

import ast
import functools
import re
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("checks", "ci", "fuzz", "refrunner", "stats")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
P90_FUNCTION_LINES = 40

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True)
class Defined:
    """A class or function, and whether a user of the package is meant to see it."""

    path: Path
    name: str
    node: Definition
    public: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.node.lineno} {self.name}"

    @property
    def lines(self) -> int:
        return self.node.end_lineno - self.node.lineno + 1


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def definitions() -> tuple[Defined, ...]:
    return tuple(found for path in sources() for found in definitions_of(path))


def definitions_of(path: Path) -> Iterator[Defined]:
    hidden = path.name.startswith("_") and path.name != "__init__.py"
    return definitions_in(parse(path), path, "", not hidden)


def functions() -> list[Defined]:
    return [found for found in definitions() if isinstance(found.node, Function)]


def definitions_in(parent: ast.AST, path: Path, prefix: str, public: bool) -> Iterator[Defined]:
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, Definition):
            # An `if` or `try` around a definition does not hide it.
            yield from definitions_in(node, path, prefix, public)
            continue
        dunder = node.name.startswith("__") and node.name.endswith("__")
        seen = public and (dunder or not node.name.startswith("_"))
        found = Defined(path, prefix + node.name, node, seen)
        yield found
        yield from definitions_in(node, path, f"{found.name}.", seen and isinstance(node, ast.ClassDef))


def repeats_documentation(node: Definition) -> bool:
    """A property's setter and the variants of an overload are documented at the one place that a reader looks."""
    marks = [ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list]
    return not {"setter", "deleter", "overload"}.isdisjoint(marks)


def names(found: list[Defined]) -> str:
    return "\n".join(map(str, found))


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short():
    too_long = [found for found in functions() if found.lines > MAX_FUNCTION_LINES]
    assert not too_long, names(too_long)
    p90 = statistics.quantiles([found.lines for found in functions()], n=10)[-1]
    assert p90 <= P90_FUNCTION_LINES


def test_public_definitions_are_documented():
    shown = [found for found in definitions() if found.public and not found.node.name.startswith("__")]
    bare = [found for found in shown if not ast.get_docstring(found.node) and not repeats_documentation(found.node)]
    assert not bare, names(bare)


def test_modules_are_documented():
    bare = [path for path in sources() if path.read_text().strip() and not ast.get_docstring(parse(path))]
    assert bare == []


def test_public_functions_have_return_types():
    untyped = [found for found in functions() if found.public and found.node.returns is None]
    assert not untyped, names(untyped)


@pytest.mark.parametrize("file", ["README.md", "py.typed"])
def test_every_room_has(file):
    assert [room for room in ROOMS if not (ROOT / room / file).exists()] == []


def test_package_list_is_the_tree():
    folders = [path.parent.relative_to(ROOT) for path in sources() if path.name == "__init__.py"]
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(".".join(("mrv2", *f.parts)) for f in folders)


def test_every_module_is_in_a_package():
    orphans = [str(path.relative_to(ROOT)) for path in sources() if not (path.parent / "__init__.py").exists()]
    assert orphans == []


def test_nothing_unsafe_is_loaded():
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    found = []
    for path in sources():
        for node in ast.walk(parse(path)):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            loads = isinstance(node, ast.Attribute) and ast.unparse(node) in {"torch.load", "torch.save"}
            allows = isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False"
            # The probe of torch.save writes to memory, to see whether it waits; nothing is read back.
            loads = loads and path != ROOT / "checks/sync/probes.py"
            if loads or allows or unsafe & {name.partition(".")[0] for name in imported}:
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert found == []


PRIVATE = {
    "address of a package registry": r"https?://(pypi|files|registry|index|download|deb)\.",
    "path of one machine": r"(?<![\w.~}])/(home|root|work|opt|mnt|Users)/",
}


@pytest.mark.parametrize("what", PRIVATE)
def test_sources_name_no_machine(what):
    texts = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*")) if is_text(path)]
    texts += [path for path in ROOT.iterdir() if path.is_file() and path.suffix in {".md", ".toml", ".txt", ".in"}]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(PRIVATE[what], line)
    ]
    assert found == []


def is_text(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".png", ".gz", ".safetensors"}
