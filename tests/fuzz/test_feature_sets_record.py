"""The recorded matrix: what it holds is right, as complete as the README says, and the same in every schedule."""

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from mrv2 import fuzz
from mrv2.fuzz.feature_sets import record
from mrv2.fuzz.feature_sets.differential import CPU, ENVIRONMENTS

RECORD = json.loads((Path(__file__).parent / "records" / "feature_sets.json").read_text(encoding="utf-8"))
RUNS = [dict(zip(RECORD["columns"], run, strict=True)) for run in RECORD["runs"]]
SETS = {int(number): dict(zip(RECORD["factors"], values, strict=True)) for number, values in RECORD["sets"].items()}
NOT_THE_SAME = ("environment", "near ties", "largest logprob error over its bound")


def test_no_run_has_a_failure_and_every_bound_holds():
    assert RECORD["asked"] == 2000
    for run in RUNS:
        assert run["failures"] == 0, run
        assert run["steps"] >= RECORD["asked"], run
        assert run["tokens"] > run["requests"] > 0, run
        assert 0 < run["largest logprob error over its bound"] <= 1, run
        assert run["near ties"] * 100 < run["tokens"], run


def test_there_are_enough_sets_with_all_their_pairs():
    assert len(SETS) >= 40
    assert sum(values["poison"] for values in SETS.values()) >= 40
    seen = {pair for values in SETS.values() for pair in combinations(values.items(), 2)}
    choices = dict.fromkeys(choice for values in SETS.values() for choice in values.items())
    missing = [pair for pair in combinations(choices, 2) if pair[0][0] != pair[1][0] and not {pair, pair[::-1]} & seen]
    assert set(map(frozenset, missing)) == {
        frozenset({("graph_mode", "full"), ("attention", "torch")}),
        frozenset({("poison", True), ("zero_new_blocks", True)}),
    }


def test_no_run_is_there_twice_and_the_readme_counts_them():
    runs = Counter((run["set"], run["environment"]) for run in RUNS)
    assert set(runs.values()) == {1}
    assert {environment for _, environment in runs} <= set(ENVIRONMENTS)
    readme = (Path(fuzz.__file__ or fuzz.__path__[0]).parent / "README.md").read_text(encoding="utf-8")
    (found, most) = re.findall(r"(\d+) of (\d+) runs of 2,000 steps", readme)[0]
    assert (int(found), int(most)) == (len(runs), len(SETS) * len(ENVIRONMENTS))


def test_schedules_change_nothing():
    """Steps, tokens and fates are the same; rounding is so on one machine. The plain CPU has no graphs."""
    of_set = {}
    for run in RUNS:
        if run["environment"] != CPU:
            counts = {name: value for name, value in run.items() if name not in NOT_THE_SAME}
            assert of_set.setdefault(run["set"], counts) == counts


def test_lines_of_two_lengths_are_no_record():
    line = {**dict.fromkeys(record.COLUMNS, 0), "values": {"poison": True}}
    assert record.record_of([{**line, "asked": 7}], "c", "v")["sets"] == {"0": [True]}
    with pytest.raises(ValueError, match="one number of steps"):
        record.record_of([{**line, "asked": 7}, {**line, "asked": 8}], "c", "v")
