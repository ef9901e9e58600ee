"""What the lanes of a kernel hold that a load masks off without saying what they hold instead (``other``).

A GPU promises nothing about them. Zero is what Triton's interpreter gives, and the default; any other byte is as right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..errors import CheckError
from ..findings import Site

#: The byte that they are filled with, or what gives it: asked once for each such load of each launch, as it runs.
MaskedLanes: TypeAlias = int | Callable[[Site], int]


def byte_for(lanes: MaskedLanes, place: Site) -> int:
    """The byte for one load, which is written at ``place``."""
    return lanes if isinstance(lanes, int) else lanes(place)


def check_masked_lanes(lanes: object) -> None:
    """Refuse what is neither a byte nor a function.

    Raises:
        CheckError: it is neither.
    """
    if callable(lanes) or (isinstance(lanes, int) and not isinstance(lanes, bool) and 0 <= lanes <= 0xFF):
        return
    raise CheckError(
        subject=f"masked_lanes={lanes!r}",
        rule="it must be a byte from 0 to 255, or a function of the load's line that gives one",
        reason="each byte of a lane that is masked off, and that no `other` fills, is set to it",
        remedy="masked_lanes=0xFB, which is large and negative as a number of any type",
    )
