"""Garbage collection at the same places of every run.

When a tensor in a reference cycle is freed would otherwise depend on how many objects the process has made so far, and
with it the schedule's choices and the findings. So automatic collection is off while a device is open; every so many
operations the young objects are collected, and more rarely all that were made since the device was opened.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

#: Operations between two collections of the youngest objects, of the next generation, and of all.
YOUNG, MIDDLE, ALL = 1 << 13, 1 << 16, 1 << 19


def take_over() -> Callable[[], None]:
    """Switch automatic collection off; returns the undo. What exists already is left out of collections until then.

    What the device before this one left behind is collected first: it would become old with the rest, and old objects
    are collected so rarely that the memory of hundreds of devices would pile up.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect(1)
    gc.freeze()

    def give_back() -> None:
        gc.unfreeze()
        if was_enabled:
            gc.enable()

    return give_back


def collect_after(operations: int) -> None:
    """Collect if it is time to, after so many operations."""
    if operations % YOUNG == 0:
        gc.collect(2 if operations % ALL == 0 else 1 if operations % MIDDLE == 0 else 0)
