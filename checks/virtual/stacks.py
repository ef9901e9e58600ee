"""Where in the program something was asked for, as cheap tuples.

A stack is taken for every operation, so it must cost about a microsecond: what a code object contributes is looked
up once and remembered, and only a handful of frames is kept. Frames of torch, Triton, numpy, the standard library and
this toolkit are left out: they are the same for every operation and say nothing about the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from traceback import walk_tb
from types import CodeType, FrameType
from typing import TypeAlias, TypeVar

from ..events import Stack
from ..findings import Site
from ..libraries import is_library, is_standard
from .threads import heres

#: Enough to tell two callers of one helper apart; more would only cost time.
MAX_FRAMES = 6

_Function = TypeVar("_Function", bound=Callable[..., object])
_Places: TypeAlias = dict[int, tuple[str, int, str]]

#: By id of a code object: what a frame of it contributes, by instruction. Hashing a code object would cost more than
#: all the rest, and finding the line of an instruction nearly as much.
_codes: dict[int, _Places] = {}
_alive: list[CodeType] = []  # so that no id is used twice
_HIDE: _Places = {}
#: Stands for the frame that calls the program: what is beyond it is whoever asked for the run.
_CALLER: _Places = {}


def calls_program(function: _Function) -> _Function:
    """Decorator of what calls a whole program: stacks end there, and so are the same whoever asks for the run."""
    _know(function.__code__, _CALLER)
    return function


def _know(code: CodeType, places: _Places) -> _Places:
    _alive.append(code)
    _codes[id(code)] = places
    return places


def _learn(code: CodeType) -> _Places:
    name = code.co_filename
    return _know(code, _HIDE if is_library(name) or is_standard(name) else {})


def program_stack(frames: int = MAX_FRAMES) -> Stack:
    """The innermost frames of the program under test, innermost first."""
    here = heres.here
    if here.stack is not None:
        return here.stack
    frame = sys._getframe(1) if here.frame is None else here.frame
    stack = _walk(frame, frames) or _standard_stack(frame, frames)
    if here.frame is not None and frames == MAX_FRAMES:
        here.stack = stack
    return stack


def stack_above(frame: FrameType) -> Stack:
    """The same from a frame on that is known to be none of the program's."""
    return _walk(frame, MAX_FRAMES) or _standard_stack(frame, MAX_FRAMES)


def _walk(frame: FrameType | None, frames: int) -> Stack:
    stack: list[tuple[str, int, str]] = []
    while frame is not None:
        code = frame.f_code
        places = _codes.get(id(code))
        if places is None:
            places = _learn(code)
        if places is _CALLER:
            break
        if places is not _HIDE:
            place = places.get(frame.f_lasti)
            if place is None:
                place = places[frame.f_lasti] = (code.co_filename, frame.f_lineno, code.co_qualname)
            stack.append(place)
            if len(stack) == frames:
                break
        frame = frame.f_back
    return tuple(stack)


def _standard_stack(frame: FrameType | None, frames: int) -> Stack:
    """What there is if nothing is the program's: a thread whose target is a method of a tensor."""
    stack: list[tuple[str, int, str]] = []
    while frame is not None and len(stack) < frames and _codes.get(id(frame.f_code)) is not _CALLER:
        code = frame.f_code
        if is_standard(code.co_filename):
            stack.append((code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return tuple(stack)


def whole_stack(outermost: CodeType | None) -> Stack:
    """All frames of the program under test, innermost first, out to the innermost one of some code."""
    stack: list[tuple[str, int, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (places := _places_of(frame)) is not _CALLER:
        if places is not _HIDE:
            stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        if frame.f_code is outermost:
            break
        frame = frame.f_back
    return tuple(stack)


def library_frames() -> list[FrameType]:
    """The innermost frame of the program, and those between it and the caller of this function, innermost last.

    Without the caller's own: in a variable of it that would be a cycle, which keeps the variables of all frames further
    out, the program's too, until Python collects it.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _places_of(frame) is _HIDE:
        frames.append(frame)
        frame = frame.f_back
    return [*([] if frame is None else [frame]), *frames[::-1]]


def raised_stack(error: BaseException) -> Stack:
    """The frames of the program under test that an exception came through, innermost first."""
    shown = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__) if _is_program(frame)]
    return tuple((code.co_filename, line, code.co_qualname) for code, line in shown[: -MAX_FRAMES - 1 : -1])


def _is_program(frame: FrameType) -> bool:
    places = _places_of(frame)
    return places is not _HIDE and places is not _CALLER


def _places_of(frame: FrameType) -> _Places:
    places = _codes.get(id(frame.f_code))
    return _learn(frame.f_code) if places is None else places


def sites(stack: Stack) -> tuple[Site, ...]:
    """A stack as findings carry it."""
    return tuple(Site(*frame) for frame in stack)
