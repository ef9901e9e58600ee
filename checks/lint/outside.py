"""Calls of what is not analysed: Python's own functions, numpy, torch."""

from __future__ import annotations

import ast

from . import tensor_calls
from . import torch_facts as facts
from .annotations import device_of
from .frame import Arguments, Frame
from .values import (
    ARRAY,
    NONE,
    NUMBER,
    TEXT,
    UNKNOWN,
    Device,
    Function,
    Host,
    Items,
    Name,
    Outside,
    Place,
    Sure,
    Tensor,
    Value,
    asked,
    constant,
    device_elements,
    elements,
    items_of,
    join,
    sequence,
    tensors,
    value,
)

#: Functions of Python that make a number of what they get.
_NUMBERS = frozenset({"int", "float", "bool", "complex", "range", "round", "chr", "hex", "bin", "divmod", "pow"})
_FORMATS = frozenset({"str", "repr", "print", "format", "ascii"})
_SAME_ELEMENTS = frozenset({"list", "tuple", "set", "frozenset", "sorted", "reversed", "iter"})
_THREADS = ("threading.", "concurrent.futures", "multiprocessing", "asyncio.")


def call(frame: Frame, dotted: str, arguments: Arguments, node: ast.Call) -> Value:
    """What a call of something outside gives, known by its dotted name."""
    head, _, rest = dotted.partition(".")
    if head == "builtins":
        return _builtin(frame, rest, arguments, node)
    if head == "numpy":
        return _numpy(frame, rest, arguments, node)
    if head in {"torch", "torch_npu"}:
        return _torch(frame, dotted, arguments, node)
    if dotted in {"functools.partial", "functools.partialmethod"}:
        return _partial(arguments)
    if dotted == "typing.cast" and node.args:
        return frame.search.annotations.read(frame.source, node.args[0]) or arguments.positional[-1]
    if dotted in {"copy.copy", "copy.deepcopy"}:
        return arguments.positional[-1] if arguments.positional else UNKNOWN
    if head == "math":
        _asks_for_numbers(frame, arguments, node)
        return NUMBER
    if dotted.startswith("itertools."):
        return _itertools(rest, arguments)
    if dotted.startswith("collections."):
        return items_of(UNKNOWN, mapping="dict" in rest.lower() or rest == "Counter")
    if not dotted.startswith(_THREADS):
        from .calls import call_back

        call_back(frame, arguments)
    return UNKNOWN


def _itertools(name: str, arguments: Arguments) -> Value:
    if name == "chain.from_iterable":
        return items_of(elements(elements(arguments.positional[0]))) if arguments.positional else UNKNOWN
    if name == "chain":
        return items_of(join(*map(elements, arguments.positional)) if arguments.positional else UNKNOWN)
    return UNKNOWN


def _partial(arguments: Arguments) -> Value:
    """A function with arguments bound to it."""
    if not arguments.positional:
        return UNKNOWN
    function, *bound = arguments.positional
    keywords = tuple(arguments.keywords.items())
    return frozenset(
        Function(atom.function, atom.receiver, (*atom.args, *bound), (*atom.kwargs, *keywords))
        for atom in function
        if isinstance(atom, Function)
    )


def _asks_for_numbers(frame: Frame, arguments: Arguments, node: ast.Call) -> None:
    for of in arguments.positional:
        sure = asked(of)
        if sure is not None:
            frame.report("number", node, sure)
            return


# ---- Python's own functions


