"""What requests seldom do and ask for: campaigns draw it, it works, and faults that show only there are found."""

import json
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from mrv2.checks.errors import CheckError
from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.campaign.coverage import features_of
from mrv2.fuzz.campaign.options import check_features
from mrv2.fuzz.case import run_case
from mrv2.fuzz.machine import RunnerMachine
from mrv2.fuzz.mutants import EDGES, SELDOM, mutant
from mrv2.fuzz.script import Admit, Advance, Arrive, Script, script_as_json, script_from_json
from mrv2.fuzz.shrink import Shrinker
from mrv2.fuzz.strategies import LONG_MODEL_LEN, PAIR, RUNS, arrivals, settings_of
from mrv2.fuzz.targets.protocols import Feature
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import Grammar, SamplingParams

TARGET = ReferenceTarget()
SETTINGS = {
    "max_num_reqs": 1, "max_num_batched_tokens": 300, "max_model_len": LONG_MODEL_LEN, "block_size": 8,
    "num_kv_blocks": 50,
}  # fmt: skip
ENDS = SamplingParams(max_tokens=2)
PROMPT = (*range(90, 126),)
WORDS = SamplingParams(max_tokens=8, bad_words=(*RUNS, (*PROMPT, 1), (*PROMPT[:-1], 1, 7)), **PAIR)
#: While a third one waits.
GROWING = (Arrive((1, 2, 3), ENDS), Arrive((9,), ENDS), Arrive((4, 5), ENDS, continues=0, updates=True))
GRAMMAR = "likeliest_by_highest_id"
CASES = {
    "update_keeps_its_row": Script((*GROWING, Advance(4)), SETTINGS),
    "writes_of_an_empty_step_are_lost": Script((Arrive((1, 2, 3), ENDS), Admit()), SETTINGS),
    GRAMMAR: Script(
        (Arrive((1,), SamplingParams(max_tokens=1, logprobs=3, grammar=Grammar("regex", "ab"), stop_token_ids=(0,))),),
        {**SETTINGS, "grammars": True},
    ),
    "report_of_one_turn": Script((Arrive((1,), SamplingParams(max_tokens=1, logprobs=70)),), SETTINGS),
    "bad_words_look_back_one": Script((Arrive(PROMPT, WORDS),), SETTINGS),
    "bad_words_of_one_turn": Script((Arrive(PROMPT, WORDS),), {**SETTINGS, "max_num_batched_tokens": 30}),
    "bad_words_before_the_drafts": Script((Arrive(PROMPT, WORDS),), {**SETTINGS, "speculation": "ngram"}),
    "ids_of_one_block": Script((Arrive((*range(256), 5, 9, 3), ENDS),), SETTINGS),
}
#: One of another catalogue shows in long prompts only.
FAULTS = {mutation.name: mutation for mutation in (*SELDOM, *EDGES) if mutation in SELDOM or mutation.name in CASES}


RUNNABLE = [name for name in CASES if name != GRAMMAR or find_spec("llguidance")]


def test_each_fault_has_a_case():
    assert CASES.keys() == FAULTS.keys()


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_runner_is_right_there(name):
    for schedule in (None, Schedule("late")):
        script = CASES[name]
        assert run_case(TARGET, Script(script.events, script.settings, schedule=schedule)).failures == ()


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_fault_is_found_there(name):
    with mutant(FAULTS[name]) as target:
        assert run_case(target, CASES[name]).failures


def test_an_update_enters_before_who_waits_and_an_admission_computes_nothing():
    outcome = run_case(TARGET, CASES["update_keeps_its_row"])
    assert outcome.counts["updates"] == 1 and outcome.counts["row reuses"] == 2
    assert [len(outcome.results[name].token_ids) for name in ("r0", "r1", "r2")] == [2, 2, 2]
    apart = run_case(TARGET, CASES["writes_of_an_empty_step_are_lost"])
    assert (apart.steps, apart.counts["empty steps"]) == (1 + TOGETHER.steps, 1 + TOGETHER.counts["empty steps"])


#: The same without an admission of its own.
TOGETHER = run_case(TARGET, Script((Arrive((1, 2, 3), ENDS), Advance()), SETTINGS))


class Older(ReferenceTarget):
    features = frozenset(Feature) - {Feature.STREAMING_UPDATES, Feature.EMPTY_ADMISSION}


def test_a_target_without_the_features_is_told_neither():
    outcome = run_case(Older(), CASES["update_keeps_its_row"])
    assert outcome.failures == () and outcome.counts["updates"] == 0
    outcome = run_case(Older(), CASES["writes_of_an_empty_step_are_lost"])
    assert outcome.failures == () and outcome.steps == TOGETHER.steps
    assert not type("Machine", (RunnerMachine,), {"runner_target": Older()}).allows("updates")
    check_features(("continues", "updates"), TARGET)
    with pytest.raises(CheckError, match="--features updates"):
        check_features(("continues", "updates"), Older())


def _drawn(strategy, count):
    values = []

    @seed(5)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(value):
        values.append(value)

    draw()
    return values


def test_they_are_drawn():
    requests = _drawn(arrivals(256, grammars=True, longest=290), 120)
    assert any(request.updates for request in requests) and max(len(request.prompt) for request in requests) > 256
    reporting = [request.sampling for request in requests if request.sampling.logprobs is not None]
    assert any(sampling.grammar for sampling in reporting) and any(sampling.logprobs == 70 for sampling in reporting)
    assert not any(request.updates and request.continues is None for request in requests)
    words = [(request.prompt, request.sampling.bad_words) for request in _drawn(arrivals(256), 250)]
    long = [(prompt, found[3][:-1]) for prompt, found in words if found[:3] == RUNS]
    assert len(long) > 2 and all(word == prompt and len(word) > 32 for prompt, word in long)
    lengths = [drawn["max_model_len"] for drawn in _drawn(settings_of(TARGET.knobs), 200)]
    assert 5 < lengths.count(LONG_MODEL_LEN) < 60


def test_a_script_keeps_them_and_the_shrinker_leaves_them_out():
    script = Script((*GROWING, Admit()), SETTINGS)
    assert script_from_json(json.loads(json.dumps(script_as_json(script)))) == script
    assert "updates" in features_of(script, {}) and "updates" not in features_of(Script(GROWING[:2]), {})
    with pytest.raises(CheckError, match="is no truth value"):
        script_from_json({**script_as_json(script), "events": [{"event": "arrive", "prompt": [1], "updates": 1}]})
    plain = Shrinker(lambda other: len(other.events) == 4, {}).shrink(script)

    assert not any(isinstance(event, Admit) or getattr(event, "updates", False) for event in plain.events)
