"""Expressions: what each can be, and where Python itself asks a tensor for its value."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import TypeAlias

from . import streams, subscripts
from . import torch_facts as facts
from .annotations import hinted
from .frame import Frame
from .operators import computed, equality, identity, of_host, of_numbers
from .symbols import dotted_name
from .values import (
    ARRAY,
    DTYPE,
    NONE,
    NUMBER,
    OBJECT,
    TEXT,
    UNKNOWN,
    Atom,
    ClassRef,
    Device,
    Function,
    Host,
    Instance,
    Items,
    Method,
    ModuleRef,
    Name,
    Outside,
    Place,
    Sure,
    Tensor,
    Value,
    asked,
    constant,
    device_elements,
    elements,
    items_of,
    join,
    sequence,
    tensors,
    value,
)

_Handler: TypeAlias = Callable[[Frame, ast.expr], Value]


def evaluate(frame: Frame, node: ast.expr) -> Value:
    """What an expression can be; tells the frame of what it finds on the way."""
    handler = _HANDLERS.get(type(node))
    return UNKNOWN if handler is None else handler(frame, node)


def truth(frame: Frame, node: ast.expr, kind: str) -> bool | None:
    """Evaluate a condition: what it is, if that is known. A device tensor is asked for its value by it.

    Args:
        frame: where.
        node: the condition.
        kind: what it decides, for the report: ``"branch"`` or ``"assert"``.
    """
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(frame, node.operand, kind)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        return _truth_of_several(frame, node, kind)
    of = evaluate(frame, node)
    sure = asked(of)
    if sure is not None and _is_single(node, of):
        frame.report(kind, node, sure)
    return known_truth(of)


def _is_single(node: ast.expr, of: Value) -> bool:
    """Whether a tensor can have one element only. The truth of others is an error, so that ``if x:`` asks for None.

    A name holds one if it was compared or made certainly; an expression computes one, a call if it reduces.
    """
    if all(tensor.mask or tensor.sure is Sure.CERTAIN for tensor in tensors(of)):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in facts.REDUCTIONS
    return not isinstance(node, ast.Name | ast.Attribute)


def _truth_of_several(frame: Frame, node: ast.BoolOp, kind: str) -> bool | None:
    stops = isinstance(node.op, ast.Or)
    results: list[bool | None] = []
    for part in node.values:
        results.append(truth(frame, part, kind))
        if results[-1] is stops:
            return stops
    return None if None in results else not stops


def known_truth(of: Value) -> bool | None:
    """Whether a value is true, if that is known."""
    results = {atom.constant if isinstance(atom, Host) else None for atom in of}
    if of and of <= NONE:
        return False
    if len(results) != 1:
        return None
    found = results.pop()
    return bool(found) if found is not None else None


def _constant(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Constant)
    if node.value is None:
        return NONE
    if isinstance(node.value, bool | str):
        return constant(node.value)
    return NUMBER if isinstance(node.value, int | float | complex) else OBJECT


def _name(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Name)
    for names in (frame.env, frame.outer):
        if names is not None and node.id in names:
            return hinted(node.id, names[node.id])
    found = frame.search.global_value(frame.source, node.id)
    if not found and hasattr(builtins, node.id):
        return value(Name(f"builtins.{node.id}"))
    return found


def _attribute(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Attribute)
    path = dotted_name(node)
    if path is not None and path in frame.env:
        return hinted(node.attr, frame.env[path])
    if _is_super(node.value):
        return _of_super(frame, node.attr)
    return attribute_of(frame, evaluate(frame, node.value), node.attr)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _of_super(frame: Frame, name: str) -> Value:
    """An attribute of ``super()``: that of the next class in the order of the object's own class."""
    if frame.function is None or frame.function.cls is None or not frame.function.node.args.args:
        return UNKNOWN
    own = frame.env.get(frame.function.node.args.args[0].arg, UNKNOWN)
    found: list[Value] = []
    for atom in own:
        cls = frame.search.class_of(atom.cls) if isinstance(atom, Instance | ClassRef) else None
        method = frame.search.symbols.find_method(cls, name, frame.function.cls) if cls else None
        if method is not None:
            found.append(value(Function(method, value(atom))))
    return join(*found) if found else UNKNOWN


def attribute_of(frame: Frame, owner: Value, name: str) -> Value:
    """What an attribute of a value can be."""
    found = [_attribute_of_atom(frame, atom, name) for atom in owner]
    return hinted(name, join(*found) if found else UNKNOWN)


