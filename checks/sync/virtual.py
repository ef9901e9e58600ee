"""The sync trap on the virtual device: each wait of the host, told to a watch.

with sync_trap(read_settings(Path("pyproject.toml"))) as trap:
run_the_program()
trap.watch.findings
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..events import Stack
from ..hot_path import current_entry
from ..virtual.arguments import Hook
from ..virtual.device import VirtualDevice, virtual_device
from ..virtual.stacks import library_frames, whole_stack
from ..virtual.threads import heres
from .called import name_of, outermost
from .memory import MemoryWatch
from .rules import ASKED_FOR, wait_of
from .settings import Settings
from .waits import Cause
from .watch import Watch

if TYPE_CHECKING:
    from ..virtual.runtime import Runtime


def install(watch: Watch) -> Hook:
    """A hook for ``virtual_device(hooks=(install(watch),))``."""

    def hook(runtime: Runtime) -> Callable[[], None]:
        def waits(cause: Cause) -> None:
            entry = current_entry()
            if entry is not None:
                stack = whole_stack(entry.code)
                if _first_of_its_call(cause, stack):
                    watch.waited(wait_of(cause, None if cause.kind in ASKED_FOR else _called(), stack, runtime.step))

        runtime.wait_guard = waits

        def undo() -> None:
            runtime.wait_guard = None

        return undo

    return hook


def staging_taken(runtime: Runtime) -> Callable[[], None]:
    """A hook: others hold the driver's staging memory, so each upload from pageable or gapped memory waits for it.

    A few small uploads never fill it, and whether it is full is not the program's to say: that such an upload is there
    shows only so.
    """
    runtime.copies.staging_taken = True

    def undo() -> None:
        runtime.copies.staging_taken = False

    return undo


@dataclass(frozen=True)
class Trap:
    """A virtual device with a watch of its hot paths.

    Attributes:
        device: the virtual device.
        watch: has the findings of waits; those of races are the device's.
        memory: has the findings of regions that took too much memory.
    """

    device: VirtualDevice
    watch: Watch
    memory: MemoryWatch


@contextlib.contextmanager
def sync_trap(settings: Settings | None = None, schedule: Any = "late", **device: Any) -> Iterator[Trap]:
    """A virtual device whose hot paths are watched.

    Args:
        settings: hot paths, allowances and memory bounds named from outside; those in code need none.
        schedule: see ``virtual_device``.
        device: further arguments of ``virtual_device``.

    Raises:
        HotPathError: a name in the settings names nothing.
        CheckError: the device cannot be opened.
    """
    watch, memory = Watch(settings), MemoryWatch(() if settings is None else settings.memory)
    hooks = (*device.pop("hooks", ()), install(watch), memory.hook())
    with watch, memory, virtual_device(schedule, hooks=hooks, **device) as opened:
        yield Trap(opened, watch, memory)


def _first_of_its_call(cause: Cause, stack: Stack) -> bool:
    """One call of a function of torch is one thing to change, however often it waits inside.

    Unless it calls the program back, as a backward pass does; then each line is one.
    """
    here = heres.here
    if here.function is None or cause.kind in ASKED_FOR:
        return True
    told = here.told = here.told or set()
    first = stack[:1] not in told
    told.add(stack[:1])
    return first


def _called() -> str | None:
    """What the innermost frame of the program called."""
    here, frames = heres.here, library_frames()
    name = outermost(frames[1:])
    if name is not None:
        return name
    by_program = here.frame is None or any(frame is here.frame for frame in frames)
    return name_of(here.function) if by_program else None
