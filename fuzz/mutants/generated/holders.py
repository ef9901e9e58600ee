"""Places that are no calls of torch: rings, references that are kept, and copies that are handed out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from .calls import Calls, Kind, called
from .operators import Change
from .text import Edit, SourceFile

#: Names of numbers that say how many there are of what is used in turns.
_DEPTH = re.compile(r"(^|_)(ring|depth|ring_size|num_slots|num_buffers)(_|$)", re.IGNORECASE)
_FRESH = ("empty", "zeros", "ones", "full", "Event", "Stream")
#: What may be a tensor, or several.
_OBJECTS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Tuple)
_KERNEL = ("jit", "autotune", "heuristics")


def holder_changes(
    file: SourceFile, calls: Calls, read: frozenset[str]
) -> Iterator[tuple[ast.expr | ast.stmt, Kind, Change]]:
    """The changes of a file's rings, kept references and copies.

    Args:
        calls: of the package.
        read: names of attributes that some file of the package reads.
    """
    for node in ast.walk(file.tree):
        if _in_kernel(file, node):
            continue
        if isinstance(node, ast.expr):
            for change in (*_of_ring(file, node, calls), *_of_depth(file, node)):
                yield node, Kind.RING, change
            for change in _of_copy(file, node):
                yield node, Kind.COPY, change
        for change in _of_reference(file, node, read):
            assert isinstance(node, ast.expr | ast.stmt)
            yield node, Kind.KEPT, change


def attributes_read(files: Sequence[SourceFile]) -> frozenset[str]:
    """Names of attributes that are read for anything but to add to what they hold, and texts that may name some."""
    read: set[str] = set()
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.add(node.value)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and not _only_added_to(file, node):
                read.add(node.attr)
    return frozenset(read)


def _only_added_to(file: SourceFile, node: ast.Attribute) -> bool:
    """Whether ``self.x`` stands in ``self.x.append(y)`` as a statement."""
    method = file.parents[node]
    if not (isinstance(method, ast.Attribute) and method.attr in ("append", "add")):
        return False
    call = file.parents[method]
    return isinstance(call, ast.Call) and call.func is method and isinstance(file.parents[call], ast.Expr)


def _of_ring(file: SourceFile, node: ast.expr, calls: Calls) -> Iterator[Change]:
    """A ring that grows where all of it is in flight does not; one that turns is one shorter."""
    if isinstance(node, ast.Call) and called(node) == "append" and isinstance(node.func, ast.Attribute) and node.args:
        function, ring = file.function(node), file.of(node.func.value)
        if function is not None and isinstance(node.func.value, ast.Attribute) and _polls(function, calls):
            first = f"{ring}.pop(0) if {ring} else {file.of(node.args[0])}"
            yield Change("shrink the ring by one", (file.replaced(node.args[0], first),))
            yield Change("drop the reference", (Edit(*file.span(node), f"{ring}[:] = [{file.of(node.args[0])}]"),))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _turns(file, node):
        yield Change("shrink the ring by one", (_one_less(file, node.right),))
    if isinstance(node, ast.Call) and called(node) == "deque":
        for word in node.keywords:
            if word.arg == "maxlen":
                yield Change("shrink the ring by one", (_one_less(file, word.value),))
    if isinstance(node, ast.ListComp) and _makes_memory(node, calls):
        for loop in node.generators:
            if isinstance(loop.iter, ast.Call) and called(loop.iter) == "range" and len(loop.iter.args) == 1:
                yield Change("shrink the ring by one", (_one_less(file, loop.iter.args[0]),))


def _one_less(file: SourceFile, number: ast.expr) -> Edit:
    return file.replaced(number, f"max(1, ({file.of(number)}) - 1)")


def _polls(function: ast.AST, calls: Calls) -> bool:
    return any(isinstance(node, ast.Call) and calls.kind(node) is Kind.POLL for node in ast.walk(function))


def _turns(file: SourceFile, node: ast.BinOp) -> bool:
    """Whether a remainder is a place in something that is used in turns: ``ring[i % n]``, ``i = (i + 1) % n``."""
    for outer in file.around(node):
        if isinstance(outer, ast.Subscript):
            return True
        if isinstance(outer, ast.Assign):
            targets = {ast.unparse(target) for target in outer.targets}
            return any(ast.unparse(part) in targets for part in ast.walk(node.left) if isinstance(part, ast.expr))
        if isinstance(outer, ast.stmt):
            return False
    return False


def _makes_memory(node: ast.ListComp, calls: Calls) -> bool:
    made = [one for one in ast.walk(node.elt) if isinstance(one, ast.Call)]
    return any(called(one) in _FRESH or calls.kind(one) in (Kind.PINNED, Kind.RECORD) for one in made)


def _of_depth(file: SourceFile, node: ast.expr) -> Iterator[Change]:
    """A number, at least two, that is called the depth of something."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 2:
        statement = file.parents[node]
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(target is not None and _DEPTH.search(ast.unparse(target)) for target in targets):
            yield Change("shrink the ring by one", (file.replaced(node, str(node.value - 1)),))


def _of_copy(file: SourceFile, node: ast.expr) -> Iterator[Change]:
    """The buffer itself in the place of its copy."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    name = called(node)
    if name in ("clone", "copy") and not node.args:
        yield Change("return the buffer", (file.replaced(node, file.of(node.func.value)),))
    elif name == "deepcopy" and len(node.args) == 1:
        yield Change("return the buffer", (file.replaced(node, file.of(node.args[0])),))
    for word in node.keywords:
        if word.arg == "copy" and isinstance(word.value, ast.Constant) and word.value.value is True:
            yield Change("return the buffer", (file.replaced(word.value, "False"),))


def _of_reference(file: SourceFile, node: ast.AST, read: frozenset[str]) -> Iterator[Change]:
    """What an attribute keeps that nobody reads: it is kept for its memory, or for somebody outside of the package."""
    if isinstance(node, ast.Assign) and isinstance(node.value, _OBJECTS):
        kept = [target for target in node.targets if isinstance(target, ast.Attribute) and target.attr not in read]
        if kept and len(kept) == len(node.targets) and file.function(node) is not None:
            yield Change("drop the reference", (file.replaced(node.value, "None"),))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        holder = node.value.func.value
        if isinstance(holder, ast.Attribute) and _only_added_to(file, holder) and holder.attr not in read:
            yield Change("drop the reference", (file.replaced(node, "None"),))


def _in_kernel(file: SourceFile, node: ast.AST) -> bool:
    """Whether a node is the device's code."""
    for function in (node, *file.around(node)):
        for decorator in getattr(function, "decorator_list", ()):
            if any(name in ast.unparse(decorator) for name in _KERNEL):
                return True
    return False
