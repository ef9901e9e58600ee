"""The mutants of one place: each way to spoil what is done there, as an edit of the source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .calls import Calls, Kind, called
from .text import Edit, SourceFile, names_bound, names_read

_NO_EVENT = '__import__("torch").cuda.Event()'
_NO_STREAM = '__import__("contextlib").nullcontext()'
_CURRENT = '__import__("torch").cuda.current_stream()'
_EARLY = "_mrv2_early"
_KEPT = "_mrv2_kept"
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Change:
    """One way to spoil a place.

    Attributes:
        operator: what is done to it.
        edits: of the file.
    """

    operator: str
    edits: tuple[Edit, ...]


def changes_of(file: SourceFile, call: ast.Call, kind: Kind, calls: Calls) -> Iterator[Change]:
    """All changes of a call.

    Args:
        kind: what the call does to order.
        calls: of the package.
    """
    spoil = _CHANGES.get(kind)
    if spoil is not None:
        yield from spoil(file, call, calls)


def _of_record(file: SourceFile, call: ast.Call, calls: Calls) -> Iterator[Change]:
    """Of an event that is recorded: never, or before what it is to cover."""
    yield Change("delete", (file.replaced(call, "None" if _is_statement(file, call) else _NO_EVENT),))
    yield from _a_line_early(file, call)


def _a_line_early(file: SourceFile, call: ast.Call) -> Iterator[Change]:
    statement = file.statement(call)
    before, _ = file.neighbours(statement)
    if before is None or names_bound(before) & names_read(call) or _is_docstring(before):
        return
    if any(isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp) for node in _until(file, call, statement)):
        return
    early = file.before(before, f"{_EARLY} = {file.of(call)}")
    yield Change("record a line early", (early, file.replaced(call, _EARLY)))


def _of_wait(file: SourceFile, call: ast.Call, calls: Calls) -> Iterator[Change]:
    """Of a stream or a host that waits: not at all, or after what was to come behind it."""
    if not _is_statement(file, call):
        return
    yield Change("delete", (file.replaced(call, "None"),))
    yield from _a_line_late(file, call)
    if called(call) == "wait_stream" and isinstance(call.func, ast.Attribute) and len(call.args) == 1:
        turned = f"{file.of(call.args[0])}.wait_stream({file.of(call.func.value)})"
        yield Change("wait the other way round", (file.replaced(call, turned),))


def _a_line_late(file: SourceFile, call: ast.Call) -> Iterator[Change]:
    """Behind the next statement, which may be that behind the scopes that the wait ends."""
    statement = scope = file.statement(call)
    while isinstance(outer := file.parents[scope], ast.With) and outer.body[-1] is scope:
        scope = outer
    _, behind = file.neighbours(scope)
    if behind is not None and not isinstance(behind, _LEAVING):
        moved = f"\n{' ' * scope.col_offset}{file.of(statement)}"
        _, last = file.span(behind)
        yield Change("wait a line late", (file.replaced(statement, "None"), Edit(last, last, moved)))


def _of_poll(file: SourceFile, call: ast.Call, calls: Calls) -> Iterator[Change]:
    yield Change("take the answer for yes", (file.replaced(call, "True"),))


def _of_kept(file: SourceFile, call: ast.Call, calls: Calls) -> Iterator[Change]:
    """Of the allocator that is told of another stream."""
    if calls.is_wrapper(call) or not _is_statement(file, call):
        return
    yield Change("delete", (file.replaced(call, "None"),))
    if called(call) == "record_stream" and len(call.args) == 1:
        yield Change("swap the stream", (file.replaced(call.args[0], _CURRENT),))


def _of_pinned(file: SourceFile, call: ast.Call, calls: Calls) -> Iterator[Change]:
    """Of page-locked memory: ordinary memory, or one piece for all calls."""
    yield Change("make it pageable", (_pageable(file, call, calls),))
    function = file.function(call)
    # What is made once is shared by all steps anyway; a wrapper may serve several owners.
    if function is not None and function.name != "__init__" and not calls.is_wrapper(call) and _copies(call):
        owner = "vars(self)" if "self" in {argument.arg for argument in function.args.args} else "globals()"
        key = ", ".join(file.of(one) for one in (*call.args, *(word.value for word in call.keywords)))
        kept = f"{owner}.setdefault({_KEPT!r}, {{}}).setdefault(repr(({key},)), {file.of(call)})"
        yield Change("return the buffer of the call before", (file.replaced(call, kept),))


def _copies(call: ast.Call) -> bool:
    """Whether the memory is new by intention: it is made of nothing."""
    return called(call) != "pin_memory"


def _pageable(file: SourceFile, call: ast.Call, calls: Calls) -> Edit:
    if called(call) == "pin_memory" and isinstance(call.func, ast.Attribute):
        return file.replaced(call, file.of(call.func.value))
    for word in call.keywords:
        if word.arg == "pin_memory":
            return file.replaced(word.value, "False")
    return file.replaced(call, f"{file.of(call)}.clone()")


def _of_stream(file: SourceFile, call: ast.Call, calls: Calls) -> Iterator[Change]:
    """Of a stream that is chosen: whichever is current is taken instead, or the default one where that is asked for."""
    name = called(call)
    if name == "current_stream":
        other = ast.unparse(call.func).removesuffix("current_stream") + "default_stream"
        yield Change("swap the stream", (file.replaced(call.func, other),))
    elif name in ("Stream", "ExternalStream"):
        yield Change("swap the stream", (file.replaced(call, _CURRENT),))
    elif name == "stream" or isinstance(file.parents[call], ast.withitem):
        yield Change("swap the stream", (file.replaced(call, _NO_STREAM),))


_CHANGES: Mapping[Kind, Callable[[SourceFile, ast.Call, Calls], Iterator[Change]]] = {
    Kind.RECORD: _of_record,
    Kind.WAIT: _of_wait,
    Kind.SYNCHRONISE: _of_wait,
    Kind.POLL: _of_poll,
    Kind.KEPT: _of_kept,
    Kind.PINNED: _of_pinned,
    Kind.STREAM: _of_stream,
}


def _is_statement(file: SourceFile, call: ast.Call) -> bool:
    return isinstance(file.parents[call], ast.Expr)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _until(file: SourceFile, node: ast.AST, statement: ast.stmt) -> Iterator[ast.AST]:
    """What is around a node, as far as its statement."""
    for one in file.around(node):
        if one is statement:
            return
        yield one
