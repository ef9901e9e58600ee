"""How an audit shows that it is alive: draws, tests and the smallest p-value, live on a terminal, else nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from mrv2.ci.report import console as screen
from mrv2.stats.audit import Settings
from mrv2.stats.layers import LayerTest


@dataclass
class Evidence:
    """What has been drawn and found so far.

    Attributes:
        draws: number of draws.
        tests: number of tests with an answer.
        smallest: smallest p-value of a statistical test.
        broken: exact tests that failed.
    """

    draws: int = 0
    tests: int = 0
    smallest: float = 1.0
    broken: int = 0
    bars: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def drawn(self, count: int) -> None:
        """So many more draws."""
        self.draws += count
        self._show()

    def tested(self, test: LayerTest) -> None:
        """One more answer."""
        self.tests += 1
        if test.exact:
            self.broken += test.result.p_value == 0.0
        else:
            self.smallest = min(self.smallest, test.result.p_value)
        self._show()

    def line(self) -> str:
        """All of it in one line."""
        broken = f", {self.broken} rules broken" if self.broken else ""
        return f"{self.draws:,} draws, {self.tests} tests, smallest p {self.smallest:.2g}{broken}"

    def _show(self) -> None:
        if self.bars is not None:
            self.bars.update(self.task, description=self.line())


@contextmanager
def watched(console: Console, settings: Settings, name: str = "") -> Iterator[Evidence]:
    """The time of an audit: a live line on a terminal, which is removed at its end; one line at its start elsewhere."""
    about = f"{name}: " if name else ""
    length = _length(settings)
    if not console.is_terminal:
        told = f"{about}auditing, profile {settings.profile.name}, seed {settings.seed}, {length} ..."
        screen.line(console, told)
        yield Evidence()
        return
    columns = (SpinnerColumn(), TextColumn(about + "{task.description}"), TimeElapsedColumn(), TextColumn(length))
    with Progress(*columns, console=console, transient=True) as bars:
        yield Evidence(bars=bars, task=bars.add_task("starting", total=None))


def _length(settings: Settings) -> str:
    """How long it may take; without ``--time`` a busy machine, or a slow sampler, is given more than is meant."""
    meant = f"about {settings.profile.seconds:,.0f} s, " if settings.profile.seconds < settings.limit else ""
    return f"{meant}at most {settings.limit:,.0f} s"
