"""Loads, stores and atomics, through the macros of ``launch.h``.

A lane that is masked off, or that lies outside of all blocks, touches nothing. A load without ``other`` leaves such a
lane zero, or poisoned on request. Of several lanes that store to one address the last wins, as in the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..ir import Operation, Pointer, Tensor, Value
from .elementwise import narrowed, widened
from .program import Program
from .registry import statement
from .scalars import Element, as_signed, as_unsigned, c_type, is_float, pointee, size
from .source import AccessKind
from .tiles import is_dense

_ACQUIRES = frozenset({"acquire", "acq_rel"})
_RELEASES = frozenset({"release", "acq_rel"})


@contextmanager
def _each_lane(program: Program, pointer: Value) -> Iterator[None]:
    header = f"for (int32_t i = 0; i < {pointer.lanes}; i++)" if isinstance(pointer.type, Tensor) else ""
    with program.block(header):
        program.line(f"const uint64_t address = {program.lane(pointer)};")
        yield


def _lane_of(program: Program, value: Value) -> str:
    name = program.storage(value)
    return f"{name}[i]" if isinstance(value.type, Tensor) else name


def _allowed(program: Program, mask: Value | None, width: int, site: int) -> str:
    inside = f"INSIDE(address, {width}, {site})"
    return inside if mask is None else f"{program.lane(mask)} && {inside}"


def _accessed(program: Program, operation: Operation) -> Element:
    """The type of what one lane accesses; an address that comes from memory is noted."""
    element = pointee(operation.operands[0].element)
    if isinstance(element, Pointer):
        program.unit.from_memory = True
    return element


@statement("tt.load")
def load(program: Program, operation: Operation) -> None:
    """``tt.load pointer, mask, other``."""
    pointer, mask, other = (*operation.operands, None, None)[:3]
    assert pointer is not None
    site = program.site(operation, AccessKind.READ, _accessed(program, operation))
    if isinstance(pointer.type, Tensor):
        _load_tensor(program, site, operation.results[0], pointer, mask, other)
    else:
        _load_scalar(program, site, operation.results[0], pointer, mask, other)
    program.line(f"LOG_END({site});")


def _load_scalar(
    program: Program, site: int, result: Value, pointer: Value, mask: Value | None, other: Value | None
) -> None:
    target, kind, width = program.storage(result), c_type(result.element), size(result.element)
    with _each_lane(program, pointer):
        if other is None:
            program.line(f"memset(&{target}, {_fill(mask)}, {width});")
        else:
            program.line(f"{target} = {program.lane(other)};")
        with program.block(f"if ({_allowed(program, mask, width, site)})"):
            program.line(f"{target} = AT({kind}, address);")
            program.line(f"LOG_BYTES(address, {width}, {site});")


def _load_tensor(
    program: Program, site: int, result: Value, pointer: Value, mask: Value | None, other: Value | None
) -> None:
    target = program.storage(result)
    if other is None:
        program.line(f"memset({target}, {_fill(mask)}, {result.lanes * size(result.element)});")
    else:
        program.copy(target, other)
    _access_tensor(program, "load", site, target, pointer, mask)


def _fill(mask: Value | None) -> str:
    """The byte that fills what no ``other`` gives: lanes that are masked off, else those outside of all memory."""
    return "0" if mask is None else "launch->poison ? POISON_BYTE : 0"


def _access_tensor(program: Program, action: str, site: int, values: str, pointer: Value, mask: Value | None) -> None:
    """Loads all lanes that the mask lets through into an array, or stores them from it."""
    masks = "0" if mask is None else program.array(mask)
    width = size(pointee(pointer.element))
    by_lanes = f"{action}_lanes_{width}"
    if not is_dense(pointer):
        _access_lanes(program, by_lanes, values, program.array(pointer), masks, pointer.lanes, site)
        return
    assert pointer.shape is not None
    length = pointer.shape[-1]
    addresses = program.fresh(pointer.element, length, hint="addresses")
    with program.block(f"for (int32_t row = 0; row < {pointer.lanes}; row += {length})"):
        first, last = program.lane(pointer, "row"), program.lane(pointer, f"(row + {length - 1})")
        row_masks = masks if mask is None else f"{masks} + row"
        arguments = f"{first}, {last}, {row_masks}, {values} + row, {length}, {width}, {site}"
        with program.block(f"if (!{action}_dense(launch, runs, {arguments}))"):
            with program.lanes(length):
                program.line(f"{addresses}[i] = {program.lane(pointer, '(row + i)')};")
            _access_lanes(program, by_lanes, f"{values} + row", addresses, row_masks, length, site)


def _access_lanes(program: Program, call: str, values: str, addresses: str, masks: str, lanes: int, site: int) -> None:
    program.line(f"{call}(launch, runs, {addresses}, {masks}, (void *)({values}), {lanes}, {site});")


@statement("tt.store")
def store(program: Program, operation: Operation) -> None:
    """``tt.store pointer, value, mask``."""
    pointer, value, mask = (*operation.operands, None)[:3]
    assert pointer is not None and value is not None
    element = pointee(pointer.element)
    site, kind, width = program.site(operation, AccessKind.WRITE, element), c_type(element), size(element)
    if isinstance(pointer.type, Tensor):
        _access_tensor(program, "store", site, program.array(value), pointer, mask)
    else:
        with _each_lane(program, pointer), program.block(f"if ({_allowed(program, mask, width, site)})"):
            program.line(f"const {kind} value = {program.lane(value)};")
            program.line(f"AT({kind}, address) = value;")
            program.line(f"LOG_STORE(address, value, {width}, {site});")
    program.line(f"LOG_END({site});")


def _atomic_site(program: Program, operation: Operation, element: Element) -> int:
    sem = operation.attributes["sem"]
    acquires, releases = sem in _ACQUIRES, sem in _RELEASES
    return program.site(operation, AccessKind.ATOMIC, element, acquires=acquires, releases=releases)


@statement("tt.atomic_rmw")
def read_modify_write(program: Program, operation: Operation) -> None:
    """``tt.atomic_rmw kind, pointer, value, mask``; the result is what was there before."""
    pointer, value, mask = (*operation.operands, None)[:3]
    assert pointer is not None and value is not None
    element = _accessed(program, operation)
    site = _atomic_site(program, operation, element)
    kind, width = c_type(element), size(element)
    target = _lane_of(program, operation.results[0])
    with _each_lane(program, pointer):
        program.line(f"{target} = 0;")
        with program.block(f"if ({_allowed(program, mask, width, site)})"):
            program.line(f"const {kind} old = AT({kind}, address), value = {program.lane(value)};")
            program.line(f"AT({kind}, address) = {_modified(program, operation, element)};")
            program.line(f"{target} = old;")
            program.line(f"LOG_BYTES(address, {width}, {site});")
    program.line(f"LOG_END({site});")


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
    element = _accessed(program, operation)
    site = _atomic_site(program, operation, element)
    kind, width = c_type(element), size(element)
    target = _lane_of(program, operation.results[0])
    with _each_lane(program, pointer):
        program.line(f"{target} = 0;")
        with program.block(f"if ({_allowed(program, None, width, site)})"):
            program.line(f"const {kind} old = AT({kind}, address), expected = {program.lane(expected)};")
            program.line(f"const {kind} value = {program.lane(value)};")
            program.line(f"if (!memcmp(&old, &expected, {width})) AT({kind}, address) = value;")
            program.line(f"{target} = old;")
            program.line(f"LOG_BYTES(address, {width}, {site});")
    program.line(f"LOG_END({site});")
