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
