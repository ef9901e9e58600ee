"""Calls: which function is meant, and what comes back."""

from __future__ import annotations

import ast

from . import outside, streams, tensor_calls
from . import torch_facts as facts
from .frame import Arguments, Frame
from .operators import computed
from .platforms import platform_answer
from .symbols import ClassInfo, dotted_name
from .values import (
    ARRAY,
    NONE,
    NUMBER,
    UNKNOWN,
    Atom,
    ClassRef,
    Device,
    Function,
    Host,
    Instance,
    Items,
    Method,
    Name,
    Outside,
    Place,
    Sure,
    Tensor,
    Value,
    asked,
    device_elements,
    elements,
    items_of,
    join,
    value,
)

#: Callees of one call that are all looked at.
MOST_CALLEES = 12
_NEVER_CALLED_HERE = frozenset({"submit", "Thread", "Process", "run_in_executor", "call_soon_threadsafe", "register"})


def call(frame: Frame, node: ast.Call) -> Value:
    """What a call gives."""
    from .expressions import evaluate

    frame.line = node.lineno
    platform = platform_answer(node)
    if platform is not None:
        return platform
    callee = evaluate(frame, node.func)
    arguments = _arguments(frame, node)
    _uses(frame, node, callee, arguments)
    frame.line = node.lineno
    if callee:
        return call_value(frame, callee, arguments, node)
    return _unknown(frame, node, arguments)


def _arguments(frame: Frame, node: ast.Call) -> Arguments:
    from .expressions import evaluate

    given = Arguments()
    for part in node.args:
        if isinstance(part, ast.Starred):
            _spread(given, evaluate(frame, part.value))
        else:
            given.positional.append(evaluate(frame, part))
    for keyword in node.keywords:
        of = evaluate(frame, keyword.value)
        if keyword.arg is None:
            given.open = True
        else:
            given.keywords[keyword.arg] = of
    return given


def _spread(given: Arguments, of: Value) -> None:
    """``*args``: one by one if their number is known."""
    for atom in of:
        if isinstance(atom, Items) and atom.each is not None and len(of) == 1:
            given.positional.extend(atom.each)
            return
    given.open = True


def _uses(frame: Frame, node: ast.Call, callee: Value, arguments: Arguments) -> None:
    """Work on the current stream that uses tensors: all but questions that the host can answer."""
    if any(isinstance(atom, Method) and atom.name in facts.HOST_METHODS for atom in callee):
        return
    if not any(_launches(atom) for atom in callee):
        return
    positional = [part for part in node.args if not isinstance(part, ast.Starred)]
    for part, of in zip(positional, arguments.positional, strict=False):
        streams.used(frame, part, of)
    for keyword in node.keywords:
        if keyword.arg is not None:
            streams.used(frame, keyword.value, arguments.keywords[keyword.arg])
    if isinstance(node.func, ast.Attribute):
        for atom in callee:
            if isinstance(atom, Method):
                streams.used(frame, node.func.value, atom.owner)


def _launches(atom: Atom) -> bool:
    """Whether a call is work on a stream itself; in a function that is analysed its own calls are."""
    if isinstance(atom, Name):
        return atom.dotted.startswith("torch.")
    if isinstance(atom, Function):
        return atom.function.is_kernel
    return isinstance(atom, Method | Outside)


def call_value(frame: Frame, callee: Value, arguments: Arguments, node: ast.AST | None) -> Value:
    """What a call of a value gives, whatever it can be."""
    functions = [atom for atom in callee if isinstance(atom, Function)]
    single = len(callee) == 1
    found = [frame.search.invoke(target, arguments, frame, single) for target in functions[:MOST_CALLEES]]
    before = frame.branches
    frame.branches += not single
    owners = join(*(atom.owner for atom in callee if isinstance(atom, Method)))
    found += [_call_atom(frame, atom, owners, arguments, node) for atom in callee if not isinstance(atom, Function)]
    frame.branches = before
    return join(*found) if found else UNKNOWN


def _call_atom(frame: Frame, atom: Atom, owners: Value, arguments: Arguments, node: ast.AST | None) -> Value:
    """One of the things that a callee can be; ``owners`` are all that a method's receiver can be."""
    if isinstance(atom, ClassRef):
        return instantiate(frame, atom, arguments)
    if isinstance(atom, Instance):
        return _call_object(frame, atom, arguments, node)
    if isinstance(atom, Method) and isinstance(node, ast.Call):
        return _call_method(frame, atom, owners, arguments, node)
    if isinstance(atom, Name) and isinstance(node, ast.Call):
        return outside.call(frame, atom.dotted, arguments, node)
    if isinstance(atom, Outside) and atom.cls.startswith(facts.LAYERS):
        return _layer(arguments)
    return UNKNOWN


