"""Torch's own warnings of calls that wait, read as data.

With its debug mode for synchronisation on, torch warns whenever its CUDA layer waits for a stream: of 47 calls that
were seen to wait on an H200 it warned of 41, and of none that did not. It costs nothing where nothing waits. The mode
belongs to the process, and the warnings come two ways: of Python methods through Python's ``warnings``, of operators
that are called through ``torch.ops`` from C++.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

from ..hooks.patching import Patches
from .native_warnings import NativeWarnings

#: How torch begins such a warning.
MESSAGE = "called a synchronizing CUDA operation"
#: What torch says of its own mode when that is first set; the trap is there because it is so.
PROTOTYPE = "Synchronization debug mode is a prototype feature"
#: The mode in which torch warns, as ``torch.cuda.set_sync_debug_mode`` numbers them.
WARN = 1
#: Functions of ``warnings`` that put filters in front of others.
_FILTERING = ("simplefilter", "filterwarnings", "resetwarnings")


class SyncWarnings:
    """Calls a function for each such warning, in the thread and inside of the call that waits.

    Args:
        noticed: to be called.
        get_mode: torch's debug mode for synchronisation.
        set_mode: sets it.
        message: how the warnings begin.

    Raises:
        NativeWarningsError: this build of torch keeps its C++ warnings to itself.
    """

    def __init__(
        self,
        noticed: Callable[[], None],
        get_mode: Callable[[], int],
        set_mode: Callable[[int], None],
        message: str = MESSAGE,
    ) -> None:
        self._noticed, self._get_mode, self._set_mode, self._message = noticed, get_mode, set_mode, message
        pattern = "|".join(map(re.escape, (message, PROTOTYPE)))
        self._filter = ("always", re.compile(pattern), Warning, None, 0)
        self._native = NativeWarnings(self._hear)
        self._patches = Patches()
        self._mode = get_mode()

    def arm(self) -> None:
        """Let torch warn, and listen."""
        self._mode = self._get_mode()
        self._patches.set(warnings, "_showwarnmsg", self._shower(vars(warnings)["_showwarnmsg"]))
        for name in _FILTERING:
            self._patches.set(warnings, name, self._filtering(getattr(warnings, name)))
        self._come_first()
        try:
            self._set_mode(WARN)
        except BaseException:
            self.disarm()
            raise

    def disarm(self) -> None:
        """Leave everything as it was before."""
        self._set_mode(self._mode)
        self._patches.undo()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
            _filters_changed()
        self._native.close()

    def begin(self) -> None:
        """The calling thread enters a hot path."""
        self._come_first()
        self._native.begin()

    def end(self) -> None:
        """The calling thread leaves a hot path."""
        self._native.end()

    def _hear(self, text: str) -> bool:
        ours = text.startswith(self._message)
        if ours:
            self._noticed()
        return ours

    def _shower(self, show: Callable[[Any], None]) -> Callable[[Any], None]:
        """In the place of the function that Python shows a warning with."""

        def shown(message: Any) -> None:
            text = str(message.message)
            if not self._hear(text) and not text.startswith(PROTOTYPE):
                show(message)

        return shown

    def _filtering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A program that ignores warnings for a while ignores not these."""

        @functools.wraps(function)
        def filtering(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                self._come_first()

        return filtering

    def _come_first(self) -> None:
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if not filters or filters[0] is not self._filter:
            filters[:] = [self._filter, *(other for other in filters if other is not self._filter)]
            _filters_changed()


def _filters_changed() -> None:
    """Python remembers what its filters said of a line until it is told that they changed."""
    changed = getattr(warnings, "_filters_mutated", None) or warnings._filters_mutated_lock_held  # type: ignore[attr-defined]
    changed()
