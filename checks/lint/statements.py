"""Statements: how values flow through a function, what its branches decide on, and which of its code is cold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from . import narrowing, subscripts
from .expressions import evaluate, truth
from .frame import Arguments, Frame, merged
from .platforms import OTHERS
from .sources import Source
from .symbols import ClassInfo, FunctionInfo, Import, bindings, dotted_name
from .values import (
    UNKNOWN,
    Device,
    Instance,
    Items,
    Outside,
    Tensor,
    Value,
    device_elements,
    elements,
    items_of,
    join,
)

_Handler: TypeAlias = Callable[[Frame, ast.stmt], bool]


def run(frame: Frame, body: Sequence[ast.stmt]) -> bool:
    """Go through statements in order; true if none of them lets the next one after the body run."""
    cold = _ends_in_error(body)
    frame.cold += cold
    ended = False
    for node in body:
        frame.line = node.lineno
        if _HANDLERS.get(type(node), _ignored)(frame, node):
            ended = True
            break
    frame.cold -= cold
    return ended


def _ends_in_error(body: Sequence[ast.stmt]) -> bool:
    """What ends in an exception is not run in a step that works."""
    return bool(body) and isinstance(body[-1], ast.Raise)


def _ignored(frame: Frame, node: ast.stmt) -> bool:
    return isinstance(node, ast.Break | ast.Continue)


def _expression(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Expr)
    evaluate(frame, node.value)
    return False


def _assign(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Assign)
    of = evaluate(frame, node.value)
    for target in node.targets:
        bind(frame, target, of, node.value)
    return False


def _annotated(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.AnnAssign)
    declared = frame.search.annotations.read(frame.source, node.annotation)
    of = evaluate(frame, node.value) if node.value is not None else UNKNOWN
    if not of or _only_none(of):
        of = join(of, declared)
    bind(frame, node.target, of, node.value or node.target)
    return False


def _only_none(of: Value) -> bool:
    return all(getattr(atom, "kind", "") == "none" for atom in of)


def _augmented(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.AugAssign)
    combined = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
    of = evaluate(frame, combined)
    if isinstance(node.target, ast.Subscript):
        bind(frame, node.target, of, combined)
    else:
        bind(frame, node.target, _kept_buffer(evaluate(frame, _loaded(node.target)), of), combined)
    return False


def _kept_buffer(before: Value, after: Value) -> Value:
    """``x += y`` writes into the memory of ``x``."""
    return before if any(getattr(atom, "buffer", None) for atom in before) else after


def _loaded(target: ast.expr) -> ast.expr:
    """The same expression as something that is read."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    if isinstance(target, ast.Subscript):
        return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
    return target


def bind(frame: Frame, target: ast.expr, of: Value, origin: ast.AST) -> None:
    """Give a target of an assignment its value.

    Args:
        frame: where.
        target: a name, an attribute, an item, or several of them.
        of: the value.
        origin: the expression that it comes from.
    """
    if isinstance(target, ast.Tuple | ast.List):
        _unpack(frame, target.elts, of, origin)
    elif isinstance(target, ast.Starred):
        bind(frame, target.value, items_of(elements(of)), origin)
    elif isinstance(target, ast.Subscript):
        subscripts.store(frame, target, of, origin)
    elif isinstance(target, ast.Attribute):
        _bind_attribute(frame, target, of, origin)
    elif isinstance(target, ast.Name):
        frame.assign(target.id, of)
        frame.streams.assigned(target.id, origin, of)


def _bind_attribute(frame: Frame, target: ast.Attribute, of: Value, origin: ast.AST) -> None:
    for atom in evaluate(frame, target.value):
        if isinstance(atom, Instance):
            of = _named_memory(frame, of, f"{atom.origin or atom.cls.rpartition(':')[2]}.{target.attr}", target)
            frame.search.assign(atom.cls, target.attr, of)
    path = dotted_name(target)
    if path is not None:
        frame.assign(path, of)
        frame.streams.assigned(path, origin, of)


def _named_memory(frame: Frame, of: Value, name: str, node: ast.AST) -> Value:
    """New pinned memory that an attribute holds is known by the attribute's name."""
    found = frozenset(
        replace(atom, buffer=name) if isinstance(atom, Tensor) and ":" in (atom.buffer or "") else atom for atom in of
    )
    if found != of:
        frame.effect("fresh", name, node)
    return found


