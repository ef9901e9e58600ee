"""Why an operator waits that nobody asked about before: by the table of rules, by torch's tags, by its arguments."""

from __future__ import annotations

from typing import Any

import torch

from ..sync.rules import kinds_named
from ..sync.waits import Cause, WaitKind
from ..virtual.inference import OWN_NAMESPACES

#: Types of arguments for which a tensor of the device can be given, and is then read.
_NUMBERS = ("Scalar", "number", "int", "SymInt", "float")


def cause_of(called: str | None, operator: Any = None) -> Cause:
    """What is known of a wait that torch warned of.

    Args:
        called: what the program called, by the name that torch's manual has for it; None if that is not known.
        operator: the operator that was called through ``torch.ops``, if it was one.
    """
    if operator is not None:
        name = _schema_name(operator)
        if name.partition("::")[0] not in OWN_NAMESPACES:
            return Cause(WaitKind.CUSTOM, name)
        called = name
    if called is None:
        return Cause(WaitKind.INSIDE, "an operator of torch")
    short = called.replace("::", ".").rpartition(".")[2]
    kinds = kinds_named(short)
    if len(kinds) == 1:
        return Cause(next(iter(kinds)), called)
    # Of several, a shape is what a call without further arguments waits for: torch.where(mask).
    return Cause(WaitKind.SHAPE if WaitKind.SHAPE in kinds else _by_schema(short), called)


def _schema_name(operator: Any) -> str:
    if isinstance(operator, torch._ops.OpOverload):
        return str(operator._schema.name)
    return str(operator._qualified_op_name)


def _by_schema(short: str) -> WaitKind:
    packet = getattr(torch.ops.aten, short, None)
    if packet is None:
        return WaitKind.INSIDE
    overloads = [getattr(packet, name) for name in packet.overloads()]
    tags = {tag for overload in overloads for tag in overload.tags}
    if torch.Tag.dynamic_output_shape in tags:
        return WaitKind.SHAPE
    if torch.Tag.data_dependent_output in tags:
        return WaitKind.VALUE
    takes = {
        str(argument.type).removeprefix("Optional[").rstrip("]") for o in overloads for argument in o._schema.arguments
    }
    return WaitKind.VALUE if takes & set(_NUMBERS) else WaitKind.INSIDE
