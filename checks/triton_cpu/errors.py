"""What can go wrong on the way from a kernel to machine code."""

from __future__ import annotations

from ..errors import CheckError
from ..findings import Site


class Unsupported(CheckError):
    """A kernel that cannot be compiled for the CPU; the interpreter may run it."""

    def __init__(self, what: str, location: tuple[Site, ...] = ()) -> None:
        place = f" at {location[0].file}:{location[0].line}" if location else ""
        super().__init__(
            subject=f"{what}{place}",
            rule="only operations with a known meaning are compiled for the CPU",
            reason="a guess would make a wrong result look right",
            remedy="run the kernel in Triton's interpreter, or on a GPU",
        )


def without_frames(error: Unsupported) -> Unsupported:
    """The same error without the frames that it went through, and without other errors, which have frames as well.

    The reason why a kernel is not compiled outlives the launch. With frames it would keep all variables of the program
    that launched, so that no memory of theirs is freed.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


class NoCompiler(Unsupported):
    """The machine has no C compiler, or not the one that it was told to use."""

    def __init__(self, what: str) -> None:
        CheckError.__init__(
            self,
            subject=what,
            rule="a kernel is built with a C compiler: that of CC, gcc, clang, or of the package ziglang",
            reason="without one only Triton's interpreter can run it, hundreds of times slower",
            remedy="install gcc, or pip install ziglang, or let CC name a compiler",
        )


class CompileError(Unsupported):
    """The C compiler did not build what was written for a kernel."""

    def __init__(self, kernel: str, said: str) -> None:
        CheckError.__init__(
            self,
            subject=f"{kernel} ({said})",
            rule="the C compiler builds what is written for it",
            reason="a kernel that is not built runs in Triton's interpreter, hundreds of times slower",
            remedy="use gcc 12, clang 15, ziglang, or newer; with one of these it is a fault of this package",
        )


class RejectedModule(CheckError, RuntimeError):
    """Triton's front end wrote code for a kernel that MLIR's verifier refuses, as it would on a GPU.

    Args:
        kernel: its name.
        words: of the verifier, with the line.
        dump: the module, as Triton shows it.

    Attributes:
        dump: as given.
    """

    def __init__(self, kernel: str, words: str, dump: str) -> None:
        said = [line for line in words.splitlines() if "error:" in line] or ["the verifier refuses it"]
        CheckError.__init__(
            self,
            subject=f"kernel {kernel}",
            rule=f"Triton's front end accepts the kernel; it says: {' | '.join(said[:3])}",
            reason="a GPU could not run it either",
            remedy="mend that line; what Triton made of the kernel is in the error's attribute dump",
        )
        self.dump = dump


class NotRunnable(CheckError):
    """A kernel that neither compiles for the CPU nor can be interpreted: a limit of this toolkit, no fault of it.

    Args:
        kernel: its name.
        what: the interpreter cannot run.
        location: of that, innermost call first; empty if unknown.
    """

    def __init__(self, kernel: str, what: str, location: tuple[Site, ...], compiling: str = "") -> None:
        place = f" at {location[0].file}:{location[0].line}" if location else ""
        super().__init__(
            subject=f"kernel {kernel}, which uses {what}{place}",
            rule="a kernel runs compiled for the CPU, else in Triton's interpreter, which cannot run that",
            reason=f"a launch that is left out would make wrong what reads its results{compiling}",
            remedy="run this kernel on a GPU; here, let another function of the same meaning take its place, or write "
            "that part in Triton's own language",
        )
        self.kernel, self.what, self.location = kernel, what, location

    def because(self, error: Unsupported) -> NotRunnable:
        """The same, with the reason why the kernel is not compiled."""
        said = f"; it is not compiled because of {error.subject}: {error.rule}"
        return NotRunnable(self.kernel, self.what, self.location, said)

    def only_interpreted(self) -> NotRunnable:
        """The same, for a launch that was to be interpreted in any case."""
        return NotRunnable(
            self.kernel, self.what, self.location, "; it was not compiled because of kernels='interpreted'"
        )


class ProgramError(CheckError):
    """A program of a launch did not come to its end; the programs after it did not run.

    Args:
        kernel: its name.
        program: grid index.
        location: of the line, innermost call first.
        rule, reason, remedy: what it broke.
    """

    def __init__(
        self,
        kernel: str,
        program: tuple[int, int, int],
        location: tuple[Site, ...],
        rule: str,
        reason: str,
        remedy: str,
    ) -> None:
        place = f" at {location[0].file}:{location[0].line}" if location else ""
        super().__init__(f"kernel {kernel}, program {program}{place}", rule, reason, remedy)
        self.program = program
        self.location = location


class DeviceAssertion(ProgramError, AssertionError):
    """A ``tl.device_assert`` failed."""


class OutOfFuel(ProgramError):
    """A program did more loop iterations than any real one does."""


class LogFull(ProgramError):
    """A launch accesses so much that no log of it is kept."""
