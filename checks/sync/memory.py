"""Judges regions with a bound on their device memory, on the accounts of a device."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..codes import CODES
from ..events import Stack
from ..findings import Finding, Site, Verdict
from ..hooks.patching import Patches
from ..libraries import portable
from ..memory import MemoryBound, MemoryBoundError, bounded, start_metering
from ..virtual.arguments import Hook
from ..virtual.stacks import whole_stack
from .names import find, replace_function

if TYPE_CHECKING:
    from ..virtual.runtime import Runtime

#: Told of the bytes of an allocation, and of those that are held after it.
Over: TypeAlias = Callable[[int, int], None]


@dataclass(eq=False)
class _Region:
    """One entry of a region, open until it is left.

    Attributes:
        bound: of the region.
        code: of the function that entered it; stacks end there.
        held: bytes of the device that were held when it was entered.
        peak: the most that was held since, beyond those, once that is more than the bound.
        crossing: bytes and place of the allocation that crossed the bound.
        step: of the runner at that moment.
    """

    bound: MemoryBound
    code: CodeType
    held: int
    peak: int = 0
    crossing: tuple[int, Stack] | None = None
    step: int | None = None

    @property
    def limit(self) -> int:
        """What the device may hold before this region must know of it."""
        return self.held + max(self.bound.bytes, self.peak)


class Account(Protocol):
    """What is known of the memory of one device."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while an allocation is told."""
        ...

    @property
    def step(self) -> int | None:
        """Of the runner, now."""
        ...

    def held(self) -> int:
        """Bytes that the program holds."""
        ...

    def tell(self, limit: float, over: Over) -> None:
        """Call ``over`` after each allocation that leaves more bytes held than a limit; infinity: after none."""
        ...


class _VirtualAccount:
    """See :class:`Account`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.lock = runtime, runtime.lock

    @property
    def step(self) -> int | None:
        """See :class:`Account`."""
        return self._runtime.step

    def held(self) -> int:
        """See :class:`Account`."""
        memory = self._runtime.memory
        memory.settle()
        return memory.allocated

    def tell(self, limit: float, over: Over) -> None:
        """See :class:`Account`."""
        memory = self._runtime.memory
        memory.limit = limit
        memory.when_over = None if limit == math.inf else lambda size: over(size, memory.allocated)


class MemoryWatch:
    """Watches the regions of a program while it is open; a context manager.

    Args:
        bounds: of regions that are named from outside; those in code need none.

    Raises:
        HotPathError: on entering, a site names nothing.
        MemoryBoundError: on entering, another watch is open.
    """

    def __init__(self, bounds: Sequence[MemoryBound] = ()) -> None:
        self._bounds = bounds
        self._lock = threading.RLock()
        self._entries: Counter[str] = Counter()
        self._open: list[_Region] = []
        self._crossed: list[_Region] = []
        self._account: Account | None = None
        self._scope = ExitStack()

    def __enter__(self) -> MemoryWatch:
        patches = Patches()
        with ExitStack() as scope:
            scope.callback(start_metering(self))
            scope.callback(patches.undo)
            for bound in self._bounds:
                replace_function(find(bound.site, "site of a memory bound"), partial(bounded, bound), patches)
            self._scope = scope.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()

    def hook(self) -> Hook:
        """For ``virtual_device(hooks=(watch.hook(),))``."""
        return lambda runtime: self.attach(_VirtualAccount(runtime))

    def attach(self, account: Account) -> Callable[[], None]:
        """Judge regions by an account from now on; returns the undo."""
        self._account = account

        def undo() -> None:
            self._account = None
            account.tell(math.inf, self._over)

        return undo

    def opened(self, bound: MemoryBound, code: CodeType) -> object:
        """A region is entered."""
        account = self._account
        if account is None:
            return None
        with account.lock, self._lock:  # in the order in which an allocation takes them
            region = _Region(bound, code, account.held())
            self._open.append(region)
            try:
                self._set_limit(account)
            except BaseException:
                self._open.remove(region)
                raise
            self._entries[bound.name] += 1
        return region

    def closed(self, region: object) -> None:
        """A region is left."""
        account = self._account
        with nullcontext() if account is None else account.lock, self._lock:
            if region in self._open:
                self._open.remove(region)
                if account is not None:
                    self._set_limit(account)

    def _over(self, size: int, held: int) -> None:
        """An allocation of so many bytes has made the device hold more than a region may take."""
        account = self._account
        if account is None:
            return
        with self._lock:
            for region in self._open:
                taken = held - region.held
                if taken > max(region.bound.bytes, region.peak):
                    region.peak = taken
                    if region.crossing is None:
                        region.crossing, region.step = (size, whole_stack(region.code)), account.step
                        self._crossed.append(region)
            self._set_limit(account)

    def _set_limit(self, account: Account) -> None:
        account.tell(min((region.limit for region in self._open), default=math.inf), self._over)

    @property
    def entries(self) -> dict[str, int]:
        """How often each region was entered, those named from outside also if they never were."""
        with self._lock:
            return {**dict.fromkeys((bound.name for bound in self._bounds), 0), **self._entries}

    @property
    def findings(self) -> list[Finding]:
        """One for each region and place at which its bound was crossed; with the highest peak."""
        with self._lock:
            cases: dict[object, list[_Region]] = {}
            for region in self._crossed:
                assert region.crossing is not None
                cases.setdefault((region.bound, region.crossing[1][:1]), []).append(region)
            return [portable(_finding(regions)) for regions in cases.values()]

    def require_entered(self) -> None:
        """Make sure that every region that is named from outside was judged.

        Raises:
            MemoryBoundError: one never was; what did not run must not pass.
        """
        missing = [name for name, times in self.entries.items() if not times]
        if missing:
            raise MemoryBoundError(
                f"memory bounds that were never judged: {', '.join(missing)}",
                "each region must be entered",
                "what did not run was not checked, and must not pass",
                "a test that runs them, or take them out of [[tool.mrv2.memory]]",
            )


def _finding(regions: Sequence[_Region]) -> Finding:
    first, worst = regions[0], max(regions, key=lambda region: region.peak)
    assert first.crossing is not None
    size, stack = first.crossing
    where = tuple(Site(*frame) for frame in stack)
    return Finding(
        code="MRV601",
        verdict=Verdict.VIOLATION,
        soundness=CODES["MRV601"].soundness,
        title=f"region {first.bound.name} takes more device memory than its bound",
        where=where,
        allocation=where,
        evidence={
            "region": first.bound.name,
            "bound": first.bound.bytes,
            "peak": worst.peak,
            "allocation": size,
            "held at entry": worst.held,
            "times": len(regions),
        },
        remedy="work in chunks of rows, reuse a buffer (out=, in place), or free what is over before more is taken",
        step=first.step,
    )