def _layer(arguments: Arguments) -> Value:
    """A layer's result is where its input is; by itself on the device."""
    return computed(arguments.everything()) or value(Tensor(Place.DEVICE, Sure.LIKELY))


def _call_object(frame: Frame, atom: Instance, arguments: Arguments, node: ast.AST | None) -> Value:
    """``obj(...)``: its ``__call__``, or the ``forward`` of a layer."""
    cls = frame.search.class_of(atom.cls)
    if cls is None:
        return UNKNOWN
    for name in ("__call__", "forward"):
        method = frame.search.symbols.find_method(cls, name)
        if method is not None:
            target = frame.search.attribute(atom, name, frame)
            return call_value(frame, target, arguments, node)
    return _layer(arguments) if frame.search.symbols.is_module(cls) else UNKNOWN


def instantiate(frame: Frame, atom: ClassRef, arguments: Arguments) -> Value:
    """A new object: its ``__init__`` is looked at, or its fields get the arguments in order."""
    search = frame.search
    cls = search.class_of(atom.cls)
    instance = Instance(atom.cls, exact=True)
    if cls is None:
        return value(instance)
    init = search.symbols.find_method(cls, "__init__")
    if init is not None:
        search.invoke(Function(init, value(instance)), arguments, frame, single=True)
        return value(instance)
    for name, of in _fields(frame, cls, arguments):
        search.assign(atom.cls, name, of)
    after = search.symbols.find_method(cls, "__post_init__")
    if after is not None:
        search.invoke(Function(after, value(instance)), Arguments(), frame, single=True)
    return value(instance)


def _fields(frame: Frame, cls: ClassInfo, arguments: Arguments) -> list[tuple[str, Value]]:
    """Fields of a dataclass, a named tuple or a struct, with what the call gives them."""
    names: list[str] = []
    for one in reversed(frame.search.symbols.ancestry(cls)):
        if isinstance(one, ClassInfo):
            names.extend(name for name in one.annotations if name not in names)
    positional = list(zip(names, arguments.positional, strict=False))
    return [*positional, *arguments.keywords.items()]


# ---- methods of values that are not analysed


def _call_method(frame: Frame, atom: Method, owners: Value, arguments: Arguments, node: ast.Call) -> Value:
    owner = next(iter(atom.owner))
    if isinstance(owner, Tensor):
        return tensor_calls.method(frame, owner, owners, atom.name, arguments, node)
    if isinstance(owner, Items):
        return _container_method(frame, owner, atom.name, arguments, node)
    if isinstance(owner, Outside):
        return _outside_method(frame, owner, atom.name, node, arguments)
    if isinstance(owner, Host) and owner.kind == "array":
        return _array_method(frame, owner, atom.name, node)
    if isinstance(owner, Host) and owner.kind == "text" and atom.name == "format":
        _formats_all(frame, node, arguments)
    return _of_host_method(owner, atom.name)


def _of_host_method(owner: Atom, name: str) -> Value:
    if isinstance(owner, Host) and owner.kind == "text":
        if name in {"split", "splitlines", "rsplit"}:
            return items_of(value(Host("text")))
        return value(Host("text"))
    return NUMBER if name in {"bit_length", "item"} else UNKNOWN


def _array_method(frame: Frame, owner: Host, name: str, node: ast.Call) -> Value:
    if owner.buffer is not None and name in facts.WRITES | {"sort", "partition"}:
        frame.effect("write", owner.buffer, node)
    if name == "item":
        return NUMBER
    if name == "tolist":
        return items_of(NUMBER)
    return value(owner) if name in facts.VIEWS else ARRAY


def _formats_all(frame: Frame, node: ast.Call, arguments: Arguments) -> None:
    for of in arguments.everything():
        sure = device_elements(of)
        if sure is not None:
            frame.report("format", node, sure)
            return


def _container_method(frame: Frame, owner: Items, name: str, arguments: Arguments, node: ast.Call) -> Value:
    if name in {"append", "add", "appendleft", "insert", "extend", "update", "setdefault"}:
        return _grow(frame, owner, name, arguments, node)
    if name == "items":
        return items_of(join_pair(owner))
    if name in {"values", "copy", "keys"}:
        return items_of(UNKNOWN if name == "keys" else owner.element, mapping=name == "copy" and owner.mapping)
    if name in {"get", "pop", "popleft", "popitem", "__getitem__"}:
        default = arguments.get(1, "default")
        return join(owner.element, default) if default is not None else owner.element
    if name in {"index", "count", "remove"}:
        sure = asked(arguments.positional[0]) if arguments.positional else None
        if sure is not None:
            frame.report("contains", node, sure)
        return NUMBER
    return NONE if name in {"clear", "reverse", "sort"} else UNKNOWN


def join_pair(owner: Items) -> Value:
    """An element of ``mapping.items()``."""
    return value(Items(owner.element, (UNKNOWN, owner.element)))


