"""What each step of the runners gives the device to do, exactly: one launch or copy more fails here."""

from pathlib import Path

import pytest

from mrv2.ci.command.trace_count import compare, read_record
from mrv2.fuzz.counted_steps import STEPS, WAYS, count_steps, ways
from mrv2.fuzz.mutants import Mutation, mutant
from mrv2.fuzz.targets.baseline import BaselineTarget
from mrv2.fuzz.targets.reference import ReferenceTarget

RECORDS = Path(__file__).parent / "records"
TARGETS = {
    "refrunner": (ReferenceTarget(), "step_counts.json"),
    "baseline_v1": (BaselineTarget(), "step_counts_baseline_v1.json"),
}
AGAIN = "if it is meant, record it anew: mrv2 trace count {} --write tests/fuzz/records/{}"
ONE_MORE = Mutation(
    "one_more_launch",
    "model_runner.py",
    "        self._grammar.apply(logits)\n",
    "        self._grammar.apply(logits)\n            logits = logits * 1.0\n",
    "the logits are multiplied by one",
)


def recorded(name, way):
    steps = read_record(RECORDS / TARGETS[name][1])
    return {step: steps[step] for step in (f"{way}, {kind}" for kind in STEPS)}


#: The older design has neither drafts nor grammars nor memory that is read in place.
CASES = [("refrunner", way) for way in WAYS] + [
    ("baseline_v1", way) for way in ("eager", "piecewise graphs", "full graphs")
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_steps_do_what_was_recorded_and_no_more(name, way):
    target, record = TARGETS[name]
    if way not in ways(target):
        pytest.skip("grammars need llguidance")
    found = compare(recorded(name, way), count_steps(target, way))
    assert not found, "\n\n".join([*map(str, found), AGAIN.format(name, record)])


def test_one_launch_more_is_found_by_its_line():
    with mutant(ONE_MORE) as target:
        found = compare(recorded("refrunner", "eager"), count_steps(target))
    assert [finding.title for finding in found] == [
        f"eager, {step}: 1 more than recorded: launch aten.mul" for step in sorted(STEPS)
    ]
    assert {(site.file, site.function) for finding in found for site in finding.where[:1]} == {
        ("refrunner/model_runner.py", "ModelRunner._sample")
    }


@pytest.mark.parametrize(
    ("name", "waiting"),
    [("refrunner", {"AsyncOutput.result"}), ("baseline_v1", {"AsyncOutput.result", "Barrier.wait"})],
)
def test_who_waits_in_a_step(name, waiting):
    work = [work for step in read_record(RECORDS / TARGETS[name][1]).values() for work in step["work"]]
    waits = {text.removeprefix("host wait Event.synchronize in ") for text in work if text.startswith("host wait")}
    assert {wait.partition(" <")[0] for wait in waits} == waiting
