"""Whether Triton's interpreter could run a kernel that cannot be compiled for the CPU."""

from __future__ import annotations

import re
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime import interpreter

from ..findings import Site
from .errors import NotRunnable, Unsupported
from .launcher import printed
from .variants import Variant

#: Operations whose method in the interpreter's builder is absent in some Triton, or only raises an error.
_METHODS = {
    "tt.elementwise_inline_asm": ("create_inline_asm", "inline assembly"),
    "tt.extern_elementwise": ("create_extern_elementwise", "a function of a library, such as libdevice"),
    "tt.map_elementwise": ("create_map_elementwise", "tl.map_elementwise"),
    "tt.dot_scaled": ("create_dot_scaled", "tl.dot_scaled"),
    "tt.grid_dependency_wait": ("create_grid_dependency_wait", "an order between kernels of one stream"),
    "tt.grid_dependency_launch_dependents": (
        "create_grid_dependency_launch_dependents",
        "an order between kernels of one stream",
    ),
}
_RAISING = ("create_inline_asm", "create_extern_elementwise")
_OPERATION = re.compile(r"(?<![\w.])tt\.\w+")


def what_prevents(variant: Variant) -> NotRunnable | None:
    """Why the interpreter cannot run a variant: it lacks one of the operations; None if it seems to have them all.

    What a branch holds that is never taken counts as well.
    """
    if variant.function.is_gluon():
        return NotRunnable(variant.name, "Gluon, which describes one kind of GPU", ())
    try:
        text = printed(variant)
    except (CompilationError, RuntimeError, Unsupported):  # nothing is known of it; the interpreter may try
        return None
    lacking = next((name for name in _OPERATION.findall(text) if _is_lacking(name)), None)
    return None if lacking is None else NotRunnable(variant.name, _METHODS[lacking][1], _place(text, lacking))


def _is_lacking(operation: str) -> bool:
    method = _METHODS.get(operation, ("",))[0]
    builder: Any = interpreter.interpreter_builder
    return bool(method) and (method in _RAISING or not hasattr(builder, method))


def _place(text: str, name: str) -> tuple[Site, ...]:
    """Where the first operation of that name is written; nothing if the code cannot be read."""
    from . import reader

    try:
        functions = reader.read(text).functions.values()
    except Unsupported:
        return ()
    found = (operation for function in functions for operation in function.body.walk() if operation.name == name)
    return next((operation.location for operation in found), ())
