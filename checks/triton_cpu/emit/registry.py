"""Which rule writes which operation; the modules of this package register theirs when they are imported.

Three kinds of rule, by what they may assume. An *expression* computes one lane from the same lane of each operand, so
that neighbours share a loop. A *view* computes nothing: each of its lanes is a lane of an operand, a constant, or a
function of the lane's number, so it is never stored. A *statement* writes lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir import Operation

if TYPE_CHECKING:
    from .program import Program

ExpressionRule = Callable[["Program", Operation, list[str]], str]
StatementRule = Callable[["Program", Operation], None]
ViewRule = Callable[["Program", Operation, str], str]


@dataclass(frozen=True, slots=True)
class Expression:
    """An element-wise operation; a cheap one may be computed again at each use instead of being stored."""

    rule: ExpressionRule
    cheap: bool


@dataclass(frozen=True, slots=True)
class View:
    """A renaming of lanes; if it keeps them, lane ``i`` of the result is lane ``i`` of the operand."""

    rule: ViewRule
    keeps_lanes: bool


EXPRESSIONS: dict[str, Expression] = {}
STATEMENTS: dict[str, StatementRule] = {}
VIEWS: dict[str, View] = {}


def expression(*names: str, cheap: bool = False) -> Callable[[ExpressionRule], ExpressionRule]:
    """Registers a rule ``(program, operation, operands) -> C expression`` of a side-effect-free lane."""

    def register(rule: ExpressionRule) -> ExpressionRule:
        _claim(names)
        EXPRESSIONS.update(dict.fromkeys(names, Expression(rule, cheap)))
        return rule

    return register


def statement(*names: str) -> Callable[[StatementRule], StatementRule]:
    """Registers a rule ``(program, operation) -> None`` that writes lines."""

    def register(rule: StatementRule) -> StatementRule:
        _claim(names)
        STATEMENTS.update(dict.fromkeys(names, rule))
        return rule

    return register


def view(*names: str, keeps_lanes: bool = False) -> Callable[[ViewRule], ViewRule]:
    """Registers a rule ``(program, operation, index) -> C expression`` of the result's lane number ``index``."""

    def register(rule: ViewRule) -> ViewRule:
        _claim(names)
        VIEWS.update(dict.fromkeys(names, View(rule, keeps_lanes)))
        return rule

    return register


def _claim(names: tuple[str, ...]) -> None:
    for name in names:
        assert name not in EXPRESSIONS and name not in STATEMENTS and name not in VIEWS, f"two rules for {name}"
