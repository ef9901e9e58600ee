"""The tap on the memory accesses of an interpreted kernel.

Every access of a kernel, those through block pointers and tensor descriptors too, goes through four methods of the
interpreter's builder, with one address for each lane. They are replaced on the one builder that there is. A lane
outside of all blocks is reported and masked off: the memory behind it is the test process's own.
"""

from __future__ import annotations

import bisect
import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from ..findings import Site
from ..libraries import folder_of
from .byte_ranges import Addresses
from .kernel_log import AccessKind, Fence, KernelAccess, KernelLog, StrayLanes, fence_addresses
from .masked_lanes import MaskedLanes, byte_for
from .patching import Patches

#: Operations that one program may do. A program of a real kernel does some thousands; one that spins on a flag, or
#: loops to a bound read from overwritten memory, would never come to its end.
FUEL = 1_000_000

_SEMANTICS = interpreter._ir.MEM_SEMANTIC
_SCOPES = interpreter._ir.MEM_SYNC_SCOPE
_ACQUIRES = (_SEMANTICS.ACQUIRE, _SEMANTICS.ACQUIRE_RELEASE)
_RELEASES = (_SEMANTICS.RELEASE, _SEMANTICS.ACQUIRE_RELEASE)
_TRITON = folder_of("triton")


class OutOfFuel(RuntimeError):
    """A program did more than any real one does."""


