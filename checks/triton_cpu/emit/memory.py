"""Loads and stores, through the macros of ``launch.h``.

A lane that is masked off, or that lies outside of all blocks, touches nothing. A load without ``other`` leaves such a
lane at the byte that the launch fills it with, zero unless asked otherwise. Of several lanes that store to one address
the last wins, as in the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..ir import Operation, Pointer, Tensor, Value
from .program import Program
from .registry import statement
from .scalars import Element, c_type, pointee, size
from .source import AccessKind
from .tiles import is_dense


@contextmanager
def each_lane(program: Program, pointer: Value) -> Iterator[None]:
    """A loop over the lanes of a pointer, in which ``address`` is that of the lane."""
    header = f"for (int32_t i = 0; i < {pointer.lanes}; i++)" if isinstance(pointer.type, Tensor) else ""
    with program.block(header):
        program.line(f"const uint64_t address = {program.lane(pointer)};")
        yield


def lane_of(program: Program, value: Value) -> str:
    """Where that loop puts a lane of a result."""
    name = program.storage(value)
    return f"{name}[i]" if isinstance(value.type, Tensor) else name


def allowed(program: Program, mask: Value | None, check: str) -> str:
    """Whether the lane may be accessed: the mask lets it through, and so does the runtime."""
    return check if mask is None else f"{program.lane(mask)} && {check}"


def accessed(program: Program, operation: Operation) -> Element:
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
    undefined = mask is not None and other is None
    site = program.site(operation, AccessKind.READ, accessed(program, operation), undefined=undefined)
    if isinstance(pointer.type, Tensor):
        _load_tensor(program, site, operation.results[0], pointer, mask, other)
    else:
        _load_scalar(program, site, operation.results[0], pointer, mask, other)


def _load_scalar(
    program: Program, site: int, result: Value, pointer: Value, mask: Value | None, other: Value | None
) -> None:
    target, kind, address = program.storage(result), c_type(result.element), program.lane(pointer)
    if mask is None:
        program.line(f"{target} = READ({kind}, {address}, {site});")
        return
    if other is None:
        program.line(f"memset(&{target}, launch->fills[{site}], sizeof {target});")
    else:
        program.line(f"{target} = {program.lane(other)};")
    check = f"{program.lane(mask)} && INSIDE({address}, sizeof {target}, {site})"
    program.line(f"if ({check}) {target} = READ({kind}, {address}, {site});")


def _load_tensor(
    program: Program, site: int, result: Value, pointer: Value, mask: Value | None, other: Value | None
) -> None:
    target = program.storage(result)
    if other is None:
        fill = "0" if mask is None else f"launch->fills[{site}]"
        program.line(f"FILL(uint8_t, {target}, {fill}, {result.lanes * size(result.element)});")
    else:
        program.copy(target, other)
    _access_tensor(program, "load", site, target, pointer, mask)


def _access_tensor(program: Program, action: str, site: int, values: str, pointer: Value, mask: Value | None) -> None:
    """Loads all lanes that the mask lets through into an array, or stores them from it."""
    _access_rows(program, action, site, values, pointer, mask)
    program.line(f"LOG_END({site});")


def _access_rows(program: Program, action: str, site: int, values: str, pointer: Value, mask: Value | None) -> None:
    masks = "0" if mask is None else program.array(mask)
    width = size(pointee(pointer.element))
    if not is_dense(pointer):
        arguments = f"{program.array(pointer)}, {masks}, {values}, {pointer.lanes}, {width}, {site}"
        program.line(f"{action.upper()}_LANES(launch, runs, {arguments});")
        return
    assert pointer.shape is not None
    length = pointer.shape[-1]
    with program.block(f"for (int32_t row = 0, length = {length}; row < {pointer.lanes};)"):
        first, last = program.lane(pointer, "row"), program.lane(pointer, "(row + length - 1)")
        row_masks = masks if mask is None else f"{masks} + row"
        arguments = f"{first}, {last}, {row_masks}, {values} + row, length, {width}, {site}"
        with program.block(f"if ({action.upper()}_ROW(launch, runs, {arguments}))"):
            program.line("row += length;")
            program.line(f"length = {length} - row % {length};")
        program.line("else length = (length + 1) / 2;")  # an offset in it wraps around: what is before that does not


@statement("tt.store")
def store(program: Program, operation: Operation) -> None:
    """``tt.store pointer, value, mask``."""
    pointer, value, mask = (*operation.operands, None)[:3]
    assert pointer is not None and value is not None
    element = pointee(pointer.element)
    site, kind = program.site(operation, AccessKind.WRITE, element), c_type(element)
    if isinstance(pointer.type, Tensor):
        _access_tensor(program, "store", site, program.array(value), pointer, mask)
    else:
        condition = "" if mask is None else f"if ({program.lane(mask)}) "
        program.line(f"{condition}WRITE({kind}, {program.lane(pointer)}, {program.lane(value)}, {site});")