def _unpack(frame: Frame, targets: Sequence[ast.expr], of: Value, origin: ast.AST) -> None:
    """``a, b = of``: item by item if the number is known."""
    nodes = origin.elts if isinstance(origin, ast.Tuple | ast.List) and len(origin.elts) == len(targets) else None
    starred = any(isinstance(target, ast.Starred) for target in targets)
    for index, target in enumerate(targets):
        one = _item(of, index, len(targets)) if not starred else elements(of)
        bind(frame, target, one, nodes[index] if nodes else ast.copy_location(ast.Constant(None), origin))


def _item(of: Value, index: int, number: int) -> Value:
    found = []
    for atom in of:
        if isinstance(atom, Items) and atom.each is not None and len(atom.each) == number:
            found.append(atom.each[index])
        else:
            found.append(elements(frozenset({atom})))
    return join(*found) if found else UNKNOWN


def _if(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.If)
    decided = truth(frame, node.test, "branch")
    if decided is not None:
        return run(frame, node.body if decided else node.orelse)
    before = dict(frame.env)
    first_ends = _arm(frame, node, node.body, True)
    first, frame.env = frame.env, before
    second_ends = _arm(frame, node, node.orelse, False)
    if first_ends and second_ends:
        return True
    if not first_ends:
        frame.env = first if second_ends else merged(first, frame.env)
    if first_ends is not second_ends:  # what follows is the rest of the arm that goes on
        frame.arms |= {(id(node), second_ends)}
    return False


def _arm(frame: Frame, node: ast.If, body: Sequence[ast.stmt], outcome: bool) -> bool:
    """One of the two ways; that of a platform without a device is not judged."""
    other = _is_other_platform(node.test) and outcome
    arms = frame.arms
    frame.arms |= {(id(node), outcome)}
    frame.branches += 1
    frame.cold += other
    narrowing.narrow(frame, node.test, outcome)
    ended = run(frame, body)
    frame.cold -= other
    frame.branches -= 1
    frame.arms = arms
    return ended


def _is_other_platform(test: ast.expr) -> bool:
    """``x.device.type == "cpu"``."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    right = test.comparators[0]
    name = (dotted_name(test.left) or "").rpartition(".")[0]
    return isinstance(right, ast.Constant) and right.value in OTHERS and name.endswith("device")


def _loop_body(frame: Frame, body: Sequence[ast.stmt], again: Callable[[], None]) -> None:
    """A loop's body: twice, so that what one turn leaves is seen by the next."""
    frame.branches += 1
    for _ in range(2):
        before = dict(frame.env)
        again()
        run(frame, body)
        frame.env = merged(frame.env, before)
    frame.branches -= 1


def _for(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.For | ast.AsyncFor)
    given = elements(evaluate(frame, node.iter))
    _loop_body(frame, node.body, lambda: bind(frame, node.target, given, ast.copy_location(ast.Constant(None), node)))
    run(frame, node.orelse)
    return False


def _while(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.While)
    if truth(frame, node.test, "branch") is not False:
        _loop_body(frame, node.body, lambda: None)
    run(frame, node.orelse)
    return False


def _with(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.With | ast.AsyncWith)
    streams, device = frame.streams.current, frame.default_device
    leaving: list[Value] = []
    for item in node.items:
        manager = evaluate(frame, item.context_expr)
        _enter_stream(frame, item.context_expr, manager)
        for atom in manager:
            if isinstance(atom, Device):
                frame.default_device = atom
        entered = _entered(frame, manager)
        leaving.append(manager)
        if item.optional_vars is not None:
            bind(frame, item.optional_vars, entered, item.context_expr)
    ended = run(frame, node.body)
    for manager in reversed(leaving):
        _call_methods(frame, manager, "__exit__")
    frame.streams.current, frame.default_device = streams, device
    return ended


def _enter_stream(frame: Frame, node: ast.expr, manager: Value) -> None:
    """``with torch.cuda.stream(side):`` or ``with side:``, also where it depends on a condition."""
    if isinstance(node, ast.IfExp):
        node = node.body
    if not any(isinstance(atom, Outside) and atom.cls in {"stream context", "torch.cuda.Stream"} for atom in manager):
        return
    side = node.args[0] if isinstance(node, ast.Call) and node.args else node
    token = frame.streams.token(side)
    if token is not None:
        frame.streams.current = token


