"""Who may execute a step, and when: one thread at a time, no step after the end, none after one that broke off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import StepError


class StepGate:
    """Guards ``execute`` of one runner."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._closed = False
        self._failure: str | None = None

    def close(self) -> None:
        """Let no further step in."""
        self._closed = True

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Scope of one call of ``execute``.

        Raises:
            StepError: another thread is in such a scope, the runner is closed, or a step before broke off.
        """
        if not self._turn.acquire(blocking=False):
            raise StepError(
                "execute() from a second thread",
                "one step at a time: another thread is inside execute()",
                "both would give out the same rows and pinned memory, and which step came first would be chance",
                "one thread that executes, or a lock of yours around it",
            )
        try:
            self._require_open()
            yield
        finally:
            self._turn.release()

    @contextmanager
    def last_if_it_breaks_off(self) -> Iterator[None]:
        """Scope of the changes of a step: host and device may disagree on a request if they are left half done."""
        try:
            yield
        except BaseException as error:
            self._failure = type(error).__name__
            raise

    def _require_open(self) -> None:
        if self._closed:
            raise StepError(
                "execute() after close()",
                "a closed runner takes no more steps",
                "its memory is given back, so a step would have nothing to work on",
                "a new runner; results of earlier steps can still be taken from their handles",
            )
        if self._failure is not None:
            raise StepError(
                f"execute() after {self._failure}",
                "a step that broke off in the middle was the last",
                "rows, blocks or staged writes of its requests may be half changed, and their tokens would be wrong",
                "a new runner; results of earlier steps can still be taken from their handles",
            )
