"""Host threads: each is a lane of its own, and what hands over from one to another is an order between them.

Seen are the start, the end and the joining of threads and timers; queues of the ``queue`` module; events, conditions,
semaphores and barriers; ``concurrent.futures``; ``asyncio`` as far as it hands work to threads and takes it back; and
locks that are made while the hooks are installed.

Not seen, so that threads which are in order through them alone are reported (false alarms):

* locks made before, or with ``_thread.allocate_lock``, whose methods are C;
* threads made with ``_thread.start_new_thread``, and those of C code;
* what only the interpreter's own lock orders: a flag that is polled, a deque or list shared without a lock;
* ``queue.SimpleQueue``, ``threading.Lock`` and functions of ``concurrent.futures`` that were imported by name before.

Seen though it promises less than it gives, so that a race can be missed: a lock orders its holders as they came in this
run; and who is handed the same object twice through one queue takes over what the first sender had done. The locks
inside of queues, futures, logging and this toolkit are not told: they would order everything with everything.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable

from .edges import Edges, Token
from .patching import Patches
from .runtime import HostRuntime
from .thread_futures import patch_futures
from .thread_locks import patch_locks
from .thread_queues import patch_queues

_installed: weakref.WeakSet[HostRuntime] = weakref.WeakSet()


def install(runtime: HostRuntime) -> Callable[[], None]:
    """Tell a device of every thread that starts from now on, and of what threads hand over; returns the undo.

    Threads, locks and queues that outlive the undo go on working and tell nothing. A second installation on one device
    changes nothing.
    """
    if runtime in _installed:
        return lambda: None
    _installed.add(runtime)
    edges, patches = Edges(runtime), Patches()
    _patch_threads(edges, patches)
    patch_queues(edges, patches)
    patch_futures(edges, patches)
    patch_locks(edges, patches)

    def undo() -> None:
        edges.close()
        patches.undo()
        _installed.discard(runtime)

    return undo


def _patch_threads(edges: Edges, patches: Patches) -> None:
    stock_start, stock_join, stock_is_alive = threading.Thread.start, threading.Thread.join, threading.Thread.is_alive
    ends: weakref.WeakKeyDictionary[threading.Thread, Token | None] = weakref.WeakKeyDictionary()

    def start(self: threading.Thread) -> None:
        if not edges.active:
            stock_start(self)
            return
        restore, on_its_lane = _run_on_a_lane(self, edges, ends)
        try:
            stock_start(self)
        except BaseException:
            restore()
            raise
        # What is forgotten once all threads know it must not be forgotten while this one is on its way.
        while not on_its_lane.acquire(timeout=1) and stock_is_alive(self):
            pass

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        stock_join(self, timeout)
        if not stock_is_alive(self):
            edges.acquire(ends.get(self))

    def is_alive(self: threading.Thread) -> bool:
        alive = stock_is_alive(self)
        if not alive:
            edges.acquire(ends.get(self))
        return alive

    patches.update(threading.Thread, {"start": start, "join": join, "is_alive": is_alive})


def _run_on_a_lane(
    thread: threading.Thread, edges: Edges, ends: weakref.WeakKeyDictionary[threading.Thread, Token | None]
) -> tuple[Callable[[], None], _thread.LockType]:
    """Let a thread do everything within a lane of its own, ordered after its start.

    ``run`` is replaced on the thread itself, since subclasses have their own.

    Returns:
        What takes that back, and a lock that is released when the lane is there.
    """
    token, patches, on_its_lane = edges.release(), Patches(), _thread.allocate_lock()
    on_its_lane.acquire()
    run = thread.run

    def run_on_a_lane() -> None:
        patches.undo()
        if not edges.active:
            on_its_lane.release()
            run()
            return
        with edges.runtime.enter_thread():
            edges.acquire(token)
            on_its_lane.release()
            try:
                run()
            finally:
                ends[thread] = edges.release()

    patches.set(thread, "run", run_on_a_lane)
    return patches.undo, on_its_lane
