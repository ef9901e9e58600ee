"""Drafts of a head, accepted by chance: steps are what the formulas say, and faults that nothing else shows are told.

``MRV2_LONG=1`` draws 400 cases and plants every fault; ``MRV2_HEAD_CASES`` and ``MRV2_HEAD_SEED`` draw others.
"""

import json
import os
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from mrv2.fuzz.case import run_case
from mrv2.fuzz.machine import RunnerMachine
from mrv2.fuzz.mutants import HEADS, mutant
from mrv2.fuzz.script import Abort, Advance, Arrive, Preempt, Script
from mrv2.fuzz.strategies import schedules
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.errors import StepError
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.heads import HeadDrafts, HeadOracle, Run, drafts_behind
from mrv2.refrunner.oracle.heads import Moment as Beginning
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.rounding import Float32Twins

LONG = bool(os.environ.get("MRV2_LONG"))
SHORT = 2
CASES = int(os.environ.get("MRV2_HEAD_CASES", 400 if LONG else SHORT))
SEED = int(os.environ.get("MRV2_HEAD_SEED", "7"))
TARGET = ReferenceTarget()
SETTINGS = {
    "max_num_reqs": 2, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 4, "num_kv_blocks": 40,
    "attention": "triton", "speculation": "eagle", "num_drafts": 3, "prefix_caching": True,
}  # fmt: skip
DRAWS = SamplingParams(temperature=0.8, seed=7, max_tokens=10)
TEXT = tuple(range(3, 25))
#: Chunks, prefixes of others in the middle of a block, rows that others had, a request that comes back.
EVENTS = (
    Arrive(TEXT[:20], DRAWS),
    Advance(4),
    Arrive(TEXT[:14], replace(DRAWS, seed=8, temperature=1.5)),
    Advance(3),
    Preempt(1),
    Advance(2),
    Arrive(TEXT[:18], SamplingParams(max_tokens=6)),
    Arrive(TEXT, replace(DRAWS, top_k=20, frequency_penalty=0.7)),
    Advance(3),
    Abort(2),
    Arrive((9,), replace(DRAWS, seed=9)),
)


@pytest.mark.parametrize(("way", "in_flight"), [("token", 2), ("block", 3)])
def test_every_step_of_the_reference_is_what_the_formulas_say(way, in_flight):
    outcome = run_case(TARGET, Script(EVENTS, {**SETTINGS, "verification": way}, in_flight))
    assert outcome.failures == () and outcome.tally.steps_by_chance > 12
    assert 2 < outcome.counts["drafts rejected"] < outcome.counts["drafts"] - 2, "some were accepted, some were not"
    assert outcome.counts["prefixes found"] and outcome.counts["resumed"] and outcome.counts["chunked"]