class Tap:
    """Takes the accesses of one launch.

    Args:
        blocks: first and one-past-last addresses of what may be accessed, sorted.
        stray: told of lanes outside of all blocks.
        masked_lanes: what lanes hold that a load without ``other`` masks off.
    """

    def __init__(
        self,
        blocks: tuple[Addresses, Addresses],
        stray: Callable[[StrayLanes], None],
        masked_lanes: MaskedLanes = 0,
    ) -> None:
        self.log = KernelLog()
        self.program = 0
        self._fuel = FUEL
        self._blocks = blocks
        self._bases, self._ends = (bounds.tolist() for bounds in blocks)
        self._near = (0, 0)
        self._stray = stray
        self._masked_lanes = masked_lanes
        self._fills: dict[int, int] = {}
        self._sites: dict[tuple[CodeType, int], int] = {}
        self._atomic = False

    def begin(self, program: int) -> None:
        """A program starts."""
        self.program = program
        self._fuel = FUEL

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Within this scope accesses go through the tap."""
        builder, patches = interpreter.interpreter_builder, Patches()
        try:
            patches.set(builder, "create_masked_load", self._load(builder.create_masked_load))
            patches.set(builder, "create_masked_store", self._store(builder.create_masked_store))
            patches.set(builder, "create_atomic_rmw", self._update(builder.create_atomic_rmw))
            patches.set(builder, "create_atomic_cas", self._compare(builder.create_atomic_cas))
            for name in ("create_atomic_load", "create_atomic_store", "create_atomic_poll"):
                if hasattr(builder, name):  # from 3.9 on
                    patches.set(builder, name, self._atomically(getattr(builder, name)))
            patches.set(TensorHandle, "__post_init__", self._counted(TensorHandle.__post_init__))
            yield
        finally:
            patches.undo()

    # The replacements, in the order of the builder's methods

    def _load(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def load(pointers: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
            if other is None and self._masked_lanes != 0 and not self._atomic:
                other = self._undefined(pointers, mask)
            mask = self._screen(AccessKind.READ, pointers, mask, _bytes_of(pointers))
            return stock(pointers, mask, other, *rest, **options)

        return load

    def _store(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def store(pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            mask = self._screen(AccessKind.WRITE, pointers, mask, value.data.itemsize, value)
            return stock(pointers, value, mask, *rest, **options)

        return store

    def _update(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def update(operation: Any, pointers: Any, value: Any, mask: Any, semantic: Any, scope: Any) -> Any:
            self._fence(pointers, semantic, scope)
            mask = self._screen(AccessKind.ATOMIC, pointers, mask, value.data.itemsize)
            return stock(operation, pointers, value, mask, semantic, scope)

        return update

    def _compare(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def compare(pointers: Any, expected: Any, value: Any, semantic: Any, scope: Any) -> Any:
            self._fence(pointers, semantic, scope)
            everywhere = TensorHandle(np.ones_like(pointers.data, dtype=bool), interpreter.tl.int1)
            inside = self._screen(AccessKind.ATOMIC, pointers, everywhere, value.data.itemsize)
            if inside is everywhere:
                return stock(pointers, expected, value, semantic, scope)
            # It has no mask, so the lanes that stray are left out; they read as zero.
            good = inside.data
            chosen = [_lanes_of(handle, good) for handle in (pointers, expected, value)]
            result = np.zeros(good.shape, expected.data.dtype)
            result[good] = stock(*chosen, semantic, scope).data
            return TensorHandle(result, expected.dtype.scalar)

        return compare

    def _atomically(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def atomic(pointers: Any, *rest: Any) -> Any:
            semantic = next((item for item in rest if isinstance(item, _SEMANTICS)), _SEMANTICS.RELAXED)
            scope = next((item for item in rest if isinstance(item, _SCOPES)), _SCOPES.GPU)
            self._fence(pointers, semantic, scope)
            self._atomic = True
            try:
                return stock(pointers, *rest)
            finally:
                self._atomic = False

        return atomic

    def _counted(self, stock: Callable[[Any], None]) -> Callable[[Any], None]:
        def post_init(handle: Any) -> None:
            self._fuel -= 1
            if self._fuel < 0:
                raise OutOfFuel(
                    f"the program did {FUEL} operations without coming to its end: it spins on a value that no other "
                    "program can change meanwhile, or loops to a bound that was overwritten"
                )
            stock(handle)

        return post_init

    def _undefined(self, pointers: Any, mask: Any) -> Any:
        """What the lanes of a load hold that are masked off; those that stray hold zero. None if there are none."""
        off = ~np.broadcast_to(getattr(mask, "data", mask), pointers.data.shape).astype(bool)
        if not off.any():
            return None
        site = self._site()
        if site not in self._fills:
            self._fills[site] = byte_for(self._masked_lanes, self.log.sites[site])
        kind = pointers.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)
        octets = np.zeros((*off.shape, dtype.itemsize), np.uint8)
        octets[off] = self._fills[site]
        return TensorHandle(octets.view(dtype).reshape(off.shape), kind)

    # The log

    def _screen(self, kind: AccessKind, pointers: Any, mask: Any, size: int, value: Any = None) -> Any:
        """Log an access; returns the mask without the lanes that stray."""
        addresses = pointers.data
        if isinstance(mask, np.ndarray):  # Triton 3.6, from a tensor descriptor
            mask = TensorHandle(mask, interpreter.tl.int1)
        elif mask.data.dtype != bool:  # Triton 3.6 takes any integer
            mask = TensorHandle(mask.data.astype(bool), interpreter.tl.int1)
        chosen = np.broadcast_to(mask.data, addresses.shape)
        lanes = addresses[chosen].view(np.int64)
        if not len(lanes):
            return mask
        low, high = int(lanes.min()), int(lanes.max()) + size
        site = self._site()
        if not self._inside(low, high):
            good = self._each_inside(lanes, size)
            if not good.all():
                outside = lanes[~good]
                hull = int(outside.min()), int(outside.max()) + size
                self._stray(StrayLanes(kind, self.log.sites[site], self.program, *hull, len(outside)))
                chosen = chosen.copy()
                chosen[chosen] = good
                mask, lanes = TensorHandle(chosen, interpreter.tl.int1), lanes[good]
                if not len(lanes):
                    return mask
                low, high = int(lanes.min()), int(lanes.max()) + size
        kind = AccessKind.ATOMIC if self._atomic else kind
        dense = high - low == len(lanes) * size and (len(lanes) == 1 or bool((np.diff(lanes) == size).all()))
        stored = None if value is None else (value.data, chosen)
        position = len(self.log.accesses)
        self.log.accesses.append(
            KernelAccess(position, self.program, kind, site, low, high, None if dense else lanes, size, stored)
        )
        return mask

    def _inside(self, low: int, high: int) -> bool:
        """Whether one block holds all of [low, high)."""
        base, end = self._near
        if base <= low and high <= end:
            return True
        index = bisect.bisect_right(self._bases, low) - 1
        if index < 0 or high > self._ends[index]:
            return False
        self._near = (self._bases[index], self._ends[index])
        return True

    def _each_inside(self, lanes: Addresses, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        bases, ends = self._blocks
        if not len(bases):
            return np.zeros(len(lanes), dtype=bool)
        index = np.searchsorted(bases, lanes, side="right") - 1
        good: np.ndarray[Any, np.dtype[np.bool_]] = (index >= 0) & (lanes + size <= ends[index])
        return good

    def _fence(self, pointers: Any, semantic: Any, scope: Any) -> None:
        acquires, releases = semantic in _ACQUIRES, semantic in _RELEASES
        if scope != _SCOPES.CTA and (acquires or releases):  # that one orders within a program
            addresses = fence_addresses(np.ravel(pointers.data).tolist(), _bytes_of(pointers))
            self.log.fences.append(Fence(len(self.log.accesses), self.program, addresses, acquires, releases))

    def _site(self) -> int:
        """Where in the kernel the access is: the innermost frame that is not Triton's, nor this module's."""
        frame = sys._getframe(3)
        while frame.f_code.co_filename.startswith(_TRITON):
            assert frame.f_back is not None
            frame = frame.f_back
        key = (frame.f_code, frame.f_lineno)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = len(self.log.sites)
            self.log.sites.append(Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        return site


def _lanes_of(handle: Any, chosen: Any) -> Any:
    return TensorHandle(np.broadcast_to(handle.data, chosen.shape)[chosen], handle.dtype)


def _bytes_of(pointers: Any) -> int:
    """Bytes that a load takes at each address."""
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)
