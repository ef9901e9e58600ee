"""All mutants of a package: its files are read, never imported."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .calls import Calls, Kind
from .holders import attributes_read, holder_changes
from .operators import Change, changes_of
from .text import SourceFile


@dataclass(frozen=True)
class OrderingMutant:
    """One change of one file.

    Attributes:
        file: path inside the package.
        line: of the place that is changed.
        kind: what the place has to do with order.
        operator: what is done to it.
        number: tells those apart that agree in all of that.
        was: the place as it is.
        lines: of the statement that it belongs to; a run that enters one of them has reached it.
        at_import: whether it runs when the module is imported.
        text: the file with the change.
    """

    file: str
    line: int
    kind: Kind
    operator: str
    number: int
    was: str
    lines: range = field(repr=False)
    at_import: bool = field(repr=False)
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        """E.g. ``"staging.py:84 event record: delete"``."""
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.file}:{self.line} {self.kind.value}: {self.operator}{again}"


def generate(folder: Path) -> list[OrderingMutant]:
    """The mutants of a package, by file and line.

    Args:
        folder: of the package.
    """
    files = [
        SourceFile(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    ]
    return mutants_of(files)


def mutants_of(files: Sequence[SourceFile]) -> list[OrderingMutant]:
    """The same of files that were read."""
    calls, read = Calls(files), attributes_read(files)
    return [mutant for file in files for mutant in _numbered(file, calls, read)]


def _numbered(file: SourceFile, calls: Calls, read: frozenset[str]) -> Iterator[OrderingMutant]:
    seen: Counter[tuple[int, Kind, str]] = Counter()
    found = sorted(_changes(file, calls, read), key=lambda entry: (entry[0].lineno, entry[0].col_offset))
    for node, kind, change in found:
        seen[node.lineno, kind, change.operator] += 1
        statement = file.statement(node)
        yield OrderingMutant(
            file.path, node.lineno, kind, change.operator, seen[node.lineno, kind, change.operator],
            " ".join(file.of(node).split()), file.header(statement), file.function(statement) is None,
            file.edited(change.edits),
        )  # fmt: skip


def _changes(
    file: SourceFile, calls: Calls, read: frozenset[str]
) -> Iterator[tuple[ast.expr | ast.stmt, Kind, Change]]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call) and (kind := calls.kind(node)) is not None:
            for change in changes_of(file, node, kind, calls):
                yield node, kind, change
    yield from holder_changes(file, calls, read)
