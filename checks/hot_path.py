"""Hot paths: the parts of a program in which the host must not wait for the device; and the waits allowed in them.

A hot path is usually named from outside (``[tool.mrv2] hot_paths``), so that the program under test needs no change and
imports nothing of ours. For those who prefer code there are a decorator and two context managers:

    @hot_path                                   # or @hot_path("decode step")
    def execute(self, step): ...

    with hot_path("decode step"): ...

    with allow_sync("MRV101", "the finish check reads one flag", budget=1): ...

All three cost next to nothing while nobody watches, and mean nothing to ``torch.compile``: they break no graph, if they
are made in the with-statement, for no context manager from outside can be traced. Which region is entered belongs to
the thread, and to the asyncio task; a thread or a task that is started in a hot path is not in it, unless it enters one
itself.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol, TypeVar, overload

from .codes import CODES
from .errors import CheckError

#: Findings that say something of an allowance are allowed by nobody.
_ALLOWED = tuple(code for code in CODES if code.startswith("MRV1") and code not in ("MRV121", "MRV122", "MRV123"))

Function = TypeVar("Function", bound=Callable[..., Any])


class HotPathError(CheckError):
    """A hot path or an allowance that cannot mean what was written."""


@dataclass(frozen=True)
class Allowance:
    """A wait that is accepted, and why.

    Attributes:
        code: of the findings that it covers, e.g. ``"MRV101"``.
        reason: why the wait is right; never empty.
        site: ``module:function`` in which it is allowed, callees included; empty for the body of ``allow_sync``.
        owner: who answers for it.
        budget: how many such waits one entry of the hot path may do; None for any number.

    Raises:
        HotPathError: the reason is missing, the code is no code of a wait, or the budget is no number.
    """

    code: str
    reason: str
    site: str = ""
    owner: str = ""
    budget: int | None = None

    def __post_init__(self) -> None:
        subject = f"allowance of {self.code!r}" + (f" at {self.site}" if self.site else "")
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise HotPathError(
                subject,
                "it must give a reason",
                "a year from now nobody could tell an accepted wait from a forgotten one",
                "a sentence: reason = 'the finish check reads one flag; see ticket 12'",
            )
        if self.code not in _ALLOWED:
            close = difflib.get_close_matches(str(self.code), _ALLOWED, n=2)
            raise HotPathError(
                subject,
                f"its code must be one of MRV1xx: {', '.join(_ALLOWED)}",
                "only waits can be allowed in a hot path; other findings go into a baseline",
                f"code = '{close[0] if close else 'MRV101'}', or whichever the finding shows",
            )
        if self.budget is not None and (type(self.budget) is not int or self.budget < 0):
            raise HotPathError(
                f"{subject}, budget {self.budget!r}",
                "the budget is a whole number of waits for one entry of the hot path",
                "what is used more often than that becomes a finding",
                "budget = 1, or no budget at all",
            )


@dataclass(eq=False)
class Entry:
    """One entry of a hot path by one thread or task, open until it is left.

    Attributes:
        name: of the hot path.
        number: how many entries of it there were before.
        owner: what entered it: thread and task; what they start is not in it.
        code: of the function that entered it; stacks of findings end there.
        used: how often each allowance was used in it.
    """

    name: str
    number: int
    owner: object
    code: CodeType | None = None
    used: Counter[Allowance] = field(default_factory=Counter)


class Watcher(Protocol):
    """Who wants to know of entries."""

    def entered(self, name: str) -> int:
        """A hot path is entered; returns how often it had been entered before."""
        ...

    def left(self, name: str) -> None:
        """A hot path is left, by the thread that entered it."""
        ...

    def allowing(self, allowance: Allowance) -> None:
        """The body of an ``allow_sync`` begins."""
        ...


_watchers: list[Watcher] = []
_entries: ContextVar[tuple[Entry, ...]] = ContextVar("mrv2_hot_paths", default=())
#: The entries that the calling context has, those that it inherited too: cheap enough to be asked before each call.
open_entries: Callable[[], tuple[Entry, ...]] = _entries.get
_allowed: ContextVar[tuple[tuple[object, Allowance], ...]] = ContextVar("mrv2_allowances", default=())


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Within this scope, in all threads, entries are told to the watcher.

    Raises:
        HotPathError: somebody watches already.
    """
    if _watchers:
        raise HotPathError(
            "a second watch of the hot paths",
            "only one may be open in a process",
            "each would count the waits of the other's program",
            "close the first one, or use it",
        )
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def current_entry() -> Entry | None:
    """The innermost hot path that the calling thread or task is in."""
    entries = _entries.get()
    return entries[-1] if entries and entries[-1].owner is _owner() else None


