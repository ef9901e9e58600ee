"""The roots of the search: hot paths by name, by decorator, or every function."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..errors import CheckError
from .sources import Source
from .symbols import ClassInfo, FunctionInfo, ModuleTable, Symbols

#: A function, and the class whose object it is called on.
Root: TypeAlias = tuple[FunctionInfo, ClassInfo | None]

#: A function with a decorator of this name is a root.
DECORATOR = "hot_path"


def named_roots(symbols: Symbols, judged: Sequence[Source], names: Iterable[str], where: str) -> list[Root]:
    """The functions that ``"pkg.mod:Class.method"`` names.

    Args:
        symbols: what the modules define.
        judged: the modules in which a root can be.
        names: the hot paths.
        where: who named them, for the error: ``"--root"`` or ``"hot_paths"``.

    Raises:
        CheckError: there is no such function; names the closest ones.
    """
    return [_named(symbols, judged, name, where) for name in names]


def _named(symbols: Symbols, judged: Sequence[Source], name: str, where: str) -> Root:
    module, _, path = name.partition(":")
    tables = [symbols.table(source) for source in judged if _is_module(source.name, module)]
    for table in tables:
        found = _in_table(symbols, table, path)
        if found is not None:
            return found
    known = [f"{source.name}:{one}" for source in judged for one in _paths(symbols, symbols.table(source))]
    raise CheckError(
        f"{where} {name!r}",
        "a hot path must be a function of the files given, written package.module:Class.method",
        "what is not found is not searched, and would look as if it had no findings",
        _remedy(name, known),
    )


def _remedy(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if not close:
        close = _same_function(name, known)
    return " or ".join(close) if close else "the name of a function in one of the PATHs, or a PATH that holds it"


def _same_function(name: str, known: Sequence[str]) -> list[str]:
    """Functions of that name in other places."""
    last = name.rpartition(":")[2].rpartition(".")[2]
    same = [one for one in known if one.rpartition(":")[2].rpartition(".")[2] == last]
    return sorted(same)[:3]


def _is_module(have: str, wanted: str) -> bool:
    """Whether two dotted names can mean one module: a project may map its packages to other folders."""
    return have == wanted or (bool(wanted) and (wanted.endswith(f".{have}") or have.endswith(f".{wanted}")))


def _in_table(symbols: Symbols, table: ModuleTable, path: str) -> Root | None:
    if path in table.functions:
        return table.functions[path], None
    owner, _, method = path.rpartition(".")
    cls = table.every_class.get(owner)
    found = symbols.find_method(cls, method) if cls is not None else None
    return (found, cls) if found is not None else None


def _paths(symbols: Symbols, table: ModuleTable) -> list[str]:
    """All functions of a module as a hot path writes them, inherited methods too."""
    paths = list(table.functions)
    for cls in table.every_class.values():
        for one in symbols.ancestry(cls):
            if isinstance(one, ClassInfo):
                paths.extend(f"{cls.qualified}.{name}" for name in one.methods)
    return paths


def decorated_roots(symbols: Symbols, judged: Sequence[Source]) -> list[Root]:
    """The functions that are marked in the code."""
    return [root for root in all_roots(symbols, judged) if root[0].is_decorated(DECORATOR)]


def all_roots(symbols: Symbols, judged: Sequence[Source]) -> list[Root]:
    """Every function and method."""
    return [
        (function, function.cls)
        for source in judged
        for function in symbols.table(source).every_function
        if not function.is_kernel
    ]
