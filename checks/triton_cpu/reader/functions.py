"""Functions, their regions and blocks, and operations in the generic form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ...findings import Site
from ..errors import Unsupported
from ..ir import Attribute, Block, Function, Operation, Region, Type, Value
from .attributes import dictionary_of, symbol_of
from .consistency import check_regions, check_returns
from .control import SPECIAL
from .lexer import Cursor, Fault
from .locations import Locations
from .operations import HINTS, RULES, TERMINATORS, check_types, complete, read_custom, segments_of
from .scope import Scope
from .types import type_of, types_of

#: Names of results as printed, each with the number of results that it names.
Names: TypeAlias = Sequence[tuple[str, int]]
Successors: TypeAlias = Sequence[tuple[str, tuple[Value, ...]]]

#: Attributes of a function that do not change what it computes.
_OF_FUNCTIONS = frozenset({"noinline"})


class FunctionReader:
    """Reads one function.

    Attributes:
        text: at ``tt.func`` before `read`.
        scope: the values that can be seen.
    """

    def __init__(self, text: Cursor, locations: Locations) -> None:
        self.text = text
        self.scope = Scope()
        self._locations = locations

    def read(self) -> Function:
        """The function.

        Raises:
            Fault: what comes is no function.
            Unsupported: an operation in it is not understood.
        """
        text = self.text
        text.expect("tt.func")
        public = text.accept("public")
        if not public:
            text.expect("private")
        name = symbol_of(text)
        arguments = tuple(text.list(self._argument, "(", ")"))
        results = types_of(text) if text.accept("->") else ()
        if text.accept("attributes"):
            _check_known(f"the function {name}", dictionary_of(text), _OF_FUNCTIONS)
        body = self.region()
        if not body.blocks:
            raise Fault(f"the function {name} without a body")
        self._locations.trailing(text)
        function = Function(name, arguments, results, body, public)
        check_returns(function)
        return function

    # What operations with a syntax of their own are read with

    def value(self) -> Value:
        """An operand."""
        return self.scope.lookup(self.text.take("value"))

    def attributes(self, name: str) -> dict[str, Attribute]:
        """The attributes in braces that may come next, completed."""
        return complete(name, dictionary_of(self.text) if self.text.at("{") else {})

    def region(self, arguments: Sequence[tuple[str, Type]] = (), end: Operation | None = None) -> Region:
        """Blocks in braces.

        Args:
            arguments: names and types of those of the only block, if they come before the region.
            end: the last operation, if none is printed.
        """
        text = self.text
        text.expect("{")
        with self.scope.nested():
            values = tuple(self.scope.define(name, kind) for name, kind in arguments)
            absent = text.next.kind == "label" or (text.at("}") and end is None)
            blocks = [] if absent else [self._block("", values)]
            while text.next.kind == "label":
                blocks.append(self._labelled_block())
        text.expect("}")
        blocks = [_ended(block, end) for block in blocks]
        _check_branches(blocks)
        return Region(tuple(blocks))

    def finish(
        self,
        name: str,
        names: Names,
        types: Sequence[Type],
        operands: Sequence[Value] = (),
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
        successors: Successors = (),
    ) -> Operation:
        """The operation, of which all is read but the location."""
        location = self._locations.trailing(self.text)
        results = self.scope.results(names, types)
        return Operation(
            name, tuple(operands), results, dict(attributes or {}), tuple(regions), tuple(successors), location
        )

    # Values and blocks

    def _argument(self) -> Value:
        text = self.text
        name = text.take("value")
        text.expect(":")
        value = self.scope.define(name, type_of(text))
        if text.at("{"):
            _check_known(f"the argument {name}", dictionary_of(text), HINTS)
        self._locations.trailing(text)
        return value

    def _labelled_block(self) -> Block:
        label = self.text.take("label")[1:]
        arguments = tuple(self.text.list(self._argument, "(", ")")) if self.text.at("(") else ()
        self.text.expect(":")
        return self._block(label, arguments)

    def _block(self, label: str, arguments: tuple[Value, ...]) -> Block:
        operations = []
        while not self.text.at("}") and self.text.next.kind not in ("label", "end"):
            operations.append(self._operation())
        return Block(label, arguments, tuple(operations))

    # Operations

    def _operation(self) -> Operation:
        start = self.text.position
        try:
            operation = self._body(self._names())
            check_regions(operation)
        except Fault as fault:
            raise Unsupported(str(fault), self._place(start)) from None
        for result in operation.results:
            result.origin = operation
        return operation

    def _place(self, start: int) -> tuple[Site, ...]:
        """Where in the kernel an operation is that was not understood: its location ends its line."""
        tokens = self.text.tokens
        line = [index for index in range(start, len(tokens)) if tokens[index].line == tokens[start].line]
        marks = [index for index in line if tokens[index].text == "loc"]
        try:
            return self._locations.trailing(Cursor(tokens[marks[-1] :])) if marks else ()
        except Fault:
            return ()

    def _names(self) -> Names:
        if self.text.next.kind != "value":
            return ()
        names = self.text.list(self._name)
        self.text.expect("=")
        return names

    def _name(self) -> tuple[str, int]:
        name = self.text.take("value")
        return name, self.text.count() if self.text.accept(":") else 1

    def _body(self, names: Names) -> Operation:
        text = self.text
        if text.next.kind == "string":
            return self._generic(names)
        name = text.next.text
        if name not in RULES or text.next.kind != "word":
            raise text.fault("as an operation")
        text.position += 1
        if name in SPECIAL:
            return SPECIAL[name](self, names)
        parts, types = read_custom(name, text, self.scope.lookup)
        return self.finish(name, names, types, parts.operands, parts.attributes)

    def _generic(self, names: Names) -> Operation:
        """``"name"(operands)[successors] <{properties}> ({regions}) {attributes} : (types) -> types``."""
        text = self.text
        name = text.string()
        if name not in RULES:
            text.position -= 1
            raise text.fault("as an operation")
        operands = text.list(self.value, "(", ")")
        labels = text.list(lambda: text.take("label")[1:], "[", "]") if text.at("[") else []
        attributes: dict[str, Attribute] = {}
        if text.accept("<"):
            attributes.update(dictionary_of(text))
            text.expect(">")
        regions = text.list(self.region, "(", ")") if text.at("(") else []
        attributes.update(dictionary_of(text) if text.at("{") else {})
        text.expect(":")
        check_types(name, operands, text.list(lambda: type_of(text), "(", ")"))
        text.expect("->")
        types = types_of(text)
        own, passed = segments_of(name, operands, labels, attributes)
        present = [region for region in regions if region.blocks]
        return self.finish(name, names, types, own, complete(name, attributes), present, passed)


def _check_known(owner: str, given: Mapping[str, Attribute], known: frozenset[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise Fault(f"{owner} with the attribute {unknown[0]}")


def _ended(block: Block, end: Operation | None) -> Block:
    """The block with its last operation, which is not printed if it yields nothing."""
    named = f"a block {block.label}" if block.label else "a block"
    if any(operation.name in TERMINATORS for operation in block.operations[:-1]):
        raise Fault(f"{named} that goes on after its end")
    if block.operations and block.operations[-1].name in TERMINATORS:
        return block
    if end is None:
        raise Fault(f"{named} that ends without a branch or return")
    return Block(block.label, block.arguments, (*block.operations, end))


def _check_branches(blocks: Sequence[Block]) -> None:
    """Branches go to blocks of their region, with the arguments that those take."""
    arguments = {block.label: [value.type for value in block.arguments] for block in blocks}
    for block in blocks:
        for label, passed in block.operations[-1].successors:
            if arguments.get(label) != [value.type for value in passed]:
                raise Fault(f"a branch to {label}, which takes other arguments or does not exist")
