"""The parameters of a call: what is given for each, else its default, else what its annotation says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .annotations import hinted
from .frame import Arguments, Frame
from .symbols import FunctionInfo
from .values import NONE, NUMBER, TEXT, UNKNOWN, Function, Sure, Tensor, Value, items_of, join, shallow

if TYPE_CHECKING:
    from .search import Search

#: Types of which no tensor is.
_PLAIN = NUMBER | TEXT | NONE


def replace_bound(target: Function, arguments: Arguments) -> Arguments:
    """The arguments together with those that are bound already."""
    if not target.args and not target.kwargs:
        return arguments
    keywords = {**dict(target.kwargs), **arguments.keywords}
    return Arguments([*target.args, *arguments.positional], keywords, arguments.open)


def bind(search: Search, function: FunctionInfo, receiver: Value | None, given: Arguments) -> dict[str, Value]:
    """What each parameter holds.

    Args:
        search: the run.
        function: what is called.
        receiver: ``self`` or ``cls``, if it is bound.
        given: the arguments.
    """
    spec = function.node.args
    plain = [*spec.posonlyargs, *spec.args]
    waiting = list(given.positional)
    if receiver is not None and not function.is_decorated("staticmethod"):
        waiting.insert(0, receiver)
    defaults = _defaults(spec)
    bound: dict[str, Value] = {}
    for index, parameter in enumerate((*plain, *spec.kwonlyargs)):
        name = parameter.arg
        if index < len(plain) and index < len(waiting):
            found = waiting[index]
        elif name in given.keywords:
            found = given.keywords[name]
        elif name in defaults and not given.open:
            found = _default(search, function, defaults[name])
        else:
            found = UNKNOWN
        bound[name] = _parameter(search, function, parameter, found)
    return bound | _rest(spec, waiting[len(plain) :], given, bound)


def _defaults(spec: ast.arguments) -> dict[str, ast.expr]:
    names = [one.arg for one in (*spec.posonlyargs, *spec.args)]
    last = dict(zip(names[::-1], spec.defaults[::-1], strict=False))
    return last | {one.arg: node for one, node in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if node}


def _rest(spec: ast.arguments, rest: list[Value], given: Arguments, bound: dict[str, Value]) -> dict[str, Value]:
    """``*args`` and ``**kwargs``."""
    found: dict[str, Value] = {}
    if spec.vararg:
        found[spec.vararg.arg] = items_of(join(*rest) if rest else UNKNOWN)
    if spec.kwarg:
        others = [of for name, of in given.keywords.items() if name not in bound]
        found[spec.kwarg.arg] = items_of(join(*others) if others else UNKNOWN, mapping=True)
    return found


def _parameter(search: Search, function: FunctionInfo, parameter: ast.arg, found: Value) -> Value:
    declared = search.annotations.read(function.source, parameter.annotation)
    if not found or (declared and declared <= _PLAIN):
        found = _as_declared(found, declared)
    return hinted(parameter.arg, shallow(found))


def _as_declared(found: Value, declared: Value) -> Value:
    """What is given for a parameter of a plain type: a tensor that was only guessed is none."""
    if not found:
        return declared
    kept = frozenset(atom for atom in found if not isinstance(atom, Tensor) or atom.sure is Sure.CERTAIN)
    return kept or declared


def _default(search: Search, function: FunctionInfo, node: ast.expr) -> Value:
    from .expressions import evaluate

    return evaluate(Frame(search, None, function.source, quiet=True, depth=search.deepest_quiet), node)
