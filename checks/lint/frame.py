"""The state of the search inside one function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .sources import Source
from .staging import Effect, Effects
from .streams import StreamState
from .symbols import FunctionInfo
from .values import UNKNOWN, Device, Sure, Value, join

if TYPE_CHECKING:
    from .search import Search


#: In compiled code these become part of a kernel.
_COMPILED_AWAY = frozenset({"setitem", "constructor", "index_upload"})


@dataclass
class Arguments:
    """The arguments of a call.

    Attributes:
        positional: in order.
        keywords: by name.
        open: there are others, from ``*args`` or ``**kwargs``, that are not known one by one.
    """

    positional: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)
    open: bool = False

    def get(self, position: int, name: str) -> Value | None:
        """The argument at this place or of this name; ``None`` if there is none."""
        if name in self.keywords:
            return self.keywords[name]
        return self.positional[position] if 0 <= position < len(self.positional) else None

    def everything(self) -> list[Value]:
        """All of them."""
        return [*self.positional, *self.keywords.values()]


@dataclass(eq=False)
class Frame:
    """One call of one function, with what its names hold at the statement that is looked at.

    Attributes:
        search: the run.
        function: the function; ``None`` for statements of a module.
        source: its module.
        env: values by name, and by path (``"self.buffer"``) where the function itself assigned one.
        outer: names of the function around it.
        quiet: it is looked at for its values only, and reports nothing.
        depth: number of quiet calls that led here.
        cold: above zero in code that ends in an exception, or handles one.
        branches: above zero in code that may be skipped.
        returned: what it returns.
        yielded: what it yields.
        effects: what it does with staging memory, in order.
        streams: the stream that is current, and what is ordered against it.
        default_device: what ``with torch.device(...)`` set.
        arms: which way it took at the conditions around and before.
        line: of the statement that is looked at.
    """

    search: Search
    function: FunctionInfo | None
    source: Source
    env: dict[str, Value] = field(default_factory=dict)
    outer: Mapping[str, Value] | None = None
    quiet: bool = False
    depth: int = 0
    cold: int = 0
    branches: int = 0
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    effects: Effects = field(default_factory=Effects)
    streams: StreamState = field(default_factory=StreamState)
    default_device: Device | None = None
    arms: frozenset[tuple[int, bool]] = frozenset()
    line: int = 0

    @property
    def _is_compiled(self) -> bool:
        """Whether torch.compile makes kernels of this function."""
        return self.function is not None and any(name.endswith("compile") for name in self.function.decorators)

    @property
    def silent(self) -> bool:
        """Whether what is found here is not reported."""
        return self.quiet or self.cold > 0

    def report(self, kind: str, node: ast.AST, sure: Sure, **facts: str) -> None:
        """Tell that a rule is broken at a node; what waits for the device also orders what came before."""
        if kind not in {"stream", "staging"}:
            self.effect("wait", None, node)
        if not self.silent and not (kind in _COMPILED_AWAY and self._is_compiled):
            self.search.observe(self, kind, node, sure, facts)

    def effect(self, verb: str, buffer: str | None, node: ast.AST) -> None:
        """Tell of something done with staging memory."""
        if self.cold:
            return
        name = self.function.qualified if self.function else "<module>"
        line = getattr(node, "lineno", 0)
        self.effects.add(Effect(verb, buffer, self.source.name, name, line, self.branches > 0, self.arms))

    def assign(self, path: str, of: Value) -> None:
        """Give a name or a path another value; what is known of longer paths is over."""
        self.env[path] = of
        for longer in [known for known in self.env if known.startswith(f"{path}.")]:
            del self.env[longer]

    def widen(self, path: str, of: Value) -> None:
        """Let a name hold this as well."""
        self.env[path] = join(self.env.get(path, UNKNOWN), of)


def merged(first: Mapping[str, Value], second: Mapping[str, Value]) -> dict[str, Value]:
    """What names hold after either of two ways through the code."""
    return {
        path: join(first[path], second[path])
        if path in first and path in second
        else first.get(path, second.get(path, UNKNOWN))
        for path in {**first, **second}
    }
