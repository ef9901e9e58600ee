"""Views of tracked memory that an ordinary array takes over: ``buffer[:n] = alias[:n]``.

numpy asks nobody when an ordinary array is assigned from, or indexed with, another array. But a view that was made for
one statement dies in the instruction that used it. If that instruction stores into, or takes from, a subscript, and the
view has been on the interpreter's stack all the while, as the value or as the index, then its bytes have been read.

A view that lives on (``buffer[:n] = self.alias``) dies nowhere, and is not seen.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from types import CodeType, FrameType

from ..libraries import is_library

#: Where in the stack, counted from 1 at the view, these take what is read: the view as an index is on top.
_TAKING = {"STORE_SUBSCR": (1, 3), "STORE_SLICE": (4,), "BINARY_SUBSCR": (1,)}
#: A view may have been made by a helper that returned it; more frames are not looked at.
_FRAMES = 4


class _Latest(threading.local):
    """The view that a thread has made last and not used otherwise yet.

    Attributes:
        view: its id; None if there is none.
        made: by id of each frame of the program that it was made in, innermost first: the instruction.
    """

    def __init__(self) -> None:
        self.view: int | None = None
        self.made: dict[int, int] = {}


_latest = _Latest()


def born(view: object) -> None:
    """A view has been made."""
    _latest.view, _latest.made = id(view), {}
    frame = _program_frame(sys._getframe(1))
    while frame is not None and len(_latest.made) < _FRAMES:
        _latest.made[id(frame)] = frame.f_lasti
        frame = _program_frame(frame.f_back)


def used(view: object) -> None:
    """It has been used in a way that was told."""
    if _latest.view == id(view):
        _latest.view = None


def taken_over(view: object) -> bool:
    """Whether a view that is dying has been read by the instruction that lets it die."""
    if _latest.view != id(view):
        return False
    _latest.view = None
    frame = _program_frame(sys._getframe(1))
    made = None if frame is None else _latest.made.get(id(frame))
    return frame is not None and made is not None and _reads(frame.f_code, made, frame.f_lasti)


def _program_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@functools.lru_cache(maxsize=1 << 14)
def _reads(code: CodeType, made: int, died: int) -> bool:
    """Whether what one instruction has pushed is on the stack until another takes it as value or index."""
    between = [item for item in dis.get_instructions(code) if made < item.offset <= died and item.opname != "CACHE"]
    if between and between[-1].opname in _TAKING and between[0].opname == "CALL" and _is_precall(code, made):
        del between[0]  # before Python 3.12 a call is two instructions, and the first may do the work of both
    depth = 1
    for item in between:
        if item.offset == died:
            return depth in _TAKING.get(item.opname, ())
        jumps = item.opcode in dis.hasjrel or item.opcode in dis.hasjabs
        depth += dis.stack_effect(item.opcode, item.arg, jump=False)
        if depth < 1 or jumps or item.opname.startswith(("STORE_", "POP_", "RETURN_")):
            return False
    return False


def _is_precall(code: CodeType, offset: int) -> bool:
    return any(item.offset == offset and item.opname == "PRECALL" for item in dis.get_instructions(code))
