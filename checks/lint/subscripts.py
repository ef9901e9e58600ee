"""Reading and writing items: masks, indices from the wrong side, values that must be uploaded first."""

from __future__ import annotations

import ast
from dataclasses import replace

from . import streams
from .frame import Arguments, Frame
from .symbols import dotted_name
from .values import (
    NUMBER,
    UNKNOWN,
    Atom,
    Function,
    Host,
    Instance,
    Items,
    Name,
    Place,
    Sure,
    Tensor,
    Value,
    asked,
    is_host,
    items_of,
    join,
    on_device,
    sequence,
    tensors,
    value,
)


def load(frame: Frame, node: ast.Subscript) -> Value:
    """What ``x[i]`` can be."""
    from .expressions import evaluate

    owner = evaluate(frame, node.value)
    index = _index(frame, node.slice)
    found = [_item(frame, node, atom, index) for atom in owner]
    sure = on_device(owner)
    if sure is not None:
        streams.used(frame, node.value, owner)
        _judge_index(frame, node, index, sure)
    elif any(isinstance(atom, Host) or (isinstance(atom, Items) and not atom.mapping) for atom in owner):
        _judge_host_index(frame, node, node.slice, index)
    return join(*found) if found else UNKNOWN


def _index(frame: Frame, node: ast.expr) -> Value:
    """What an index can be; the bounds of slices are numbers of the host, and asked for at once."""
    from .expressions import evaluate

    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper, node.step):
            if bound is not None:
                sure = asked(evaluate(frame, bound))
                if sure is not None:
                    frame.report("slice", bound, sure)
        return UNKNOWN
    if isinstance(node, ast.Tuple):
        return sequence(_index(frame, part) for part in node.elts)
    return evaluate(frame, node)


def _parts(index: Value, node: ast.expr) -> list[tuple[ast.expr, Value]]:
    """The indices of each dimension."""
    if isinstance(node, ast.Tuple):
        for atom in index:
            if isinstance(atom, Items) and atom.each is not None and len(atom.each) == len(node.elts):
                return list(zip(node.elts, atom.each, strict=True))
    return [(node, index)]


def _judge_index(frame: Frame, node: ast.Subscript, index: Value, sure: Sure) -> None:
    """Reading from a device tensor."""
    for part, of in _parts(index, node.slice):
        if _is_mask(of):
            frame.report("mask", node, min(sure, on_device(of) or sure))
            return
        if _is_host_index(part, of):
            if sure is not Sure.POSSIBLE:  # else the index may be where the tensor is
                frame.report("index_upload", node, sure)
            return
        streams.used(frame, part, of)


def _is_mask(of: Value) -> bool:
    found = tensors(of)
    return bool(found) and any(tensor.mask for tensor in found)


def _is_host_index(part: ast.expr, of: Value) -> bool:
    """Whether it is a list, an array or a tensor of the host."""
    if isinstance(part, ast.Slice | ast.Constant) or (isinstance(part, ast.List) and not part.elts):
        return False
    if tensors(of):
        return is_host(of)
    return isinstance(part, ast.List) or (bool(of) and all(getattr(atom, "kind", "") == "array" for atom in of))


def _judge_host_index(frame: Frame, node: ast.Subscript, part: ast.expr, index: Value) -> None:
    """A list or an array of the host asks an index for its number."""
    if isinstance(part, ast.Slice | ast.Tuple):
        return
    sure = asked(index)
    if sure is not None and any(tensor.place is Place.DEVICE for tensor in tensors(index)):
        frame.report("index", node, sure)


def _item(frame: Frame, node: ast.Subscript, atom: Atom, index: Value) -> Value:
    if isinstance(atom, Tensor):
        view = not any(tensors(of) or _is_host_index(part, of) for part, of in _parts(index, node.slice))
        return value(atom if view else replace(atom, buffer=None))
    if isinstance(atom, Items):
        return _of_items(atom, node.slice)
    if isinstance(atom, Host):
        single = not isinstance(node.slice, ast.Slice | ast.Tuple) and index and index <= NUMBER
        return value(replace(atom, constant=None)) if atom.kind != "array" or not single else join(NUMBER, value(atom))
    if isinstance(atom, Instance):
        method = frame.search.attribute(atom, "__getitem__", frame)
        from .calls import call_value

        return call_value(frame, method, Arguments([index]), node) if method else UNKNOWN
    if isinstance(atom, Function) and atom.function.is_kernel:
        return value(atom)  # kernel[grid]
    return value(atom) if isinstance(atom, Name) else UNKNOWN


