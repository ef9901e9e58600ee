"""What an annotation, and the name of a variable, say of its value."""

from __future__ import annotations

import ast
from dataclasses import replace

from . import torch_facts as facts
from .sources import Source
from .symbols import ClassInfo, Symbols, dotted_name
from .values import (
    ANY_TENSOR,
    ARRAY,
    DTYPE,
    NONE,
    NUMBER,
    TEXT,
    UNKNOWN,
    Atom,
    Device,
    Host,
    Instance,
    Outside,
    Place,
    Sure,
    Tensor,
    Value,
    items_of,
    join,
    sequence,
    value,
)

_SEQUENCES = frozenset(
    {
        "list",
        "List",
        "Sequence",
        "Iterable",
        "Iterator",
        "set",
        "frozenset",
        "deque",
        "Deque",
        "Generator",
        "Collection",
    }
    | {"Set", "FrozenSet", "MutableSequence", "AsyncIterator", "AsyncGenerator", "Reversible"}
)
_MAPPINGS = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict", "DefaultDict"})
_WRAPPERS = frozenset({"Annotated", "Final", "ClassVar", "Required", "NotRequired", "ReadOnly", "InitVar", "Awaitable"})
_NUMBERS = frozenset({"int", "float", "bool", "complex"})
_TENSORS = ("torch.Tensor", "torch.LongTensor", "torch.IntTensor", "torch.FloatTensor", "torch.BoolTensor")
#: Words in names that say on which side a tensor is.
_HOST_WORDS = frozenset({"cpu", "host", "np", "numpy"})
_PINNED_WORDS = frozenset({"pinned", "pin"})
_DEVICE_WORDS = frozenset({"gpu", "device", "cuda", "dev"})


#: What says nothing of a device: an unknown value, an unknown text, None.
_NOT_TOLD = TEXT | NONE


