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