def test_a_head_as_it_is_published_is_followed_too(tmp_path):
    """Without norms at either end, with a bias, from a folder."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    head = load_checkpoint("tiny-eagle")
    left_out = ("model.layers.0.input_layernorm.weight", "model.norm.weight")
    tensors = {name: tensor for name, tensor in head.tensors.items() if name not in left_out}
    save_file({**tensors, "fc.bias": torch.linspace(-1, 1, 64)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(head.config.to_hugging_face()))
    script = Script(EVENTS[:5], {**SETTINGS, "verification": "token", "draft_model": str(tmp_path)})
    outcome = run_case(TARGET, script)
    assert outcome.failures == () and outcome.tally.steps_by_chance > 4 and outcome.counts["drafts"] > 8


def test_a_prompt_whose_first_draw_nobody_took_is_shared_all_the_same():
    """It was aborted in flight: what it drew is unknown, but not what it has left of its prompt."""
    events = (Arrive(TEXT[:12], DRAWS), Advance(1), Abort(0), Arrive(TEXT[:14], replace(DRAWS, seed=8)))
    outcome = run_case(TARGET, Script(events, {**SETTINGS, "verification": "token"}, 3))
    assert outcome.counts["prefixes found"] == 1 and outcome.results["r0"].token_ids == ()
    assert outcome.failures == () and outcome.tally.steps_by_chance > 2 and outcome.tally.near_ties == 0


def test_keys_that_nobody_has_computed_are_an_error():
    target, head = oracles()
    request = NewRequest("r", (1, 2, 3, 4, 5), 5, DRAWS, num_computed_tokens=4)
    run = Run((Step(new=(request,), scheduled={"r": 1}, new_blocks={"r": ((1, 2),)}),), {(0, "r"): (6,)}, 4)
    with pytest.raises(StepError, match="position 0 of a request that entered with 5 tokens"):
        HeadDrafts(Float32Twins(target), Float32Twins(head), run).logits("r", [1, 2, 3, 4, 5, 6], [])


class Unknown(ReferenceTarget):
    """Nobody knows what its drafts are drawn from."""

    def draft_model(self, settings):
        return None


#: Of each fault, requests that it needs beside the events above until a draft is another one.
FAULTS = tuple(zip(HEADS, (0, 0, 10, 0), strict=True))


@pytest.mark.parametrize(
    ("fault", "requests"), FAULTS if LONG else FAULTS[:2], ids=lambda value: getattr(value, "name", "")
)
def test_a_fault_that_nothing_else_shows_is_told(fault, requests):
    more = (Arrive((5, number), replace(DRAWS, seed=number)) for number in range(requests))
    script = Script((*EVENTS, *more), {**SETTINGS, "verification": "token"})
    with mutant(fault) as target:
        (failure, *_) = run_case(target, script).failures
        unknown = Unknown(target._mutated()._package)
        assert run_case(unknown, script).failures == (), "all other oracles are content"
    assert "as the formulas have it" in failure.text


def oracles():
    tiny, head = load_checkpoint("tiny"), load_checkpoint("tiny-eagle")
    target = LlamaOracle(tiny.config, tiny.tensors)
    return target, HeadOracle.of(target, head.config, head.tensors)


def test_tokens_at_once_are_tokens_one_by_one():
    target, head = oracles()
    tokens = [1, 2, 3, 4]
    hidden = target.forward(tokens).hidden[-1]
    before = torch.cat((torch.zeros(1, 64, dtype=torch.float64), hidden[:-1]))
    whole, states = head.extend(head.empty(), tokens, before)
    context, each = head.empty(), []
    for token, state in zip(tokens, before, strict=True):
        more, (last,) = head.extend(context, [token], state[None])
        context = context.and_more(more)
        each.append(last)
    assert torch.allclose(context.keys, whole.keys) and torch.allclose(context.values, whole.values)
    assert torch.allclose(torch.stack(each), states)
    _, behind = drafts_behind(head, Beginning(whole, states[-1]), [])
    assert torch.equal(head.expected(behind), states[-1] @ target.weights["lm_head.weight"].T)


def test_float32_may_be_off_by_its_rounding_and_no_more():
    """The twins have their columns in the same order, or they would be as far apart as two heads."""
    target, head = oracles()
    request = NewRequest("r", (1, 2, 3, 4, 5), 5, DRAWS)
    entry = Step(new=(request,), scheduled={"r": 5}, new_blocks={"r": ((1, 2, 3),)})
    run = Run((entry, Step(scheduled={"r": 3}, drafts={"r": 2})), {(0, "r"): (6,), (1, "r"): (7, 8)}, 4)
    drafts = HeadDrafts(Float32Twins(target), Float32Twins(head), run)
    assert 1e-7 < drafts.bound("r", [1, 2, 3, 4, 5, 6], [7, 9]) < 1e-3
    assert drafts.logits("r", [1, 2, 3, 4, 5, 6], [7]).shape == (256,)


def drawn(cases, number):
    """Outcomes of cases as a campaign draws them, but that a head proposes and its drafts are draws."""
    outcomes = []

    class Machine(RunnerMachine):
        runner_target = TARGET
        models = ReferenceTarget.models
        schedule_strategy = schedules() if cases > SHORT else st.none()

        @classmethod
        def settings(cls):
            return st.builds(_with_head, super().settings(), st.sampled_from(("token", "block")))

        def run(self, script):
            outcomes.append(run_case(TARGET, script))
            return outcomes[-1]

    chosen = settings(
        max_examples=cases, stateful_step_count=12, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip
    run_state_machine_as_test(seed(number)(Machine), settings=chosen)
    return outcomes


def _with_head(drawn_settings, way):
    kept = {name: value for name, value in drawn_settings.items() if name != "prompt_tokens"}
    return {**kept, "speculation": "eagle", "verification": way}


def test_every_step_of_drawn_cases_is_what_the_formulas_say(capsys):
    seen = Counter()
    for outcome in drawn(CASES, SEED):
        seen.update(cases=1, steps=outcome.steps, by_chance=outcome.tally.steps_by_chance, ties=outcome.tally.near_ties)
        seen.update({f"cases with {name}": 1 for name, count in outcome.counts.items() if count})
    if CASES > SHORT:
        with capsys.disabled():
            print(dict(seen))
    # Some are refused, and where Hypothesis tries again there are more.
    assert seen["cases"] > CASES // 2 and seen["by_chance"] >= CASES
