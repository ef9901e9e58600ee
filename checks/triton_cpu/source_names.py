"""Names of functions by place in the source: debug locations hold files and lines only."""

from __future__ import annotations

import ast
import functools
import linecache


def function_at(file: str, line: int) -> str:
    """The innermost function that holds a line; empty if there is none or the source cannot be read."""
    return next((name for first, last, name in _functions(file) if first <= line <= last), "")


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name of each function, inner ones before those around them."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found = [
        (min((mark.lineno for mark in node.decorator_list), default=node.lineno), node.end_lineno or 0, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return tuple(sorted(found, key=lambda each: each[1] - each[0]))