def _grow(frame: Frame, owner: Items, name: str, arguments: Arguments, node: ast.Call) -> Value:
    """The container holds more from now on."""
    from .subscripts import _grow as grow

    given = arguments.positional[-1] if arguments.positional else UNKNOWN
    if name in {"extend", "update"}:
        inside = [atom.element for atom in given if isinstance(atom, Items)]
        given = join(*inside, elements(given), *arguments.keywords.values())
    if isinstance(node.func, ast.Attribute) and given:
        grow(frame, node.func.value, value(owner), given)
    return join(owner.element, given) if name == "setdefault" else NONE


def _outside_method(frame: Frame, owner: Outside, name: str, node: ast.Call, arguments: Arguments) -> Value:
    """Streams, events and layers."""
    if owner.cls in facts.STREAM_CLASSES:
        return _stream_method(frame, name, node)
    if owner.cls in facts.EVENT_CLASSES:
        return _event_method(frame, name, node)
    if owner.cls.startswith(facts.LAYERS):
        if name in {"to", "cuda", "eval", "half", "train"}:
            return value(owner)
        return _layer(arguments) if name in {"forward", "__call__"} else computed(arguments.everything()) or UNKNOWN
    return UNKNOWN


def _stream_method(frame: Frame, name: str, node: ast.Call) -> Value:
    assert isinstance(node.func, ast.Attribute)
    state = frame.streams
    if name == "synchronize":
        frame.report("synchronize", node, Sure.LIKELY)
        state.everybody_waits()
    elif name == "wait_stream":
        state.waits(state.token(node.func.value), state.token(node.args[0]) if node.args else None)
    elif name == "wait_event":
        state.waits(state.token(node.func.value))
    elif name == "record_event":
        return value(Outside("torch.cuda.Event"))
    return NUMBER if name == "query" else NONE


def _event_method(frame: Frame, name: str, node: ast.Call) -> Value:
    state = frame.streams
    if name == "synchronize":
        frame.report("synchronize", node, Sure.LIKELY)
        state.everybody_waits()
    elif name == "wait":
        state.waits(state.token(node.args[0]) if node.args else state.current)
    elif name == "query":
        frame.effect("wait", None, node)
        state.everybody_waits()
        return NUMBER
    return NONE


# ---- calls of what is not known


def _unknown(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """A callee that nothing is known of: it may call the functions given to it, and some names tell enough."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else (dotted_name(node.func) or "")
    if name not in _NEVER_CALLED_HERE:
        call_back(frame, arguments)
    if any("stream" in (dotted_name(part) or "").lower() for part in node.args):
        frame.streams.everybody_waits()
    if isinstance(node.func, ast.Attribute):
        return _method_by_name(frame, node, name, arguments)
    return UNKNOWN


def call_back(frame: Frame, arguments: Arguments) -> None:
    """Call the functions among the arguments of a callee that is not analysed."""
    for of in arguments.everything():
        for atom in of:
            if isinstance(atom, Function):
                frame.search.invoke(atom, Arguments(open=True), frame)


def _method_by_name(frame: Frame, node: ast.Call, name: str, arguments: Arguments) -> Value:
    """What some methods give, whoever has them."""
    assert isinstance(node.func, ast.Attribute)
    if name == "synchronize" and not node.args:
        _synchronize_by_name(frame, node)
    if name in {"wait_stream", "wait_event", "wait"}:
        frame.streams.waits(frame.streams.token(node.func.value))
    if name == "empty_cache":
        frame.report("empty_cache", node, Sure.POSSIBLE)
    if name == "numpy" and not node.args:
        return ARRAY
    if name == "item" and not node.args:
        return NUMBER
    if name == "cpu" and not node.args:
        return value(Tensor(Place.PAGEABLE, Sure.LIKELY))
    if name == "pin_memory":
        return value(Tensor(Place.PINNED, Sure.LIKELY))
    if name == "to":
        return _moved_by_name(arguments)
    return UNKNOWN


def _synchronize_by_name(frame: Frame, node: ast.Call) -> None:
    assert isinstance(node.func, ast.Attribute)
    last = (dotted_name(node.func.value) or "").rpartition(".")[2].lower()
    if last.endswith(("event", "stream", "events", "streams", "cuda", "device_module")):
        frame.report("synchronize", node, Sure.POSSIBLE)
    frame.streams.everybody_waits()


def _moved_by_name(arguments: Arguments) -> Value:
    """``x.to(device, non_blocking=True)``: only tensors have that keyword."""
    if "non_blocking" not in arguments.keywords:
        return UNKNOWN
    devices = [atom for of in arguments.everything() for atom in of if isinstance(atom, Device)]
    return value(Tensor(devices[0].place, devices[0].sure)) if devices else UNKNOWN