def current_allowances() -> tuple[Allowance, ...]:
    """What ``allow_sync`` allows here, innermost last."""
    owner = _owner()
    return tuple(allowance for holder, allowance in _allowed.get() if holder is owner)


def _entering_code() -> CodeType:
    """Of the function with the ``with`` statement, or of the wrapper of a decorated one."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def _owner() -> object:
    """What runs: a task of asyncio, or else a thread. New tasks inherit the context, but are not in the hot path."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            task = asyncio.current_task()
            if task is not None:
                return task
    return threading.current_thread()


@overload
def hot_path(name: Function) -> Function: ...
@overload
def hot_path(name: str) -> Region: ...
def hot_path(name: Any) -> Any:
    """A hot path, as decorator of a function or coroutine function, or as context manager.

    Args:
        name: what findings call it; of a decorated function by default its module and name.

    Raises:
        HotPathError: what is decorated is no function, or a generator, which is left and entered again at every item;
            or the name is empty.
    """
    if isinstance(name, str) and name.strip():
        return Region(name)
    return through(name, lambda function: in_hot_path(_named_after(function), function))


def _named_after(function: Any) -> str:
    """Module and name of what is decorated.

    Raises:
        HotPathError: it is no function.
    """
    _require_function("hot_path", function)
    return f"{function.__module__}:{function.__qualname__}"


def _require_function(decorator: str, function: Any) -> None:
    if isinstance(function, type) or not callable(function) or not hasattr(function, "__qualname__"):
        raise HotPathError(
            f"{decorator} of {function!r}",
            "it must be a function or a method, or a name that is not empty",
            "other objects have no body that could be entered",
            f"@{decorator} over a def, or with {decorator}(...): around some lines",
        )


def through(value: Any, wrap: Callable[[Any], Any]) -> Any:
    """Wrap a function, also one behind a static method, a class method or a property, which stays what it is."""
    if isinstance(value, staticmethod | classmethod):
        return type(value)(wrap(value.__func__))
    if isinstance(value, property):
        return property(wrap(value.fget), value.fset, value.fdel, value.__doc__)
    return wrap(value)


def standing_in(wrapper: Any, function: Any) -> Any:
    """A wrapper with all that a program may ask the function for, such as ``cache_clear`` of a cached one."""
    if not isinstance(function, FunctionType):
        for name in set(dir(function)) - set(dir(wrapper)):
            if not name.startswith("__"):
                setattr(wrapper, name, getattr(function, name))
    return wrapper


def refuse_generator(subject: str, function: Any, remedy: str) -> None:
    """A generator is left at every item, so that its calls are no region.

    Raises:
        HotPathError: it is one.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HotPathError(
            subject,
            "it must be a function or a coroutine function, and it is a generator",
            "a generator is left at every item, and its body does not run while it is called",
            remedy,
        )


class Region:
    """A hot path by name; one object may be entered many times, nested, and by several threads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, function: Function) -> Function:
        """Decorate a function."""
        _require_function("hot_path", getattr(function, "__func__", getattr(function, "fget", function)))
        return through(function, lambda plain: in_hot_path(self._name, plain))  # type: ignore[no-any-return]

    def __enter__(self) -> None:
        if _watchers and not compiling():
            entries = _entries.get()
            number = _watchers[0].entered(self._name)
            _entries.set((*entries, Entry(self._name, number, _owner(), _entering_code())))

    def __exit__(self, *_: object) -> None:
        if compiling():
            return
        entries, owner = _entries.get(), _owner()
        for index in reversed(range(len(entries))):
            # None is found if the watch began after this region was entered.
            if entries[index].name == self._name and entries[index].owner is owner:
                _entries.set(entries[:index] + entries[index + 1 :])
                for watcher in _watchers:
                    watcher.left(self._name)
                break


