"""Scripts: written, read back, printed as code, and driven event by event."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2.checks import triton_cpu
from mrv2.checks.errors import CheckError
from mrv2.checks.findings import Finding, Site, Soundness, Verdict
from mrv2.checks.report.identity import identity
from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.fuzz.case import Refused, model_facts, run_case
from mrv2.fuzz.paste import as_test
from mrv2.fuzz.script import (
    Abort,
    Advance,
    Arrive,
    Collect,
    Preempt,
    Script,
    Skip,
    as_code,
    script_as_json,
    script_from_json,
)
from mrv2.fuzz.script_driver import ScriptDriver
from mrv2.fuzz.strategies import GRAMMAR_CHOICES, STOP, arrivals, schedules, settings_of
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner import scheduler
from mrv2.refrunner.api import Grammar, SamplingParams

TARGET = ReferenceTarget()
SCHEDULER = "refrunner/scheduler.py"
SETTINGS = {
    "max_num_reqs": 2,
    "max_num_batched_tokens": 8,
    "max_model_len": 48,
    "block_size": 8,
    "num_kv_blocks": 16,
    "attention": "triton",
}
EVERY_KIND = (
    Arrive((1, 2, 3), SamplingParams(max_tokens=3)),
    Advance(2),
    Arrive((4,) * 12, SamplingParams(temperature=0.8, seed=2**64 - 1, max_tokens=4, logit_bias=((1, 4.0),)), 1),
    Skip(),
    Preempt(1),
    Advance(1),
    Abort(0),
    Arrive((7,), SamplingParams(max_tokens=2), continues=1),
    Collect(),
)
SCRIPT = Script(EVERY_KIND, SETTINGS, schedule=Schedule("random:3", 0, (Decision(4, 1, True), Decision(9, None))))

REQUESTS = arrivals(256, grammars=True)


@given(
    st.builds(
        Script,
        st.lists(st.one_of(REQUESTS, st.builds(Advance, st.integers(1, 4)), st.just(Skip()))).map(tuple),
        settings_of(TARGET.knobs),
        st.integers(1, 3),
        schedules(),
    )
)
def test_a_script_is_read_back_from_json_and_from_code(script):
    assert script_from_json(json.loads(json.dumps(script_as_json(script)))) == script
    names = {kind.__name__: kind for kind in (Script, Arrive, Advance, Skip, Schedule, SamplingParams, Grammar)}
    assert eval(as_code(script), names) == script


@pytest.mark.parametrize(
    "change",
    [
        {"events": [{"event": "sleep"}]},
        {"events": [{"event": "arrive", "prompt": [1.5]}]},
        {"events": [{"event": "advance", "steps": True}]},
        {"steps_in_flight": 0},
        {"settings": {"block_size": {}}},
        {"further": 1},
        {"model": 3},
        {"relation": 3},
    ],
)
def test_what_is_no_script_is_refused(change):
    with pytest.raises(CheckError, match="the script of a finding"):
        script_from_json({**script_as_json(SCRIPT), **change})


def test_every_event_is_carried_out():
    program = ScriptDriver(_runner(), SCRIPT, *model_facts("tiny"))
    trace = program.run()
    assert trace.crash is None
    assert trace.counts["preempted"] >= 1 and trace.counts["aborted"] == 1
    assert trace.steps[2].scheduled == {}, "a skipped step says nothing although requests are running"
    assert trace.results["r0"].finish_reason == "abort"
    assert [item.continues for item in program.requests] == [None, None, "r1"]
    assert len(trace.results["r2"].token_ids) == 2


def _runner():
    return TARGET.build({"model": "tiny", **SETTINGS})


def test_what_was_in_flight_at_a_preemption_is_reported_once():
    """The output is taken after the scheduler has dropped it, and before a step could tell the runner."""
    sampling = SamplingParams(max_tokens=2, logprob_token_ids=(5, 2))
    script = Script((Arrive((113,), sampling), Advance(1), Preempt(), Collect()), SETTINGS)
    outcome = run_case(TARGET, script)
    assert outcome.failures == () and outcome.tally.reports == 2
    assert outcome.counts["preempted"] == 1


def test_skipped_steps_add_no_steps_in_flight():
    script = Script((Arrive((1, 2)), *(Skip(),) * 5, Advance(1)), SETTINGS, steps_in_flight=2)
    driver = ScriptDriver(_runner(), script, *model_facts("tiny"))
    most = []
    take = driver._take_output
    driver._take_output = lambda: (most.append(len(driver._in_flight)), take())
    driver.run()
    assert max(most) == 2


def test_a_host_that_is_far_ahead_is_the_schedules_doing(monkeypatch):
    request = Arrive((1,) * 20, SamplingParams(max_tokens=12))
    settings = {**SETTINGS, "attention": "torch"}
    script = Script((request,), settings, steps_in_flight=14, schedule=Schedule("starve:0"))
    assert run_case(TARGET, script).failures == ()
    monkeypatch.setattr("mrv2.fuzz.case.FULL_QUEUE", "")
    assert [failure.text[:6] for failure in run_case(TARGET, script).failures] == ["MRV108"]


def test_a_grammar_without_memory_for_masks_is_passed_over():
    sampling = SamplingParams(grammar=GRAMMAR_CHOICES[0], stop_token_ids=(STOP,))
    driver = ScriptDriver(_runner(), Script((Arrive((1,), sampling), Arrive((2,))), SETTINGS), *model_facts("tiny"))
    assert driver.run().crash is None
    assert driver.refused == ["r0"]


def test_a_request_that_no_scheduler_could_serve_is_passed_over():
    script = Script((Arrive((1,) * 60), Arrive((2,), SamplingParams(max_tokens=1), continues=0)), SETTINGS)
    driver = ScriptDriver(_runner(), script, *model_facts("tiny"))
    driver.run()
    assert driver.refused == ["r0"]
    assert [item.request_id for item in driver.requests] == ["r1"], "there is nothing that it could continue"


def test_what_would_continue_a_request_that_never_was_is_not_waited_for():
    """The second one grows too long when the first has ended; the third waits for the second."""
    continued = (Arrive((2,) * 60, continues=0), Arrive((3,), continues=1), Arrive((4,), SamplingParams(max_tokens=1)))
    first = Arrive((1,), SamplingParams(max_tokens=1))
    driver = ScriptDriver(_runner(), Script((first, *continued), SETTINGS), *model_facts("tiny"))
    driver.run()
    assert driver.refused == ["r1", "r2"]
    assert [item.request_id for item in driver.requests] == ["r0", "r3"]


@pytest.mark.parametrize("schedule", [None, SCRIPT.schedule], ids=["cpu", "virtual"])
def test_the_reference_does_what_it_should(schedule):
    outcome = run_case(TARGET, Script(EVERY_KIND, SETTINGS, schedule=schedule))
    assert outcome.failures == ()
    assert outcome.tally.tokens > 5
    assert bool(outcome.moments) == (schedule is not None)


@pytest.mark.parametrize(("speculation", "virtual"), [("ngram", True), ("draft", False), ("eagle", False)])
def test_drafts_and_grammars_change_nothing(speculation, virtual):
    grammar, number = (SamplingParams(grammar=GRAMMAR_CHOICES[index], stop_token_ids=(STOP,)) for index in (2, 1))
    events = (Arrive((4, 4, 4), grammar), Advance(3), Skip(), Preempt(0), Advance(2), Arrive((9,), number))
    settings = {**SETTINGS, "grammars": True, "speculation": speculation}
    outcome = run_case(TARGET, Script(events, settings, schedule=SCRIPT.schedule if virtual else None))
    assert outcome.failures == ()
    assert outcome.counts["drafts"] > outcome.counts["drafts rejected"]
    assert outcome.counts["refused requests"] == 0
    assert b"north " in bytes(outcome.results["r0"].token_ids)


def test_a_fault_in_a_kernel_has_the_same_signature_on_every_machine(monkeypatch):
    where = Site(scheduler.__file__, 7, "kernel")
    finding = Finding("MRV211", Verdict.VIOLATION, Soundness.SOUND, "one program writes what another reads", (where,))
    enabled = triton_cpu.enabled

    @contextmanager
    def with_a_finding():
        with enabled() as session:
            yield SimpleNamespace(findings=[*session.findings, finding])

    monkeypatch.setattr("mrv2.fuzz.case.triton_cpu.enabled", with_a_finding)
    (failure,) = run_case(TARGET, Script((Arrive((1,), SamplingParams(max_tokens=1)),), SETTINGS)).failures
    assert failure.signature == f"MRV211 {identity(replace(finding, where=(replace(where, file=SCHEDULER),)))}"
    assert f" {SCHEDULER}:7 (kernel)" in failure.text and str(Path(scheduler.__file__).parent) not in failure.text


def test_rare_states_are_counted():
    """Two decode together; one leaves and another enters in one step. Three tokens are one too many for a graph."""
    first, second = (Arrive((token,), SamplingParams(max_tokens=2)) for token in (1, 2))
    events = (first, second, Arrive((3, 4), SamplingParams(max_tokens=2)))
    settings = {**SETTINGS, "max_num_reqs": 2}
    counts = run_case(TARGET, Script(events, settings, steps_in_flight=1)).counts
    assert counts["rows reused at once"] == 1 and counts["edges of graphs"] == 0
    graphs = run_case(TARGET, Script(events, {**settings, "graph_mode": "full"}, 1, Schedule())).counts
    assert graphs["edges of graphs"] >= 3 and graphs["host versions read"] >= 3


def test_settings_that_the_target_refuses_are_no_failure():
    for schedule in (None, Schedule()):
        with pytest.raises(Refused):
            run_case(TARGET, Script(EVERY_KIND, {**SETTINGS, "block_size": 0}, schedule=schedule))


def test_a_pasted_test_runs_the_same_script():
    code = as_test("refrunner", SCRIPT, [])
    names = {}
    exec(compile(code, "pasted", "exec"), names)
    names["test_replay"]()
