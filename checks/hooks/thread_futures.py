"""Futures, executors and event loops: work is handed over when it is submitted, its result when it is there."""

from __future__ import annotations

import asyncio.base_events
import concurrent.futures
import concurrent.futures._base
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .edges import Channels, Edges
from .patching import Patches


def patch_futures(edges: Edges, patches: Patches) -> None:
    """Hand over from submitting to running, and from the result's being set to whoever sees that it is."""
    channels = Channels()
    _patch_results(edges, patches, channels)
    _patch_waiting(edges, patches, channels)
    stock_submit, stock_call = ThreadPoolExecutor.submit, asyncio.base_events.BaseEventLoop.call_soon_threadsafe

    def submit(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return stock_submit(self, _carrying(edges, function), *args, **kwargs)

    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        return stock_call(self, _carrying(edges, callback), *args, context=context)

    patches.set(ThreadPoolExecutor, "submit", submit)
    patches.set(asyncio.base_events.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)


def _carrying(edges: Edges, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes over, where it runs, what has been done here."""
    token = edges.release()

    def carried(*args: Any, **kwargs: Any) -> Any:
        edges.acquire(token)
        return function(*args, **kwargs)

    return carried


def _patch_results(edges: Edges, patches: Patches, channels: Channels) -> None:
    stock_add, stock_done = Future.add_done_callback, Future.done

    def setting(stock: Callable[..., None]) -> Callable[..., None]:
        def set_outcome(self: Any, outcome: Any) -> None:
            channels.of(self).put(edges)
            stock(self, outcome)

        return set_outcome

    def asking(stock: Callable[..., Any]) -> Callable[..., Any]:
        def outcome(self: Any, timeout: float | None = None) -> Any:
            try:
                return stock(self, timeout)
            finally:
                if stock_done(self):
                    channels.of(self).take(edges)
                # An error that is raised has this frame; the future has the error, and would keep the caller's frames.
                del self

        return outcome

    def done(self: Any) -> bool:
        over = stock_done(self)
        if over:
            channels.of(self).take(edges)
        return over

    def add_done_callback(self: Any, function: Callable[[Any], object]) -> None:
        def call(future: Any) -> object:
            channels.of(future).take(edges)
            return function(future)

        stock_add(self, call)

    patches.update(Future, {name: setting(getattr(Future, name)) for name in ("set_result", "set_exception")})
    patches.update(Future, {name: asking(getattr(Future, name)) for name in ("result", "exception")})
    patches.update(Future, {"done": done, "add_done_callback": add_done_callback})


def _patch_waiting(edges: Edges, patches: Patches, channels: Channels) -> None:
    stock_wait, stock_as_completed = concurrent.futures.wait, concurrent.futures.as_completed

    def wait(*args: Any, **kwargs: Any) -> Any:
        result = stock_wait(*args, **kwargs)
        for future in result.done:
            channels.of(future).take(edges)
        return result

    def as_completed(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for future in stock_as_completed(*args, **kwargs):
            channels.of(future).take(edges)
            yield future

    for module in (concurrent.futures, concurrent.futures._base):
        patches.update(module, {"wait": wait, "as_completed": as_completed})
