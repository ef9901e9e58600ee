"""Structured loops and branches, jumps between blocks, assertions and prints.

A program runs by itself, so that its branches are C's branches: nothing is masked for divergence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..ir import Block, Operation, Pointer, Region, Scalar, Tensor, Type, Value
from .fuel import weight
from .program import Program
from .registry import expression, statement
from .scalars import c_type, element_of, unsigned


def assign(program: Program, targets: Sequence[Value], sources: Sequence[Value]) -> None:
    """Gives values to loop variables or block arguments, all at once: each source is read before any target changes."""
    moves = [pair for pair in zip(targets, sources, strict=True) if not program.share(*pair)]
    written = {program.storage(target) for target, _ in moves}
    names = [_saved(program, source) if _reads_any(program, source, written) else None for _, source in moves]
    for (target, source), name in zip(moves, names, strict=True):
        if name is None:
            program.copy(program.storage(target), source)
        else:
            _move(program, program.storage(target), name, source)


def _reads_any(program: Program, source: Value, names: set[str]) -> bool:
    return any(program.storage(value) in names for value in program.reads(source))


def _saved(program: Program, source: Value) -> str:
    lanes = source.lanes if isinstance(source.type, Tensor) else None
    name = program.fresh(element_of(source.type), lanes)
    program.copy(name, source)
    return name


def _move(program: Program, target: str, name: str, like: Value) -> None:
    if isinstance(like.type, Tensor):
        program.line(f"COPY({target}, {name}, {like.lanes} * sizeof *{name});")
    else:
        program.line(f"{target} = {name};")


def write_region(program: Program, region: Region, leave: Callable[[Operation], None]) -> None:
    """Writes the body of a function: blocks, and jumps between them.

    Args:
        program: where to.
        region: of a function.
        leave: writes the return.
    """
    labels = {block.label: program.label(block.label) for block in region.blocks}
    blocks = {block.label: block for block in region.blocks}
    for block in region.blocks:
        if len(blocks) > 1:
            program.line(f"{labels[block.label]}:;")
        last = program.block_operations(block)
        assert last is not None
        if last.name.startswith("cf."):
            _jump(program, last, labels, blocks)
        else:
            leave(last)


def _jump(program: Program, operation: Operation, labels: dict[str, str], blocks: dict[str, Block]) -> None:
    def go(number: int) -> None:
        label, values = operation.successors[number]
        assign(program, blocks[label].arguments, values)
        program.line(f"goto {labels[label]};")

    if operation.name == "cf.br":
        go(0)
        return
    with program.block(f"if ({program.lane(operation.operands[0])})"):
        go(0)
    with program.block("else"):
        go(1)


def _body(program: Program, region: Region, results: Sequence[Value]) -> None:
    """A region whose yielded values become the results of its operation."""
    last = program.operations(region)
    if last is not None:
        assign(program, results, last.operands)


@statement("scf.if")
def branch(program: Program, operation: Operation) -> None:
    """If and else; what a branch computes last is computed where the result lives."""
    for region in operation.regions:
        for block in region.blocks:
            _compute_in_place(program, block, operation.results)
    with program.block(f"if ({program.lane(operation.operands[0])})"):
        _body(program, operation.regions[0], operation.results)
    if len(operation.regions) > 1 and operation.regions[1].blocks:
        with program.block("else"):
            _body(program, operation.regions[1], operation.results)


def _compute_in_place(program: Program, block: Block, results: Sequence[Value]) -> None:
    yielded = block.operations[-1].operands
    for result, value in zip(results, yielded, strict=False):
        if value.origin in block.operations and yielded.count(value) == 1:
            program.alias(value, program.storage(result))


@statement("scf.for")
def counted_loop(program: Program, operation: Operation) -> None:
    """A counted loop; as in Python's ``range``, an overflow of the counter ends it."""
    lower, upper, step, *initial = operation.operands
    counter, *carried = operation.regions[0].blocks[0].arguments
    for result, variable in zip(operation.results, carried, strict=True):
        program.alias(result, program.storage(variable))
    assign(program, carried, initial)
    plain = element_of(counter.type)
    kind = unsigned(plain) if operation.attributes.get("unsignedCmp") else c_type(plain)
    k, end, stride = (program.label(word) for word in ("k", "end", "step"))
    site = program.site(operation)
    with program.block(""):
        program.line(f"const {kind} {end} = {program.lane(upper)}, {stride} = {program.lane(step)};")
        with program.block(f"for ({kind} {k} = {program.lane(lower)}; {k} < {end};)"):
            program.line(f"SPEND_FUEL({site}, {weight(program, operation)});")
            program.line(f"{program.storage(counter)} = {k};")
            _body(program, operation.regions[0], carried)
            program.line(f"if (__builtin_add_overflow({k}, {stride}, &{k})) break;")