def _builtin(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> Value:
    first = arguments.positional[0] if arguments.positional else UNKNOWN
    if name in _NUMBERS:
        _asks_for_numbers(frame, arguments, node)
        return items_of(NUMBER) if name == "range" else NUMBER
    if name in _FORMATS:
        for of in arguments.everything():
            sure = device_elements(of)
            if sure is not None:
                frame.report("format", node, sure)
                break
        return NONE if name == "print" else TEXT
    if name in {"all", "any"}:
        _asks_elements(frame, first, node)
        return NUMBER
    if name in {"min", "max", "sorted"}:
        return _ordered(frame, name, arguments, node)
    if name in _SAME_ELEMENTS:
        return frozenset(
            Items(atom.element, atom.each, False)
            if isinstance(atom, Items) and not atom.mapping
            else Items(elements(value(atom)))
            for atom in first
        ) or items_of(UNKNOWN)
    return _other_builtin(frame, name, arguments, first)


def _other_builtin(frame: Frame, name: str, arguments: Arguments, first: Value) -> Value:
    if name in {"len", "id", "hash", "ord", "isinstance", "hasattr", "callable", "issubclass"}:
        return NUMBER
    if name == "enumerate":
        return items_of(sequence([NUMBER, elements(first)]))
    if name == "zip":
        return items_of(sequence(map(elements, arguments.positional)))
    if name in {"map", "filter"}:
        return _mapped(frame, name, arguments)
    if name == "sum":
        return _summed(elements(first))
    if name == "abs":
        return first
    if name == "next":
        return join(elements(first), *arguments.positional[1:])
    if name == "getattr":
        return _getattr(frame, arguments, first)
    if name == "dict":
        return items_of(
            join(*arguments.keywords.values(), *_values(first)) if arguments.everything() else UNKNOWN, mapping=True
        )
    return UNKNOWN


def _values(of: Value) -> list[Value]:
    return [atom.element for atom in of if isinstance(atom, Items) and atom.mapping]


def _asks_elements(frame: Frame, of: Value, node: ast.Call) -> None:
    sure = asked(of)
    inside = sure if sure is not None else asked(elements(of))
    if inside is not None:
        frame.report("number", node, inside)


def _ordered(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> Value:
    """``min``, ``max`` and ``sorted`` compare, unless a key is compared."""
    if "key" in arguments.keywords:
        from .calls import call_value

        call_value(frame, arguments.keywords["key"], Arguments([elements(arguments.positional[0])]), None)
        return elements(arguments.positional[0])
    for of in arguments.positional:
        _asks_elements(frame, of, node)
    if name == "sorted":
        return items_of(elements(arguments.positional[0]) if arguments.positional else UNKNOWN)
    given = arguments.positional
    return elements(given[0]) if len(given) == 1 else join(*given) if given else UNKNOWN


def _mapped(frame: Frame, name: str, arguments: Arguments) -> Value:
    from .calls import call_value

    if len(arguments.positional) < 2:
        return UNKNOWN
    function, *iterables = arguments.positional
    result = call_value(frame, function, Arguments([elements(of) for of in iterables]), None)
    return items_of(result if name == "map" else elements(iterables[0]))


def _summed(element: Value) -> Value:
    found = tensors(element)
    return frozenset(Tensor(t.place, t.sure) for t in found) if found else (NUMBER if element else UNKNOWN)


def _getattr(frame: Frame, arguments: Arguments, first: Value) -> Value:
    from .expressions import attribute_of

    names = [atom.constant for of in arguments.positional[1:2] for atom in of if isinstance(atom, Host)]
    if len(names) != 1 or not isinstance(names[0], str):
        return UNKNOWN
    default = arguments.positional[2] if len(arguments.positional) > 2 else UNKNOWN
    return join(attribute_of(frame, first, names[0]), default)


# ---- numpy


def _numpy(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> Value:
    """Arrays are memory of the host. A device tensor given to numpy raises, so what is given is none."""
    for of in (arguments.keywords.get("out"), *(arguments.positional[:1] if name in {"copyto", "put"} else ())):
        for atom in of or ():
            if isinstance(atom, Host) and atom.buffer is not None:
                frame.effect("write", atom.buffer, node)
    if name in {"asarray", "ascontiguousarray"} and arguments.positional:
        buffers = [atom.buffer for atom in arguments.positional[0] if isinstance(atom, Host | Tensor) and atom.buffer]
        return value(Host("array", buffer=buffers[0] if buffers else None))
    if (
        name in {"int32", "int64", "float32", "float64", "prod", "sum", "max", "min", "any", "all"}
        and not node.keywords
    ):
        return join(NUMBER, ARRAY)
    return ARRAY


# ---- torch


def _torch(frame: Frame, dotted: str, arguments: Arguments, node: ast.Call) -> Value:
    name = dotted.rpartition(".")[2]
    known = _torch_runtime(frame, dotted, arguments, node)
    if known is not None:
        return known
    if dotted == "torch.device":
        found = device_of(arguments.positional[0]) if arguments.positional else None
        return value(found or Device(Place.DEVICE, Sure.LIKELY))
    if dotted.startswith("torch.nn.") and name[:1].isupper():
        return _of_nn(name, dotted, arguments)
    if dotted.startswith(
        ("torch.distributed", "torch.cuda.", "torch.utils", "torch.autograd", "torch.profiler", "torch._dynamo")
    ):
        return UNKNOWN
    if dotted in {"torch.compile", "torch.jit.script"} and arguments.positional:
        return arguments.positional[0]
    if dotted.count(".") == 1 or dotted.startswith(facts.COMPUTES):
        return tensor_calls.function(frame, name, dotted, arguments, node)
    if dotted.startswith("torch.Tensor."):
        return UNKNOWN
    return UNKNOWN


def _of_nn(name: str, dotted: str, arguments: Arguments) -> Value:
    """Layers, and parameters, which are on the device when a step runs."""
    if name in {"Parameter", "Buffer"}:
        return value(Tensor(Place.DEVICE, Sure.LIKELY))
    if name in {"ModuleList", "Sequential"}:
        return items_of(join(*map(elements, arguments.positional)) if arguments.positional else UNKNOWN)
    return value(Outside(dotted))


def _torch_runtime(frame: Frame, dotted: str, arguments: Arguments, node: ast.Call) -> Value | None:
    """Streams, events, waits; ``None`` if it is none of these."""
    if dotted in facts.SYNCHRONIZE:
        frame.report("synchronize", node, Sure.CERTAIN)
        frame.streams.everybody_waits()
        return NONE
    if dotted in facts.EMPTY_CACHE:
        frame.report("empty_cache", node, Sure.CERTAIN)
        return NONE
    if dotted in facts.STREAM_GETTERS or dotted in facts.STREAM_CLASSES:
        return value(Outside("torch.cuda.Stream"))
    if dotted in facts.EVENT_CLASSES:
        return value(Outside("torch.cuda.Event"))
    if dotted in facts.STREAM_CONTEXTS:
        return value(Outside("stream context"))
    if dotted in {"torch.cuda.set_stream", "torch.accelerator.set_stream"} and node.args:
        frame.streams.current = frame.streams.token(node.args[0]) or frame.streams.current
        return NONE
    if dotted in {"torch.get_device_module", "torch.accelerator.current_accelerator"}:
        return value(Name("torch.cuda")) if "module" in dotted else value(Device(Place.DEVICE, Sure.LIKELY))
    if dotted == "torch.cuda.is_available":
        return constant(True)
    if dotted.endswith((".current_device", ".device_count", ".mem_get_info", ".memory_allocated", ".get_device_name")):
        return NUMBER
    return None
