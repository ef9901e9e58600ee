"""Queues: what was done before an item was put in happens before what is done after it was taken out."""

from __future__ import annotations

import _queue
import queue
import weakref
from typing import Any

from .edges import Channels, Edges, Parcels, called_internally
from .patching import Patches


def patch_queues(edges: Edges, patches: Patches) -> None:
    """Hand over with every item, and when all items are done with; a bounded queue also hands back its free places."""
    _patch_items(edges, patches)
    _patch_tasks(edges, patches)
    patches.set(queue, "SimpleQueue", type("SimpleQueue", (TrackedSimpleQueue,), {"_edges": edges}))


def _patch_items(edges: Edges, patches: Patches) -> None:
    stock_put, stock_get, places = queue.Queue.put, queue.Queue.get, Channels()
    parcels: weakref.WeakKeyDictionary[Any, Parcels] = weakref.WeakKeyDictionary()

    def put(self: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
        own = parcels.setdefault(self, Parcels())
        own.send(edges, item)
        try:
            stock_put(self, item, block, timeout)
        except BaseException:
            own.take_back(edges, item)
            raise
        if self.maxsize > 0:
            places.of(self).take(edges)

    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
        if self.maxsize > 0:
            places.of(self).put(edges)
        item = stock_get(self, block, timeout)
        parcels.setdefault(self, Parcels()).receive(edges, item, newest=isinstance(self, queue.LifoQueue))
        return item

    patches.update(queue.Queue, {"put": put, "get": get})


def _patch_tasks(edges: Edges, patches: Patches) -> None:
    stock_done, stock_join, channels = queue.Queue.task_done, queue.Queue.join, Channels()

    def task_done(self: Any) -> None:
        channels.of(self).put(edges)
        stock_done(self)

    def join(self: Any) -> None:
        stock_join(self)
        channels.of(self).take(edges)

    patches.update(queue.Queue, {"task_done": task_done, "join": join})


class TrackedSimpleQueue(_queue.SimpleQueue):  # type: ignore[type-arg]  # not generic at run time
    """Made in the place of ``queue.SimpleQueue``, whose methods are C and cannot be replaced."""

    _edges: Edges

    def __new__(cls) -> Any:
        """A plain queue for those whose inner workings are not told."""
        if called_internally():
            return _queue.SimpleQueue()
        made = super().__new__(cls)
        made._parcels = Parcels()
        return made

    _parcels: Parcels

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """See ``queue.SimpleQueue.put``."""
        self._parcels.send(self._edges, item)
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See ``queue.SimpleQueue.get``."""
        item = super().get(block, timeout)
        self._parcels.receive(self._edges, item, newest=False)
        return item

    def put_nowait(self, item: Any) -> None:
        """See ``queue.SimpleQueue.put_nowait``."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """See ``queue.SimpleQueue.get_nowait``."""
        return self.get(block=False)
