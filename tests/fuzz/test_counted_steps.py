"""What each step of the reference runner gives the device to do, exactly: one launch or copy more fails here."""

from pathlib import Path

import pytest

from mrv2.ci.command.trace_count import compare, read_record
from mrv2.fuzz.counted_steps import STEPS, WAYS, count_steps, ways
from mrv2.fuzz.mutants import Mutation, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget

RECORD = Path(__file__).parent / "records" / "step_counts.json"
AGAIN = (
    "if the step is to do so, record it anew: mrv2 trace count refrunner --write tests/fuzz/records/step_counts.json"
)
ONE_MORE = Mutation(
    "one_more_launch",
    "model_runner.py",
    "        self._grammar.apply(logits)\n",
    "        self._grammar.apply(logits)\n            logits = logits * 1.0\n",
    "the logits are multiplied by one",
)


def recorded(way):
    steps = read_record(RECORD)
    return {name: steps[name] for name in (f"{way}, {step}" for step in STEPS)}


@pytest.mark.parametrize("way", WAYS)
def test_steps_do_what_was_recorded_and_no_more(way):
    if way not in ways():
        pytest.skip("grammars need llguidance")
    found = compare(recorded(way), count_steps(ReferenceTarget(), way))
    assert not found, "\n\n".join([*map(str, found), AGAIN])


def test_one_launch_more_is_found_by_its_line():
    with mutant(ONE_MORE) as target:
        found = compare(recorded("eager"), count_steps(target))
    assert [finding.title for finding in found] == [
        f"eager, {step}: 1 more than recorded: launch aten.mul in ModelRunner._sample < ModelRunner._enqueue"
        for step in sorted(STEPS)
    ]
    assert {(site.file, site.function) for finding in found for site in finding.where[:1]} == {
        ("refrunner/model_runner.py", "ModelRunner._sample")
    }


def test_nobody_waits_in_a_step_but_for_an_output():
    steps = read_record(RECORD)
    waits = {work for step in steps.values() for work in step["work"] if work.startswith("host wait")}
    assert waits and all(wait.startswith("host wait Event.synchronize in AsyncOutput.result <") for wait in waits)
