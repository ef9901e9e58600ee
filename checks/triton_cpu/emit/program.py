"""The C function that is being written: names, storage, loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..errors import Unsupported
from ..ir import Block, Function, Module, Operation, Pointer, Region, Tensor, Type, Value
from .fusion import FusedLoop, Pending, escapes
from .registry import EXPRESSIONS, STATEMENTS, VIEWS
from .scalars import Element, c_type, size
from .scratch import Frame, Places, Scratch, Slot, uses_of
from .source import AccessKind, AccessSite, Source

#: A cheap expression is computed again at each use as long as it has no more parts than this.
MAXIMUM_WEIGHT = 16

#: The last operation of a block, which says where to go on.
TERMINATORS = frozenset({
    "scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return",
    "tt.return", "cf.br", "cf.cond_br",
})  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How a kernel is translated.

    Attributes:
        truncate_bf16: rounds float32 to bfloat16 toward zero, as Triton's interpreter does; else to nearest even.
    """

    truncate_bf16: bool = False


@dataclass
class Unit:
    """What the functions of one file share.

    Attributes:
        module: all functions.
        options: how they are translated.
        sites: numbered by their place.
        loops: numpy's inner loops, numbered by their place.
        headers: what is included beside ``launch.h``.
        scratch: bytes used so far; no function calls itself, so each has its own part.
        from_memory: whether a pointer came from anywhere but the arguments.
    """

    module: Module
    options: Options
    sites: list[AccessSite] = field(default_factory=list)
    loops: list[tuple[str, str]] = field(default_factory=list)
    headers: set[str] = field(default_factory=set)
    scratch: int = 0
    from_memory: bool = False


