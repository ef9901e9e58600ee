"""Runs of feature sets in several processes: each answer is handed over when it is there, whatever the order."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from typing import TypeAlias

import torch

from mrv2.checks.findings import JSON
from mrv2.fuzz.targets.reference import ReferenceTarget

from .differential import run_feature_set
from .factors import every_set

#: Number of a feature set, and an environment.
Run: TypeAlias = tuple[int, str]
#: A line of the record.
Answer: TypeAlias = dict[str, JSON]


class Budget:
    """Time to start runs in. None is started that would end too late if it took as long as the longest so far.

    Args:
        seconds: from now on; None has no end.
        clock: counts seconds.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._end = float("inf") if seconds is None else clock() + seconds
        self._clock = clock
        self._longest = 0.0

    def allows_another(self) -> bool:
        """Whether a run may still be started."""
        return self._clock() + self._longest < self._end

    def note(self, seconds: float) -> None:
        """A run took so long."""
        self._longest = max(self._longest, seconds)


def processes(workers: int) -> Executor:
    """Fresh processes; a copy of one that has started threads of torch could hang."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


def run_one(run: Run, steps: int) -> Answer:
    """Run one feature set in one environment, on one thread, since the neighbours are other runs."""
    torch.set_num_threads(1)
    number, environment = run
    features, start = every_set()[number], time.monotonic()
    outcome = run_feature_set(ReferenceTarget(), features, environment, steps)
    seconds = round(time.monotonic() - start, 1)
    return {"asked": steps, **outcome.as_json(), "values": dict(features.values), "seconds": seconds}


def run_all(
    pool: Executor, work: Callable[[Run, int], Answer], runs: Iterable[Run], steps: int, at_once: int, budget: Budget
) -> Iterator[Answer]:
    """Start runs in their order, so many at once, and yield each answer as it comes.

    An exception of the work is an answer, with itself as the failure: the others go on.

    Raises:
        BrokenExecutor: a process died; what it and the others ran is not there.
    """
    waiting = iter(runs)
    pending: dict[Future[Answer], Run] = {}
    while True:
        while len(pending) < at_once and budget.allows_another() and (run := next(waiting, None)):
            pending[pool.submit(work, run, steps)] = run
        if not pending:
            return
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            answer = _answer(future, pending.pop(future), steps)
            budget.note(float(str(answer["seconds"])))
            yield answer


def _answer(future: Future[Answer], run: Run, steps: int) -> Answer:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor):
        raise error
    words = "".join(traceback.format_exception(error))
    failed: Answer = {"asked": steps, "set": run[0], "environment": run[1], "steps": 0}
    return {**failed, "failures": 1, "first failures": [words], "seconds": 0.0}
