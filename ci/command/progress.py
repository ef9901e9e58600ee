"""How a run shows that it is alive: a live bar on a terminal, one line per stage elsewhere. Both on standard error."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mrv2.ci.report import console as screen


class SilentProgress:
    """Progress of a stage where there is no terminal to draw on."""

    def start(self, total: int) -> None:
        """Nothing to draw."""

    def advance(self, units: int = 1) -> None:
        """Nothing to draw."""


@dataclass(frozen=True)
class BarProgress:
    """Progress of a stage as one bar of a live display."""

    bars: Progress
    task: TaskID

    def start(self, total: int) -> None:
        """Give the bar its length."""
        self.bars.update(self.task, total=total)

    def advance(self, units: int = 1) -> None:
        """Move the bar."""
        self.bars.advance(self.task, units)


class Display:
    """Shows the stages of a run as they start and end.

    Args:
        console: where to; a live bar if it is a terminal.
        count: number of stages.
    """

    def __init__(self, console: Console, count: int) -> None:
        self._console = console
        self._count = count
        self._started = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True) if console.is_terminal else None

    def live(self) -> AbstractContextManager[object]:
        """The time during which stages run; a live display is removed at its end."""
        return self._bars or nullcontext()

    def start(self, name: str) -> SilentProgress | BarProgress:
        """A stage starts; returns what it reports its progress to."""
        self._started += 1
        title = f"[{self._started}/{self._count}] {name}"
        if self._bars is None:
            screen.line(self._console, f"{title} ...")
            return SilentProgress()
        return BarProgress(self._bars, self._bars.add_task(screen.safe(title, self._console.file), total=None))

    def end(self, name: str, verdict: str, seconds: float) -> None:
        """A stage has ended."""
        screen.line(self._console, f"[{self._started}/{self._count}] {name}: {verdict} ({seconds:.1f} s)")
