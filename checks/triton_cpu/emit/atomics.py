"""Atomics: one lane after another, as a program here is one thread.

What a lane that is masked off returns is not defined on a GPU; here it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..ir import Operation, Value
from .elementwise import narrowed, widened
from .memory import accessed, allowed, each_lane, lane_of
from .program import Program
from .registry import statement
from .scalars import Element, as_signed, as_unsigned, c_type, is_float, size
from .source import AccessKind

_ACQUIRES = frozenset({"acquire", "acq_rel"})
_RELEASES = frozenset({"release", "acq_rel"})


def _atomic_site(program: Program, operation: Operation, element: Element) -> int:
    sem = operation.attributes["sem"]
    between_programs = operation.attributes["scope"] != "cta"  # that one orders within a program
    acquires, releases = between_programs and sem in _ACQUIRES, between_programs and sem in _RELEASES
    return program.site(operation, AccessKind.ATOMIC, element, acquires=acquires, releases=releases)


@contextmanager
def _each_lane(
    program: Program, pointer: Value, mask: Value | None, width: int, site: int, target: str = ""
) -> Iterator[None]:
    """Around the lines for one lane that may be touched; the result of one that may not is zero."""
    with each_lane(program, pointer):
        if target:
            program.line(f"{target} = 0;")
        with program.block(f"if ({allowed(program, mask, f'INSIDE(address, {width}, {site})')})"):
            yield
            program.line(f"LOG_BYTES(address, {width}, {site});")
    program.line(f"LOG_END({site});")


@statement("tt.atomic_rmw")
def read_modify_write(program: Program, operation: Operation) -> None:
    """``tt.atomic_rmw kind, pointer, value, mask``; the result is what was there before."""
    pointer, value, mask = (*operation.operands, None)[:3]
    assert pointer is not None and value is not None
    element = accessed(program, operation)
    site = _atomic_site(program, operation, element)
    kind, width = c_type(element), size(element)
    target = lane_of(program, operation.results[0])
    with _each_lane(program, pointer, mask, width, site, target):
        program.line(f"const {kind} old = AT({kind}, address), value = {program.lane(value)};")
        program.line(f"AT({kind}, address) = {_modified(program, operation, element)};")
        program.line(f"{target} = old;")


_OPERATORS = {"and": "&", "or": "|", "xor": "^", "add": "+"}


def _modified(program: Program, operation: Operation, element: Element) -> str:
    """What an atomic leaves in memory, from ``old`` and ``value``."""
    word = str(operation.attributes["atomic_rmw_op"])
    if word == "exch":
        return "value"
    if word == "fadd":
        return narrowed(program, element, f"({widened(element, 'old')} + {widened(element, 'value')})")
    if word in _OPERATORS:
        return f"({c_type(element)})(old {_OPERATORS[word]} value)"
    if word not in ("max", "min", "umax", "umin") or is_float(element):
        raise program.unsupported(operation, f"{word} on {element}")
    read = as_unsigned if word[0] == "u" else as_signed
    return f"{read(element, 'old')} {'>' if 'max' in word else '<'} {read(element, 'value')} ? old : value"


@statement("tt.atomic_cas")
def compare_and_swap(program: Program, operation: Operation) -> None:
    """``tt.atomic_cas pointer, expected, value``; the result is what was there before."""
    pointer, expected, value = operation.operands
    element = accessed(program, operation)
    site = _atomic_site(program, operation, element)
    kind, width = c_type(element), size(element)
    target = lane_of(program, operation.results[0])
    with _each_lane(program, pointer, None, width, site, target):
        program.line(f"const {kind} old = AT({kind}, address), expected = {program.lane(expected)};")
        program.line(f"const {kind} value = {program.lane(value)};")
        program.line(f"if (!memcmp(&old, &expected, {width})) AT({kind}, address) = value;")
        program.line(f"{target} = old;")


@statement("tt.atomic_load")
def load(program: Program, operation: Operation) -> None:
    """``tt.atomic_load pointer, mask``."""
    pointer, mask = (*operation.operands, None)[:2]
    assert pointer is not None
    element = accessed(program, operation)
    site, kind, width = _atomic_site(program, operation, element), c_type(element), size(element)
    target = lane_of(program, operation.results[0])
    with _each_lane(program, pointer, mask, width, site, target):
        program.line(f"{target} = AT({kind}, address);")


@statement("tt.atomic_store")
def store(program: Program, operation: Operation) -> None:
    """``tt.atomic_store pointer, value, mask``."""
    pointer, value, mask = (*operation.operands, None)[:3]
    assert pointer is not None and value is not None
    element = accessed(program, operation)
    site, kind, width = _atomic_site(program, operation, element), c_type(element), size(element)
    with _each_lane(program, pointer, mask, width, site):
        program.line(f"AT({kind}, address) = {program.lane(value)};")


@statement("tt.atomic_poll")
def poll(program: Program, operation: Operation) -> None:
    """``tt.atomic_poll pointer, expected``; while a program runs nobody else writes: a poll that fails never ends."""
    pointer, expected = operation.operands
    element = accessed(program, operation)
    site, kind, width = _atomic_site(program, operation, element), c_type(element), size(element)
    target = lane_of(program, operation.results[0])
    with each_lane(program, pointer):
        program.line(f"{target} = 0;")
        with program.block(f"if (INSIDE(address, {width}, {site}))"):
            program.line(f"LOG_BYTES(address, {width}, {site});")
            program.line(f"{target} = AT({kind}, address) == {program.lane(expected)};")
        program.line(f"if (!{target}) {{ stop(launch, OUT_OF_FUEL, {site}); return; }}")
    program.line(f"LOG_END({site});")
