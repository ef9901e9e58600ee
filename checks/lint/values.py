"""What an expression can be: the abstract values of the static search.

A :data:`Value` is a set of atoms, each one thing that the expression can be; the empty set says nothing is known. A
join is a union, so that a value that is a device tensor on one path only stays one: the search reports what *may*
happen.
The idea is abstract interpretation (Cousot and Cousot, 1977), with sets small enough to be compared and hashed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .symbols import FunctionInfo

#: More atoms than this are as good as unknown, and would make the search slow.
LARGEST = 24
#: Containers in containers beyond this depth hold values that are not known.
DEEPEST = 3


class Place(enum.Enum):
    """Where the memory of a tensor is."""

    DEVICE = "device"
    PINNED = "pinned host memory"
    PAGEABLE = "pageable host memory"
    UNKNOWN = "unknown"


class Sure(enum.IntEnum):
    """How sure the search is of something."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


@dataclass(frozen=True)
class Tensor:
    """A torch tensor.

    Attributes:
        place: where its memory is.
        sure: of the place.
        mask: its elements are bool, so that indexing with it makes a shape that depends on data.
        buffer: name of the attribute whose memory it is (part of), if it is one that lives on from step to step.
    """

    place: Place
    sure: Sure = Sure.LIKELY
    mask: bool = False
    buffer: str | None = None


@dataclass(frozen=True)
class Host:
    """A value of the host: a number, a string, an array of numpy.

    Attributes:
        kind: ``"number"``, ``"array"``, ``"text"``, ``"none"``, ``"dtype"`` or ``"object"``.
        constant: its value, if that is a known bool or text.
        buffer: as for a tensor; an array can be a view of one.
    """

    kind: str
    constant: bool | str | None = None
    buffer: str | None = None


@dataclass(frozen=True)
class Device:
    """A ``torch.device``, or a text that names one."""

    place: Place
    sure: Sure = Sure.LIKELY


@dataclass(frozen=True)
class Items:
    """A list, tuple, set, generator or mapping.

    Attributes:
        element: what any of its elements (of a mapping: values) can be.
        each: what each of them is, if their number is known.
        mapping: it is a mapping.
    """

    element: Value
    each: tuple[Value, ...] | None = None
    mapping: bool = False


@dataclass(frozen=True)
class Instance:
    """An object of a class that is analysed.

    Attributes:
        cls: identity of the class, ``"pkg.mod:Class"``.
        exact: it was made by calling the class; else it can be of a subclass.
        origin: the attribute that holds it, which tells two of one class apart.
    """

    cls: str
    exact: bool = False
    origin: str | None = None


@dataclass(frozen=True)
class Outside:
    """An object of a class that is not analysed, e.g. ``"torch.cuda.Stream"``."""

    cls: str


@dataclass(frozen=True)
class Name:
    """Something that a module outside of the analysed code holds, or such a module, by its dotted name."""

    dotted: str


@dataclass(frozen=True)
class ModuleRef:
    """A module that is analysed."""

    name: str


@dataclass(frozen=True)
class ClassRef:
    """A class that is analysed, itself."""

    cls: str


@dataclass(frozen=True)
class Function:
    """A function that is analysed, with what is bound to it already.

    Attributes:
        function: the function.
        receiver: what ``self`` or ``cls`` is, for a bound method.
        args: bound first arguments (``functools.partial``).
        kwargs: bound keyword arguments.
    """

    function: FunctionInfo
    receiver: Value | None = None
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True)
class Method:
    """A method of a value that is not analysed, not yet called: ``tensor.item``, ``stream.wait_stream``."""

    owner: Value
    name: str


Atom: TypeAlias = Tensor | Host | Device | Items | Instance | Outside | Name | ModuleRef | ClassRef | Function | Method
Value: TypeAlias = frozenset[Atom]

UNKNOWN: Value = frozenset()
NUMBER: Value = frozenset({Host("number")})
ARRAY: Value = frozenset({Host("array")})
TEXT: Value = frozenset({Host("text")})
NONE: Value = frozenset({Host("none")})
DTYPE: Value = frozenset({Host("dtype")})
OBJECT: Value = frozenset({Host("object")})
ANY_TENSOR: Value = frozenset({Tensor(Place.UNKNOWN, Sure.POSSIBLE)})


def value(*atoms: Atom) -> Value:
    """A value of these atoms."""
    return frozenset(atoms)


def constant(of: bool | str) -> Value:
    """A known bool or text."""
    return value(Host("text" if isinstance(of, str) else "number", of))


def sequence(elements: Iterable[Value]) -> Value:
    """A list or tuple of known length."""
    each = tuple(elements)
    return value(Items(join(*each), each))


def items_of(element: Value, mapping: bool = False) -> Value:
    """A container of unknown length."""
    return value(Items(element, None, mapping))


