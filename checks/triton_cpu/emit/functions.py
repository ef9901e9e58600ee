"""The C functions of one file: the kernel's program, and the device functions that Triton left alone."""

from __future__ import annotations

from ..ir import Function, Operation, Tensor, Type
from .control import write_region
from .program import Program, Unit
from .registry import statement
from .scalars import c_type, element_of

#: What each function gets from the runtime.
CONTEXT = (
    "Launch *launch, const uint64_t *arguments, char *scratch, Run *runs, const int32_t *index, const int32_t *grid"
)


def definitions(unit: Unit) -> list[str]:
    """C definitions of all functions, prototypes first."""
    kernel = unit.module.kernel
    helpers = [function for function in unit.module.functions.values() if function is not kernel]
    prototypes = [f"{_signature(function)};" for function in helpers]
    return [*prototypes, *(_device_function(function, unit) for function in helpers), _kernel(kernel, unit)]


def _kernel(function: Function, unit: Unit) -> str:
    program = Program(function, unit)
    for number, argument in enumerate(function.arguments):
        name = program.storage(argument)
        program.line(f"memcpy(&{name}, &arguments[{number}], sizeof {name});")
    write_region(program, function.body, lambda _: program.line("return;"))
    return f"static void program({CONTEXT}) {{\n{program.text()}\n}}\n"


def _device_function(function: Function, unit: Unit) -> str:
    program = Program(function, unit)
    for number, argument in enumerate(function.arguments):
        program.alias(argument, f"in_{number}")
    write_region(program, function.body, lambda operation: _return(program, operation))
    return f"{_signature(function)} {{\n{program.text()}\n}}\n"


def _signature(function: Function) -> str:
    inputs = [_input(argument.type, number) for number, argument in enumerate(function.arguments)]
    outputs = [f"{c_type(element_of(kind))} *restrict out_{number}" for number, kind in enumerate(function.results)]
    return f"static void {_symbol(function.name)}({', '.join([CONTEXT, *inputs, *outputs])})"


def _input(kind: Type, number: int) -> str:
    lane = c_type(element_of(kind))
    return f"const {lane} *in_{number}" if isinstance(kind, Tensor) else f"{lane} in_{number}"


def _symbol(name: str) -> str:
    return "f_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def _return(program: Program, operation: Operation) -> None:
    for number, value in enumerate(operation.operands):
        program.copy(f"out_{number}" if isinstance(value.type, Tensor) else f"*out_{number}", value)
    program.line("return;")


@statement("tt.call")
def call(program: Program, operation: Operation) -> None:
    """A device function that is not inlined; results come back through pointers, and a stopped launch ends here too."""
    context = ["launch", "arguments", "scratch", "runs", "index", "grid"]
    inputs = [
        program.array(value) if isinstance(value.type, Tensor) else program.lane(value) for value in operation.operands
    ]
    outputs = [
        program.storage(value) if isinstance(value.type, Tensor) else f"&{program.storage(value)}"
        for value in operation.results
    ]
    callee = operation.attributes["callee"]
    program.line(f"{_symbol(str(callee))}({', '.join([*context, *inputs, *outputs])});")
    program.line("if (launch->stopped) return;")
