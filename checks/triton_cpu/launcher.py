"""Builds variants of kernels and runs them over a grid.

    kernel = compiled(variant)
    result = kernel.launch(kernel.pack(words), (4, 1, 1), blocks=pack_blocks([(low, high)]))

It knows nothing of tensors: arguments are addresses and numbers, memory is a list of byte ranges.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from ..findings import JSON
from ..hooks.kernel_log import AccessKind, conflict_kind
from ..hooks.masked_lanes import MaskedLanes, byte_for
from . import language  # noqa: F401 - it remembers the language as it is before an interpreter replaces it
from .arguments import Packer
from .build import shared_object
from .emit.source import AccessSite, Source
from .ir import Module
from .locks import ForkSafeLock
from .log import LaunchResult, place_of
from .metadata import facts_of, source_of
from .numpy_loops import Loop, loop
from .recorder import recorder
from .stable_text import Unstable
from .support import support
from .variants import Variant

#: Loop iterations over few lanes that one program may do; one over wide blocks counts as several (emit/fuel.py). Real
#: programs do some thousands; one that spins on a flag never ends.
FUEL = 1 << 22

#: Bytes that the notes of one launch may take: its accesses, and what it stores. Each is held twice for a moment.
LOG_LIMIT = 1 << 30

#: All addresses but the first page, for kernels whose arguments do not tell what they touch.
ANYWHERE = array.array("Q", (1 << 12, (1 << 64) - 1)).tobytes()

#: Triton's front end, and its interpreter, which replaces the language that the front end reads, exclude each other.
language_lock = ForkSafeLock()


class CompiledKernel:
    """One variant, as machine code.

    Args:
        name: of the kernel.
        library: the loaded shared object.
        source: what is known about it; its text is not needed.
        kinds: types of what is passed at run time, in Triton's words.

    Attributes:
        source: as given.
    """

    def __init__(self, name: str, library: ctypes.CDLL, source: Source, kinds: Sequence[str]) -> None:
        self.name = name
        self.source = source
        self.pack = Packer(kinds).pack
        self._library = library
        self._kernel = ctypes.addressof(ctypes.c_char.in_dll(library, "kernel"))
        self._run = support().run_grid
        self._loops = (Loop * len(source.loops))(*(loop(*found) for found in source.loops))
        self._loops_address = ctypes.addressof(self._loops) if source.loops else None
        self._kinds = bytes(map(_kind, source.sites))
        self._zeros = bytes(len(source.sites))
        self._undefined = [(number, place_of(site)) for number, site in enumerate(source.sites) if site.undefined]

    def launch(
        self,
        arguments: bytes,
        grid: tuple[int, int, int],
        *,
        blocks: bytes,
        order: NDArray[np.int32] | None = None,
        masked_lanes: MaskedLanes = 0,
        fuel: int = FUEL,
        log_limit: int = LOG_LIMIT,
    ) -> LaunchResult:
        """Run all programs of a grid, one after another, in the calling thread.

        Args:
            arguments: from ``pack``.
            grid: extents, all positive.
            blocks: the memory that may be touched, from ``pack_blocks``; what lies outside is left out and reported.
                Means nothing to a kernel that was built without checks.
            order: numbers of the programs in the order to run them; int32, a permutation; None for ascending.
            masked_lanes: what lanes hold that a load without ``other`` masks off.
            fuel: loop iterations that one program may do; those over wide blocks count as several.
            log_limit: bytes that its accesses, and what it stores, may each take.

        Raises:
            OverflowError: the grid has more programs than a GPU can count.
        """
        x, y, z = grid
        if x * y * z >= 1 << 31:
            raise OverflowError(f"{self.name}: a grid of {grid} has 2**31 programs or more")
        mine = recorder()
        mine.begin(self.source.sites, grid, blocks, self._loops_address, fuel, self._fills(masked_lanes), log_limit)
        self._run(self._kernel, mine.address, arguments, x, y, z, None if order is None else order.ctypes.data)
        return mine.take(self.name, self._kinds)

    def _fills(self, masked_lanes: MaskedLanes) -> bytes:
        """A byte for each site."""
        if masked_lanes == 0 or not self._undefined:
            return self._zeros
        fills = bytearray(self._zeros)
        for number, place in self._undefined:
            fills[number] = byte_for(masked_lanes, place)
        return bytes(fills)


def _kind(site: AccessSite) -> int:
    """Of a site, as conflicts count it; those that touch nothing are in no record."""
    return 0 if site.kind is None else conflict_kind(AccessKind(site.kind), site.size)


def compiled(variant: Variant, *, audit: bool = True, truncate_bf16: bool = False) -> CompiledKernel:
    """Build a variant, or load it from the disk.

    Args:
        variant: what to build.
        audit: checks and logs every access.
        truncate_bf16: rounds float32 to bfloat16 toward zero, as the interpreter does; else to nearest even.

    Raises:
        Unsupported: the kernel does something without a known meaning, or there is no compiler.
    """
    library, facts = shared_object(
        f"kernel {variant.name}",
        _key(variant, audit, truncate_bf16),
        lambda: _written(variant, audit, truncate_bf16),
    )
    return CompiledKernel(variant.name, library, source_of(facts), variant.leaves())


def pack_blocks(blocks: Iterable[ByteRange]) -> bytes:
    """Byte ranges, in any order, as ``CompiledKernel.launch`` takes them: sorted, overlapping ones made one."""
    merged: list[int] = []
    for low, high in sorted(blocks):
        if merged and low <= merged[-1]:
            merged[-1] = max(merged[-1], high)
        else:
            merged += (low, high)
    return array.array("Q", merged).tobytes()


def _key(variant: Variant, audit: bool, truncate_bf16: bool) -> str | None:
    try:
        return f"{variant.key()} {audit} {truncate_bf16}"
    except Unstable:
        return None


def _written(variant: Variant, audit: bool, truncate_bf16: bool) -> tuple[str, Mapping[str, JSON]]:
    from .emit import program  # which a warm start does not need

    source = program.emit(read(variant), program.Options(truncate_bf16))
    return text_of(source, audit), facts_of(source)


def read(variant: Variant) -> Module:
    """The code of a variant, from Triton's front end.

    Raises:
        Unsupported: it has something in it without a known meaning.
    """
    from . import reader  # which a warm start does not need

    return reader.read(printed(variant))


def printed(variant: Variant) -> str:
    """The code of a variant as Triton's front end prints it.

    Raises:
        triton.compiler.errors.CompilationError: Triton refuses the kernel.
        Unsupported: it is no kernel that the front end compiles.
    """
    from . import frontend  # it loads Triton's compiler, which a warm start does not need

    with language_lock:
        return frontend.ttir(variant.function, variant.signature, variant.constants, variant.options)


def text_of(source: Source, audit: bool) -> str:
    """The whole C file of a source."""
    switch = "#define MRV2_AUDIT\n" if audit else ""
    kernel = f"const Kernel kernel = {{program, {source.scratch}, {len(source.sites)}, {int(audit)}}};"
    return f'{switch}#include "launch.h"\n{source.text}\n{kernel}\n'
