"""What Triton's front end prints when MLIR's verifier refuses a kernel: a dump of the module, and the verifier's words.

The dump goes to Python's stdout, the words to the file descriptor of stderr, whatever Python's ``sys.stderr`` is. Both
are taken here, so that one error says it all. The descriptor is taken while the verifier runs and no longer: a child
process that begins meanwhile would keep it, and the last words of a process that aborts would be lost in it.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from triton._C.libtriton import ir
from triton.compiler import code_generator

from ..hooks.patching import Patches
from .errors import RejectedModule

_STDERR = 2


class Said:
    """What was printed.

    Attributes:
        dump: the module, as Triton shows it.
        words: the verifier's, of a module that it refused.
    """

    def __init__(self) -> None:
        self.dump = ""
        self.words = ""

    def print(self, *values: Any, **options: Any) -> None:
        """In the place of Python's."""
        self.dump += " ".join(map(str, values)) + "\n"

    def verify(self, stock: Callable[[Any], bool], module: Any) -> bool:
        """In the place of a module's own, which is ``stock``."""
        with tempfile.TemporaryFile() as file:
            with _stderr_into(file.fileno()):
                good = stock(module)
            # Whoever writes shares the place in the file with this descriptor, so it is left alone.
            words = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
        if good:
            _say(words)  # another thread's
        else:
            self.words = words.decode(errors="replace")
        return good


@contextlib.contextmanager
def heard(name: str) -> Iterator[Said]:
    """Take what the front end prints within this scope, which one thread at a time may enter.

    What other threads write to stderr while the verifier runs counts as its own: it comes later, or is in its error.

    Args:
        name: of the kernel.

    Raises:
        RejectedModule: the front end dumped the module, and raised an error.
    """
    said, thread, patches, stock = Said(), threading.get_ident(), Patches(), ir.module.verify

    def show(*values: Any, **options: Any) -> None:
        (said.print if threading.get_ident() == thread else builtins.print)(*values, **options)

    def verify(module: Any) -> bool:
        return said.verify(stock, module) if threading.get_ident() == thread else bool(stock(module))

    patches.set(code_generator, "print", show)
    patches.set(ir.module, "verify", verify)
    try:
        yield said
        if said.dump:
            builtins.print(said.dump, end="")
    except Exception as error:
        if said.dump:
            raise RejectedModule(name, said.words, said.dump) from error
        _say(said.words.encode())
        raise
    finally:
        patches.undo()


@contextlib.contextmanager
def _stderr_into(file: int) -> Iterator[None]:
    try:
        kept = os.dup(_STDERR)
    except OSError:  # it is closed: there is nothing to take
        yield
        return
    os.dup2(file, _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _say(words: bytes) -> None:
    """Write to stderr what was taken from it; where nobody can read it, it is lost, as it would have been at once."""
    with contextlib.suppress(OSError):
        os.write(_STDERR, words)
