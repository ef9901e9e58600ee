"""What modules define: functions, classes with their bases and subclasses, and what a name in a module means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .sources import Source, Sources, absolute

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_STATEMENTS_WITH_BODY = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.TryStar)


@dataclass(eq=False)
class FunctionInfo:
    """A function, method, local function or lambda.

    Attributes:
        node: its syntax.
        source: its module.
        qualified: its name within the module, e.g. ``"Runner.execute"``.
        cls: the class that it is a method of.
        decorators: dotted names of its decorators, as written.
    """

    node: AnyFunction
    source: Source
    qualified: str
    cls: ClassInfo | None = None
    decorators: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> str:
        """``"pkg.mod:Class.method"``."""
        return f"{self.source.name}:{self.qualified}"

    def is_decorated(self, *last: str) -> bool:
        """Whether one of its decorators has one of these last names."""
        return any(name.rpartition(".")[2] in last for name in self.decorators)

    @cached_property
    def is_generator(self) -> bool:
        """Whether it yields."""
        return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(self.node))

    @cached_property
    def is_kernel(self) -> bool:
        """Whether it is a Triton kernel: it runs on the device, and Python's rules do not hold in it."""
        return any(name.endswith("jit") and "triton" in name for name in self.decorators) or any(
            name in {"jit", "triton_jit", "gluon.jit"} for name in self.decorators
        )


@dataclass(eq=False)
class ClassInfo:
    """A class.

    Attributes:
        node: its syntax.
        source: its module.
        qualified: its name within the module.
        methods: its own, by name; of several definitions the last.
        annotations: of its attributes, in order.
        values: what its attributes are assigned in its body.
    """

    node: ast.ClassDef
    source: Source
    qualified: str
    methods: dict[str, FunctionInfo] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """``"pkg.mod:Class"``."""
        return f"{self.source.name}:{self.qualified}"

    @cached_property
    def assigned(self) -> dict[str, list[tuple[FunctionInfo, ast.expr | None]]]:
        """For each attribute, the methods that assign it, with its annotation there."""
        found: dict[str, list[tuple[FunctionInfo, ast.expr | None]]] = {}
        for method in self.methods.values():
            for name, annotation in _assigned_attributes(method.node).items():
                found.setdefault(name, []).append((method, annotation))
        return found


@dataclass(frozen=True)
class Import:
    """A name that an import binds: the module, and what is taken out of it."""

    module: str
    attribute: str | None


@dataclass(eq=False)
class ModuleTable:
    """What a module's own statements bind."""

    source: Source
    functions: dict[str, FunctionInfo] = field(default_factory=dict)
    classes: dict[str, ClassInfo] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    every_function: list[FunctionInfo] = field(default_factory=list)
    every_class: dict[str, ClassInfo] = field(default_factory=dict)


