"""CUDA graphs on a real device: a capture is written down, and each replay tells all of it again.

The tables and the bookkeeping of a capture are the virtual device's, :mod:`mrv2.checks.virtual.graphs`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..events import LaneKind, Stack
from ..hooks.patching import Patches
from ..semantics import CAPTURE_MODES
from ..virtual.graphs import Capture, Node, stale_address, sync_in_capture, unjoined_branches
from ..virtual.queues import Queue, Work
from ..virtual.stacks import program_stack

if TYPE_CHECKING:
    from .recorder_memory import Block
    from .recorder_order import Record
    from .recorder_runtime import CudaRuntime


@dataclass
class Captured:
    """What one graph replays.

    Attributes:
        capture: the finished capture.
        branches: lanes of its forks.
        end: the latest replay; two launches of one graph never overlap, whatever their streams.
        replayed_on: streams that it was launched on, by address.
    """

    capture: Capture
    branches: list[Queue]
    end: Record | None = None
    replayed_on: dict[int, Queue] = field(default_factory=dict)


class Captures:
    """The capture in progress, if there is one, and the graphs that there are.

    Args:
        runtime: the recorder.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._branches = 0
        self.current: Capture | None = None
        self.graphs: weakref.WeakKeyDictionary[Any, Captured] = weakref.WeakKeyDictionary()

    def begin(self, mode: str) -> None:
        """A capture of the current stream has begun."""
        runtime = self._runtime
        with runtime.lock:
            self.current = Capture(runtime, runtime.current_queue(), mode)

    def adopt(self, block: Block) -> None:
        """What is allocated on a stream of the capture belongs to the graph, and is handed out to nobody meanwhile."""
        runtime, capture = self._runtime, self.current
        queue = runtime.current_queue() if block.queue is None else block.queue
        if capture is not None and queue.capture is capture:
            block.graph = capture
            capture.pool.append(block)

    def end(self, graph: Any) -> None:
        """The capture is about to end; torch will refuse one with branches that were not joined."""
        runtime, capture = self._runtime, self.current
        if capture is None:
            return
        with runtime.lock:
            self.current = None
            unjoined = capture.end()
            if unjoined and not capture.lost:
                runtime.sink.report(unjoined_branches(unjoined, runtime.step))
            if not unjoined and not capture.lost:
                branches = [self._branch() for _ in capture.queues[1:]]
                found = self.graphs[graph] = Captured(capture, branches)
                weakref.finalize(graph, self._give_back, found).atexit = False

    def _branch(self) -> Queue:
        self._branches += 1
        name = f"graph branch {self._branches}"
        return Queue(-self._branches, self._runtime.sink.lane(LaneKind.GRAPH, name), name)

    def report_sync(self, name: str) -> bool:
        """Whether a wait of the calling thread meets a capture, which it breaks; it is reported."""
        capture = self.current
        if capture is None:
            return False
        if threading.get_ident() != capture.thread and not CAPTURE_MODES.get(capture.mode, True):
            return False
        capture.lost = True
        self._runtime.sink.report(sync_in_capture(name, "lost", self._runtime.step))
        return True

    def replay(self, graph: Any) -> None:
        """A graph is about to be launched on the current stream."""
        runtime, captured = self._runtime, self.graphs.get(graph)
        if captured is None:
            return
        with runtime.lock:
            queue, stack = runtime.current_queue(), program_stack()
            self._check_addresses(captured.capture, stack)
            runtime.order.follow(queue, captured.end)
            runtime.pace_before(stack)
            self._launch(captured, queue, stack)
            captured.replayed_on[queue.id] = queue
            captured.end = runtime.order.mark(queue, "graph.replay")

    def _launch(self, captured: Captured, queue: Queue, stack: Stack) -> None:
        order = self._runtime.order
        lanes = [queue, *captured.branches]
        records: dict[Node, Record] = {}
        for node in captured.capture.nodes:
            lane = lanes[node.branch]
            if node.work is not None:
                self._relaunch(node.work, lane, (*node.stack, *stack[:1]))
            elif node.record:
                records[node] = order.mark(lane, "event.record")
            elif node.waits_for is not None:
                order.hold(lane, records[node.waits_for])

    def _relaunch(self, work: Work, queue: Queue, stack: Stack) -> None:
        again = Work(
            f"graph: {work.name}", work.kind, None, work.reads, work.writes, work.possible_reads,
            work.possible_writes, work.certain, work.protected, False,
        )  # fmt: skip
        self._runtime.tell(queue, again, stack)

    def _check_addresses(self, capture: Capture, stack: Stack) -> None:
        for key, (block, node) in list(capture.external.items()):
            if block.freed:
                del capture.external[key]  # said once for each graph
                self._runtime.sink.report(stale_address(block, node, stack, self._runtime.step))

    def reset(self, graph: Any) -> None:
        """A graph forgets what it captured."""
        captured = self.graphs.pop(graph, None)
        if captured is not None:
            self._give_back(captured)

    def _give_back(self, captured: Captured) -> None:
        """The memory of a graph may be used by others, once the tensors in it are dropped as well."""
        runtime, pool = self._runtime, captured.capture.pool
        captured.capture.pool = []
        for block in pool:
            block.graph = None
            for queue in captured.replayed_on.values():
                block.record(queue)
            if block.dropped:
                runtime.memory.free(block, program_stack())


def install(runtime: CudaRuntime) -> Callable[[], None]:
    """Tell a recorder of captures and replays; returns the undo."""
    patches, captures, stock = Patches(), runtime.captures, torch.cuda.CUDAGraph

    begin, end, replay, reset = stock.capture_begin, stock.capture_end, stock.replay, stock.reset

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        with (
            _disable_current_modes()
        ):  # torch fills its generator's seed, which all graphs share: not the program's work
            begin(self, *args, **kwargs)
        captures.begin(kwargs.get("capture_error_mode", args[1] if len(args) > 1 else "global"))

    def capture_end(self: Any) -> None:
        captures.end(self)
        end(self)

    def replayed(self: Any) -> None:
        captures.replay(self)
        with _disable_current_modes():  # and again, if numbers are drawn in it
            replay(self)
        runtime.pace_after()

    def forgotten(self: Any) -> None:
        captures.reset(self)
        reset(self)

    patches.update(
        stock, {"capture_begin": capture_begin, "capture_end": capture_end, "replay": replayed, "reset": forgotten}
    )
    return patches.undo
