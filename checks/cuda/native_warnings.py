"""The warnings of torch's C++ code, in the thread that causes them.

A call of a Python method keeps its warnings until it returns, and hands them to Python's ``warnings``. An operator that
is called through ``torch.ops`` does not: its warnings go to the handler that C++ has for the thread, which writes to
stderr. Here is one that calls a function instead, while the call is still running and its frame is still there.

It is an object of the C++ class ``c10::WarningHandler``, made by hand: a copy of that class's table of virtual
functions with one entry exchanged. What is read of torch's library is compared with what it must be before use.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from ..errors import CheckError

_PROCESS = "_ZN3c1014WarningHandler7processERKNS_7WarningE"
_TABLE = "_ZTVN3c1014WarningHandlerE"
_SET = "_ZN3c1012WarningUtils19set_warning_handlerEPNS_14WarningHandlerE"
_GET = "_ZN3c1012WarningUtils19get_warning_handlerEv"
_MESSAGE = "_ZNK3c107Warning3msgB5cxx11Ev"
#: Of a table: distance to the top, type information, two destructors, ``process``. An object points to the third.
_WORDS, _FIRST, _PROCESS_WORD = 5, 2, 4
_WORD = ctypes.sizeof(ctypes.c_void_p)

_Process = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
#: Given the text of a warning; says whether it has dealt with it.
Listener = Callable[[str], bool]


class NativeWarningsError(CheckError):
    """This build of torch keeps its C++ warnings to itself."""


class _Library:
    """What is needed of torch's library of basic C++ classes."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        self.table = (ctypes.c_void_p * _WORDS).in_dll(library, _TABLE)
        self.set = getattr(library, _SET)
        self.get = getattr(library, _GET)
        self.message = getattr(library, _MESSAGE)
        self.set.argtypes, self.set.restype = (ctypes.c_void_p,), None
        self.get.argtypes, self.get.restype = (), ctypes.c_void_p
        self.message.argtypes, self.message.restype = (ctypes.c_void_p,), ctypes.c_void_p
        process = ctypes.cast(getattr(library, _PROCESS), ctypes.c_void_p).value
        if self.table[_PROCESS_WORD] != process:
            raise AttributeError("the table of virtual functions of c10::WarningHandler has another order")

    def text_of(self, warning: int) -> str:
        """The text of a ``c10::Warning``: a C++ string begins with its address and its length."""
        string = self.message(warning)
        address, length = (ctypes.c_size_t * 2).from_address(string)
        return ctypes.string_at(address, length).decode(errors="replace")


@functools.cache
def library() -> _Library:
    """Torch's library.

    Raises:
        NativeWarningsError: it lacks what is needed, or has it in another form.
    """
    try:
        return _Library()
    except (OSError, AttributeError, ValueError) as error:
        raise NativeWarningsError(
            f"torch {torch.__version__}",
            f"its C++ warnings must be readable ({error})",
            "waits inside of operators that are called through torch.ops warn nowhere else, and would pass unseen",
            "a build of torch for Linux of a supported version (2.11 to 2.14)",
        ) from error


class _Thread(threading.local):
    depth = 0
    previous: int | None = None


class NativeWarnings:
    """Hears the C++ warnings of those threads that ask for it.

    Args:
        listener: called in the thread that warns, inside of the call that does; what it does not deal with goes on to
            the handler that the thread had before.

    Raises:
        NativeWarningsError: this build of torch does not allow it.
    """

    def __init__(self, listener: Listener) -> None:
        self._library = library()
        self._listener: Listener | None = listener
        self._thread = _Thread()
        self._process = _Process(self._hear)
        self._table = (ctypes.c_void_p * _WORDS)(*self._library.table)
        self._table[_PROCESS_WORD] = ctypes.cast(self._process, ctypes.c_void_p).value
        self._object = ctypes.c_void_p(ctypes.addressof(self._table) + _FIRST * _WORD)
        self._address = ctypes.addressof(self._object)

    def begin(self) -> None:
        """Hear the calling thread, until :meth:`end` was called as often."""
        thread = self._thread
        if thread.depth == 0:
            thread.previous = self._library.get()
            self._library.set(self._address)
            _alive[self._address] = self  # a thread that never ends its part must not be left with a dead handler
        thread.depth += 1

    def end(self) -> None:
        """The counterpart of :meth:`begin`; nothing if the thread has not begun."""
        thread = self._thread
        if thread.depth == 0:
            return
        thread.depth -= 1
        if thread.depth == 0 and self._library.get() == self._address:
            self._library.set(thread.previous)

    def close(self) -> None:
        """Hear nobody any more; threads that have begun and not ended get their warnings as they always did."""
        while self._thread.depth:
            self.end()
        self._listener = None

    def _hear(self, this: int, warning: int) -> None:
        listener = self._listener
        if listener is None or not listener(self._library.text_of(warning)):
            self._pass_on(warning)

    def _pass_on(self, warning: int) -> None:
        previous = self._thread.previous
        if previous is not None:
            table = ctypes.c_void_p.from_address(previous).value
            assert table is not None
            process = ctypes.c_void_p.from_address(table + (_PROCESS_WORD - _FIRST) * _WORD).value
            assert process is not None
            _Process(process)(previous, warning)


_alive: dict[int, NativeWarnings] = {}
