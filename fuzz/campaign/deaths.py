"""Cases that end the process in which they run: by a signal, by ``os._exit``, or for want of memory."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress

_SIGNALS_OF_CRASHES = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
)  # fmt: skip
_DEATH = re.compile(r"crash (SIG[A-Z0-9]+|exit \d+)")


def death_by(code: int) -> str:
    """Signature of a case that ended its process.

    Args:
        code: exit code, or a signal's number below zero.
    """
    return f"crash {_ending(code)}"


def told(code: int, case: int) -> str:
    """The same in words.

    Args:
        case: number of the case in its process.
    """
    return f"the process died in case {case}, with {_ending(code)}"


def is_death(signature: str) -> bool:
    """Whether a case with this signature can only be run in a process of its own."""
    return _DEATH.fullmatch(signature) is not None


def _ending(code: int) -> str:
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def death_of(run: Callable[[], object]) -> str | None:
    """Run something in a copy of this process.

    Returns:
        the signature of its death; None if it came to its end there, whatever it raised.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with warnings.catch_warnings():
        # Threads of torch would be missing in the copy; with one core a worker there are none that work.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _die_quietly()
        with suppress(BaseException):
            run()
        os.write(writer, b"1")
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    try:
        came_to_its_end = os.read(reader, 1) == b"1"
    except BlockingIOError:  # processes that it started live on
        came_to_its_end = False
    os.close(reader)
    return None if came_to_its_end else death_by(os.waitstatus_to_exitcode(status))


def _die_quietly() -> None:
    """Let this process, a copy that is expected to crash, end at once.

    Handlers that it inherits, of faulthandler or of a compiler that some library brings, would write down a stack that
    nobody asked for, one in a hundred; walking it can take minutes.
    """
    faulthandler.disable()
    for number in _SIGNALS_OF_CRASHES:
        signal.signal(number, signal.SIG_DFL)
