"""``python -m mrv2.fuzz.feature_sets --steps 2000 --out FILE``: every feature set in every environment.

The file has one JSON object a line; what it holds for this number of steps is not run again, so the command may be
stopped and started. Its exit code is 0 if everything ran and nothing failed, 1 if something failed, 3 if some did not
run because time was up.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import cast

from mrv2.checks.report.text import count

from .differential import CPU, ENVIRONMENTS
from .factors import FeatureSet, feature_sets, speculating_sets
from .workers import Answer, Budget, Run, processes, run_all, run_one

#: Exit codes, as everywhere in the toolkit.
PASS, FAIL, INCONCLUSIVE = 0, 1, 3


def main(
    arguments: list[str] | None = None,
    pool_of: Callable[[int], Executor] = processes,
    work: Callable[[Run, int], Answer] = run_one,
) -> int:
    """Run what is missing and print a line for each outcome.

    Args:
        arguments: of the command line.
        pool_of: makes the processes, for so many workers.
        work: runs one feature set in one environment.

    Returns:
        The exit code.
    """
    options = _options(arguments)
    environments = options.environments.split(",")
    sets = speculating_sets() if options.speculation else feature_sets()
    missing = _missing(options.out, options.steps, environments, sets)
    with pool_of(options.workers) as pool, options.out.open("a", encoding="utf-8") as file:
        for answer in run_all(pool, work, missing, options.steps, options.workers, Budget(options.time)):
            file.write(json.dumps(answer) + "\n")
            file.flush()
            print(_line(answer), flush=True)
    return _verdict(options.out, options.steps, environments, sets)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mrv2.fuzz.feature_sets", description=(__doc__ or "").split(":")[1])
    parser.add_argument("--steps", type=int, default=2000, help="steps of each trace, at least")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; those already there are kept")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS), help="which; the plain CPU comes last")
    parser.add_argument("--speculation", action="store_true", help="the sets with drafts, instead of those without")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--time", type=_seconds, help="such as 500s: start nothing that would end later")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def _missing(file: Path, steps: int, environments: list[str], sets: tuple[FeatureSet, ...]) -> list[Run]:
    """Runs that the file does not hold, the longest first: those on the plain CPU are short."""
    done = {(answer["set"], answer["environment"]) for answer in _done(file, steps)}
    runs = [(features.number, environment) for environment in environments for features in sets]
    return sorted((run for run in runs if run not in done), key=lambda run: run[1] == CPU)


def _done(file: Path, steps: int) -> list[Answer]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [answer for answer in map(json.loads, lines) if answer["asked"] == steps]


def _line(answer: Answer) -> str:
    place = f"set {answer['set']} {answer['environment']}"
    steps, failures = cast("int", answer["steps"]), cast("int", answer["failures"])
    return f"{place}: {count(steps, 'step')}, {count(failures, 'failure')}, {answer['seconds']} s"


def _verdict(file: Path, steps: int, environments: list[str], sets: tuple[FeatureSet, ...]) -> int:
    left = _missing(file, steps, environments, sets)
    print(f"{count(len(left), 'run')} left", flush=True)
    if any(answer["failures"] for answer in _done(file, steps)):
        return FAIL
    return INCONCLUSIVE if left else PASS


if __name__ == "__main__":
    sys.exit(main())
