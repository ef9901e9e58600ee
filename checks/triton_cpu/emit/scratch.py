"""Where tensors live in scratch, and for how long.

A tensor's bytes are given to another one after the last operation of its block that reads it, so that unrolled loops
stay within the caches. What lives in a nested block is given back when the operation around it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..ir import Block, Function, Operation, Region, Value
from .registry import VIEWS

Uses = Mapping[Value, tuple[Operation, ...]]

#: Tensors begin at multiples of this, as vector instructions like it.
ALIGNMENT = 64


def uses_of(function: Function) -> Uses:
    """The operations that read each value, jumps included."""
    uses: dict[Value, list[Operation]] = {}
    for operation in function.body.walk():
        for value in _read_by(operation):
            uses.setdefault(value, []).append(operation)
    return {value: tuple(readers) for value, readers in uses.items()}


def _read_by(operation: Operation) -> Iterator[Value]:
    yield from operation.operands
    for _, values in operation.successors:
        yield from values


class Places:
    """Where each operation of a function stands, and until where a value is read.

    Args:
        function: whose.
        uses: of its values.
    """

    def __init__(self, function: Function, uses: Uses) -> None:
        self._uses = uses
        self._places: dict[Operation, tuple[Block, int]] = {}
        self._around: dict[Block, Operation] = {}
        self._note(function.body, None)

    def _note(self, region: Region, around: Operation | None) -> None:
        for block in region.blocks:
            if around is not None:
                self._around[block] = around
            for number, operation in enumerate(block.operations):
                self._places[operation] = (block, number)
                for inner in operation.regions:
                    self._note(inner, operation)

    def last_read(self, value: Value, block: Block) -> int | None:
        """Number of the last operation of a block that reads a value, itself or inside; None if others read it too."""
        last = -1
        for reader in self._uses.get(value, ()):
            number = self._number(reader, block)
            if number is None:
                return None
            last = max(last, number)
            if reader.name in VIEWS:
                rest = [self.last_read(result, block) for result in reader.results]
                if None in rest:
                    return None
                last = max(last, *(found for found in rest if found is not None))
        return last

    def block_of(self, value: Value) -> Block | None:
        """The block in which an operation defines a value; None for arguments."""
        return None if value.origin is None else self._places[value.origin][0]

    def _number(self, operation: Operation, block: Block) -> int | None:
        """Of the operation of the block that holds the given one."""
        while True:
            around, number = self._places[operation]
            if around is block:
                return number
            if around not in self._around:
                return None
            operation = self._around[around]


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of scratch."""

    offset: int
    size: int


@dataclass(eq=False, slots=True)
class Frame:
    """A block that is being written.

    Attributes:
        block: which; None around all blocks.
        depth: of the lines that it writes.
        arrays: values that are not stored by themselves, and the arrays that hold their lanes.
        held: slots, and the number of the operation after which each is free; those that are never are not here.
    """

    block: Block | None
    depth: int
    arrays: dict[Value, str] = field(default_factory=dict)
    held: list[tuple[int, Slot]] = field(default_factory=list)


class Scratch:
    """Gives out slots of one function, at addresses that no other function uses.

    Args:
        start: bytes that other functions have.

    Attributes:
        end: bytes that all of them have so far.
    """

    def __init__(self, start: int) -> None:
        self.end = start
        self._free: dict[int, list[Slot]] = {}

    def take(self, size: int) -> Slot:
        """A slot of at least that many bytes."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self._free.get(size):
            return self._free[size].pop()
        slot = Slot(self.end, size)
        self.end += size
        return slot

    def give_back(self, slots: Iterator[Slot]) -> None:
        """Lets others have them."""
        for slot in slots:
            self._free.setdefault(slot.size, []).append(slot)
