"""CUDA graphs: capture writes operations down instead of enqueuing them, a replay enqueues them all.

Each branch of a capture gets a lane of its own, so that races inside a graph are seen as well as those between a
replay and its surroundings. Two launches of one graph never overlap, whatever their streams: the hardware serialises
them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..events import LaneKind, Stack
from ..findings import Finding, Soundness, Verdict
from ..semantics import CAPTURE_CALLS, CAPTURE_MODES, CaptureCall, InCapture
from .errors import StaleObjectError, VirtualDeviceError
from .queues import PendingOperation, Queue, Work
from .schedules import Reason
from .stacks import program_stack, sites

if TYPE_CHECKING:
    from .memory import Block
    from .order import Record
    from .runtime import Runtime
    from .streams import GenericEvent

_LOST = "CUDA error: operation failed due to a previous error during capture"
_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_UNPINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


@dataclass(eq=False)
class Node:
    """One step of a capture, on one of its branches.

    It is work to enqueue, a record to make, a wait for a captured record, or something to do at each replay with an
    external event.
    """

    branch: int
    stack: Stack
    work: Work | None = None
    record: bool = False
    waits_for: Node | None = None
    external: tuple[str, GenericEvent] | None = None
    #: For each branch, how many of its nodes come before this one.
    past: dict[int, int] = field(default_factory=dict)


class Finder(Protocol):
    """Knows the memory of a device."""

    def find_block(self, address: int) -> Any:
        """The block that an address lies in, or None."""
        ...


class Capturable(Protocol):
    """A record of an event, which may have been made in a capture."""

    @property
    def node(self) -> Node | None:
        """Its place in the capture."""
        ...


class Capture:
    """A capture in progress, and then what it captured; its blocks are those of the device that it is on."""

    def __init__(self, runtime: Finder, root: Queue, mode: str) -> None:
        self.runtime = runtime
        self.mode = mode
        self.thread = threading.get_ident()
        self.nodes: list[Node] = []
        self.queues: list[Queue] = [root]
        self.pool: list[Any] = []
        self.external: dict[int, tuple[Any, Node]] = {}
        self.lost = False
        self.over = False
        self._past: list[dict[int, int]] = [{}]
        root.capture = self

    def add(self, queue: Queue, work: Work) -> PendingOperation:
        """Write work down; what is returned stands for an operation that nobody may wait for."""
        node = self._node(queue, work=work)
        past = self._past[node.branch]
        past[node.branch] = past.get(node.branch, 0) + 1
        find = self.runtime.find_block
        blocks = [*work.blocks]
        for ranges in (work.reads, work.writes, work.possible_reads, work.possible_writes):
            blocks += [block for low, _ in ranges if (block := find(low)) is not None]
        for block in blocks:
            if block.graph is not self:
                self.external.setdefault(id(block), (block, node))
        placeholder = PendingOperation(-1, work.name, None, queue, node.stack)
        placeholder.done = True
        return placeholder

    def add_record(self, queue: Queue) -> Node:
        """Write an event record down."""
        node = self._node(queue, record=True)
        node.past = dict(self._past[node.branch])
        return node

    def add_wait(self, queue: Queue, record: Capturable) -> None:
        """A stream waits for a captured record; a stream outside is drawn into the capture by it."""
        node = record.node
        assert node is not None
        if queue.capture is None:
            queue.capture = self
            self.queues.append(queue)
            self._past.append({})
        waiter = self._node(queue, waits_for=node)
        past = self._past[waiter.branch]
        for branch, count in node.past.items():
            past[branch] = max(past.get(branch, 0), count)

    def add_external(self, queue: Queue, verb: str, event: GenericEvent) -> None:
        """An external event is recorded or waited for at each replay."""
        self._node(queue, external=(verb, event))

    def _node(self, queue: Queue, **what: Any) -> Node:
        if self.lost:
            raise RuntimeError(_LOST)
        node = Node(self.queues.index(queue), program_stack(), **what)
        self.nodes.append(node)
        return node

    def meets(self, call: CaptureCall) -> None:
        """A call was made that a capture does not take; the caller raises."""
        self.lost |= CAPTURE_CALLS[call] is InCapture.FATAL

    def end(self) -> list[Queue]:
        """Release the streams; returns those with work that the first one did not wait for."""
        self.over = True
        for queue in self.queues:
            queue.capture = None
        joined = self._past[0]
        return [
            self.queues[branch]
            for branch in range(1, len(self.queues))
            if joined.get(branch, 0) < self._past[branch].get(branch, 0)
        ]


class Captures:
    """The capture in progress on a device, if there is one, and what must not be done meanwhile."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.current: Capture | None = None

    def begin(self, queue: Queue, mode: str) -> Capture:
        """Start a capture from a stream.

        Raises:
            VirtualDeviceError: one is in progress.
        """
        if self.current is not None:
            raise VirtualDeviceError(
                "capture inside a capture",
                "one capture is in progress at a time",
                "CUDA ends the process for a second one on the same stream",
                "end the first capture before the next one begins",
            )
        self.current = Capture(self._runtime, queue, mode)
        return self.current

    def end(self) -> Capture:
        """Finish the capture.

        Raises:
            RuntimeError: it was lost, or a branch was not joined.
        """
        capture = self.current
        if capture is None:
            raise RuntimeError("CUDA error: operation not permitted: no capture is in progress")
        self.current = None
        unjoined = capture.end()
        if capture.lost or unjoined:
            self._runtime.generators.broken = True
            if capture.lost:
                raise RuntimeError(_LOST)
            self._runtime.sink.report(unjoined_branches(unjoined, self._runtime.step))
            raise RuntimeError("CUDA error: capturing stream has unjoined work")
        self._runtime.generators.broken = False
        return capture

    def refuse_wait(self, name: str, *, whole_device: bool = False) -> None:
        """A call that would make the host wait, or ask how far the device is.

        Raises:
            RuntimeError: it is not permitted now; the capture is lost.
        """
        capture = self.current
        if capture is None:
            return
        other_thread = threading.get_ident() != capture.thread
        if other_thread and not whole_device and not CAPTURE_MODES[capture.mode]:
            return
        self._refuse(capture, name, CAPTURE_CALLS[CaptureCall.WAIT])

    def refuse(self, queue: Queue, name: str, verdict: InCapture) -> None:
        """A call that cannot be captured, on a stream that may be in a capture.

        Raises:
            RuntimeError: the stream is being captured.
        """
        if queue.capture is not None:
            self._refuse(queue.capture, name, verdict)

    def _refuse(self, capture: Capture, name: str, verdict: InCapture) -> NoReturn:
        capture.lost |= verdict is InCapture.FATAL
        finding = sync_in_capture(name, "lost" if capture.lost else "goes on", self._runtime.step)
        self._runtime.sink.report(finding)
        raise RuntimeError(f"{_NOT_PERMITTED} ({name})" if capture.lost else _UNPINNED)


