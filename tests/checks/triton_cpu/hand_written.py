"""Kernels written as C by hand, for tests of what runs them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from mrv2.checks.findings import Site
from mrv2.checks.triton_cpu.compiler import find_compiler
from mrv2.checks.triton_cpu.emit.source import AccessKind, AccessSite, Source
from mrv2.checks.triton_cpu.ir import Pointer, Scalar
from mrv2.checks.triton_cpu.launcher import CompiledKernel, pack_blocks, text_of

POINTER, I32, F32 = Pointer(Scalar("i32")), Scalar("i32"), Scalar("f32")

#: Each program adds one to its four elements of the first argument and writes them to the second.
ADD_ONE = """
  uint64_t from[4], to[4];
  uint32_t values[4] = {0};
  for (int i = 0; i < 4; i++) {
    from[i] = arguments[0] + 4 * (4 * index[0] + i);
    to[i] = arguments[1] + 4 * (4 * index[0] + i);
  }
  LOAD_LANES(launch, runs, from, 0, values, 4, 4, 0);
  LOG_END(0);
  for (int i = 0; i < 4; i++) values[i]++;
  STORE_LANES(launch, runs, to, 0, values, 4, 4, 1);
  LOG_END(1);
"""


def line(number: int, kind: AccessKind | None = None, **facts) -> AccessSite:
    """A site at a line of a file that does not exist."""
    return AccessSite((Site("kernel.py", number, "kernel"),), kind, 4, **facts)


_HEAD = (
    "static void program(Launch *launch, const uint64_t *arguments, char *scratch, Run *runs, "
    "const int32_t *index, const int32_t *grid)"
)


def source(text: str, *sites: AccessSite, parameters=(POINTER, POINTER), loops=(), scratch=64) -> Source:
    """What the emitter would hand over, from the body of the program function."""
    return Source(f"{_HEAD} {{\n{text}}}\n", tuple(parameters), sites, scratch, tuple(loops), False)


def built(found: Source, folder: Path, kinds=("*i32", "*i32"), *, audit=True) -> CompiledKernel:
    """Compile it, without the cache."""
    library = folder / f"kernel{len(list(folder.iterdir()))}.so"
    find_compiler().build(text_of(found, audit), "kernel", library)
    return CompiledKernel("kernel", ctypes.CDLL(str(library)), found, kinds)


def block(*arrays: np.ndarray) -> bytes:
    """The memory of arrays."""
    return pack_blocks((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays)


ADD_ONE_SITES = (line(10, AccessKind.READ), line(11, AccessKind.WRITE))
