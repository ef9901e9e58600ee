"""What a campaign costs: steps a second of one core, and which share is the engine's own.

Run as ``python tests/benchmarks/bench_fuzz.py [CASES]``. It asserts nothing, and its name keeps it out of the tests.
Processor time is measured. The target is what its methods take, with the device that runs under them; the device's own
is what opening and closing it takes; the oracle what judging a case takes; the rest is drawing, driving and writing.
"""

import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import mrv2.fuzz.case as cases
from mrv2.checks.hooks.patching import Patches
from mrv2.fuzz.campaign.options import Options
from mrv2.fuzz.campaign.progress import ProgressReader
from mrv2.fuzz.campaign.worker import WORKERS, Worker
from mrv2.fuzz.targets.reference import ReferenceRunner, ReferenceTarget

WARM_UP, CASES = 20, 100
MODELS = ("tiny", "tiny-sliding")


class Clock:
    """Processor time by name; what is measured inside of something else counts for the inner name alone."""

    def __init__(self):
        self.seconds = Counter()
        self._open = []

    @contextmanager
    def measure(self, name):
        began = time.process_time()
        self._open.append(0.0)
        try:
            yield
        finally:
            took = time.process_time() - began
            self.seconds[name] += took - self._open.pop()
            if self._open:
                self._open[-1] += took

    def timed(self, name, function):
        def call(*arguments, **named):
            with self.measure(name):
                return function(*arguments, **named)

        return call


def campaign(folder, number_of_cases, seed):
    """One worker, in this process; returns what it counted."""
    options = Options("refrunner", seed=seed, cases=number_of_cases, models=MODELS)
    Worker(ReferenceTarget(), options, folder, 0).run()
    return ProgressReader(folder / WORKERS).read()


def measured(folder, number_of_cases):
    """The campaign with a clock at every border."""
    clock, patches = Clock(), Patches()
    try:
        patches.set(ReferenceTarget, "build", clock.timed("target", ReferenceTarget.build))
        for name in ("execute", "invariants", "close", "snapshot", "poisoned"):
            patches.set(ReferenceRunner, name, clock.timed("target", vars(ReferenceRunner)[name]))
        patches.set(cases, "checked_runner", lambda runner: _with_results(clock, runner))
        patches.set(cases.Program, "__call__", clock.timed("engine", cases.Program.__call__))
        patches.set(cases, "run_program", clock.timed("device", cases.run_program))
        patches.set(cases, "outcome_of", clock.timed("oracle", cases.outcome_of))
        with clock.measure("engine"):
            progress = campaign(folder, number_of_cases, 1)
    finally:
        patches.undo()
    return clock.seconds, progress


class _Timed:
    """A handle whose waiting is the target's and the device's."""

    def __init__(self, clock, handle):
        self.result = clock.timed("target", handle.result)


def _with_results(clock, runner):
    execute = runner.execute
    runner.execute = lambda step: _Timed(clock, execute(step))
    return runner


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    with tempfile.TemporaryDirectory() as warm, tempfile.TemporaryDirectory() as folder:
        campaign(Path(warm), WARM_UP, 0)
        seconds, progress = measured(Path(folder), count)
    counts, total = progress.counts, sum(seconds.values())
    print(f"{counts['cases']} cases, {counts['steps']} steps, {counts['virtual_steps']} of them on the virtual device")
    print(f"{counts['steps'] / total:.0f} steps a second of one core")
    for name in ("target", "device", "oracle", "engine"):
        print(f"{name:8} {seconds[name] / total:6.1%}")


if __name__ == "__main__":
    main()
