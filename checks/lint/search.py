"""The search: which functions a hot path reaches, with what values, and what each of them gives back.

A function is looked at once for each combination of argument values (a context), and its result is kept. What objects
hold in their attributes is one table for the whole run; the search is repeated until that table no longer grows.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from . import expressions, statements
from .annotations import Annotations, hinted
from .binding import bind, replace_bound
from .frame import Arguments, Frame
from .platforms import OTHERS, platform_answer
from .sources import Source, Sources
from .staging import Effects
from .symbols import ClassInfo, FunctionInfo, Symbols
from .values import (
    NONE,
    UNKNOWN,
    Atom,
    ClassRef,
    Function,
    Host,
    Instance,
    ModuleRef,
    Name,
    Place,
    Sure,
    Tensor,
    Value,
    items_of,
    join,
    shallow,
    value,
    without_constants,
)

#: Calls in calls; deeper ones are judged by their annotations.
DEEPEST = 60
#: The same for functions that are looked at only for the values they give.
DEEPEST_QUIET = 3
#: Contexts of one function before its arguments are joined, and before it is not looked at any more.
MOST_CONTEXTS = 8
MOST_JOINS = 8
#: A short function, often one of a buffer or a container, is worth more of them.
SHORT, MORE_FOR_SHORT = 8, 4
#: How often a function may be below itself.
DEEPEST_RECURSION = 2
MOST_ROUNDS = 4
_RECURSION = 60_000


_Key: TypeAlias = tuple[FunctionInfo, tuple[tuple[str, Value], ...], bool]


@dataclass(frozen=True)
class Summary:
    """What a call of a function gives and does."""

    result: Value
    effects: Effects


@dataclass(frozen=True)
class Observation:
    """Something that breaks a rule.

    Attributes:
        kind: which rule, a key of ``rules.KINDS``.
        source: the module.
        function: qualified name.
        node: the expression or statement.
        sure: how sure it is.
        straight: no branch and no choice between callees lies on the way from the root.
        chain: the calls from the root, outermost first: function and line of the call in it.
        facts: what the rule's title needs.
    """

    kind: str
    source: Source
    function: str
    node: ast.AST
    sure: Sure
    straight: bool
    chain: tuple[tuple[FunctionInfo, int], ...]
    facts: tuple[tuple[str, str], ...]


@dataclass
class Search:
    """One run of the search.

    Attributes:
        sources: the modules.
        observations: by module, place and kind.
        reached: functions on a hot path.
        contexts: number of functions looked at, once for each combination of argument values.
        cut: functions that a hot path calls, but too deeply below its root to be looked at.
    """

    sources: Sources
    symbols: Symbols = field(init=False)
    annotations: Annotations = field(init=False)
    observations: dict[tuple[str, int, int, str], Observation] = field(default_factory=dict)
    reached: dict[str, FunctionInfo] = field(default_factory=dict)
    contexts: int = 0
    cut: set[str] = field(default_factory=set)
    closures: dict[ast.AST, dict[str, Value]] = field(default_factory=dict)
    _attributes: dict[tuple[str, str], Value] = field(default_factory=dict)
    _grew: bool = False
    _summaries: dict[_Key, Summary] = field(default_factory=dict)
    _running: set[_Key] = field(default_factory=set)
    _joined: dict[tuple[FunctionInfo, bool], dict[str, Value]] = field(default_factory=dict)
    _contexts_of: dict[tuple[FunctionInfo, bool], set[_Key]] = field(default_factory=dict)
    _depth_of: Counter[FunctionInfo] = field(default_factory=Counter)
    _prepared: set[tuple[FunctionInfo, str]] = field(default_factory=set)
    _locals: dict[ast.AST, FunctionInfo] = field(default_factory=dict)
    _globals: dict[tuple[str, str], Value] = field(default_factory=dict)
    _stack: list[tuple[Frame, bool]] = field(default_factory=list)

    #: Quiet calls in quiet calls; at this depth no function is looked at.
    deepest_quiet = DEEPEST_QUIET

    def __post_init__(self) -> None:
        self.symbols = Symbols(self.sources)
        self.annotations = Annotations(self.symbols)

    def run(self, roots: list[tuple[FunctionInfo, ClassInfo | None]]) -> list[Effects]:
        """Search from these functions until nothing new is learnt; gives what each does with staging memory."""
        with _interpreter_set_up():
            for _ in range(MOST_ROUNDS):
                self._begin_round()
                effects = [self._run_root(function, cls) for function, cls in roots]
                if not self._grew:
                    break
        return effects

    def _begin_round(self) -> None:
        self._grew = False
        for memory in (self.observations, self.reached, self._summaries, self._joined, self._contexts_of):
            memory.clear()
        self._prepared.clear()
        self._globals.clear()
        self.contexts = 0
        self.cut.clear()

    def _run_root(self, function: FunctionInfo, cls: ClassInfo | None) -> Effects:
        receiver = value(Instance(cls.identity, origin=cls.qualified)) if cls is not None else None
        frame = Frame(self, None, function.source)
        self.invoke(Function(function, receiver), Arguments(open=True), frame, single=True)
        return frame.effects

    def callers(self) -> Iterator[Frame]:
        """The frames of the functions that led here, innermost first, without the current one."""
        return (frame for frame, _ in reversed(self._stack[:-1]))

    # ---- calls

    def invoke(self, target: Function, arguments: Arguments, caller: Frame, single: bool = False) -> Value:
        """What a call of an analysed function gives; looks at the function if this context is new."""
        function = target.function
        if function.is_kernel:
            return NONE
        given = replace_bound(target, arguments)
        parameters = bind(self, function, target.receiver, given)
        quiet = caller.silent
        depth = caller.depth + 1 if quiet or not function.source.judged else 0
        if depth > DEEPEST_QUIET or self._depth_of[function] >= DEEPEST_RECURSION:
            return self.declared(function)
        key = self._context(function, parameters, quiet)
        if key is None or len(self._stack) > DEEPEST:
            self.cut |= set() if quiet or function.identity in self.reached else {function.identity}
            return self.declared(function)
        if key in self._running:
            return self.declared(function)
        if key not in self._summaries:
            self._running.add(key)
            try:
                self._summaries[key] = self._look_at(function, parameters, quiet, depth, single)
            finally:
                self._running.discard(key)
        summary = self._summaries[key]
        if summary.effects and not caller.cold:
            caller.effects.add_call(summary.effects, caller.arms)
            if summary.effects.waits:
                caller.streams.everybody_waits()
        # A subclass that was not seen may answer otherwise.
        return without_constants(summary.result) if _is_open(target.receiver) else summary.result

    def _context(self, function: FunctionInfo, parameters: dict[str, Value], quiet: bool) -> _Key | None:
        """The key of a context; ``None`` if there are too many.

        A function with many has its arguments joined with all earlier ones.
        """
        key = (function, tuple(parameters.items()), quiet)
        known = self._contexts_of.setdefault((function, quiet), set())
        most = MOST_CONTEXTS * (MORE_FOR_SHORT if _is_short(function) else 1)
        if key in known or len(known) < most:
            known.add(key)
            return key
        joined = self._joined.setdefault((function, quiet), {})
        for name, of in parameters.items():
            joined[name] = parameters[name] = join(joined.get(name, UNKNOWN), of)
        key = (function, tuple(parameters.items()), quiet)
        if key not in known and len(known) >= most + MOST_JOINS:
            return None
        known.add(key)
        return key

    def _look_at(
        self, function: FunctionInfo, parameters: dict[str, Value], quiet: bool, depth: int, single: bool
    ) -> Summary:
        frame = Frame(self, function, function.source, dict(parameters), self.closures.get(function.node), quiet, depth)
        for name, of in parameters.items():
            if any(isinstance(atom, Tensor) and atom.place is Place.DEVICE for atom in of):
                frame.streams.made[name] = frame.streams.current
        self.contexts += 1
        if not quiet:
            self.reached.setdefault(function.identity, function)
        self._stack.append((frame, single))
        self._depth_of[function] += 1
        try:
            if isinstance(function.node, ast.Lambda):
                frame.returned.append(expressions.evaluate(frame, function.node.body))
            else:
                statements.run(frame, function.node.body)
        finally:
            self._stack.pop()
            self._depth_of[function] -= 1
        return Summary(shallow(self._result(function, frame)), frame.effects)

    def _result(self, function: FunctionInfo, frame: Frame) -> Value:
        if function.is_generator:
            given = join(*frame.yielded) if frame.yielded else UNKNOWN
            return items_of(given) if given else join(self.declared(function), items_of(UNKNOWN))
        found = join(*frame.returned) if frame.returned else NONE
        if found <= NONE:
            declared = self.declared(function)
            return declared if declared and not declared <= NONE else found
        return found

    def declared(self, function: FunctionInfo) -> Value:
        """What a function gives according to its annotation."""
        if isinstance(function.node, ast.Lambda):
            return UNKNOWN
        return self.annotations.read(function.source, function.node.returns)

    # ---- attributes

    def assign(self, cls: str, name: str, of: Value) -> None:
        """An attribute of objects of a class holds this as well."""
        if not of:
            return
        before = self._attributes.get((cls, name), UNKNOWN)
        after = join(before, shallow(without_constants(of)))
        if after != before:
            self._attributes[cls, name] = after
            self._grew = True

    def attribute(self, instance: Instance, name: str, frame: Frame) -> Value:
        """What an attribute of an object holds: a bound method, the value of a property, or what was assigned."""
        cls = self.class_of(instance.cls)
        if cls is None:
            return UNKNOWN
        methods = self._methods(cls, instance, name)
        if methods:
            properties = [one for one in methods if one.function.is_decorated("property", "cached_property")]
            if properties:
                return join(*(self.invoke(one, Arguments(), frame) for one in properties))
            return frozenset(methods)
        return self._labelled(instance, name, hinted(name, self._held(cls, instance, name, frame)))

    def _methods(self, cls: ClassInfo, instance: Instance, name: str) -> list[Function]:
        """The methods of this name that an object has, or can have if it is of a subclass."""
        own = self.symbols.find_method(cls, name)
        found = [] if own is None else [self.bound(own, instance)]
        if instance.exact:
            return found
        below = [one for one in self.symbols.subclasses(cls) if name in one.methods and not _other_platform(one, cls)]
        return found + [self.bound(one.methods[name], replace(instance, cls=one.identity)) for one in below]

    def bound(self, function: FunctionInfo, instance: Instance) -> Function:
        """A method of an object."""
        if function.is_decorated("staticmethod"):
            return Function(function)
        if function.is_decorated("classmethod"):
            return Function(function, value(ClassRef(instance.cls)))
        return Function(function, value(instance))

    def _held(self, cls: ClassInfo, instance: Instance, name: str, frame: Frame) -> Value:
        lineage = [one for one in self.symbols.ancestry(cls) if isinstance(one, ClassInfo)]
        for owner in lineage:
            for function, _ in owner.assigned.get(name, ()):
                self._prepare(function, instance, frame)
        found = join(*(self._attributes.get((one.identity, name), UNKNOWN) for one in lineage))
        if found - NONE:
            return found
        return join(found, *(self._declared_attribute(one, name) for one in lineage))

    def _declared_attribute(self, cls: ClassInfo, name: str) -> Value:
        """What the class itself says of an attribute."""
        if name in cls.annotations:
            return self.annotations.read(cls.source, cls.annotations[name])
        for function, node in cls.assigned.get(name, ()):
            if node is not None:
                return self.annotations.read(function.source, node)
        if name in cls.values:
            frame = Frame(self, None, cls.source, quiet=True, depth=DEEPEST_QUIET)
            return without_constants(expressions.evaluate(frame, cls.values[name]))
        return UNKNOWN

    def _prepare(self, function: FunctionInfo, instance: Instance, frame: Frame) -> None:
        """Look once at a method that assigns attributes, with what its annotations say of its arguments."""
        if (function, instance.cls) in self._prepared or frame.depth >= DEEPEST_QUIET:
            return
        self._prepared.add((function, instance.cls))
        quiet = Frame(self, None, function.source, quiet=True, depth=frame.depth)
        self.invoke(Function(function, value(replace(instance, origin=None))), Arguments(open=True), quiet)

    def _labelled(self, instance: Instance, name: str, of: Value) -> Value:
        """What an attribute holds, named by it: two objects of one class are told apart, and so is their memory."""
        return frozenset(self._label(atom, instance, name) for atom in of)

    def _label(self, atom: Atom, instance: Instance, name: str) -> Atom:
        own = instance.cls.rpartition(":")[2]
        base = instance.origin or own
        if instance.origin is None:  # one of many, nobody knows which: its memory has no name
            return replace(atom, buffer=None) if isinstance(atom, Tensor | Host) else atom
        if isinstance(atom, Instance) and atom.origin is None and base.count(".") < 3:
            return replace(atom, origin=f"{base}.{name}")
        if isinstance(atom, Tensor) and atom.place is Place.PINNED:
            named = atom.buffer is not None and ":" not in atom.buffer
            return replace(atom, buffer=_moved_label(atom.buffer, own, base) if named else f"{base}.{name}")
        if isinstance(atom, Host) and atom.buffer is not None:
            return replace(atom, buffer=_moved_label(atom.buffer, own, base))
        return atom

    # ---- names

    def class_of(self, identity: str) -> ClassInfo | None:
        """The class of this identity."""
        if identity not in self.symbols.classes:
            source = self.sources.module(identity.partition(":")[0])
            if source is not None:
                self.symbols.table(source)
        return self.symbols.classes.get(identity)

    def global_value(self, source: Source, name: str) -> Value:
        """What a name of a module holds."""
        key = (source.name, name)
        if key not in self._globals:
            self._globals[key] = UNKNOWN  # while it is being found: a name that is defined by itself
            self._globals[key] = self._find_global(source, name)
        return self._globals[key]

    def _find_global(self, source: Source, name: str) -> Value:
        found = self.symbols.definition(source, name)
        if found is not None:
            return self.of_definition(found)
        table = self.symbols.table(source)
        if name in table.imports:
            imported = table.imports[name]
            module = self.sources.resolve(imported.module)
            return (
                UNKNOWN if module is None or module is source else self.global_value(module, imported.attribute or "")
            )
        result = UNKNOWN
        if name in table.values:
            frame = Frame(self, None, source, quiet=True, depth=DEEPEST_QUIET - 1)
            result = expressions.evaluate(frame, table.values[name])
            if platform_answer(table.values[name]) is None:  # _is_hip = is_hip() stays known
                result = without_constants(result)
        if not result - NONE and name in table.annotations:
            result = join(result, self.annotations.read(source, table.annotations[name]))
        return hinted(name, result)

    def of_definition(self, found: FunctionInfo | ClassInfo | Source | str) -> Value:
        """Something defined, as a value."""
        if isinstance(found, FunctionInfo):
            return value(Function(found))
        if isinstance(found, ClassInfo):
            return value(ClassRef(found.identity))
        return value(ModuleRef(found.name) if isinstance(found, Source) else Name(found))

    def local_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame, decorators: tuple[str, ...] = ()
    ) -> Value:
        """A function defined inside of another one; it sees that one's names."""
        if node not in self._locals:
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            around = f"{frame.function.qualified}." if frame.function else ""
            cls = frame.function.cls if frame.function else None
            self._locals[node] = FunctionInfo(node, frame.source, f"{around}{name}", cls, decorators)
        self.closures[node] = {**(frame.outer or {}), **frame.env}
        return value(Function(self._locals[node]))

    # ---- findings

    def observe(self, frame: Frame, kind: str, node: ast.AST, sure: Sure, facts: dict[str, str]) -> None:
        """Keep something that breaks a rule, once for each place; of several ways there the surest."""
        if not frame.source.judged or frame.function is None:
            return
        key = (frame.source.name, getattr(node, "lineno", 0), getattr(node, "col_offset", 0), kind)
        if key in self.observations and self.observations[key].sure >= sure:
            return
        chain = tuple((one.function, one.line) for one, _ in self._stack if one.function is not None)
        straight = not any(one.branches for one, _ in self._stack) and all(single for _, single in self._stack)
        self.observations[key] = Observation(
            kind, frame.source, frame.function.qualified, node, sure, straight, chain, tuple(facts.items())
        )


