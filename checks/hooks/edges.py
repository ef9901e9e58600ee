"""Order between host threads, as tokens: what one thread has done is handed to another that has waited for it."""

from __future__ import annotations

import _thread
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from ..libraries import TOOLKIT
from .runtime import HostRuntime

Token: TypeAlias = int

#: These are built from locks and conditions of their own, of which nothing need be seen: what they mean is seen.
_INTERNAL = frozenset({"threading", "queue", "concurrent.futures._base", "concurrent.futures.thread", "logging"})

#: Of each thread: whether what it does is the toolkit's doing.
_own = _thread._local()


@contextmanager
def untold() -> Iterator[None]:
    """Scope in which what the calling thread hands over is the toolkit's doing, and told to nobody."""
    before = getattr(_own, "doing", False)
    _own.doing = True
    try:
        yield
    finally:
        _own.doing = before


class Edges:
    """Gives and takes tokens on behalf of the calling thread.

    A thread that the device has never heard of has nothing to hand over; one that is handed something becomes known.
    """

    def __init__(self, runtime: HostRuntime) -> None:
        self.runtime = runtime
        self._installed = True
        #: Never one of the locks that are told.
        self.guard = _thread.allocate_lock()

    @property
    def active(self) -> bool:
        """Whether what the calling thread does is the program's doing, and to be told.

        Objects outlive the hooks; they go on working and tell nothing. Neither does a thread that is inside of the
        device: a thread pool that an operation uses for its own work is no thread of the program. Nor what is
        :func:`untold`.
        """
        return self._installed and not self.runtime.lock._is_owned() and not getattr(_own, "doing", False)

    def close(self) -> None:
        """The hooks are gone."""
        self._installed = False

    def release(self) -> Token | None:
        """A token for all that the calling thread has done."""
        runtime = self.runtime
        if not self.active or (lane := runtime.known_host_lane()) is None:
            return None
        with runtime.lock:
            return runtime.sink.release(lane)

    def acquire(self, *tokens: Token | None) -> None:
        """What the tokens stand for happens before all that the calling thread will do."""
        given = [token for token in tokens if token is not None]
        if not self.active or not given:
            return
        runtime = self.runtime
        lane = runtime.host_lane()
        with runtime.lock:
            for token in given:
                runtime.sink.acquire(lane, token)


class Channel:
    """The latest token of each thread that has released into it."""

    def __init__(self) -> None:
        self._tokens: dict[int, Token] = {}

    def put(self, edges: Edges) -> None:
        """The calling thread hands over all that it has done."""
        token = edges.release()
        if token is not None:
            self._tokens[_thread.get_ident()] = token

    def take(self, edges: Edges) -> None:
        """The calling thread takes over what has been handed in."""
        if self._tokens:
            edges.acquire(*self._tokens.values())


class Channels:
    """A channel for each of some objects, for as long as they live."""

    def __init__(self) -> None:
        self._channels: weakref.WeakKeyDictionary[Any, Channel] = weakref.WeakKeyDictionary()

    def of(self, owner: object) -> Channel:
        """The channel of an object."""
        return self._channels.setdefault(owner, Channel())


class Parcels:
    """Tokens that travel with the items of one queue; an item is known by its identity while it is in there."""

    def __init__(self) -> None:
        self._tokens: dict[int, deque[Token | None]] = {}

    def send(self, edges: Edges, item: object) -> None:
        """The calling thread is about to put an item in."""
        token = edges.release()
        with edges.guard:
            self._tokens.setdefault(id(item), deque()).append(token)

    def take_back(self, edges: Edges, item: object) -> None:
        """The item did not go in."""
        self._pop(edges, item, newest=True)

    def receive(self, edges: Edges, item: object, *, newest: bool) -> None:
        """The calling thread has got an item; of several equal ones the oldest, or the newest."""
        edges.acquire(self._pop(edges, item, newest=newest))

    def _pop(self, edges: Edges, item: object, *, newest: bool) -> Token | None:
        with edges.guard:
            waiting = self._tokens.get(id(item))
            if not waiting:  # it was put in before the hooks were there
                return None
            token = waiting.pop() if newest else waiting.popleft()
            if not waiting:
                del self._tokens[id(item)]
            return token


def called_internally(depth: int = 2) -> bool:
    """Whether the caller, ``depth`` frames up, is one of the modules whose inner workings are not told."""
    frame = sys._getframe(depth)
    return frame.f_globals.get("__name__") in _INTERNAL or frame.f_code.co_filename.startswith(TOOLKIT)
