"""What a kernel may do to the memory behind each of its pointer arguments.

A flow-insensitive analysis of where pointers come from: each value has the set of arguments from which its address may
derive, followed through arithmetic, selections, loops, branches and calls until nothing changes (a may-analysis in the
style of Andersen, 1994, "Program analysis and specialization for the C programming language", with arguments as the
only objects). It says *may*: what it denies does not happen, what it claims need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .ir import Block, Descriptor, Function, Module, Operation, Pointer, Region, Scalar, Tensor, Type, Value


@dataclass(frozen=True)
class Effects:
    """What may happen to the memory behind a pointer.

    Attributes:
        reads: it is loaded from, by an atomic too.
        writes: it is stored to, by an atomic too.
        atomics: it is accessed by an atomic operation.
        escapes: the address itself is stored, becomes an integer, or goes into assembly or a library function, after
            which accesses that cannot be attributed (``KernelEffects.elsewhere``) may be to it.
    """

    reads: bool = False
    writes: bool = False
    atomics: bool = False
    escapes: bool = False

    def __or__(self, other: Effects) -> Effects:
        """Either of the two may happen."""
        return Effects(
            self.reads or other.reads,
            self.writes or other.writes,
            self.atomics or other.atomics,
            self.escapes or other.escapes,
        )


@dataclass(frozen=True)
class KernelEffects:
    """What one variant of a kernel may do to memory.

    Attributes:
        arguments: of each argument in the order of the printed kernel, which has no compile-time constants, and has
            tuples and descriptors taken apart; nothing for numbers. Printed names do not tell: Triton calls an argument
            by the name of the variable that it was last assigned to.
        elsewhere: what happens through addresses that derive from no argument that is a pointer: they were loaded from
            memory, or made from integers.
    """

    arguments: tuple[Effects, ...]
    elsewhere: Effects


def effects_of(module: Module) -> KernelEffects:
    """Derive the effects of a kernel, from its TTIR as the front end here or a compilation for a GPU prints it.

    Args:
        module: as read; ``compiled.asm["ttir"]`` of a launch on a GPU may be read too.
    """
    return _Accesses(module).result()


#: Stands for all memory that no argument names.
_ELSEWHERE = None
_Roots = frozenset["Value | None"]
_NONE: _Roots = frozenset()

_READ = Effects(reads=True)
_WRITE = Effects(writes=True)
_UPDATE = Effects(reads=True, writes=True, atomics=True)
_ESCAPE = Effects(escapes=True)
_ANYTHING = _UPDATE | _ESCAPE

#: What each access does through its first operand.
ACCESSES: Mapping[str, Effects] = {
    "tt.load": _READ,
    "tt.store": _WRITE,
    "tt.atomic_rmw": _UPDATE,
    "tt.atomic_cas": _UPDATE,
    "tt.atomic_load": replace(_READ, atomics=True),
    "tt.atomic_store": replace(_WRITE, atomics=True),
    "tt.atomic_poll": replace(_READ, atomics=True),
    "tt.descriptor_load": _READ,
    "tt.descriptor_gather": _READ,
    "tt.descriptor_store": _WRITE,
    "tt.descriptor_scatter": _WRITE,
    "tt.descriptor_reduce": _UPDATE,
}

#: Code that the analysis cannot look into, but for library functions of numbers.
_ASSEMBLY = "tt.elementwise_inline_asm"
_LIBRARY = "tt.extern_elementwise"

#: Operands that carry the address, of operations with others that do not: offsets, extents, conditions.
_CARRIERS: Mapping[str, slice] = {
    "tt.addptr": slice(0, 1),
    "tt.advance": slice(0, 1),
    "tt.make_tensor_ptr": slice(0, 1),
    "tt.make_tensor_descriptor": slice(0, 1),
    "tt.gather": slice(0, 1),
    "arith.select": slice(1, 3),
}


@dataclass
class Flow:
    """Roots of all values of a module, computed when it is made: the arguments that an address may derive from.

    Attributes:
        module: as given.
        roots: of each value that has any; ``None`` among them stands for memory.
    """

    module: Module
    roots: dict[Value, _Roots] = field(default_factory=dict)
    changed: bool = True

    def __post_init__(self) -> None:
        for argument in self.module.kernel.arguments:
            if _is_address(argument.type):
                self.roots[argument] = frozenset({argument})
        self.settle()

    def settle(self) -> None:
        """Follow all values until nothing changes."""
        while self.changed:
            self.changed = False
            for function in self.module.functions.values():
                for operation in function.body.walk():
                    self._propagate(operation, function)

    # Where addresses go

    def of(self, values: Iterable[Value]) -> _Roots:
        """All roots of some values."""
        return _NONE.union(*(self.roots.get(value, _NONE) for value in values))

    def _flow(self, source: _Roots, targets: Iterable[Value]) -> None:
        for target in targets:
            known = self.roots.get(target, _NONE)
            if not source <= known:
                self.roots[target] = known | source
                self.changed = True

    def _pairwise(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._flow(self.roots.get(source, _NONE), [target])

    def _propagate(self, operation: Operation, function: Function) -> None:
        name = operation.name
        self._branch(operation, function.body)
        if name == "tt.call":
            self._call(operation)
        elif name in ("scf.for", "scf.while"):
            self._loop(operation)
        elif operation.regions:
            self._regions(operation)
        elif name in ACCESSES:
            self._flow(frozenset({_ELSEWHERE}), operation.results)
        else:
            self._flow(self.computed(operation), self.carrying(operation))

    def carrying(self, operation: Operation) -> Iterable[Value]:
        """Results of an operation without memory or regions that have roots."""
        return (value for value in operation.results if not _is_bool(value.type))

    def computed(self, operation: Operation) -> _Roots:
        """The roots of those results."""
        carried = self.of(operation.operands[_CARRIERS.get(operation.name, slice(None))])
        unknown = _is_foreign(operation) or (operation.name == "tt.int_to_ptr" and not carried)
        return carried | {_ELSEWHERE} if unknown else carried

    def _branch(self, operation: Operation, body: Region) -> None:
        for label, passed in operation.successors:
            for block in _blocks(body):
                if block.label == label and len(block.arguments) == len(passed):
                    self._pairwise(passed, block.arguments)

    def _call(self, operation: Operation) -> None:
        callee = self.module.functions[str(operation.attributes["callee"])]
        self._pairwise(operation.operands, callee.arguments)
        for block in _blocks(callee.body):
            if block.operations[-1].name == "tt.return":
                self._pairwise(block.operations[-1].operands, operation.results)

    def _loop(self, operation: Operation) -> None:
        """What goes around: initial values into the first region, its end into the second or the results, and back."""
        first, last = operation.regions[0].blocks[0], operation.regions[-1].blocks[0]
        initial = operation.operands[3:] if operation.name == "scf.for" else operation.operands
        entry = first.arguments[1:] if operation.name == "scf.for" else first.arguments
        self._pairwise(initial, entry)
        self._pairwise(last.operations[-1].operands, entry)
        if operation.name == "scf.for":
            self._pairwise(entry, operation.results)
        else:
            leaving = first.operations[-1].operands[1:]
            self._pairwise(leaving, last.arguments)
            self._pairwise(leaving, operation.results)

    def _regions(self, operation: Operation) -> None:
        """Conditionals; and reductions, scans and maps, whose functions may return any of what they take."""
        passed = self.of(operation.operands) if operation.name.startswith("tt.") else _NONE
        for region in operation.regions:
            for block in region.blocks:
                self._flow(passed, block.arguments if operation.name.startswith("tt.") else ())
                end = block.operations[-1]
                if end.name == "scf.yield":
                    self._pairwise(end.operands, operation.results)
                elif end.name.endswith(".return") and end.name != "tt.return":
                    self._flow(self.of(end.operands), operation.results)


@dataclass
class _Accesses(Flow):
    """What is done with the addresses."""

    found: dict[Value | None, Effects] = field(default_factory=dict)

    def result(self) -> KernelEffects:
        """The effects, once the roots are known."""
        for function in self.module.functions.values():
            for operation in function.body.walk():
                self._collect(operation)
        of_arguments = (self.found.get(value, Effects()) for value in self.module.kernel.arguments)
        return KernelEffects(tuple(of_arguments), self.found.get(_ELSEWHERE, Effects()))

    def _collect(self, operation: Operation) -> None:
        name, operands = operation.name, operation.operands
        if name in ACCESSES:
            self._found(operands[:1], ACCESSES[name])
            self._found(operands[1:], _ESCAPE)
        elif _is_foreign(operation):
            self._found(operands, _ANYTHING)
            self.found[_ELSEWHERE] = _ANYTHING
        elif name == "tt.ptr_to_int":
            self._found(operands, _ESCAPE)

    def _found(self, values: Iterable[Value], effects: Effects) -> None:
        for root in self.of(values):
            if root is _ELSEWHERE and effects == _ESCAPE:
                continue
            self.found[root] = self.found.get(root, Effects()) | effects


def _blocks(region: Region) -> Iterable[Block]:
    """All blocks of a region and of those within it."""
    for block in region.blocks:
        yield block
        for operation in block.operations:
            for inner in operation.regions:
                yield from _blocks(inner)


def _is_foreign(operation: Operation) -> bool:
    """Whether it is foreign code that may be given addresses, and do anything with them."""
    if operation.name == _LIBRARY:
        return not operation.attributes["pure"] or any(_is_address(value.type) for value in operation.operands)
    return operation.name == _ASSEMBLY and any(_may_be_address(value.type) for value in operation.operands)


def _element(kind: Type) -> Type:
    return kind.element if isinstance(kind, Tensor) else kind


def _is_address(kind: Type) -> bool:
    return isinstance(_element(kind), Pointer | Descriptor)


def _may_be_address(kind: Type) -> bool:
    return _is_address(kind) or _element(kind) == Scalar("i64")


def _is_bool(kind: Type) -> bool:
    return _element(kind) == Scalar("i1")
