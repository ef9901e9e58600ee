"""Printed TTIR as objects: the text that Triton 3.6 to 3.9 prints, with debug locations or without."""

from __future__ import annotations

import re

from ..errors import Unsupported
from ..ir import Function, Module, Operation
from .attributes import dictionary_of
from .functions import FunctionReader
from .lexer import Cursor, Fault, Token, tokens_of
from .locations import Locations

_DEFINITION = re.compile(r"(#[A-Za-z_][\w.]*) = (.*)")

#: Attributes of modules say for which GPU, which changes nothing here.
_OF_MODULES = re.compile(r"ttg\.|tt\.(?:target|num_)|triton_gpu\.")


def read(text: str) -> Module:
    """Read a module.

    Raises:
        Unsupported: anything in it is not understood; says what, and where in the kernel if that is known.
    """
    try:
        return _module(text)
    except Fault as fault:
        raise Unsupported(str(fault)) from None


def _module(text: str) -> Module:
    body, definitions = _without_definitions(text)
    cursor, locations = Cursor(tokens_of(body)), Locations(definitions)
    cursor.expect("module")
    if cursor.accept("attributes"):
        for name in dictionary_of(cursor):
            if not _OF_MODULES.match(name):
                raise Fault(f"a module with the attribute {name}")
    cursor.expect("{")
    functions: dict[str, Function] = {}
    while not cursor.accept("}"):
        function = FunctionReader(cursor, locations).read()
        if function.name in functions:
            raise Fault(f"a second function {function.name}")
        functions[function.name] = function
    locations.trailing(cursor)
    if cursor.next.kind != "end":
        raise cursor.fault("after the module")
    return _checked(Module(functions))


def _without_definitions(text: str) -> tuple[str, dict[str, list[Token]]]:
    """The module itself, its lines where they were, and the tokens of each alias; definitions have their own lines."""
    lines, definitions = text.split("\n"), {}
    for index, line in enumerate(lines):
        if match := _DEFINITION.fullmatch(line):
            definitions[match.group(1)] = tokens_of(match.group(2), index + 1)
            lines[index] = ""
    return "\n".join(lines), definitions


def _checked(module: Module) -> Module:
    """The module, in which there is one kernel, and calls fit the functions that they go to."""
    if sum(function.public for function in module.functions.values()) != 1:
        raise Fault("a module with no kernel or several")
    for function in module.functions.values():
        for operation in function.body.walk():
            if operation.name == "tt.call" and not _fits(operation, module):
                raise Unsupported(f"a call of {operation.attributes['callee']}", operation.location)
    return module


def _fits(call: Operation, module: Module) -> bool:
    callee = module.functions.get(str(call.attributes["callee"]))
    return (
        callee is not None
        and [value.type for value in call.operands] == [value.type for value in callee.arguments]
        and [value.type for value in call.results] == list(callee.results)
    )