def _of_items(atom: Items, index: ast.expr) -> Value:
    if isinstance(index, ast.Slice):
        return value(Items(atom.element, None, atom.mapping))
    position = _position(index)
    if atom.each is not None and position is not None and -len(atom.each) <= position < len(atom.each):
        return atom.each[position]
    return _ring(atom.element)


def _position(index: ast.expr) -> int | None:
    sign = 1
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        sign, index = -1, index.operand
    if isinstance(index, ast.Constant) and type(index.value) is int:
        return sign * index.value
    return None


def _ring(element: Value) -> Value:
    """One of several buffers, nobody knows which: its memory has no name."""
    return frozenset(_nameless(atom) for atom in element)


def _nameless(atom: Atom) -> Atom:
    if isinstance(atom, Tensor | Host):
        return replace(atom, buffer=None)
    return replace(atom, origin=None) if isinstance(atom, Instance) else atom


def store(frame: Frame, target: ast.Subscript, of: Value, origin: ast.AST) -> None:
    """``x[i] = of``."""
    from .expressions import evaluate

    owner = evaluate(frame, target.value)
    index = _index(frame, target.slice)
    for atom in owner:
        if isinstance(atom, Tensor | Host) and atom.buffer is not None:
            frame.effect("write", atom.buffer, target)
    sure = on_device(owner)
    if sure is not None and any(tensor.place is Place.DEVICE for tensor in tensors(owner)):
        _judge_store(frame, target, index, of, origin, sure)
    elif owner and all(isinstance(atom, Tensor | Host) for atom in owner) and is_host(owner):
        _judge_download(frame, target, of)
    elif any(isinstance(atom, Items) for atom in owner):
        _grow(frame, target.value, owner, of)


def _judge_store(frame: Frame, target: ast.Subscript, index: Value, of: Value, origin: ast.AST, sure: Sure) -> None:
    """Writing into a device tensor."""
    for part, one in _parts(index, target.slice):
        if _is_mask(one):
            if tensors(of):
                frame.report("mask", target, sure)
            return
        if _is_host_index(part, one):
            if sure is not Sure.POSSIBLE:
                frame.report("index_upload", target, sure)
            return
    if _is_uploaded(of, origin) or (_is_number_value(of) and _single(target.slice, index)):
        frame.report("setitem", target, sure)


def _is_uploaded(of: Value, origin: ast.AST) -> bool:
    """Whether a value that is written is a list, an array or a tensor of the host."""
    if tensors(of):
        return is_host(of)
    return isinstance(origin, ast.List) or (bool(of) and all(getattr(atom, "kind", "") == "array" for atom in of))


def _is_number_value(of: Value) -> bool:
    return bool(of) and all(isinstance(atom, Host) and atom.kind == "number" for atom in of)


def _single(node: ast.expr, index: Value) -> bool:
    """Whether no dimension is a slice: then a number is uploaded, while a slice is filled by a kernel."""
    parts = _parts(index, node)
    if any(isinstance(part, ast.Slice) for part, _ in parts):
        return False
    return all(_is_number(part, of) for part, of in parts) or any(on_device(of) is not None for _, of in parts)


def _is_number(part: ast.expr, of: Value) -> bool:
    if isinstance(part, ast.Constant):
        return type(part.value) is int
    return bool(of) and of <= NUMBER


def _judge_download(frame: Frame, target: ast.Subscript, of: Value) -> None:
    """``host[i] = device tensor`` copies to the host and waits."""
    sure = on_device(of)
    if sure is not None and any(tensor.place is Place.DEVICE for tensor in tensors(of)):
        frame.report("download_blocking", target, sure)


def _grow(frame: Frame, node: ast.expr, owner: Value, of: Value) -> None:
    """A container holds this as well."""
    mapping = any(isinstance(atom, Items) and atom.mapping for atom in owner)
    grown = join(owner, items_of(of, mapping))
    path = dotted_name(node)
    if path is not None and path in frame.env:
        frame.env[path] = grown
    if isinstance(node, ast.Attribute):
        from .expressions import evaluate

        for atom in evaluate(frame, node.value):
            if isinstance(atom, Instance):
                frame.search.assign(atom.cls, node.attr, grown)
