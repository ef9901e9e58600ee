"""Verdicts on generated mutants: of a runner that is not ours, and of the reference runner."""

import ast
import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mrv2.checks.sync.settings import Settings
from mrv2.fuzz.mutants.generated.battery import CHURN, FIRST, drive, kill_of
from mrv2.fuzz.mutants.generated.judge import Battery, Outcome, Subject
from mrv2.fuzz.mutants.generated.sites import generate
from mrv2.fuzz.mutants.source import package_folder
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner import staging

FOLDER = Path(__file__).with_name("third_party")


@pytest.fixture(scope="module", autouse=True)
def _importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield
    assert not [name for name in sys.modules if name.startswith("async_")]


@pytest.fixture(scope="module")
def battery(_importable):
    def load():
        return importlib.import_module("async_adapter").Target()

    return Battery.of(Subject("async_engine", "async_adapter", load, lambda target: Settings(target.hot_paths)))


@pytest.fixture(scope="module")
def engine(battery):
    """The mutants of the small engine, by function, kind and operator."""
    found = {}
    for mutant in generate(package_folder("async_engine")):
        tree = ast.parse((FOLDER / "async_engine" / mutant.file).read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        (name,) = [node.name for node in functions if node.lineno <= mutant.line <= node.end_lineno]
        found[name, mutant.kind.value, mutant.operator] = mutant
    return found


def test_what_the_target_promises_not_is_left_out_by_name(battery):
    assert "MRV204" in battery.left_out["another stream is current"]
    assert {"requests come and go", "bookkeeping is watched", "requests come and go, on the CPU"} <= {
        known.exercise.name for known in battery.known
    }
    assert {"engine.py", "ring.py"} <= battery.files_entered


KILLED = [
    ("send", "event record", "delete", "MRV201"),
    ("send", "event record", "record a line early", "MRV201"),
    ("free", "event query", "take the answer for yes", "MRV201"),
    ("free", "ring depth", "shrink the ring by one", "MRV201"),
    ("pinned", "pinned allocation", "return the buffer of the call before", "MRV201"),
    ("pinned", "pinned allocation", "make it pageable", "MRV103"),
    ("download", "event wait", "delete", "MRV204"),
    ("download", "event wait", "wait the other way round", "MRV204"),
    ("download", "kept reference", "delete", "MRV205"),
    ("download", "event record", "record a line early", "MRV203"),
    ("result", "synchronize", "delete", "MRV203"),
]


@pytest.mark.parametrize(("function", "kind", "operator", "code"), KILLED, ids=lambda value: value.replace(" ", "_"))
def test_a_spoiled_edge_is_noticed_by_its_code(battery, engine, function, kind, operator, code):
    verdict = battery.judge(engine[function, kind, operator])
    assert verdict.outcome is Outcome.KILLED
    assert verdict.kill.code == code


def test_what_keeps_every_order_is_equivalent(battery, engine):
    # The host does nothing of the device's between the wait and where it came too late.
    verdict = battery.judge(engine["result", "synchronize", "wait a line late"])
    assert verdict.outcome is Outcome.EQUIVALENT
    assert "every order of the original is kept, in: requests come and go" in verdict.reason


def test_an_order_that_no_workload_needs_is_no_proof(battery, engine):
    verdict = battery.judge(engine["idle", "event wait", "delete"])
    assert verdict.outcome is Outcome.SURVIVED
    assert "operations lose an order, and no workload lets what they touch collide" in verdict.reason


def test_a_place_that_never_runs_is_not_reached(battery, engine):
    verdict = battery.judge(engine["never", "synchronize", "delete"])
    assert verdict.outcome is Outcome.UNREACHED and not verdict.reached


def test_a_change_that_changes_nothing_is_not_killed(battery, engine):
    mutant = engine["send", "event record", "delete"]
    text = (FOLDER / "async_engine" / mutant.file).read_text()
    harmless = replace(mutant, text=text.replace('"""Copy numbers to', '"""Send numbers to'))
    assert harmless.text != text
    assert battery.judge(harmless).outcome is Outcome.EQUIVALENT


def test_a_change_that_makes_no_program_does_not_count(battery, engine):
    mutant = engine["send", "event record", "delete"]
    text = (FOLDER / "async_engine" / mutant.file).read_text()
    assert battery.judge(replace(mutant, text=f"{text}\nnowhere\n")).outcome is Outcome.INVALID


def test_a_runner_that_does_not_come_to_its_end_is_stopped(battery):
    with battery.subject.changed():
        target = battery.subject.load()
        known = battery.known[0]
        seen = drive(target, known.exercise, FIRST, Settings(), most_steps=3)
    assert seen.error.startswith("StepLimit: a runner that has made 3 steps")
    assert kill_of(known, seen, FIRST).code == "MRV307"


REFERENCE = [
    ("async_output.py", "synchronize", "delete", "MRV203"),
    ("staging.py", "event query", "take the answer for yes", "MRV201"),
    # The allocator waits for the readers of what the ring forgets, so nothing races, but every step allocates.
    ("staging.py", "ring depth", "drop the reference", CHURN),
]


def test_mutants_of_the_reference_runner_are_killed_and_it_stays_as_it_is():
    subject = Subject(
        "mrv2.refrunner", "mrv2.fuzz.targets.reference", ReferenceTarget, lambda target: Settings(target.hot_paths)
    )
    battery = Battery.of(subject, most=1)
    assert not battery.left_out
    mutants = generate(package_folder("mrv2.refrunner"))
    assert kill_of(battery.known[0], battery.known[0].first, FIRST) is None
    for file, kind, operator, code in REFERENCE:
        mutant = next(one for one in mutants if (one.file, one.kind.value, one.operator) == (file, kind, operator))
        verdict = battery.judge(mutant)
        assert (verdict.outcome, verdict.kill.code) == (Outcome.KILLED, code)
    assert sys.modules["mrv2.refrunner.staging"] is staging
    assert importlib.import_module("mrv2.refrunner").staging is staging