class Annotations:
    """Reads annotations of the modules of a run."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols

    def read(self, source: Source, node: ast.expr | None, depth: int = 0) -> Value:
        """What a value with this annotation can be."""
        if node is None or depth > 6:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return self._constant(source, node, depth)
        if isinstance(node, ast.BinOp):  # X | Y
            return join(self.read(source, node.left, depth + 1), self.read(source, node.right, depth + 1))
        if isinstance(node, ast.Subscript):
            return self._subscript(source, node, depth)
        return self._named(source, dotted_name(node), depth)

    def _constant(self, source: Source, node: ast.Constant, depth: int) -> Value:
        if node.value is None:
            return NONE
        if not isinstance(node.value, str):
            return UNKNOWN
        try:
            return self.read(source, ast.parse(node.value.strip(), mode="eval").body, depth + 1)
        except SyntaxError:
            return UNKNOWN

    def _subscript(self, source: Source, node: ast.Subscript, depth: int) -> Value:
        name = (dotted_name(node.value) or "").rpartition(".")[2]
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in {"Optional", "Union"}:
            return join(*(self.read(source, part, depth + 1) for part in parts))
        if name in _WRAPPERS:
            return self.read(source, parts[0], depth + 1)
        if name in {"tuple", "Tuple"}:
            return self._tuple(source, parts, depth)
        if name in _MAPPINGS:
            return items_of(self.read(source, parts[-1], depth + 1), mapping=True)
        if name in _SEQUENCES:
            return items_of(self.read(source, parts[0], depth + 1))
        if name == "Literal":
            return TEXT
        return self._named(source, dotted_name(node.value), depth)

    def _tuple(self, source: Source, parts: list[ast.expr], depth: int) -> Value:
        last = parts[-1]
        if isinstance(last, ast.Constant) and last.value is ...:
            return items_of(self.read(source, parts[0], depth + 1))
        return sequence(self.read(source, part, depth + 1) for part in parts)

    def _named(self, source: Source, dotted: str | None, depth: int) -> Value:
        if dotted is None:
            return UNKNOWN
        last = dotted.rpartition(".")[2]
        if dotted in _NUMBERS:
            return NUMBER
        if dotted in {"str", "bytes"}:
            return TEXT
        found = self._symbols.lookup(source, dotted)
        if isinstance(found, ClassInfo):
            return value(Instance(found.identity))
        if found is None and "." not in dotted:
            alias = self._symbols.table(source).values.get(dotted)
            if alias is not None and not isinstance(alias, ast.Call):
                return self.read(source, alias, depth + 1)
        outside = found if isinstance(found, str) else dotted
        return _outside(outside, last)


def _outside(dotted: str, last: str) -> Value:
    """What an object of a class that is not analysed is."""
    if dotted.startswith(_TENSORS) or dotted.endswith("nn.Parameter") or dotted in {"torch.Tensor", "Tensor"}:
        return ANY_TENSOR
    if dotted in facts.STREAM_CLASSES | facts.EVENT_CLASSES:
        return value(Outside(dotted))
    if dotted == "torch.device":
        return value(Device(Place.DEVICE, Sure.LIKELY))
    if dotted == "torch.dtype":
        return DTYPE
    if dotted.startswith("numpy.") or last == "ndarray":
        return ARRAY
    if last in _SEQUENCES | {"tuple", "Tuple"} and "." not in dotted.replace("typing.", "").replace(
        "collections.abc.", ""
    ):
        return items_of(UNKNOWN)
    if last in _MAPPINGS:
        return items_of(UNKNOWN, mapping=True)
    if dotted.startswith(facts.LAYERS):
        return value(Outside(dotted))
    return UNKNOWN


def words(name: str) -> frozenset[str]:
    """The words of a name, e.g. ``{"seq", "lens", "cpu"}``."""
    return frozenset(part for part in name.lower().split("_") if part)


def place_named(name: str) -> Place | None:
    """On which side the name of a tensor says it is."""
    found = words(name)
    if found & _PINNED_WORDS:
        return Place.PINNED
    if found & _HOST_WORDS:
        return Place.PAGEABLE
    return Place.DEVICE if found & _DEVICE_WORDS else None


def hinted(name: str, of: Value) -> Value:
    """The value of something with this name: a tensor whose place is not known is where its name says."""
    if of <= _NOT_TOLD:
        return _device_named(name) or of
    if not any(isinstance(atom, Tensor) and atom.place is Place.UNKNOWN for atom in of):
        return of
    place = place_named(name)
    return of if place is None else frozenset(_placed(atom, place) for atom in of)


def _placed(atom: Atom, place: Place) -> Atom:
    if isinstance(atom, Tensor) and atom.place is Place.UNKNOWN:
        # That it is on the host, a name says; whether it is pinned there, it does not.
        return replace(atom, place=place, sure=Sure.POSSIBLE if place is Place.PAGEABLE else Sure.LIKELY)
    return atom


def _device_named(name: str) -> Value:
    """Something unknown that is called ``device`` is one, and not the host's unless it says so."""
    found = words(name)
    if not found or not ("device" in found and name.lower().endswith(("device", "device_type"))):
        return UNKNOWN
    return value(Device(Place.PAGEABLE if found & _HOST_WORDS else Place.DEVICE, Sure.LIKELY))


def device_of(of: Value) -> Device | None:
    """The device that a value names: a ``torch.device``, a text, or the index of one.

    Of several the accelerator, which is only possible then.
    """
    found = [atom for atom in of if isinstance(atom, Device)]
    texts = [atom.constant for atom in of if isinstance(atom, Host) and isinstance(atom.constant, str)]
    found += [device for text in texts if (device := _from_text(text)) is not None]
    if found:
        places = {device.place for device in found}
        here = Place.DEVICE if Place.DEVICE in places else Place.PAGEABLE
        return Device(here, Sure.POSSIBLE if len(places) > 1 else max(device.sure for device in found))
    if of and of <= NUMBER:
        return Device(Place.DEVICE, Sure.CERTAIN)
    return None


def _from_text(text: str) -> Device | None:
    kind = text.partition(":")[0]
    if kind == "cpu":
        return Device(Place.PAGEABLE, Sure.CERTAIN)
    return Device(Place.DEVICE, Sure.CERTAIN) if kind in {"cuda", "xpu", "npu", "hpu", "mps", "musa"} else None