def join(*values: Value) -> Value:
    """What it can be if it is one of these: a tensor of unknown place adds nothing to one whose place is known."""
    if len(values) == 1:
        return values[0]
    together: frozenset[Atom] = frozenset().union(*values) if values else UNKNOWN
    if UNKNOWN in values:  # one of a known text and something unknown is no known text
        together = frozenset(replace(a, constant=None) if isinstance(a, Host) else a for a in together)
    tensors = [atom for atom in together if isinstance(atom, Tensor)]
    if len(tensors) > 1:
        together = (together - frozenset(tensors)) | _merged(tensors)
    containers = [atom for atom in together if isinstance(atom, Items)]
    if len(containers) > 1:
        together = (together - frozenset(containers)) | _merged_containers(containers)
    return together if len(together) <= LARGEST else UNKNOWN


def _merged(tensors: list[Tensor]) -> frozenset[Atom]:
    """One tensor for each place and buffer, the surest; the unknown place only if there is no other."""
    best: dict[tuple[Place, str | None, bool], Tensor] = {}
    known = any(tensor.place is not Place.UNKNOWN for tensor in tensors)
    for tensor in tensors:
        if known and tensor.place is Place.UNKNOWN:
            continue
        key = (tensor.place, tensor.buffer, tensor.mask)
        if key not in best or best[key].sure < tensor.sure:
            best[key] = tensor
    return frozenset(best.values())


def _merged_containers(containers: list[Items]) -> frozenset[Atom]:
    merged: set[Atom] = set()
    for mapping in (False, True):
        alike = [atom for atom in containers if atom.mapping is mapping]
        if not alike:
            continue
        element = join(*(atom.element for atom in alike))
        lengths = {None if atom.each is None else len(atom.each) for atom in alike}
        each = None
        if len(lengths) == 1 and None not in lengths:
            each = tuple(join(*column) for column in zip(*(atom.each or () for atom in alike), strict=True))
        merged.add(Items(element, each, mapping))
    return frozenset(merged)


def shallow(of: Value, depth: int = DEEPEST) -> Value:
    """The same, but containers that are nested too deeply hold unknown values: so the set of values is finite."""
    if not any(isinstance(atom, Items) for atom in of):
        return of
    return frozenset(_shallow_items(atom, depth) if isinstance(atom, Items) else atom for atom in of)


def _shallow_items(atom: Items, depth: int) -> Items:
    if depth == 0:
        return Items(UNKNOWN, None, atom.mapping)
    each = None
    if atom.each is not None and len(atom.each) <= LARGEST:
        each = tuple(shallow(one, depth - 1) for one in atom.each)
    return Items(shallow(atom.element, depth - 1), each, atom.mapping)


def tensors(of: Value) -> list[Tensor]:
    """The tensors that it can be."""
    return [atom for atom in of if isinstance(atom, Tensor)]


def is_host(of: Value) -> bool:
    """Whether it is known, and nothing but data of the host."""
    return bool(of) and all(_on_host(atom) for atom in of)


def _on_host(atom: Atom) -> bool:
    if isinstance(atom, Tensor):
        return atom.place in {Place.PINNED, Place.PAGEABLE}
    if isinstance(atom, Items):
        return is_host(atom.element) or not atom.element
    return isinstance(atom, Host)


def on_device(of: Value) -> Sure | None:
    """How sure it is that this is a device tensor; ``None`` if it cannot be one, as far as is known.

    One that can be a host tensor as well is only possibly a device tensor.
    """
    found = tensors(of)
    here = [tensor for tensor in found if tensor.place is Place.DEVICE]
    if not here:
        return Sure.POSSIBLE if any(tensor.place is Place.UNKNOWN for tensor in found) else None
    mixed = any(_on_host(atom) and atom not in NONE for atom in of)
    return Sure.POSSIBLE if mixed else max(tensor.sure for tensor in here)


def asked(of: Value) -> Sure | None:
    """How sure it is that Python asks a device tensor for its value where it needs a number or a truth.

    What can be a number, a list or an object as well is taken for that: numbers are used so everywhere, tensors rarely.
    """
    others = (Host, Items, Instance)
    return None if any(isinstance(atom, others) and atom not in NONE for atom in of) else on_device(of)


def device_elements(of: Value) -> Sure | None:
    """The same for what is in a container, or the value itself."""
    inside = [device_elements(atom.element) for atom in of if isinstance(atom, Items)]
    found = [sure for sure in (asked(of), *inside) if sure is not None]
    return max(found) if found else None


def elements(of: Value) -> Value:
    """What iterating over it gives."""
    found: list[Value] = []
    for atom in of:
        if isinstance(atom, Items):
            found.append(UNKNOWN if atom.mapping else atom.element)
        elif isinstance(atom, Tensor):
            found.append(value(atom))
        elif isinstance(atom, Host) and atom.kind == "array":
            found.append(value(replace(atom, constant=None)))
    return join(*found) if found else UNKNOWN


def moved(of: Value, place: Place, sure: Sure) -> Value:
    """Its tensors in another place, as fresh memory; an unknown value is some tensor there."""
    masks = {tensor.mask for tensor in tensors(of)} or {False}
    return frozenset(Tensor(place, sure, mask) for mask in masks)


def without_constants(of: Value) -> Value:
    """The same without known values: what an attribute holds at one time says nothing of another."""
    return frozenset(
        replace(atom, constant=None) if isinstance(atom, Host) and isinstance(atom.constant, bool) else atom
        for atom in of
    )
