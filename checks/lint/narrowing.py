"""What a condition says of the names in it: ``isinstance(x, torch.Tensor)``, ``x is not None``, ``x.is_cuda``."""

from __future__ import annotations

import ast
from collections.abc import Callable

from .frame import Frame
from .symbols import ClassInfo, dotted_name
from .values import (
    ANY_TENSOR,
    NONE,
    UNKNOWN,
    Device,
    Instance,
    Place,
    Tensor,
    Value,
    value,
)

_TENSOR_CLASSES = frozenset({"torch.Tensor", "Tensor"})


def narrow(frame: Frame, test: ast.expr, outcome: bool) -> None:
    """Change what names hold to what they can hold where the test came out so."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        narrow(frame, test.operand, not outcome)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is outcome:  # a and b is true: both are; a or b is false: both are
            for part in test.values:
                narrow(frame, part, outcome)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        _compare(frame, test, outcome)
    elif isinstance(test, ast.Call):
        _is_instance(frame, test, outcome)
    elif isinstance(test, ast.Attribute) and test.attr in {"is_cuda", "is_cpu"}:
        _on_side(frame, test.value, (test.attr == "is_cuda") is outcome)
    elif isinstance(test, ast.NamedExpr):
        narrow(frame, test.target, outcome)
    elif outcome:
        _change(frame, test, lambda of: of - NONE)


def _change(frame: Frame, node: ast.expr, how: Callable[[Value], Value]) -> None:
    """Apply a function to what a name or a path holds."""
    from .expressions import evaluate

    path = dotted_name(node)
    if path is None:
        return
    before = evaluate(frame, node)
    after = how(before)
    if after != before:
        frame.env[path] = after


def _compare(frame: Frame, test: ast.Compare, outcome: bool) -> None:
    operator, right = test.ops[0], test.comparators[0]
    positive = isinstance(operator, ast.Is | ast.Eq)
    if isinstance(right, ast.Constant) and right.value is None and isinstance(operator, ast.Is | ast.IsNot):
        here = positive is outcome
        _change(frame, test.left, lambda of: (of & NONE or of) if here else of - NONE)
    elif (
        isinstance(right, ast.Constant) and isinstance(operator, ast.Eq | ast.NotEq) and right.value in {"cpu", "cuda"}
    ):
        owner = _owner_of_type(test.left)
        if owner is not None:
            _on_side(frame, owner, (right.value == "cuda") is (positive is outcome))


def _owner_of_type(node: ast.expr) -> ast.expr | None:
    """``x`` of ``x.device.type``."""
    if isinstance(node, ast.Attribute) and node.attr == "type" and isinstance(node.value, ast.Attribute):
        return node.value.value if node.value.attr == "device" else None
    return None


def _on_side(frame: Frame, node: ast.expr, device: bool) -> None:
    """A tensor is on the device, or it is not."""

    def keep(of: Value) -> Value:
        kept = {atom for atom in of if not isinstance(atom, Tensor) or (atom.place is Place.DEVICE) is device}
        unknown = {atom for atom in of if isinstance(atom, Tensor) and atom.place is Place.UNKNOWN}
        place = Place.DEVICE if device else Place.PAGEABLE
        return frozenset(kept - unknown) | {Tensor(place, atom.sure, atom.mask) for atom in unknown}

    _change(frame, node, keep)


def _is_instance(frame: Frame, test: ast.Call, outcome: bool) -> None:
    name = dotted_name(test.func)
    if name in {"torch.is_tensor"} and test.args:
        _change(frame, test.args[0], lambda of: _tensors(of, outcome))
    if name != "isinstance" or len(test.args) != 2:
        return
    classes = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
    names = [dotted_name(one) for one in classes]
    if all(one in _TENSOR_CLASSES for one in names):
        _change(frame, test.args[0], lambda of: _tensors(of, outcome))
    elif not any(one in _TENSOR_CLASSES for one in names):
        _change(frame, test.args[0], lambda of: _others(frame, of, names, outcome))


def _tensors(of: Value, wanted: bool) -> Value:
    """Its tensors, or all but them."""
    if not wanted:
        return frozenset(atom for atom in of if not isinstance(atom, Tensor))
    return frozenset(atom for atom in of if isinstance(atom, Tensor)) or ANY_TENSOR


def _others(frame: Frame, of: Value, names: list[str | None], wanted: bool) -> Value:
    """Narrow to classes that are no tensors."""
    classes = [frame.search.symbols.lookup(frame.source, name) for name in names]
    known = [one for one in classes if isinstance(one, ClassInfo)]
    if wanted:
        if len(known) == len(names):
            return frozenset().union(*(_of_class(frame, of, one) for one in known))
        return frozenset(atom for atom in of if not isinstance(atom, Tensor | Device))
    identities = {one.identity for one in known}
    left = frozenset(atom for atom in of if not (isinstance(atom, Instance) and atom.cls in identities))
    return left if left or not of else UNKNOWN


def _of_class(frame: Frame, of: Value, cls: ClassInfo) -> Value:
    """What of a value is an object of a class or a subclass; an object of the class if that was not known."""
    below = {cls.identity, *(one.identity for one in frame.search.symbols.subclasses(cls))}
    kept = frozenset(atom for atom in of if isinstance(atom, Instance) and atom.cls in below)
    return kept or value(Instance(cls.identity))
