"""Triton's intermediate representation as Python objects: what the reader produces and the emitter consumes.

The vocabulary is MLIR's: a function has a region, a region has blocks, a block has operations, an operation has
operands, results, attributes and regions of its own. A value is defined once, by an operation or as the argument of a
function or block, and is one object wherever it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..findings import Site


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number type, by its MLIR name: ``i1`` … ``i64``, ``index``, ``f16``, ``bf16``, ``f32``, ``f64``, ``f8E5M2``."""

    name: str


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address of elements, which may be pointers themselves, or tensors (a block pointer, Triton 3.6)."""

    pointee: Type


@dataclass(frozen=True, slots=True)
class Tensor:
    """A block of elements with a shape known when the kernel is compiled; lanes are numbered row-major."""

    shape: tuple[int, ...]
    element: Scalar | Pointer

    @property
    def lanes(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor: base, shape and strides of a tensor in memory, accessed in blocks of one shape."""

    block: Tensor


Type: TypeAlias = Scalar | Pointer | Tensor | Descriptor

#: An attribute as Python value: numbers, booleans, words (``"slt"``, ``"acq_rel"``), lists of these, dense constants.
Attribute: TypeAlias = "bool | int | float | str | Type | tuple[Attribute, ...]"


@dataclass(eq=False, slots=True)
class Value:
    """Something that is computed once.

    Attributes:
        name: as printed, without the sign and made unique in the function, e.g. ``"idx_3"``, ``"idx#1"``.
        type: of it.
        origin: the operation that computes it; None for arguments of functions and blocks.
    """

    name: str
    type: Type
    origin: Operation | None = field(default=None, repr=False)

    @property
    def element(self) -> Scalar | Pointer:
        """The type of one lane.

        Raises:
            TypeError: a descriptor has no lanes.
        """
        if isinstance(self.type, Descriptor):
            raise TypeError(f"%{self.name} is a tensor descriptor, which has no lanes")
        return self.type.element if isinstance(self.type, Tensor) else self.type

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of a tensor; None for a scalar."""
        return self.type.shape if isinstance(self.type, Tensor) else None

    @property
    def lanes(self) -> int:
        """Number of elements; 1 for a scalar."""
        return self.type.lanes if isinstance(self.type, Tensor) else 1


@dataclass(eq=False, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: with its dialect, e.g. ``"arith.addf"``, ``"tt.load"``, ``"scf.for"``.
        operands: in the order of MLIR's generic form, the absent optional ones left out. ``tt.load``: pointer, mask,
            other. ``tt.store``: pointer, value, mask. ``scf.for``: lower, upper, step, initial values.
        results: as many as it has.
        attributes: by name. What the printed form says with a bare word has the name of MLIR's generic form:
            ``predicate`` (``"slt"``), ``axis``, ``order``, ``value`` of a constant (a number, or a tuple of numbers
            if the lanes of a dense constant differ), ``atomic_rmw_op``, ``sem``, ``scope``, ``symbol``, ….
        regions: of ``scf`` operations, reductions and scans.
        successors: of ``cf.br`` and ``cf.cond_br``: label of the block and its arguments.
        location: where in the source: innermost call first; empty if unknown.
    """

    name: str
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    successors: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    location: tuple[Site, ...] = ()

    def walk(self) -> Iterator[Operation]:
        """This operation and all within it, in the order of the text."""
        yield self
        for region in self.regions:
            yield from region.walk()


@dataclass(eq=False, slots=True)
class Block:
    """Operations one after another; the label is empty for the only block of a region."""

    label: str
    arguments: tuple[Value, ...] = ()
    operations: tuple[Operation, ...] = ()


@dataclass(eq=False, slots=True)
class Region:
    """Blocks, the first of which is entered."""

    blocks: tuple[Block, ...]

    def walk(self) -> Iterator[Operation]:
        """All operations, in the order of the text."""
        for block in self.blocks:
            for operation in block.operations:
                yield from operation.walk()


@dataclass(eq=False, slots=True)
class Function:
    """A kernel, or a device function that was not inlined.

    Attributes:
        name: its symbol.
        arguments: its parameters in order; compile-time constants are not among them.
        results: types that it returns; a kernel returns nothing.
        body: its region.
        public: whether it is a kernel.
    """

    name: str
    arguments: tuple[Value, ...]
    results: tuple[Type, ...]
    body: Region
    public: bool


@dataclass(eq=False, slots=True)
class Module:
    """All functions of one variant of a kernel."""

    functions: Mapping[str, Function]

    @property
    def kernel(self) -> Function:
        """The one that is launched."""
        return next(function for function in self.functions.values() if function.public)