def _entered(frame: Frame, manager: Value) -> Value:
    """What ``as`` gives: the generator's value, what ``__enter__`` returns, else the manager itself."""
    generators = [atom.element for atom in manager if isinstance(atom, Items)]
    if generators:
        return join(*generators)
    return _call_methods(frame, manager, "__enter__") or manager


def _call_methods(frame: Frame, manager: Value, name: str) -> Value:
    from .calls import call_value

    found = [
        call_value(frame, frame.search.attribute(atom, name, frame), Arguments(open=True), None)
        for atom in manager
        if isinstance(atom, Instance)
    ]
    return join(*found) if found else UNKNOWN


def _try(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Try | ast.TryStar)
    ended = run(frame, node.body)
    after = dict(frame.env)
    frame.cold += 1  # handling an exception is no part of a step that works
    for handler in node.handlers:
        run(frame, handler.body)
    frame.cold -= 1
    frame.env = after if ended else merged(after, frame.env)
    if not ended:
        ended = run(frame, node.orelse)
    return run(frame, node.finalbody) or ended


def _return(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Return)
    if node.value is not None:
        frame.returned.append(evaluate(frame, node.value))
    return True


def _raise(frame: Frame, node: ast.stmt) -> bool:
    return True


def _assert(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Assert)
    truth(frame, node.test, "assert")
    narrowing.narrow(frame, node.test, True)
    return False


def _match(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Match)
    subject = evaluate(frame, node.subject)
    sure = device_elements(subject)
    if sure is not None and any(_compares(case.pattern) for case in node.cases):
        frame.report("branch", node.subject, sure)
    before, ways, ends = dict(frame.env), [], []
    frame.branches += 1
    for case in node.cases:
        frame.env = dict(before)
        _bind_pattern(frame, case.pattern, subject)
        if case.guard is not None:
            truth(frame, case.guard, "branch")
        ends.append(run(frame, case.body))
        ways.append(frame.env)
    frame.branches -= 1
    frame.env = before
    for way, ended in zip(ways, ends, strict=True):
        if not ended:
            frame.env = merged(frame.env, way)
    return bool(ends) and all(ends) and _is_total(node.cases[-1])


def _is_total(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def _compares(pattern: ast.pattern) -> bool:
    """Whether a pattern compares the subject with a value."""
    return any(isinstance(node, ast.MatchValue) for node in ast.walk(pattern))


def _bind_pattern(frame: Frame, pattern: ast.pattern, subject: Value) -> None:
    if isinstance(pattern, ast.MatchAs):
        if pattern.pattern is not None:
            _bind_pattern(frame, pattern.pattern, subject)
        if pattern.name is not None:
            frame.assign(pattern.name, subject)
    elif isinstance(pattern, ast.MatchSequence):
        for index, inner in enumerate(pattern.patterns):
            _bind_pattern(frame, inner, _item(subject, index, len(pattern.patterns)))
    else:
        for node in ast.walk(pattern):
            if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
                frame.assign(node.name, UNKNOWN)


def _define(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    decorators = tuple(
        name for one in node.decorator_list if (name := dotted_name(one.func if isinstance(one, ast.Call) else one))
    )
    frame.assign(node.name, UNKNOWN)
    frame.assign(node.name, frame.search.local_function(node, frame, decorators))
    return False


def _import(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Import | ast.ImportFrom)
    search = frame.search
    for name, imported in bindings(frame.source, node).items():
        found = _imported(frame, imported)
        if found is not None:
            frame.assign(name, search.of_definition(found))
        else:
            module = search.sources.resolve(imported.module)
            frame.assign(name, search.global_value(module, imported.attribute or "") if module else UNKNOWN)
    return False


def _imported(frame: Frame, imported: Import) -> FunctionInfo | ClassInfo | Source | str | None:
    """What an import inside of a function names, as far as that is a definition."""
    if imported.attribute is None:
        return frame.search.sources.resolve(imported.module) or imported.module
    return frame.search.symbols.member(imported.module, imported.attribute)


def _delete(frame: Frame, node: ast.stmt) -> bool:
    assert isinstance(node, ast.Delete)
    for target in node.targets:
        path = dotted_name(target)
        if path is not None:
            frame.env.pop(path, None)
    return False


_HANDLERS: dict[type[ast.stmt], _Handler] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Assert: _assert,
    ast.Match: _match,
    ast.FunctionDef: _define,
    ast.AsyncFunctionDef: _define,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Delete: _delete,
}