@statement("scf.while")
def conditional_loop(program: Program, operation: Operation) -> None:
    """A loop whose first region decides whether the second one runs."""
    before, after = operation.regions
    tested, passed = before.blocks[0].arguments, after.blocks[0].arguments
    for result, variable in zip(operation.results, passed, strict=True):
        program.alias(result, program.storage(variable))
    assign(program, tested, operation.operands)
    site = program.site(operation)
    with program.block("for (;;)"):
        program.line(f"SPEND_FUEL({site}, {weight(program, operation)});")
        condition = program.operations(before)
        assert condition is not None and condition.name == "scf.condition"
        assign(program, passed, condition.operands[1:])
        program.line(f"if (!{program.lane(condition.operands[0])}) break;")
        _body(program, after, tested)


@expression("tt.get_program_id")
def program_id(program: Program, operation: Operation, operands: list[str]) -> str:
    """The place of this program in the grid."""
    return f"index[{operation.attributes['axis']}]"


@expression("tt.get_num_programs")
def program_count(program: Program, operation: Operation, operands: list[str]) -> str:
    """The size of the grid."""
    return f"grid[{operation.attributes['axis']}]"


@statement("gpu.barrier", "ttg.barrier")
@statement("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents")
@statement("llvm.intr.assume")
def nothing(program: Program, operation: Operation) -> None:
    """Barriers in a program, which is one thread here; waits for the launch before, which has ended; assumptions."""


@statement("tt.assert")
def assertion(program: Program, operation: Operation) -> None:
    """device_assert: one false lane ends the launch."""
    (condition,) = operation.operands
    site = program.site(operation, message=str(operation.attributes.get("message", "")))
    failed = f"if (!{program.lane(condition)}) {{ stop(launch, ASSERTION_FAILED, {site}); return; }}"
    if not isinstance(condition.type, Tensor):
        program.line(failed)
        return
    with program.lanes(condition.lanes):
        program.line(failed)


@statement("tt.print")
def device_print(program: Program, operation: Operation) -> None:
    """device_print: Python formats each value."""
    signed = operation.attributes["isSigned"]
    assert isinstance(signed, tuple)
    values = tuple(
        _printed_type(value.type, bool(sign)) for value, sign in zip(operation.operands, signed, strict=True)
    )
    prefix, hexadecimal = str(operation.attributes["prefix"]), bool(operation.attributes["hex"])
    site = program.site(operation, message=prefix, values=values, hexadecimal=hexadecimal)
    if not operation.operands:
        program.line(f"if (launch->print) launch->print({site}, 0, 0);")
    for number, value in enumerate(operation.operands):
        program.line(f"if (launch->print) launch->print({site}, {number}, {program.array(value)});")


def _printed_type(kind: Type, signed: bool) -> Type:
    """With the sign that MLIR's integers lack."""
    if isinstance(kind, Tensor):
        element = _printed_type(kind.element, signed)
        assert isinstance(element, Scalar | Pointer)
        return Tensor(kind.shape, element)
    if isinstance(kind, Scalar) and not signed and re.fullmatch(r"i(8|16|32|64)", kind.name):
        return Scalar(f"u{kind.name}")
    return kind
