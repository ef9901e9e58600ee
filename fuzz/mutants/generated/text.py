"""A Python file as text and as a syntax tree, and edits of its text at the places of nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Block = list[ast.stmt]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Edit:
    """Characters ``start`` to ``end`` of a text are replaced by others."""

    start: int
    end: int
    text: str


class SourceFile:
    """One file.

    Args:
        path: inside its package.
        text: its content.

    Attributes:
        tree: of the text.
        parents: of each node.

    Raises:
        SyntaxError: it is no Python.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text, filename=path)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """First character of a node, and the one behind its last."""
        assert node.end_lineno is not None and node.end_col_offset is not None  # whatever was parsed has them
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that puts a text in the place of a node."""
        return Edit(*self.span(node), text)

    def before(self, statement: ast.stmt, line: str) -> Edit:
        """The edit that inserts a line before a statement, as far to the right as that."""
        start = self._starts[statement.lineno - 1]
        return Edit(start, start, f"{' ' * statement.col_offset}{line}\n")

    def edited(self, edits: Sequence[Edit]) -> str:
        """The text with edits that do not overlap."""
        text = self.text
        for edit in sorted(edits, key=lambda edit: -edit.start):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node is part of, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is part of, or is."""
        return next(one for one in (node, *self.around(node)) if isinstance(one, ast.stmt))

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node; None at the level of a module or class."""
        return next((one for one in self.around(node) if isinstance(one, Function)), None)

    def neighbours(self, statement: ast.stmt) -> tuple[ast.stmt | None, ast.stmt | None]:
        """The statements before and behind one in its block, if each of the three begins a line of its own."""
        block, index = self._place(statement)
        near = [block[at] if 0 <= at < len(block) else None for at in (index - 1, index + 1)]
        before, behind = (one if self._alone(one) and self._alone(statement) else None for one in near)
        return before, behind

    def header(self, statement: ast.stmt) -> range:
        """Lines of a statement, without those of the block that it heads."""
        assert statement.end_lineno is not None
        body = getattr(statement, "body", None)
        end = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno
        return range(statement.lineno, end + 1)

    def _place(self, statement: ast.stmt) -> tuple[Block, int]:
        for _, block in ast.iter_fields(self.parents[statement]):
            if isinstance(block, list) and statement in block:
                return block, block.index(statement)
        raise AssertionError("every statement stands in a block of its parent")

    def _alone(self, statement: ast.stmt | None) -> bool:
        """Whether nothing but blanks stands before it on its line, and nothing but a comment behind it."""
        if statement is None or statement.end_lineno is None:
            return False
        first = self._lines[statement.lineno - 1].encode()[: statement.col_offset]
        last = self._lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].strip()
        decorated = isinstance(statement, Function | ast.ClassDef) and statement.decorator_list
        return not first.strip() and (not last or last.startswith(b"#")) and not decorated

    def _offset(self, line: int, column: int) -> int:
        """A place in the text; columns of a tree count bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def names_read(node: ast.AST) -> set[str]:
    """Names of variables that a node reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def names_bound(node: ast.AST) -> set[str]:
    """Names of variables that a node gives values to."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
