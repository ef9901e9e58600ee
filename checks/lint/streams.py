"""Rule MRV130: work on a side stream, and the order against the stream that made its inputs.

Looked at within one function: what a name holds was made on the stream that was current then. A wait of a stream
(``wait_stream``, ``wait_event``, ``event.wait``) makes everything that was made before visible to it; so does a wait of
the host. Waits inside of a function that is called count too, as do those of the callers before the call.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .symbols import dotted_name
from .values import Place, Sure, Value, tensors

if TYPE_CHECKING:
    from .frame import Frame

#: The stream that was current when the function was entered.
OUTER = "the current stream"


@dataclass
class StreamState:
    """What one function knows of streams.

    Attributes:
        current: the stream that work goes to, as written in the code.
        aliases: names of the outer stream.
        made: for a name, the stream on which its value was made.
        visible: pairs of a stream and a name whose value it may use.
        waited: streams that have waited for something.
    """

    current: str = OUTER
    aliases: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    visible: set[tuple[str, str]] = field(default_factory=set)
    waited: set[str] = field(default_factory=set)

    def token(self, node: ast.AST | None) -> str | None:
        """The stream that an expression means; ``None`` if it has no name."""
        if node is None:
            return None
        if isinstance(node, ast.Call) and (dotted_name(node.func) or "").endswith(("current_stream", "default_stream")):
            return self.current if str(dotted_name(node.func)).endswith("current_stream") else OUTER
        name = dotted_name(node)
        return self.aliases.get(name, name) if name else None

    def assigned(self, path: str, node: ast.AST, of: Value) -> None:
        """A name got a value: a stream's other name, or the result of work on the current stream."""
        if isinstance(node, ast.Call) and (dotted_name(node.func) or "").endswith(("current_stream", "default_stream")):
            self.aliases[path] = self.token(node) or OUTER
            return
        source = dotted_name(node)
        if source is not None:
            self._copied(path, source)
        elif any(tensor.place is Place.DEVICE for tensor in tensors(of)):
            self.made[path] = self.current
            self.visible = {pair for pair in self.visible if pair[1] != path}
        else:
            self.made.pop(path, None)

    def _copied(self, path: str, source: str) -> None:
        """Another name for the same value."""
        if source in self.made:
            self.made[path] = self.made[source]
            self.visible |= {(stream, path) for stream, name in self.visible if name == source}
        else:
            self.made.pop(path, None)

    def waits(self, stream: str | None, on: str | None = None) -> None:
        """A stream waits for another one (``None``: for any, or nobody knows which)."""
        if stream is None:
            self.everybody_waits()
            return
        self.waited.add(stream)
        self.visible |= {(stream, name) for name, made in self.made.items() if on is None or made == on}

    def everybody_waits(self) -> None:
        """The host waited, or something unknown may have ordered the streams."""
        streams = {self.current, OUTER, *self.made.values(), *self.waited}
        self.visible |= {(stream, name) for stream in streams for name in self.made}
        self.waited.add("*")


def used(frame: Frame, node: ast.AST, of: Value) -> None:
    """Work on the current stream uses the value of a node: report it if nothing orders it after what made it."""
    path = dotted_name(node)
    state = frame.streams
    made = state.made.get(path) if path else None
    if path is None or made is None or made == state.current or (state.current, path) in state.visible:
        return
    if not any(tensor.place is Place.DEVICE for tensor in tensors(of)):
        return
    if state.current != OUTER and _callers_waited(frame, state.current):
        return
    state.visible.add((state.current, path))  # one report for each value
    frame.report("stream", node, Sure.LIKELY, stream=state.current, made=made, name=path)


def _callers_waited(frame: Frame, stream: str) -> bool:
    """Whether a function that led here let a stream of this name wait before the call."""
    last = stream.rpartition(".")[2]
    for caller in frame.search.callers():
        if any(one == "*" or one.rpartition(".")[2] == last for one in caller.streams.waited):
            return True
    return False