class Symbols:
    """Tables of all modules parsed, made when they are first asked for."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.classes: dict[str, ClassInfo] = {}
        self._tables: dict[str, ModuleTable] = {}
        self._bases: dict[str, tuple[ClassInfo | str, ...]] = {}
        self._ancestry: dict[str, list[ClassInfo | str]] = {}
        self._subclasses: dict[str, list[ClassInfo]] = {}
        self._unsorted: list[ClassInfo] = []

    def table(self, source: Source) -> ModuleTable:
        """What a module binds."""
        if source.name not in self._tables:
            table = ModuleTable(source)
            self._tables[source.name] = table
            _collect(table, source.tree.body, None, "")
            self.classes.update({cls.identity: cls for cls in table.every_class.values()})
            self._unsorted.extend(table.every_class.values())
        return self._tables[source.name]

    def definition(self, source: Source, name: str, depth: int = 0) -> FunctionInfo | ClassInfo | Source | str | None:
        """What a name in a module is: something defined here or elsewhere, a module, or a dotted name outside.

        ``None`` if the module binds it otherwise, or not at all.
        """
        table = self.table(source)
        if name in table.classes:
            return table.classes[name]
        if name in table.functions:
            return table.functions[name]
        if name not in table.imports or depth > 8:
            return None
        found = table.imports[name]
        if found.attribute is None:
            return self.sources.resolve(found.module) or found.module
        return self.member(found.module, found.attribute, depth + 1)

    def member(self, module: str, name: str, depth: int = 0) -> FunctionInfo | ClassInfo | Source | str | None:
        """What ``from module import name`` gives."""
        source = self.sources.resolve(module)
        if source is None:
            return self.sources.resolve(f"{module}.{name}") or f"{module}.{name}"
        return self.definition(source, name, depth) or self.sources.resolve(f"{source.name}.{name}")

    def bases(self, cls: ClassInfo) -> tuple[ClassInfo | str, ...]:
        """Its direct bases: classes, and dotted names of those outside."""
        if cls.identity not in self._bases:
            self._bases[cls.identity] = ()  # a class that derives from itself has no bases
            self._bases[cls.identity] = tuple(
                base for node in cls.node.bases if (base := self._class_of(cls.source, node)) is not None
            )
        return self._bases[cls.identity]

    def _class_of(self, source: Source, node: ast.expr) -> ClassInfo | str | None:
        if isinstance(node, ast.Subscript):  # Generic[T]
            node = node.value
        found = self.lookup(source, dotted_name(node))
        return found if isinstance(found, ClassInfo | str) else None

    def lookup(self, source: Source, dotted: str | None) -> FunctionInfo | ClassInfo | Source | str | None:
        """What a dotted name in a module is, as far as that is a definition."""
        if dotted is None:
            return None
        first, *rest = dotted.split(".")
        found = self.definition(source, first)
        for name in rest:
            if isinstance(found, Source):
                found = self.definition(found, name) or self.sources.resolve(f"{found.name}.{name}")
            elif isinstance(found, str):
                found = self.sources.resolve(f"{found}.{name}") or f"{found}.{name}"
            elif isinstance(found, ClassInfo):
                inner = self.table(found.source).every_class.get(f"{found.qualified}.{name}")
                found = inner or found.methods.get(name)
            else:
                return None
        return found

    def ancestry(self, cls: ClassInfo) -> list[ClassInfo | str]:
        """The class and its bases in the order in which attributes are looked up (depth first, each one once)."""
        if cls.identity in self._ancestry:
            return self._ancestry[cls.identity]
        order: list[ClassInfo | str] = []
        waiting: list[ClassInfo | str] = [cls]
        while waiting:
            one = waiting.pop(0)
            if one in order:
                continue
            order.append(one)
            if isinstance(one, ClassInfo):
                waiting = [*self.bases(one), *waiting]
        self._ancestry[cls.identity] = order
        return order

    def outside_bases(self, cls: ClassInfo) -> list[str]:
        """Dotted names of all its bases that are not analysed."""
        return [base for base in self.ancestry(cls) if isinstance(base, str)]

    def is_module(self, cls: ClassInfo) -> bool:
        """Whether its objects are called through ``forward``."""
        return any(
            base.rpartition(".")[2] in {"Module", "CustomOp", "ScriptModule"} for base in self.outside_bases(cls)
        )

    def find_method(self, cls: ClassInfo, name: str, after: ClassInfo | None = None) -> FunctionInfo | None:
        """The method that an object of the class has; with ``after``, that of ``super()`` in that class."""
        order = self.ancestry(cls)
        if after is not None and after in order:
            order = order[order.index(after) + 1 :]
        for one in order:
            if isinstance(one, ClassInfo) and name in one.methods:
                return one.methods[name]
        return None

    def subclasses(self, cls: ClassInfo) -> list[ClassInfo]:
        """All classes known that derive from it."""
        while self._unsorted:  # to look at the bases of one can load the modules of others
            one = self._unsorted.pop()
            for base in self.ancestry(one)[1:]:
                if isinstance(base, ClassInfo):
                    self._subclasses.setdefault(base.identity, []).append(one)
        return self._subclasses.get(cls.identity, [])


def dotted_name(node: ast.AST) -> str | None:
    """``"torch.cuda.Stream"`` for that expression; ``None`` for anything but names and attributes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function, without those of functions and classes inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _collect(table: ModuleTable, body: list[ast.stmt], cls: ClassInfo | None, prefix: str) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _add_function(table, node, cls, prefix)
        elif isinstance(node, ast.ClassDef):
            _add_class(table, node, cls, prefix)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            table.imports.update(bindings(table.source, node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            _add_value(table, node, cls)
        elif isinstance(node, _STATEMENTS_WITH_BODY):
            for part in ("handlers", "orelse", "finalbody"):
                for inner in getattr(node, part, ()):
                    _collect(table, inner.body if isinstance(inner, ast.ExceptHandler) else [inner], cls, prefix)
            _collect(table, node.body, cls, prefix)  # last: what is bound without an error is what is meant


def _add_function(
    table: ModuleTable, node: ast.FunctionDef | ast.AsyncFunctionDef, cls: ClassInfo | None, prefix: str
) -> None:
    names = tuple(name for one in node.decorator_list if (name := _decorator_name(one)))
    info = FunctionInfo(node, table.source, f"{prefix}{node.name}", cls, names)
    if info.is_decorated("overload", "setter", "deleter"):
        return
    table.every_function.append(info)
    if cls is None:
        table.functions[node.name] = info
        return
    cls.methods[node.name] = info


def _decorator_name(node: ast.expr) -> str | None:
    return dotted_name(node.func if isinstance(node, ast.Call) else node)


def _assigned_attributes(node: AnyFunction) -> dict[str, ast.expr | None]:
    """Attributes of the first parameter that a method assigns or registers, with the annotation if it has one."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    found: dict[str, ast.expr | None] = {}
    if not arguments:
        return found
    own = arguments[0].arg
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_name(inner.value, own):
            found.setdefault(inner.attr, None)
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Attribute):
            if _is_name(inner.target.value, own):
                found[inner.target.attr] = inner.annotation
        elif isinstance(inner, ast.Call) and (name := _registered(inner, own)):
            found.setdefault(name, None)
    return found


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _registered(node: ast.Call, own: str) -> str | None:
    """The attribute that ``self.register_buffer("name", ...)`` and its like make."""
    if not isinstance(node.func, ast.Attribute) or not node.args or not _is_name(node.func.value, own):
        return None
    name = node.args[0]
    known = node.func.attr in {"register_buffer", "register_parameter"} and isinstance(name, ast.Constant)
    return name.value if known and isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _add_class(table: ModuleTable, node: ast.ClassDef, cls: ClassInfo | None, prefix: str) -> None:
    info = ClassInfo(node, table.source, f"{prefix}{node.name}")
    table.every_class[info.qualified] = info
    if cls is None:
        table.classes[node.name] = info
    _collect(table, node.body, info, f"{info.qualified}.")


def _add_value(table: ModuleTable, node: ast.Assign | ast.AnnAssign, cls: ClassInfo | None) -> None:
    owner: ClassInfo | ModuleTable = table if cls is None else cls
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    for target in targets:
        if isinstance(target, ast.Name):
            if isinstance(node, ast.AnnAssign):
                owner.annotations[target.id] = node.annotation
            if node.value is not None:
                owner.values[target.id] = node.value


def bindings(source: Source, node: ast.Import | ast.ImportFrom) -> dict[str, Import]:
    """The names that an import binds."""
    if isinstance(node, ast.ImportFrom):
        module = absolute(source, node)
        return {alias.asname or alias.name: Import(module, alias.name) for alias in node.names}
    found: dict[str, Import] = {}
    for alias in node.names:
        if alias.asname:
            found[alias.asname] = Import(alias.name, None)
        else:
            first = alias.name.partition(".")[0]
            found[first] = Import(first, None)
    return found
