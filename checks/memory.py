"""Regions of a program that may take only so much device memory.

    with memory_bound("logprobs", bytes=64 << 20): ...

    @memory_bound("logprobs", bytes=64 << 20)
    def logprobs(hidden): ...

What counts is what the device holds beyond what it held when the region was entered, whichever thread took it. Costs
next to nothing while nobody watches, and means nothing to ``torch.compile``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol, TypeVar

from .errors import CheckError
from .hot_path import compiling, refuse_generator, standing_in, through

Function = TypeVar("Function", bound=Callable[..., Any])


class MemoryBoundError(CheckError):
    """A bound that cannot mean what was written, or that nobody could judge."""


@dataclass(frozen=True)
class MemoryBound:
    """How much device memory a region may take.

    Attributes:
        name: of the region, as findings call it.
        bytes: beyond what is held when it is entered.
        site: ``module:function`` that is the region; empty for one in code.

    Raises:
        MemoryBoundError: the bound is no number of bytes.
    """

    name: str
    bytes: int
    site: str = ""

    def __post_init__(self) -> None:
        if type(self.bytes) is not int or self.bytes < 0:
            raise MemoryBoundError(
                f"memory bound {self.name!r}, bytes {self.bytes!r}",
                "the bound is a whole number of bytes",
                "what is taken beyond it becomes a finding",
                "bytes = 64 << 20 in code, bytes = 67108864 in TOML",
            )


class Meter(Protocol):
    """Who measures regions."""

    def opened(self, bound: MemoryBound, code: CodeType) -> object:
        """A region is entered by a function with this code; returns what ``closed`` gets."""
        ...

    def closed(self, region: object) -> None:
        """The region is left."""
        ...


_meters: list[Meter] = []
_open: ContextVar[tuple[object, ...]] = ContextVar("mrv2_memory_regions", default=())


def start_metering(meter: Meter) -> Callable[[], None]:
    """Tell a meter of the regions of all threads; returns the undo.

    Raises:
        MemoryBoundError: there is one already.
    """
    if _meters:
        raise MemoryBoundError(
            "a second watch of memory bounds",
            "only one may be open in a process",
            "each would measure the memory of the other's program",
            "close the first one, or use it",
        )
    _meters.append(meter)
    return _meters.clear


class memory_bound:  # noqa: N801 - used as a decorator and in with-statements
    """A region that may take only so much device memory.

    Args:
        name: of the region, as findings call it.
        bytes: beyond what is held when it is entered.

    Raises:
        MemoryBoundError: the bound is no number of bytes.
    """

    def __init__(self, name: str, *, bytes: int) -> None:  # noqa: A002 - what the bound is given in
        if not compiling():
            self._bound = MemoryBound(name, bytes)

    def __call__(self, function: Function) -> Function:
        """Decorate a function or coroutine function."""
        return through(function, lambda plain: bounded(self._bound, plain))  # type: ignore[no-any-return]

    def __enter__(self) -> None:
        if _meters and not compiling():
            _open.set((*_open.get(), _meters[0].opened(self._bound, sys._getframe(1).f_code)))

    def __exit__(self, *_: object) -> None:
        if not compiling() and _open.get():  # none if the watch began after the region was entered
            *outer, region = _open.get()
            _open.set(tuple(outer))
            for meter in _meters:
                meter.closed(region)


def bounded(bound: MemoryBound, function: Function) -> Function:
    """A function whose calls are a region.

    Raises:
        HotPathError: it is a generator.
    """
    remedy = "with memory_bound(...): around the part of its body that has a bound"
    refuse_generator(f"memory bound {bound.name}", function, remedy)
    code = inspect.unwrap(function).__code__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _meters or compiling():
            return function(*args, **kwargs)
        region = _meters[0].opened(bound, code)
        try:
            return function(*args, **kwargs)
        finally:
            for meter in _meters:
                meter.closed(region)

    @functools.wraps(function)
    async def await_call(*args: Any, **kwargs: Any) -> Any:
        if not _meters:
            return await function(*args, **kwargs)
        region = _meters[0].opened(bound, code)
        try:
            return await function(*args, **kwargs)
        finally:
            for meter in _meters:
                meter.closed(region)

    wrapper = await_call if inspect.iscoroutinefunction(function) else call
    return standing_in(wrapper, function)  # type: ignore[no-any-return]
