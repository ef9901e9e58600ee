"""What the emitter hands to the launcher."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...findings import Site
from ..ir import Type


class AccessKind(enum.IntEnum):
    """What a site does to memory; numbered as in the log of the interpreter's tap."""

    READ = 0
    WRITE = 1
    ATOMIC = 2


@dataclass(frozen=True)
class AccessSite:
    """A load, store, atomic, assertion or print in a kernel.

    Attributes:
        location: innermost call first; empty if unknown.
        kind: what it does to memory; None if it does nothing to memory (loops, assertions, prints, NaN checks).
        size: bytes of one lane.
        acquires: whether an atomic sees what others released before.
        releases: whether others that acquire see what came before an atomic.
        message: of an assertion or a print.
        values: of a print, types of what is printed; of unsigned integers by their MLIR names, ``ui8`` … ``ui64``.
        hexadecimal: whether it prints so.
        undefined: whether it is a load that masks lanes off and does not say what they hold instead.
    """

    location: tuple[Site, ...]
    kind: AccessKind | None = None
    size: int = 0
    acquires: bool = False
    releases: bool = False
    message: str = ""
    values: tuple[Type, ...] = ()
    hexadecimal: bool = False
    undefined: bool = False


@dataclass(frozen=True)
class Source:
    """One variant of a kernel as C.

    Attributes:
        text: the whole file but for the first and the last lines, which the launcher adds.
        parameters: types of the arguments, each passed as 8 bytes; a float64 as its bits, a float32 in the low 4.
        sites: what the numbers of sites mean.
        scratch: bytes that the tensors of one program take.
        loops: numpy's inner loops that it calls, by name and type, e.g. ``("exp", "f32")``; their order is that of the
            LOOP_ constants.
        from_memory: whether it makes pointers from integers or loads them, so that arguments do not tell what it
            touches.
    """

    text: str
    parameters: tuple[Type, ...]
    sites: tuple[AccessSite, ...]
    scratch: int
    loops: tuple[tuple[str, str], ...]
    from_memory: bool
