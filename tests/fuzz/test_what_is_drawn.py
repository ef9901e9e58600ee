"""Every setting of the runner is drawn by campaigns, or excused: a new field that is neither fails here."""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import mrv2.fuzz
from mrv2.checks.errors import CheckError
from mrv2.fuzz.campaign.coverage import traits
from mrv2.fuzz.campaign.options import check_features
from mrv2.fuzz.script import Arrive, Script
from mrv2.fuzz.script_driver import CAPACITIES
from mrv2.fuzz.strategies import settings_of, turned
from mrv2.fuzz.targets.baseline import BaselineTarget
from mrv2.fuzz.targets.protocols import Knob, models_of
from mrv2.fuzz.targets.reference import NOT_DRAWN, ReferenceTarget
from mrv2.refrunner.config import ATTENTION_BACKENDS, CHOICES, GRAPH_MODES, LOGPROBS_MODES, RunnerConfig

KNOBS = ReferenceTarget.knobs
VALUES = {**CHOICES, "graph_mode": GRAPH_MODES, "attention": ATTENTION_BACKENDS, "logprobs_mode": LOGPROBS_MODES}
QUICK = settings(
    max_examples=400, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


def test_every_field_is_drawn_or_excused_and_none_is_both():
    known = {field.name for field in fields(RunnerConfig)}
    drawn, excused = {*CAPACITIES, *KNOBS}, {name for name in NOT_DRAWN if "=" not in name}
    assert known - drawn - excused == set(), "neither drawn nor excused"
    assert excused & drawn == set() and (drawn | excused) - known == set()


def test_every_value_of_a_choice_is_drawn_or_excused():
    every = {name: VALUES.get(name, (False, True)) for name in KNOBS if name in VALUES}
    every |= {field.name: (False, True) for field in fields(RunnerConfig) if str(field.type) == "bool"}
    missing = {
        f"{name}={value}" for name, values in every.items() for value in values if value not in KNOBS[name].values
    }
    assert missing == {name for name in NOT_DRAWN if "=" in name}


def test_the_first_value_of_a_knob_is_the_default():
    assert {name: knob.values[0] for name, knob in KNOBS.items()} == {
        name: getattr(RunnerConfig(), name) for name in KNOBS
    }


def test_the_page_has_the_table():
    page = (Path(mrv2.fuzz.__file__).parent / "FUZZING.md").read_text()
    assert "\n".join(f"| `{name}` | {reason} |" for name, reason in NOT_DRAWN.items()) in page


def test_what_is_drawn_is_what_the_capacities_and_the_knobs_say():
    seen = []

    @seed(3)
    @QUICK
    @given(settings_of(KNOBS))
    def draw(drawn):
        seen.append(drawn)

    draw()
    values = {name: {case.get(name, KNOBS[name].values[0]) for case in seen} for name in KNOBS}
    assert values == {name: set(knob.values) for name, knob in KNOBS.items()}
    assert {len({case[name] for case in seen}) > 1 for name in CAPACITIES} == {True}
    for case in seen:
        by_chance, proposer = case.get("verification"), case.get("speculation", "none")
        assert by_chance is None or proposer in ("draft", "eagle")
        assert proposer == "none" or "prompt_tokens" not in case
    chances = [case for case in seen if "verification" in case]
    assert len(chances) > 5
    script = Script((Arrive((1,)),), chances[0])
    assert f"verification={chances[0]['verification']}" in set(traits(script, KNOBS))


def test_a_knob_of_which_only_another_value_is_allowed_is_judged_by_its_default():
    knobs = {"b": Knob((0, 1), "", often=True, needs={"a": (0,)}), "c": Knob((0, 1), "", often=True, needs={"a": (1,)})}
    every = {"a": Knob((0, 1), ""), **knobs}
    seen = []

    @seed(3)
    @settings(QUICK, max_examples=20)
    @given(turned(knobs, every))
    def draw(drawn):
        seen.append(drawn)

    draw()
    assert {frozenset(drawn) for drawn in seen} == {frozenset(), frozenset({"b"})}


def test_a_knob_without_what_it_needs_is_refused():
    with pytest.raises(CheckError, match="only where speculation is turned"):
        check_features(("top_k", "verification"), ReferenceTarget())
    check_features(("verification", "speculation", "prompt_tokens"), ReferenceTarget())
    check_features(("prompt_tokens",), ReferenceTarget())


def test_models_are_the_targets_own():
    class Foreign:
        name, features, knobs = "foreign", frozenset(), {}

        def build(self, config):
            raise NotImplementedError

    assert [models_of(target) for target in (Foreign(), BaselineTarget())] == [("tiny",), ("tiny", "tiny-sliding")]
