"""What a line of a program was calling, by the instruction that it is at.

A function of torch that is written in C++ has no frame. So its name is read from the program: the frame that called it
knows its instruction, the instruction its place in the source, and there the call is written.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import linecache
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

import torch

from ..libraries import TOOLKIT
from ..sync.called import name_of

#: What stands between a call and those who are told of it.
_MACHINERY = tuple(f"{folder}/" for file in TOOLKIT for folder in (f"{file}cuda", f"{file}virtual"))


def outside(frames: Sequence[FrameType]) -> list[FrameType]:
    """Those frames that come before our own, the last of which called torch.

    Args:
        frames: the innermost one of the program, and those between it and the caller of this function.
    """
    return [*itertools.takewhile(lambda frame: not frame.f_code.co_filename.startswith(_MACHINERY), frames)]


def operator_of(frame: FrameType) -> Any:
    """The operator that a frame of ``torch/_ops.py`` calls; None if it is another frame."""
    if frame.f_code.co_filename != torch._ops.__file__:
        return None
    candidate = frame.f_locals.get("self")
    if isinstance(candidate, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return candidate
    return None


def called_at(frame: FrameType | None) -> str | None:
    """The function of torch that a frame is calling, by the name that torch's manual has for it.

    Returns:
        None if its source cannot be read, or says something else.
    """
    text = None if frame is None else _expression(frame)
    if frame is None or text is None:
        return None
    try:
        node = ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        return None
    return _name(node, frame)


def _expression(frame: FrameType) -> str | None:
    """The source of the expression that a frame is at."""
    code = frame.f_code
    positions = list(code.co_positions())[frame.f_lasti // 2]
    first, last, begin, end = positions
    if first is None or last is None or begin is None or end is None:
        return None
    lines = linecache.getlines(code.co_filename, frame.f_globals)[first - 1 : last]
    if len(lines) != last - first + 1:
        return None
    encoded = [line.encode() for line in lines]  # columns count bytes
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][begin:]
    return b"".join(encoded).decode(errors="replace")


def _name(node: ast.expr, frame: FrameType) -> str | None:
    if isinstance(node, ast.Subscript):
        return "Tensor.__getitem__"
    if not isinstance(node, ast.Call):
        return None
    function = _static(node.func, frame)
    if function is not None:
        return name_of(function)
    if isinstance(node.func, ast.Attribute) and hasattr(torch.Tensor, node.func.attr):
        return f"Tensor.{node.func.attr}"
    return None


def _static(node: ast.expr, frame: FrameType) -> Any:
    """What a dotted name stands for, if nothing but modules is in front of its last dot."""
    if isinstance(node, ast.Name):
        return _value_of(node.id, frame)
    if isinstance(node, ast.Attribute):
        owner = _static(node.value, frame)
        if isinstance(owner, ModuleType | torch._ops._OpNamespace):
            return getattr(owner, node.attr, None)
    return None


def _value_of(name: str, frame: FrameType) -> Any:
    """What a name stands for in a frame.

    Up to Python 3.12 ``f_locals`` of a function copies all of its variables, and the copy lives as long as the frame: a
    tensor that the program drops would not be freed. So it is read only for names that are variables.
    """
    code = frame.f_code
    variables = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    if name in variables or not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals.get(name, frame.f_globals.get(name, getattr(builtins, name, None)))
    return frame.f_globals.get(name, getattr(builtins, name, None))
