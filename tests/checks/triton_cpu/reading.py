"""Helpers for tests of the reader: modules as comparable data, and the generic form of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from mrv2.checks.triton_cpu.ir import Function, Module, Operation, Region, Value


def structure(module: Module, places: bool = True) -> dict[str, Any]:
    """Everything that a module says, without the names that the printer chooses.

    Args:
        module: as read.
        places: whether to keep files and lines; else only the depth of calls.
    """
    return {name: _Structure(places).function(function) for name, function in module.functions.items()}


class _Structure:
    def __init__(self, places: bool) -> None:
        self._places = places
        self._numbers: dict[Value, int] = {}

    def function(self, function: Function) -> tuple[Any, ...]:
        arguments = [self._defined(value) for value in function.arguments]
        return (function.public, arguments, function.results, self._region(function.body))

    def _region(self, region: Region) -> list[Any]:
        labels = {block.label: index for index, block in enumerate(region.blocks)}
        return [
            (
                [self._defined(value) for value in block.arguments],
                [self._operation(o, labels) for o in block.operations],
            )
            for block in region.blocks
        ]

    def _operation(self, operation: Operation, labels: dict[str, int]) -> tuple[Any, ...]:
        operands = [self._numbers[value] for value in operation.operands]
        successors = [(labels[to], [self._numbers[value] for value in values]) for to, values in operation.successors]
        regions = [self._region(region) for region in operation.regions]
        return (
            operation.name,
            operands,
            [self._defined(value) for value in operation.results],
            {name: repr(value) for name, value in operation.attributes.items()},
            regions,
            successors,
            # A parsed module has places for the ends of regions that are not printed.
            [self._site(site) for site in operation.location if operation.name != "scf.yield" or operands],
        )

    def _defined(self, value: Value) -> tuple[int, Any]:
        return self._numbers.setdefault(value, len(self._numbers)), value.type

    def _site(self, site: Any) -> Any:
        return site if self._places else ""


def generic(text: str, folder: Path) -> str:
    """The same module with all operations in MLIR's generic form, which the printer uses if a module is not valid."""
    module, context = parsed(text, folder)
    module.set_attr("llvm.data_layout", ir.builder(context).get_string_attr("not a layout"))
    printed = str(module.str())
    assert '"builtin.module"' in printed
    return _with_functions(printed)


def printed(text: str, folder: Path) -> str:
    """The text as Triton's parser takes it and its printer prints it."""
    return str(parsed(text, folder)[0].str())


def parsed(text: str, folder: Path) -> tuple[Any, Any]:
    """A module and its context from a text, by Triton's own parser."""
    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("cuda", 90, 32)).load_dialects(context)
    file = folder / "module.mlir"
    file.write_text(text)
    module = ir.parse_mlir_module(str(file), context)
    module.context = context
    return module, context


_MODULE = re.compile(r'"builtin\.module"\(\) \(\{')
_MODULE_END = re.compile(r"^\}\) \{llvm\.data_layout.*$", re.MULTILINE)
_FUNCTION_END = re.compile(r"^  \}\) .*: \(\) -> \(\)(.*)$", re.MULTILINE)
_FUNCTION = re.compile(
    r'"tt\.func"\(\) <\{(?:arg_attrs = .*?, )?function_type = \(.*?\) -> (.*), sym_name = ("[^"]*"), '
    r'sym_visibility = "(\w+)"\}> \(\{\n(?:  \^bb0(\(.*\)):\n)?'
)


def _with_functions(printed: str) -> str:
    """Functions and the module in the form that the reader takes."""

    def function(match: re.Match[str]) -> str:
        results, name, visibility, arguments = match.groups()
        arrow = "" if results == "()" else f" -> {results}"
        return f"tt.func {visibility} @{name}{arguments or '()'}{arrow} {{\n"

    printed = _MODULE_END.sub("}", _MODULE.sub("module {", printed))
    return _FUNCTION.sub(function, _FUNCTION_END.sub(r"  }\1", printed))


def mutations(text: str, random: Any, count: int) -> Iterator[str]:
    """Damaged copies of a text: pieces deleted, doubled, exchanged for pieces from elsewhere, characters changed."""
    pieces = re.findall(r"\s+|[%@^#!]?[\w.]+|.", text)
    for _ in range(count):
        damaged = list(pieces)
        for _ in range(random.randint(1, 3)):
            place, other = random.randrange(len(damaged)), random.randrange(len(damaged))
            kind = random.randrange(5)
            if kind == 0:
                del damaged[place : place + random.randint(1, 4)]
            elif kind == 1:
                damaged.insert(place, damaged[other])
            elif kind == 2:
                damaged[place] = damaged[other]
            elif kind == 3:
                damaged[place], damaged[other] = damaged[other], damaged[place]
            else:
                damaged[place] = damaged[place][:-1] + random.choice('"<>(){}[]%#@^!:=,.0-9ax\\\0é')
        yield "".join(damaged)