def sync_in_capture(name: str, capture: str, step: int | None) -> Finding:
    """A call made the host wait during a capture, which is lost by it or goes on."""
    return Finding(
        code="MRV502",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"{name} makes the host wait during a graph capture",
        where=sites(program_stack()),
        evidence={"call": name, "capture": capture},
        remedy="move it out of the capture, or use pinned memory and non_blocking=True",
        step=step,
    )


def unjoined_branches(queues: Sequence[Queue], step: int | None) -> Finding:
    """A capture ended though its first stream did not wait for these."""
    names = [queue.name for queue in queues]
    return Finding(
        code="MRV503",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"{len(names)} branch{'es' if len(names) > 1 else ''} not joined at the end of a graph capture",
        where=sites(program_stack()),
        evidence={"streams": names},
        remedy="let the capturing stream wait for each stream that it forked: main.wait_stream(side)",
        step=step,
    )


class CUDAGraph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        from .streams import active_runtime

        self._runtime = active_runtime("a graph")
        self._capture: Capture | None = None
        self._branches: list[Queue] = []
        self._end: Record | None = None
        self._replayed_on: dict[int, Queue] = {}

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Capture what the current stream is given from now on."""
        runtime = self._open_device()
        with runtime.lock:
            runtime.memory.settle()
            runtime.captures.begin(runtime.current_queue(), capture_error_mode)

    def capture_end(self) -> None:
        """Finish the capture.

        Raises:
            RuntimeError: it was lost, or a branch was not joined.
        """
        runtime = self._open_device()
        with runtime.lock:
            runtime.memory.settle()
            self._capture = runtime.captures.end()
            count = len(self._capture.queues) - 1
            names = [f"graph branch {index + 1}" for index in range(count)]
            self._branches = [runtime.streams.new_queue(name, LaneKind.GRAPH) for name in names]

    def replay(self) -> None:
        """Enqueue all that was captured, on the current stream, as one launch."""
        runtime, capture = self._open_device(), self._capture
        if capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        with runtime.lock:
            runtime.memory.settle()
            queue = runtime.current_queue()
            if queue.capture is not None:
                queue.capture.meets(CaptureCall.REPLAY)
                raise RuntimeError(f"{_NOT_PERMITTED} (replay of another graph)")
            stack = program_stack()
            self._check_addresses(capture, stack)
            runtime.order.follow(queue, self._end)
            self._launch(capture, queue, stack)
            self._replayed_on[queue.id] = queue
            self._end = runtime.order.record(queue, "graph.replay")
            runtime.progress(Reason.ENQUEUE)

    def _open_device(self) -> Runtime:
        if not self._runtime.active:
            raise StaleObjectError("graph")
        return self._runtime

    def _launch(self, capture: Capture, queue: Queue, stack: Stack) -> None:
        runtime = self._runtime
        lanes = [queue, *self._branches]
        records: dict[Node, Record] = {}
        entries = 1
        for node in capture.nodes:
            lane = lanes[node.branch]
            if node.work is not None:
                runtime.relaunch(node.work, lane, (*node.stack, *stack[:1]), entries=entries)
                entries = 0
            elif node.record:
                records[node] = runtime.order.record(lane, "event.record")
            elif node.waits_for is not None:
                runtime.order.wait(lane, records[node.waits_for])
            elif node.external is not None:
                verb, event = node.external
                event.replay(verb, lane)

    def _check_addresses(self, capture: Capture, stack: Stack) -> None:
        for key, (block, node) in list(capture.external.items()):
            if block.freed:
                del capture.external[key]  # said once for each graph
                self._runtime.sink.report(stale_address(block, node, stack, self._runtime.step))

    def reset(self) -> None:
        """Forget the capture and give its memory back, once the tensors in it are dropped as well."""
        if self._runtime.active:
            with self._runtime.lock:
                self._give_back()

    def _give_back(self) -> None:
        capture, self._capture = self._capture, None
        if capture is None:
            return
        memory = self._runtime.memory
        for block in capture.pool:
            block.graph = None
            for queue in self._replayed_on.values():
                block.record(queue)
            if block.dropped:
                memory.free(block, self._runtime.host_lane(), program_stack())
        for branch in self._branches:
            self._runtime.streams.end_queue(branch)
        self._branches = []

    def __del__(self) -> None:
        runtime = getattr(self, "_runtime", None)
        if runtime is not None and runtime.active and self._capture is not None:
            runtime.memory.later(_Remains(self))

    def instantiate(self) -> None:
        """Nothing to do: a captured graph can be replayed."""
        self._open_device()

    def pool(self) -> tuple[int, int]:
        """A handle for the graph's memory; pools are not shared here."""
        self._open_device()
        return (0, id(self) & 0xFFFF)

    def enable_debug_mode(self) -> None:
        """Nothing to keep: nothing is thrown away."""

    def debug_dump(self, debug_path: str) -> None:
        """Nothing is written."""