def _moved_label(buffer: str | None, own: str, base: str) -> str | None:
    """A name that its class gave, under the name of the object."""
    if buffer is not None and buffer.startswith(f"{own}."):
        return f"{base}{buffer.removeprefix(own)}"
    return buffer


def _is_open(receiver: Value | None) -> bool:
    """Whether a method is called on an object that can be of a subclass."""
    return receiver is not None and any(isinstance(atom, Instance) and not atom.exact for atom in receiver)


def _is_short(function: FunctionInfo) -> bool:
    return isinstance(function.node, ast.Lambda) or len(function.node.body) <= SHORT


def _other_platform(below: ClassInfo, cls: ClassInfo) -> bool:
    """Whether a subclass is for another platform, by its name or its module's; what is judged is a CUDA device."""
    return bool((_words_of(below) - _words_of(cls)) & OTHERS)


def _words_of(cls: ClassInfo) -> frozenset[str]:
    """``{"cpu", "model", "runner"}`` for ``CPUModelRunner``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[._]", " ", f"{cls.source.name}.{cls.qualified}")
    return frozenset(spaced.lower().split())


@contextmanager
def _interpreter_set_up() -> Iterator[None]:
    """Syntax trees and calls nest deeper than Python's usual limit, and hold no garbage; restored afterwards."""
    before, collecting = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(before, _RECURSION))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        if collecting:
            gc.enable()
