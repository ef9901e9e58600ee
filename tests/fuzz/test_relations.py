"""Relations of scripts: a runner that is right keeps them, and a fault that only they can see is told."""

from dataclasses import replace

import pytest
import torch

from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.case import run_case
from mrv2.fuzz.relations import RELATIONS, Relation, differences, possible
from mrv2.fuzz.script import Abort, Advance, Arrive, Collect, Preempt, Script
from mrv2.fuzz.shrink import Shrinker
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import RequestResult
from mrv2.refrunner.api import SamplingParams

TARGET = ReferenceTarget()
SETTINGS = {
    "max_num_reqs": 3,
    "max_num_batched_tokens": 8,
    "max_model_len": 48,
    "block_size": 8,
    "num_kv_blocks": 30,
    "speculation": "ngram",
    "graph_mode": "eager",
}
EVENTS = (
    Arrive((1, 2, 3), SamplingParams(max_tokens=3)),
    Advance(2),
    Arrive((4,) * 12, SamplingParams(temperature=0.8, seed=5, max_tokens=4)),
    Preempt(1),
    Arrive((7, 8), SamplingParams(max_tokens=4)),
    Advance(1),
    Abort(0),
    Arrive((9,), SamplingParams(max_tokens=2)),
    Collect(),
)


@pytest.mark.parametrize("name", RELATIONS)
def test_every_relation_has_something_to_change_and_holds(name):
    schedule = Schedule("starve:1") if name == "an idle device" else None
    script = Script(EVENTS, SETTINGS, schedule=schedule, relation=name)
    others = RELATIONS[name].others(script)
    assert others and all(other.script != script for other in others)
    assert sorted(base for other in others for base in other.names.values()) == ["r0", "r1", "r2", "r3"]
    assert run_case(TARGET, script).failures == ()


class Unsteady:
    """A runner that computes with another vector of weights for each number of rows that it is built with."""

    name, features, knobs = "unsteady", frozenset(), {}

    def build(self, config):
        return TARGET.build({**config, "model": "tiny" if config["max_num_reqs"] > 1 else "tiny-sliding"})


def test_a_runner_that_depends_on_its_size_is_found():
    script = Script((Arrive((3,) * 20, SamplingParams(max_tokens=6)),), SETTINGS, relation="a request at a time")
    assert run_case(Unsteady(), Script(script.events, SETTINGS)).failures == ()
    assert run_case(Unsteady(), script).failures


class Hasty:
    """A runner whose requests prefer a token where its device is behind."""

    name, features, knobs = "hasty", frozenset(), {}

    def build(self, config):
        torch.zeros(1, device="cuda").add_(1)
        event = torch.cuda.Event()
        event.record()
        behind = not event.query()  # at startup the runner waits
        runner = TARGET.build(config)
        execute = runner.execute

        def biased(request):
            return replace(request, sampling=replace(request.sampling, logit_bias=((5, 4.0),) if behind else ()))

        runner.execute = lambda step: execute(replace(step, new=tuple(map(biased, step.new))))
        return runner


def test_a_runner_whose_tokens_depend_on_how_far_the_device_is_is_found():
    """It does not say what its drafts are drawn from, and the tokens that it draws may all be drawn."""
    events = (Arrive((3,) * 20, SamplingParams(temperature=0.8, seed=5, max_tokens=9)),)
    settings = {**SETTINGS, "speculation": "eagle", "verification": "token", "attention": "triton"}
    script = Script(events, settings, schedule=Schedule("late"))
    for other in (script, replace(script, schedule=Schedule("early"), relation="an idle device")):
        assert run_case(Hasty(), other).failures == ()
    (failure,) = run_case(Hasty(), replace(script, relation="an idle device")).failures
    assert failure.text.startswith("relation 'an idle device': request r0: tokens")


def test_what_is_accepted_by_chance_is_compared_where_nothing_rounds_otherwise():
    """Drawn tokens of another batch may rightly be other ones; those of greedy requests may not."""
    settings = {**SETTINGS, "speculation": "draft", "verification": "token", "attention": "triton"}
    events = (Arrive((4,) * 5, SamplingParams(temperature=0.8, seed=5, max_tokens=6)), Arrive((9,)))
    for name in ("no drafts", "poison on for off"):
        assert run_case(TARGET, Script(events, settings, relation=name)).failures == ()
    (without,) = RELATIONS["no drafts"].others(Script(events, settings))
    both = [run_case(TARGET, script).results for script in (Script(events, settings), without.script)]
    assert [text.split(":")[0] for text in differences(*both, RELATIONS["no drafts"], 0)] == ["request r0"]


def test_tokens_that_differ_are_told_and_near_ties_are_not():
    one, other = ({"r0": RequestResult(tokens, (-1.0, -2.0), "length")} for tokens in ((1, 2), (1, 3)))
    shape, bits = Relation(tuple), Relation(tuple, rounds=False)
    assert list(differences(one, other, shape, 0)) == ["request r0: tokens (1, 3) instead of (1, 2)"]
    assert list(differences(one, other, shape, 1)) == []
    assert list(differences(one, other, bits, 1))
    assert list(differences(one, {}, bits, 0))


def test_log_probabilities_count_where_nothing_rounds_otherwise():
    one, other = ({"r0": RequestResult((1,), (value,), "length")} for value in (-1.0, -1.0000001))
    assert list(differences(one, other, Relation(tuple), 0)) == []
    assert "log-probabilities" in next(differences(one, other, Relation(tuple, rounds=False), 0))


def test_of_an_aborted_request_counts_what_both_got():
    long, short = (RequestResult(tokens, (0.0,) * len(tokens), "abort") for tokens in ((1, 2, 3), (1,)))
    assert list(differences({"r0": long}, {"r0": short}, Relation(tuple), 0)) == []
    wrong = RequestResult((2,), (0.0,), "length")
    assert list(differences({"r0": long}, {"r0": wrong}, Relation(tuple), 0))


def test_relations_need_their_knobs_and_are_left_out_if_they_can_be():
    assert "poison on for off" not in possible(["pad_to"]) and "more padding" in possible(["pad_to"])
    script = Script(EVENTS, SETTINGS, relation="backwards")
    assert Shrinker(lambda script: True, TARGET.knobs).shrink(script).relation is None
    kept = Shrinker(lambda script: script.relation is not None, TARGET.knobs).shrink(script)
    assert kept.relation == "backwards" and kept.events == ()


def test_what_goes_on_where_another_was_aborted_is_compared_only_if_it_is_the_same():
    """Without the preemption the first request has drawn more by the time that it is aborted."""
    first, second = Arrive((152,), SamplingParams(max_tokens=3)), Arrive((78,), SamplingParams(max_tokens=4), 0, 0)
    events = (first, Advance(), Preempt(), Advance(), second, Abort())
    settings = {**SETTINGS, "speculation": "none"}
    script = Script(events, settings, steps_in_flight=1, relation="never preempted")
    assert run_case(TARGET, script).failures == ()
    never = tuple(event for event in events if event != Preempt())
    prompts = [run_case(TARGET, Script(each, settings, 1)).continued["r1"] for each in (events, never)]
    assert len(prompts[0]) < len(prompts[1])