def _attribute_of_atom(frame: Frame, atom: Atom, name: str) -> Value:
    if isinstance(atom, Tensor):
        return _of_tensor(atom, name)
    if isinstance(atom, Instance):
        return frame.search.attribute(atom, name, frame)
    if isinstance(atom, Name):
        return _of_name(frame, atom, name)
    if isinstance(atom, ModuleRef):
        source = frame.search.sources.module(atom.name)
        inner = frame.search.sources.module(f"{atom.name}.{name}")
        found = frame.search.global_value(source, name) if source else UNKNOWN
        return found or (value(ModuleRef(inner.name)) if inner else UNKNOWN)
    if isinstance(atom, ClassRef):
        return _of_class(frame, atom, name)
    if isinstance(atom, Device) and name == "type":
        return constant("cpu" if atom.place is Place.PAGEABLE else "cuda")
    if isinstance(atom, Host) and atom.kind == "array" and name in {"shape", "size", "ndim", "dtype", "nbytes"}:
        return NUMBER if name != "shape" else items_of(NUMBER)
    if isinstance(atom, Host | Items | Outside):
        return value(Method(value(atom), name))
    return UNKNOWN


def _of_tensor(atom: Tensor, name: str) -> Value:
    if name in facts.TENSOR_ATTRIBUTES:
        return value(atom)
    if name == "device":
        return UNKNOWN if atom.place is Place.UNKNOWN else value(_device_at(atom))
    if name in facts.BUILTIN_FLAGS:
        if atom.place is Place.UNKNOWN:
            return NUMBER
        return constant((atom.place is Place.DEVICE) is (name == "is_cuda"))
    if name == "shape":
        return items_of(NUMBER)
    if name in facts.HOST_ATTRIBUTES:
        return DTYPE if name == "dtype" else NUMBER
    return value(Method(value(atom), name))


def _device_at(atom: Tensor) -> Device:
    return Device(Place.DEVICE if atom.place is Place.DEVICE else Place.PAGEABLE, atom.sure)


def _of_name(frame: Frame, atom: Name, name: str) -> Value:
    dotted = f"{atom.dotted}.{name}"
    if atom.dotted in {"torch", "numpy"} and name in facts.DTYPES:
        return DTYPE
    source = frame.search.sources.resolve(dotted) if not dotted.startswith(("torch", "numpy")) else None
    return value(ModuleRef(source.name)) if source is not None else value(Name(dotted))


def _of_class(frame: Frame, atom: ClassRef, name: str) -> Value:
    cls = frame.search.class_of(atom.cls)
    if cls is None:
        return UNKNOWN
    method = frame.search.symbols.find_method(cls, name)
    if method is not None:
        return value(frame.search.bound(method, Instance(atom.cls)) if method.decorators else Function(method))
    inner = frame.search.symbols.lookup(cls.source, f"{cls.qualified}.{name}")
    return (
        frame.search.of_definition(inner)
        if inner is not None
        else frame.search.attribute(Instance(atom.cls), name, frame)
    )


def _binary(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.BinOp)
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    if isinstance(node.op, ast.Mod) and any(isinstance(atom, Host) and atom.kind == "text" for atom in left):
        _formats(frame, node.right, right)
        return TEXT
    for part, of in ((node.left, left), (node.right, right)):
        streams.used(frame, part, of)
    result = computed((left, right))
    if result is None:
        return of_host(left, right)
    logical = isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor)
    mask = logical and all(tensor.mask for tensor in (*tensors(left), *tensors(right)))
    return frozenset(Tensor(atom.place, atom.sure, mask) for atom in tensors(result)) | of_numbers(left, right)


def _unary(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.UnaryOp)
    if isinstance(node.op, ast.Not):
        decided = truth(frame, node, "branch")
        return NUMBER if decided is None else constant(decided)
    of = evaluate(frame, node.operand)
    streams.used(frame, node.operand, of)
    return frozenset(Tensor(t.place, t.sure, t.mask) if isinstance(t, Tensor) else t for t in of)


def _compare(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Compare)
    operands = [evaluate(frame, part) for part in (node.left, *node.comparators)]
    results: list[Value] = []
    for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
        results.append(_compared(frame, node, operator, left, right))
    for of in results[:-1]:  # a < b < c asks for the truth of a < b
        sure = asked(of)
        if sure is not None:
            frame.report("branch", node, sure)
    return results[-1] if len(results) == 1 else join(*results)


def _compared(frame: Frame, node: ast.Compare, operator: ast.cmpop, left: Value, right: Value) -> Value:
    if isinstance(operator, ast.Is | ast.IsNot):
        return identity(operator, left, right)
    if isinstance(operator, ast.In | ast.NotIn):
        sure = asked(right)
        if sure is None and any(isinstance(atom, Items) and not atom.mapping for atom in right):
            sure = asked(left)
        if sure is not None:
            frame.report("contains", node, sure)
        return NUMBER
    for part, of in ((node.left, left), (node.comparators[0], right)):
        streams.used(frame, part, of)
    result = computed((left, right))
    if result is not None:
        masks = frozenset(Tensor(atom.place, atom.sure, mask=True) for atom in tensors(result))
        return masks | of_numbers(left, right)
    if isinstance(operator, ast.Eq | ast.NotEq):
        return equality(isinstance(operator, ast.Eq), left, right)
    return ARRAY if any(getattr(atom, "kind", "") == "array" for atom in left | right) else NUMBER


