"""Where in the program something was asked for, as cheap tuples.

A stack is taken for every operation, so it must cost about a microsecond: what a code object contributes is looked
up once and remembered, and only a handful of frames is kept. Frames of torch, Triton and this toolkit are left out:
they are the same for every operation and say nothing about the program.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import TypeVar

import torch

from ..events import Stack
from ..findings import Site

#: Enough to tell two callers of one helper apart; more would only cost time.
MAX_FRAMES = 6

_TOOLKIT = Path(__file__).resolve().parents[1]
_LIBRARIES = (contextlib.__file__, weakref.__file__)
_HIDDEN = (f"{_TOOLKIT}/", f"{Path(torch.__file__).parent}/", "/triton/", *_LIBRARIES, "<frozen ", "<__array")
_places: dict[CodeType, tuple[str, str] | None] = {}
#: Stands for the frame that calls the program: what is beyond it is whoever asked for the run.
_CALLER = ("", "")
_Function = TypeVar("_Function", bound=Callable[..., object])


def calls_program(function: _Function) -> _Function:
    """Decorator of what calls a whole program: stacks end there, and so are the same whoever asks for the run."""
    _places[function.__code__] = _CALLER
    return function


def _place(code: CodeType) -> tuple[str, str] | None:
    """File and function of a code object, or None if its frames are hidden."""
    name = code.co_filename
    hidden = name.startswith(_HIDDEN) or "/triton/" in name
    place = _places[code] = None if hidden else (name, code.co_qualname)
    return place


def program_stack() -> Stack:
    """The innermost frames of the program under test, innermost first."""
    frame = sys._getframe(1)
    stack: list[tuple[str, int, str]] = []
    places = _places
    while frame is not None:
        code = frame.f_code
        try:
            place = places[code]
        except KeyError:
            place = _place(code)
        if place is _CALLER:
            break
        if place is not None:
            stack.append((place[0], frame.f_lineno, place[1]))
            if len(stack) == MAX_FRAMES:
                break
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(stack)


def sites(stack: Stack) -> tuple[Site, ...]:
    """A stack as findings carry it."""
    return tuple(Site(*frame) for frame in stack)