class _Remains:
    """What is left of a dropped graph, given back at the next call into the device."""

    def __init__(self, graph: CUDAGraph) -> None:
        self._graph = CUDAGraph.__new__(CUDAGraph)
        self._graph.__dict__.update(graph.__dict__)

    def __call__(self) -> None:
        self._graph._give_back()


def stale_address(block: Any, node: Node, stack: Stack, step: int | None) -> Finding:
    """A replay, asked for at ``stack``, of work on a block that was freed since the capture."""
    assert node.work is not None
    memory = {"space": block.space.value, "size": block.size, "label": block.label}
    return Finding(
        code="MRV501",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"a graph replays {node.work.name!r} on {block.space.value} that was freed after the capture",
        where=sites(stack),
        other=sites(node.stack),
        allocation=sites(block.stack),
        evidence={"operation": node.work.name, "block": memory, "bytes": _touched(block, node.work)},
        remedy="keep a reference to every input of a captured graph for as long as the graph is replayed",
        step=step,
    )


def _touched(block: Block, work: Work) -> list[int]:
    """The bytes of a block that an operation touches, as far as it was known before it ran; or else all of them."""
    told = (*work.reads, *work.writes, *work.possible_reads, *work.possible_writes)
    inside = [(low, high) for low, high in told if block.base <= low < block.end]
    if not inside:
        return [0, block.size]
    return [min(low for low, _ in inside) - block.base, max(high for _, high in inside) - block.base]


class graph:  # noqa: N801 - torch's name
    """``torch.cuda.graph``: waits for the device, then captures what its block gives to a side stream."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        **_: Any,
    ) -> None:
        from .streams import active_runtime, queue_of

        self._runtime = active_runtime("a graph")
        self.cuda_graph = cuda_graph
        self._mode = capture_error_mode
        self._queue = self._runtime.streams.capture_queue() if stream is None else queue_of(stream)

    def __enter__(self) -> None:
        self._runtime.order.synchronize_device("torch.cuda.graph")
        self._outer = self._runtime.current_queue()
        self._runtime.set_current_queue(self._queue)
        self.cuda_graph.capture_begin(capture_error_mode=self._mode)

    def __exit__(self, *_: object) -> None:
        try:
            self.cuda_graph.capture_end()
        finally:
            self._runtime.set_current_queue(self._outer)
