"""``python -m mrv2.fuzz.feature_sets --steps 2000 --out FILE``: every feature set in every environment.

The file has one JSON object a line; what it holds for this number of steps is not run again, so the command may be
stopped and started. Its exit code is 0 if nothing failed, 1 if something did.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from mrv2.checks.findings import JSON
from mrv2.fuzz.targets.reference import ReferenceTarget

from .differential import ENVIRONMENTS, run_feature_set
from .factors import FeatureSet, feature_sets


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing and print a line for each outcome; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mrv2.fuzz.feature_sets", description=(__doc__ or "").split(":")[1])
    parser.add_argument("--steps", type=int, default=2000, help="steps of each trace, at least")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; those already there are kept")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS), help="which, and in this order")
    options = parser.parse_args(arguments)
    target = ReferenceTarget()
    for features, environment in _missing(options.out, options.steps, options.environments.split(",")):
        outcome = {"asked": options.steps, **run_feature_set(target, features, environment, options.steps).as_json()}
        outcome["values"] = dict(features.values)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")
        print(
            f"set {features.number} {environment}: {outcome['steps']} steps, {outcome['failures']} failures", flush=True
        )
    return int(any(outcome["failures"] for outcome in _done(options.out, options.steps)))


def _missing(file: Path, steps: int, environments: list[str]) -> Iterator[tuple[FeatureSet, str]]:
    done = {(outcome["set"], outcome["environment"]) for outcome in _done(file, steps)}
    for environment in environments:
        for features in feature_sets():
            if (features.number, environment) not in done:
                yield features, environment


def _done(file: Path, steps: int) -> list[dict[str, JSON]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [outcome for outcome in map(json.loads, lines) if outcome["asked"] == steps]


if __name__ == "__main__":
    sys.exit(main())
