"""What the calls of a runner do to its order: those of torch by their names, and functions that only wrap one.

Nothing is imported and no type is known: ``x.record_stream(s)`` is taken for what torch calls so, whatever ``x`` is. A
function of at most ``MOST_STATEMENTS`` statements that does one such thing is taken for that thing itself, so that each
of its callers is a place of its own; unless another function that could be meant, by its name, its class and how many
arguments it takes, does something else.
"""

from __future__ import annotations

import ast
import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .text import Function, SourceFile

MOST_STATEMENTS = 4
#: Functions that Python itself calls, or that end something as a whole.
_NO_WRAPPERS = ("close", "shutdown")


class Kind(enum.Enum):
    """What a place in the source has to do with order."""

    RECORD = "event record"
    WAIT = "event wait"
    SYNCHRONISE = "synchronize"
    POLL = "event query"
    KEPT = "kept reference"
    RING = "ring depth"
    PINNED = "pinned allocation"
    STREAM = "stream choice"
    COPY = "returned copy"


_BY_NAME: Mapping[str, Kind] = {
    "record_event": Kind.RECORD,
    "wait_event": Kind.WAIT,
    "wait_stream": Kind.WAIT,
    "synchronize": Kind.SYNCHRONISE,
    "query": Kind.POLL,
    "record_stream": Kind.KEPT,
    "pin_memory": Kind.PINNED,
}
#: Of ``torch.cuda``: a scope, a stream, a new one.
STREAMS = ("stream", "current_stream", "Stream", "ExternalStream")


def called(call: ast.Call) -> str:
    """The last part of the name that is called; empty where it has none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def primitive(call: ast.Call) -> Kind | None:
    """What a call of torch's own does to order, by its name."""
    name = called(call)
    if isinstance(call.func, ast.Attribute):
        receiver = ast.unparse(call.func.value)
        if name == "record" and len(call.args) + len(call.keywords) <= 1:
            return Kind.RECORD
        if name == "wait" and "event" in receiver.lower():
            return Kind.WAIT
        if name in STREAMS and receiver.endswith("cuda"):
            return Kind.STREAM
        if name == "copy_" and isinstance(call.func.value, ast.Call):
            return Kind.KEPT  # to memory that nobody has: at most the allocator learns of it
        if name in _BY_NAME:
            return _BY_NAME[name]
    pinned = (word.value for word in call.keywords if word.arg == "pin_memory")
    return Kind.PINNED if any(not _is_false(value) for value in pinned) else None


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


@dataclass
class _Definition:
    """A function of the package.

    Attributes:
        owner: the class that it is a method of.
        least, most: how many arguments it takes, ``self`` not counted.
        kind: what it does to order, if that is all that it does.
        delegates: whether it does nothing that is known but call another one of its name.
    """

    function: Function
    owner: str | None
    least: int
    most: float
    kind: Kind | None = None
    delegates: bool = False

    def takes(self, call: ast.Call) -> bool:
        """Whether it could be what is called."""
        if any(isinstance(one, ast.Starred) for one in call.args) or any(word.arg is None for word in call.keywords):
            return True
        return self.least <= len(call.args) + len(call.keywords) <= self.most


class Calls:
    """Which calls of a package have to do with order.

    Args:
        files: all of its source.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._definitions: dict[str, list[_Definition]] = {}
        self._owner: dict[ast.Call, str | None] = {}
        for file in files:
            self._read(file)
        while self._find_wrappers():
            pass

    def kind(self, call: ast.Call) -> Kind | None:
        """What a call does to order, if anything."""
        return primitive(call) or self._wrapped(call)

    def is_wrapper(self, call: ast.Call) -> bool:
        """Whether it calls a function of the package that wraps what torch does."""
        return primitive(call) is None and self._wrapped(call) is not None

    def _wrapped(self, call: ast.Call) -> Kind | None:
        """What all functions do that could be meant, if they do the same."""
        meant = [one for one in self._definitions.get(called(call), ()) if one.takes(call)]
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self":
            own = [one for one in meant if one.owner == self._owner.get(call)]
            meant = own or meant
        kinds = {one.kind for one in meant if not one.delegates}
        return kinds.pop() if len(kinds) == 1 else None

    def _read(self, file: SourceFile) -> None:
        for node in ast.walk(file.tree):
            owner = next((one.name for one in file.around(node) if isinstance(one, ast.ClassDef)), None)
            if isinstance(node, ast.Call):
                self._owner[node] = owner
            elif isinstance(node, Function) and not _is_stub(node) and _can_wrap(node.name):
                least, most = _arity(node, is_method=isinstance(file.parents[node], ast.ClassDef))
                self._definitions.setdefault(node.name, []).append(_Definition(node, owner, least, most))

    def _find_wrappers(self) -> bool:
        """Look at each function once; whether anything new was found."""
        found = False
        for definition in (one for alike in self._definitions.values() for one in alike if one.kind is None):
            definition.kind, definition.delegates = self._does(definition.function)
            found |= definition.kind is not None
        return found

    def _does(self, function: Function) -> tuple[Kind | None, bool]:
        """The one thing that a function does, if it is so short that it does nothing else; and whether it delegates."""
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
        if len(statements) - (ast.get_docstring(function) is not None) > MOST_STATEMENTS:
            return None, False
        calls = [node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Call)]
        kinds = {kind for call in calls if (kind := self.kind(call)) is not None}
        # Which stream waits, or records, is part of that, and so is what the allocator is told.
        for part in (Kind.STREAM, Kind.KEPT):
            kinds = kinds - {part} or kinds
        delegates = not kinds and any(called(call) == function.name for call in calls)
        return kinds.pop() if len(kinds) == 1 else None, delegates


def _can_wrap(name: str) -> bool:
    return not (name in _BY_NAME or name in _NO_WRAPPERS or name.startswith("__"))


def _arity(function: Function, *, is_method: bool) -> tuple[int, float]:
    arguments, decorators = function.args, {ast.unparse(one) for one in function.decorator_list}
    own = int(is_method and "staticmethod" not in decorators)
    most = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - own
    free = len(arguments.defaults) + sum(default is not None for default in arguments.kw_defaults)
    return most - free, math.inf if arguments.vararg or arguments.kwarg else most


def _is_stub(function: Function) -> bool:
    """Whether it has a docstring or ``...`` and nothing else, as the methods of a protocol."""
    return all(isinstance(one, ast.Pass | ast.Expr) and not _calls(one) for one in function.body)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))
