"""Locks, conditions, semaphores, events and barriers: which calls hand over between threads."""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .edges import Channel, Channels, Edges, Token, called_internally
from .patching import Patches


class TrackedLock:
    """A lock whose release happens before its next acquisition; made in the place of ``threading.Lock``."""

    _edges: Edges

    def __new__(cls) -> Any:
        """A plain lock for those whose inner workings are not told."""
        return _thread.allocate_lock() if called_internally() else super().__new__(cls)

    def __init__(self) -> None:
        self._lock: Any = _thread.allocate_lock()
        self._token: Token | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See ``threading.Lock.acquire``."""
        acquired: bool = self._lock.acquire(blocking, timeout)
        if acquired:
            self._edges.acquire(self._token)
        return acquired

    def release(self) -> None:
        """See ``threading.Lock.release``."""
        self._token = self._edges.release()
        self._lock.release()

    def locked(self) -> bool:
        """See ``threading.Lock.locked``."""
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()

    def __repr__(self) -> str:
        return repr(self._lock)


class TrackedRLock(TrackedLock):
    """The same for ``threading.RLock``; only the outermost release hands over."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = _thread.RLock()
        self._depth = 0

    def __new__(cls) -> Any:
        """A plain lock for those whose inner workings are not told."""
        return _thread.RLock() if called_internally() else object.__new__(cls)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See ``threading.RLock.acquire``."""
        acquired: bool = self._lock.acquire(blocking, timeout)
        if acquired:
            self._depth += 1
            if self._depth == 1:
                self._edges.acquire(self._token)
        return acquired

    def release(self) -> None:
        """See ``threading.RLock.release``."""
        if self._lock._is_owned():
            if self._depth == 1:
                self._token = self._edges.release()
            self._depth -= 1
        self._lock.release()

    def locked(self) -> bool:
        """Whether any thread holds it."""
        return self._depth > 0

    # What a condition asks of its lock

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> tuple[Any, int]:
        self._token = self._edges.release()
        depth, self._depth = self._depth, 0
        return self._lock._release_save(), depth

    def _acquire_restore(self, state: tuple[Any, int]) -> None:
        self._lock._acquire_restore(state[0])
        self._depth = state[1]
        self._edges.acquire(self._token)

    def _recursion_count(self) -> int:
        return self._depth if self._lock._is_owned() else 0


def patch_locks(edges: Edges, patches: Patches) -> None:
    """Hand over through locks made from now on, and through all conditions, events, semaphores and barriers."""
    reentrant = type("RLock", (TrackedRLock,), {"_edges": edges})
    patches.set(threading, "Lock", type("Lock", (TrackedLock,), {"_edges": edges}))
    patches.set(threading, "RLock", reentrant)
    _patch_condition(edges, patches, reentrant)
    _patch_event(edges, patches)
    _patch_semaphores(edges, patches)
    _patch_barrier(edges, patches)


def _patch_condition(edges: Edges, patches: Patches, reentrant: type[TrackedRLock]) -> None:
    """A notification happens before the end of a wait; the lock of a condition made from now on is tracked, too."""
    stock = threading.Condition
    init, channels = stock.__init__, Channels()

    def patched_init(self: Any, lock: Any = None) -> None:
        if lock is None and not called_internally():
            lock = object.__new__(reentrant)
            lock.__init__()
        init(self, lock)

    def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            internal = called_internally()
            result = original(self, *args, **kwargs)
            if result and not internal:
                channels.of(self).take(edges)
            return result

        return wait

    def notifying(original: Callable[..., None]) -> Callable[..., None]:
        def notify(self: Any, *args: Any, **kwargs: Any) -> None:
            if not called_internally():
                channels.of(self).put(edges)
            original(self, *args, **kwargs)

        return notify

    patches.set(stock, "__init__", patched_init)
    patches.update(stock, {name: waiting(getattr(stock, name)) for name in ("wait", "wait_for")})
    patches.update(stock, {name: notifying(getattr(stock, name)) for name in ("notify", "notify_all")})


def _patch_event(edges: Edges, patches: Patches) -> None:
    """Setting an event happens before whoever sees that it is set."""
    stock = threading.Event
    stock_set, stock_wait, stock_is_set, channels = stock.set, stock.wait, stock.is_set, Channels()

    def patched_set(self: Any) -> None:
        if not called_internally():
            channels.of(self).put(edges)
        stock_set(self)

    def patched_wait(self: Any, timeout: float | None = None) -> bool:
        seen = stock_wait(self, timeout)
        if seen and not called_internally():
            channels.of(self).take(edges)
        return seen

    def patched_is_set(self: Any) -> bool:
        seen = stock_is_set(self)
        if seen and not called_internally():
            channels.of(self).take(edges)
        return seen

    patches.update(stock, {"set": patched_set, "wait": patched_wait, "is_set": patched_is_set})


def _patch_semaphores(edges: Edges, patches: Patches) -> None:
    """Releasing a semaphore happens before later acquisitions."""
    stock, channels = threading.Semaphore, Channels()
    stock_acquire = stock.acquire

    def acquire(self: Any, blocking: bool = True, timeout: float | None = None) -> bool:
        acquired = stock_acquire(self, blocking, timeout)
        if acquired and not called_internally():
            channels.of(self).take(edges)
        return acquired

    def releasing(original: Callable[..., None]) -> Callable[..., None]:
        def release(self: Any, n: int = 1) -> None:
            if not called_internally():
                channels.of(self).put(edges)
            original(self, n)

        return release

    patches.update(stock, {"acquire": acquire, "__enter__": acquire, "release": releasing(stock.release)})
    bounded = threading.BoundedSemaphore
    patches.set(bounded, "release", releasing(bounded.release))


class _Rounds:
    """The arrivals at one barrier; a round is over when as many have arrived as it waits for."""

    def __init__(self) -> None:
        self._arrived = 0
        self._round = Channel()

    def arrive(self, edges: Edges, parties: int) -> Channel:
        """The calling thread is about to wait; returns what its round hands over."""
        with edges.guard:
            if self._arrived == parties:
                self._arrived, self._round = 0, Channel()
            self._arrived += 1
            return self._round

    def restart(self, edges: Edges) -> None:
        """The round was broken."""
        with edges.guard:
            self._arrived, self._round = 0, Channel()


def _patch_barrier(edges: Edges, patches: Patches) -> None:
    """Arriving at a barrier happens before anybody of the same round leaves it."""
    stock_wait = threading.Barrier.wait
    rounds: weakref.WeakKeyDictionary[threading.Barrier, _Rounds] = weakref.WeakKeyDictionary()

    def wait(self: Any, timeout: float | None = None) -> int:
        own = rounds.setdefault(self, _Rounds())
        channel = own.arrive(edges, self.parties)
        channel.put(edges)
        try:
            index = stock_wait(self, timeout)
        except threading.BrokenBarrierError:
            own.restart(edges)
            raise
        channel.take(edges)
        return index

    patches.set(threading.Barrier, "wait", wait)
