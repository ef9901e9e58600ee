"""What Triton's front end prints when it refuses a kernel: a dump of the module, and MLIR's own words.

The dump goes to Python's stdout, MLIR's words to the file descriptor of stderr, whatever Python's ``sys.stderr`` is.
Both are taken here, so that one error says it all.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Any

from triton.compiler import code_generator

from ..hooks.patching import Patches
from .errors import RejectedModule

_STDERR = 2


class Said:
    """What was printed.

    Attributes:
        dump: the module, as Triton shows it.
        words: what went to stderr.
        repeated: whether all of it is written to stderr after the scope; not if an error says it.
    """

    def __init__(self) -> None:
        self.dump = ""
        self.words = ""
        self.repeated = True

    def print(self, *values: Any, **options: Any) -> None:
        """In the place of Python's."""
        self.dump += " ".join(map(str, values)) + "\n"


@contextlib.contextmanager
def heard(name: str) -> Iterator[Said]:
    """Take what the front end prints within this scope, which one thread at a time may enter.

    What other threads write to stderr meanwhile counts as the front end's: it comes later, or is in its error.

    Args:
        name: of the kernel.

    Raises:
        RejectedModule: the front end dumped the module, and raised an error.
    """
    said, thread, patches = Said(), threading.get_ident(), Patches()

    def show(*values: Any, **options: Any) -> None:
        mine = threading.get_ident() == thread
        (said.print if mine else builtins.print)(*values, **options)

    patches.set(code_generator, "print", show)
    try:
        with tempfile.TemporaryFile() as file, _stderr_into(file, said):
            yield said
        if said.dump:
            builtins.print(said.dump, end="")
    except Exception as error:
        if not said.dump:
            raise
        said.repeated = False
        raise RejectedModule(name, said.words, said.dump) from error
    finally:
        patches.undo()
        if said.words and said.repeated:
            os.write(_STDERR, said.words.encode())


@contextlib.contextmanager
def _stderr_into(file: IO[bytes], said: Said) -> Iterator[None]:
    try:
        kept = os.dup(_STDERR)
    except OSError:  # it is closed: there is nothing to take
        yield
        return
    os.dup2(file.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        # Whoever writes shares the place in the file with this descriptor, so it is left alone.
        said.words = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