class Program:
    """One function as C.

    Attributes:
        function: what is translated.
        unit: the file that it becomes a part of.
    """

    def __init__(self, function: Function, unit: Unit) -> None:
        self.function = function
        self.unit = unit
        self._uses = uses_of(function)
        self._places = Places(function, self._uses)
        self._scratch = Scratch(unit.scratch)
        self._frames = [Frame(None, 0)]
        self._lines: list[str] = []
        self._depth = 1
        self._declarations: list[str] = []
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._weights: dict[Value, int] = {}
        self._locals: dict[Value, str] = {}
        self._counter = 0

    # Lines

    def line(self, text: str) -> None:
        """Writes one line at the depth of the block."""
        self._lines.append("  " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Writes ``header {`` … ``}`` around what is written inside."""
        self.line(f"{header} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def lanes(self, count: int, index: str = "i") -> Iterator[None]:
        """A loop over the lanes of a tensor."""
        with self.block(f"for (int32_t {index} = 0; {index} < {count}; {index}++)"):
            yield

    def text(self) -> str:
        """Declarations and lines; the scratch that they need is claimed."""
        self.unit.scratch = self._scratch.end
        return "\n".join([*self._declarations, *self._lines])

    # Values

    def lane(self, value: Value, index: str = "i") -> str:
        """C expression of one lane of a value, row-major; of a scalar, whatever the index."""
        if index == "i" and value in self._locals:
            return self._locals[value]
        origin = value.origin
        if origin is not None and origin.name in VIEWS:
            return VIEWS[origin.name].rule(self, origin, index)
        if value in self._weights and origin is not None:
            return self.expression(origin, index)
        name = self.storage(value)
        return f"{name}[{index}]" if isinstance(value.type, Tensor) else name

    def expression(self, operation: Operation, index: str = "i") -> str:
        """C expression of one lane of an element-wise operation."""
        operands = [self.lane(operand, index) for operand in operation.operands]
        return EXPRESSIONS[operation.name].rule(self, operation, operands)

    def storage(self, value: Value) -> str:
        """C name of a value: an array in scratch for a tensor, a variable for a scalar; declared at the first call."""
        if value not in self._names:
            self._names[value] = name = self._unused(value.name)
            if isinstance(value.type, Tensor):
                self._hold(name, value)
            else:
                self._declare(name, value.element)
        return self._names[value]

    def alias(self, value: Value, name: str) -> None:
        """Lets a value live where another one does."""
        self._names[value] = name

    def share(self, target: Value, source: Value) -> bool:
        """Whether a value is stored where another one is to be."""
        return target is source or (not self._is_computed(source) and self.storage(source) == self.storage(target))

    def fresh(self, element: Element, lanes: int | None = None, hint: str = "t") -> str:
        """Storage that belongs to no value: a variable; if ``lanes`` is given an array, until the statement ends."""
        name = self._unused(hint)
        if lanes is None:
            self._declare(name, element)
        else:
            self._frames[-1].held.append((-1, self._place(name, element, lanes)))
        return name

    def reads(self, value: Value) -> frozenset[Value]:
        """The stored values that a lane of this one is computed from: itself, unless it is a view or computed again."""
        origin = value.origin
        if origin is None or not self._is_computed(value):
            return frozenset((value,))
        return frozenset().union(*(self.reads(operand) for operand in origin.operands))

    def copy(self, name: str, value: Value) -> None:
        """Writes a value to storage of its own type."""
        if not isinstance(value.type, Tensor):
            self.line(f"{name} = {self.lane(value)};")
            return
        lane, lanes = self.lane(value), value.lanes
        if re.fullmatch(r"\w+\[i\]", lane):
            self.line(f"COPY({name}, {lane.removesuffix('[i]')}, {lanes * size(value.element)});")
        elif lane == self.lane(value, "k"):
            self.line(f"FILL({c_type(value.element)}, {name}, {lane}, {lanes});")
        else:
            with self.lanes(lanes):
                self.line(f"{name}[i] = {lane};")

    def array(self, value: Value) -> str:
        """C name of an array that holds all lanes of a tensor, or the address of a scalar's variable.

        It may be read until the block ends. Only that of a stored value may be written, by whoever defines the value.
        """
        if not self._is_computed(value):
            name = self.storage(value)
        elif isinstance(value.type, Tensor):
            name = self._materialised(value)
        else:
            name = self.fresh(value.element)
            self.copy(name, value)
        return name if isinstance(value.type, Tensor) else f"&{name}"

    def _is_computed(self, value: Value) -> bool:
        """Whether a value is computed at each use."""
        return value in self._weights or (value.origin is not None and value.origin.name in VIEWS)

    def _materialised(self, value: Value) -> str:
        for frame in self._frames:
            if value in frame.arrays:
                return frame.arrays[value]
        name, frame = self._unused(value.name), self._frames[-1]
        slot = self._place(name, value.element, value.lanes)
        self.copy(name, value)
        if self._depth == frame.depth and frame.block is not None:
            frame.arrays[value] = name
            last = self._places.last_read(value, frame.block)
            frame.held.append((len(frame.block.operations) if last is None else last, slot))
        else:
            frame.held.append((-1, slot))
        return name

    def label(self, hint: str) -> str:
        """A name for something that is no value: a label, a counter."""
        return self._unused(hint)

    def _unused(self, hint: str) -> str:
        word = "v_" + re.sub(r"\W", "_", hint)
        name = word
        while name in self._taken:
            self._counter += 1
            name = f"{word}_{self._counter}"
        self._taken.add(name)
        return name

    def _declare(self, name: str, element: Element) -> None:
        self._declarations.append(f"  {c_type(element)} {name};")

    def _place(self, name: str, element: Element, lanes: int) -> Slot:
        """Declares an array."""
        slot, kind = self._scratch.take(lanes * size(element)), c_type(element)
        self._declarations.append(f"  {kind} *const {name} = ({kind} *)(scratch + {slot.offset});")
        return slot

    def _hold(self, name: str, value: Value) -> None:
        """Declares the array of a value, to be given back when nothing reads it any more."""
        slot = self._place(name, value.element, value.lanes)
        block = self._places.block_of(value)
        last = None if block is None else self._places.last_read(value, block)
        if last is not None:
            next(frame for frame in self._frames if frame.block is block).held.append((last, slot))

    def _release(self, frame: Frame, number: int) -> None:
        """After an operation is written."""
        self._scratch.give_back(slot for last, slot in frame.held if last <= number)
        frame.held = [(last, slot) for last, slot in frame.held if last > number]

    # Operations

    def operations(self, region: Region) -> Operation | None:
        """Writes the operations of a region of one block, but not the last if it only says what the region yields.

        Returns:
            That last operation, e.g. ``scf.yield``; None if there is none.
        """
        (block,) = region.blocks
        return self.block_operations(block)

    def block_operations(self, block: Block) -> Operation | None:
        """Writes the operations of a block up to its terminator, which is returned."""
        pending = Pending()
        frame = Frame(block, self._depth)
        self._frames.append(frame)
        terminator = None
        for number, operation in enumerate(block.operations):
            if operation.name in TERMINATORS:
                terminator = operation
            elif self._write(operation, pending):
                self._release(frame, number)
        self._flush(pending)
        self._leave()
        return terminator

    def _leave(self) -> None:
        """What a block holds stays until the operation around it is written, for the terminator reads it."""
        frame = self._frames.pop()
        self._frames[-1].held += [(-1, slot) for _, slot in frame.held]

    def _write(self, operation: Operation, pending: Pending) -> bool:
        """Writes an operation; returns whether all before it, and itself, are written now."""
        if operation.name in VIEWS:
            return False
        if operation.name in EXPRESSIONS:
            self._compute(operation, pending)
            return False
        if operation.name not in STATEMENTS:
            raise self.unsupported(operation)
        self._flush(pending)
        STATEMENTS[operation.name](self, operation)
        return True

    def _compute(self, operation: Operation, pending: Pending) -> None:
        (result,) = operation.results
        if not isinstance(result.type, Tensor):
            self.line(f"{self.storage(result)} = {self.expression(operation)};")
        elif (weight := self._weight(operation)) <= MAXIMUM_WEIGHT:
            self._weights[result] = weight
        else:
            pending.add(operation)

    def _weight(self, operation: Operation) -> int:
        """Number of parts of an expression that no stored tensor feeds; more than the maximum if one does."""
        if not EXPRESSIONS[operation.name].cheap:
            return MAXIMUM_WEIGHT + 1
        return 1 + sum(self._operand_weight(operand) for operand in operation.operands)

    def _operand_weight(self, value: Value) -> int:
        if not isinstance(value.type, Tensor):
            return 0
        if value in self._weights:
            return self._weights[value]
        if value.origin is None or value.origin.name not in VIEWS:
            return MAXIMUM_WEIGHT
        return 1 + sum(self._operand_weight(operand) for operand in value.origin.operands)

    def _flush(self, pending: Pending) -> None:
        for loop in pending.take():
            with self.lanes(loop.lanes):
                self._fused(loop)

    def _fused(self, loop: FusedLoop) -> None:
        for operation in loop.operations:
            (result,) = operation.results
            text = self.expression(operation)
            self._locals[result] = name = self._unused(f"{result.name}_i")
            self.line(f"const {c_type(result.element)} {name} = {text};")
            if escapes(result, loop, self._uses):
                self.line(f"{self.storage(result)}[i] = {name};")
        for operation in loop.operations:
            del self._locals[operation.results[0]]

    # The runtime

    def site(
        self,
        operation: Operation,
        kind: AccessKind | None = None,
        element: Element | None = None,
        *,
        acquires: bool = False,
        releases: bool = False,
        message: str = "",
        values: tuple[Type, ...] = (),
        hexadecimal: bool = False,
        undefined: bool = False,
    ) -> int:
        """A number for an access, a loop, an assertion or a print; ``element`` is what one lane accesses."""
        width = 0 if element is None else size(element)
        site = AccessSite(operation.location, kind, width, acquires, releases, message, values, hexadecimal, undefined)
        self.unit.sites.append(site)
        return len(self.unit.sites) - 1

    def loop(self, function: str, element: Element) -> str:
        """Name of one of numpy's inner loops, e.g. ``LOOP_EXP_F32``, for ``CALL_LOOP(name, in, out, lanes)``."""
        assert not isinstance(element, Pointer)
        key = (function, element.name)
        if key not in self.unit.loops:
            self.unit.loops.append(key)
        return _loop_name(*key)

    def unsupported(self, operation: Operation, what: str = "") -> Unsupported:
        """The error to raise for an operation, or something about it, that has no rule."""
        return Unsupported(f"{operation.name}{' ' if what else ''}{what}", operation.location)


def _loop_name(function: str, element: str) -> str:
    return f"LOOP_{function}_{element}".upper()


def emit(module: Module, options: Options | None = None) -> Source:
    """Translates one variant of a kernel.

    Raises:
        Unsupported: an operation has no rule; it is named with its line.
    """
    from .functions import definitions  # which needs Program, as each family does

    unit = Unit(module, options or Options())
    bodies = definitions(unit)
    header = [f"#define {_loop_name(*key)} {number}" for number, key in enumerate(unit.loops)]
    header += [f'#include "{name}"' for name in sorted(unit.headers)]
    return Source(
        text="\n".join([*header, "", *bodies]),
        parameters=tuple(value.type for value in module.kernel.arguments),
        sites=tuple(unit.sites),
        scratch=max(64, unit.scratch),
        loops=tuple(unit.loops),
        from_memory=unit.from_memory,
    )