def _several(frame: Frame, node: ast.expr) -> Value:
    """``a and b``: all but the last are asked for their truth."""
    assert isinstance(node, ast.BoolOp)
    found: list[Value] = []
    stops = isinstance(node.op, ast.Or)
    for part in node.values[:-1]:
        decided = truth(frame, part, "branch")
        if decided is stops:
            return constant(stops)
        if isinstance(node.op, ast.Or):
            found.append(evaluate(frame, part) - NONE)
    last = evaluate(frame, node.values[-1])
    return join(*found, last) if found else last


def _either(frame: Frame, node: ast.expr) -> Value:
    from . import narrowing

    assert isinstance(node, ast.IfExp)
    decided = truth(frame, node.test, "branch")
    if decided is not None:
        return evaluate(frame, node.body if decided else node.orelse)
    before = dict(frame.env)
    frame.branches += 1
    narrowing.narrow(frame, node.test, True)
    first = evaluate(frame, node.body)
    frame.env = dict(before)
    narrowing.narrow(frame, node.test, False)
    second = evaluate(frame, node.orelse)
    frame.env = before
    frame.branches -= 1
    return join(first, second)


def _listed(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Tuple | ast.List | ast.Set)
    if any(isinstance(part, ast.Starred) for part in node.elts):
        return items_of(join(*(_spread(frame, part) for part in node.elts)))
    return sequence(evaluate(frame, part) for part in node.elts)


def _spread(frame: Frame, node: ast.expr) -> Value:
    return elements(evaluate(frame, node.value)) if isinstance(node, ast.Starred) else evaluate(frame, node)


def _mapping(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Dict)
    for key in node.keys:
        if key is not None:
            evaluate(frame, key)
    found = [evaluate(frame, part) for part in node.values]
    flat = [
        join(*(atom.element for atom in of if isinstance(atom, Items)), UNKNOWN) if key is None else of
        for key, of in zip(node.keys, found, strict=True)
    ]
    return items_of(join(*flat) if flat else UNKNOWN, mapping=True)


def _comprehension(frame: Frame, node: ast.expr) -> Value:
    """Its loops bind names of their own."""
    from .statements import bind

    assert isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
    before = dict(frame.env)
    frame.branches += 1
    for loop in node.generators:
        bind(frame, loop.target, elements(evaluate(frame, loop.iter)), ast.copy_location(ast.Constant(None), node))
        for condition in loop.ifs:
            truth(frame, condition, "branch")
    if isinstance(node, ast.DictComp):
        evaluate(frame, node.key)
        element = evaluate(frame, node.value)
    else:
        element = evaluate(frame, node.elt)
    frame.branches -= 1
    frame.env = before
    return items_of(element, isinstance(node, ast.DictComp))


def _formatted(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.JoinedStr)
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            _formats(frame, part.value, evaluate(frame, part.value))
    first = node.values[0] if node.values else None
    if isinstance(first, ast.Constant) and str(first.value).startswith(("cuda", "xpu", "npu")):
        return constant(str(first.value))  # f"cuda:{rank}"
    return TEXT


def _formats(frame: Frame, node: ast.expr, of: Value) -> None:
    sure = device_elements(of)
    if sure is not None:
        frame.report("format", node, sure)


def _walrus(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.NamedExpr)
    of = evaluate(frame, node.value)
    frame.assign(node.target.id, of)
    frame.streams.assigned(node.target.id, node.value, of)
    return of


def _lambda(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Lambda)
    return frame.search.local_function(node, frame)


def _inner(frame: Frame, node: ast.expr) -> Value:
    """``await x`` gives what the coroutine returns; ``*x`` its elements."""
    assert isinstance(node, ast.Await | ast.Starred)
    return evaluate(frame, node.value)


def _yield(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Yield | ast.YieldFrom)
    of = evaluate(frame, node.value) if node.value is not None else NONE
    frame.yielded.append(elements(of) if isinstance(node, ast.YieldFrom) else of)
    return UNKNOWN


def _subscript(frame: Frame, node: ast.expr) -> Value:
    assert isinstance(node, ast.Subscript)
    return subscripts.load(frame, node)


def _call(frame: Frame, node: ast.expr) -> Value:
    from .calls import call

    assert isinstance(node, ast.Call)
    return call(frame, node)


_HANDLERS: dict[type[ast.expr], _Handler] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _several,
    ast.IfExp: _either,
    ast.Tuple: _listed,
    ast.List: _listed,
    ast.Set: _listed,
    ast.Dict: _mapping,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.JoinedStr: _formatted,
    ast.NamedExpr: _walrus,
    ast.Lambda: _lambda,
    ast.Await: _inner,
    ast.Starred: _inner,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Subscript: _subscript,
    ast.Call: _call,
}