def in_hot_path(name: str, function: Function) -> Function:
    """A function whose calls are entries of a hot path.

    Raises:
        HotPathError: it is a generator.
    """
    remedy = "with hot_path(...): around the part of its body that must not wait"
    refuse_generator(f"hot path {name}", function, remedy)
    region = Region(name)

    def enter(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return function(*args, **kwargs)
        with region:
            return function(*args, **kwargs)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return enter(*args, **kwargs) if _watchers else function(*args, **kwargs)

    @functools.wraps(function)
    async def await_call(*args: Any, **kwargs: Any) -> Any:
        with region:
            return await function(*args, **kwargs)

    if isinstance(function, FunctionType) and not inspect.iscoroutinefunction(function):
        return _with_its_parameters(function, enter)  # type: ignore[return-value]
    wrapper = await_call if inspect.iscoroutinefunction(function) else call
    return standing_in(wrapper, function)  # type: ignore[no-any-return]


def _with_its_parameters(function: FunctionType, enter: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that takes what the function takes: to pass ``*args, **kwargs`` on costs twice as much, watched or not.

    Its code claims to be of this file, so that stacks leave it out as they do the rest of the toolkit.
    """
    taken, passed = _parameters(function.__code__)
    names = [_unlike(name, function.__code__.co_varnames) for name in ("function", "enter", "watchers")]
    plain, entering, watching = names
    source = (
        "\n" * (_with_its_parameters.__code__.co_firstlineno - 1) + f"def make({', '.join(names)}):\n"
        f" def call({taken}):\n"
        f"  return {entering}({passed}) if {watching} else {plain}({passed})\n"
        " return call\n"
    )
    made: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), globals(), made)  # noqa: S102 - the names of parameters, and nothing else
    wrapper = made["make"](function, enter, _watchers)
    wrapper.__defaults__, wrapper.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return functools.wraps(function)(wrapper)


def _parameters(code: CodeType) -> tuple[str, str]:
    """How a function with such code is defined and called, without defaults."""
    names = iter(code.co_varnames)
    positional = list(itertools.islice(names, code.co_argcount))
    keywords = list(itertools.islice(names, code.co_kwonlyargcount))
    rest = [f"*{next(names)}"] if code.co_flags & inspect.CO_VARARGS else []
    others = [f"**{next(names)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    only = code.co_posonlyargcount
    bar = ["/"] if only else []
    star = rest or (["*"] if keywords else [])
    taken = [*positional[:only], *bar, *positional[only:], *star, *keywords, *others]
    passed = [*positional, *rest, *(f"{name}={name}" for name in keywords), *others]
    return ", ".join(taken), ", ".join(passed)


def _unlike(name: str, others: Sequence[str]) -> str:
    while name in others:
        name += "_"
    return name


class allow_sync:  # noqa: N801 - used as a decorator and in with-statements
    """Waits of one kind are accepted in this body, for a reason.

    Args:
        code: of the findings, e.g. ``"MRV101"``.
        reason: why the wait is right.
        owner: who answers for it.
        budget: how many one entry of the hot path may do; None for any number.

    Raises:
        HotPathError: the reason is missing, or the code is none of a wait.
    """

    def __init__(self, code: str, reason: str, *, owner: str = "", budget: int | None = None) -> None:
        if compiling():  # neither the frame nor the object outlives the tracing
            return
        frame = sys._getframe(1)
        site = f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}"
        self._allowance = Allowance(code, reason, site, owner, budget)

    def __call__(self, function: Function) -> Function:
        """Decorate a function or coroutine function.

        Raises:
            HotPathError: it is a generator, or no function.
        """
        _require_function("allow_sync", getattr(function, "__func__", getattr(function, "fget", function)))
        return through(function, self._allowing)  # type: ignore[no-any-return]

    def _allowing(self, function: Any) -> Any:
        remedy = "with allow_sync(...): around the part of its body that may wait"
        refuse_generator(f"allowance of {self._allowance.code} for {function.__qualname__}", function, remedy)

        @functools.wraps(function)
        def allowed(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def allowed_wait(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return standing_in(allowed_wait if inspect.iscoroutinefunction(function) else allowed, function)

    def __enter__(self) -> None:
        if not compiling():
            _allowed.set((*_allowed.get(), (_owner(), self._allowance)))
            for watcher in _watchers:
                watcher.allowing(self._allowance)

    def __exit__(self, *_: object) -> None:
        if compiling():
            return
        held = _allowed.get()
        for index in reversed(range(len(held))):  # a generator may be over in the body of another allowance
            if held[index][1] is self._allowance:
                _allowed.set(held[:index] + held[index + 1 :])
                break


def compiling() -> bool:
    """Whether ``torch.compile`` is tracing: then regions mean nothing, and must not break the graph."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())
