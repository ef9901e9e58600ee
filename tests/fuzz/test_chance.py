"""Drafts accepted by chance: every step of a right runner is what the formulas say, and what is not is told."""

from dataclasses import replace

import pytest

from mrv2.fuzz.case import run_case
from mrv2.fuzz.feature_sets.chance import impossible
from mrv2.fuzz.feature_sets.judge import chance_judge_of
from mrv2.fuzz.mutants import mutant
from mrv2.fuzz.mutants.speculation import DISTRIBUTION
from mrv2.fuzz.script import Abort, Advance, Arrive, Preempt, Script
from mrv2.fuzz.strategies import GRAMMAR_CHOICES, STOP
from mrv2.fuzz.targets.protocols import Knob
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Emission
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle
from mrv2.refrunner.oracle.rounding import Float32Twins

TARGET = ReferenceTarget()
SETTINGS = {
    "max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 8, "num_kv_blocks": 20,
    "attention": "triton", "speculation": "draft", "num_drafts": 3,
}  # fmt: skip
DRAWS = SamplingParams(temperature=0.8, seed=7, max_tokens=12)
EVENTS = (
    Arrive((1, 2, 3), DRAWS),
    Advance(3),
    Arrive((4, 5), replace(DRAWS, top_k=20, frequency_penalty=0.7)),
    Preempt(0),
    Arrive((6, 7, 8), replace(DRAWS, temperature=1.5, allowed_token_ids=tuple(range(1, 256, 6)))),
    Advance(3),
    Abort(1),
    Arrive((9,), SamplingParams(max_tokens=5)),
)


@pytest.mark.parametrize("way", ["token", "block"])
def test_every_step_of_the_reference_is_what_the_formulas_say(way):
    outcome = run_case(TARGET, Script(EVENTS, {**SETTINGS, "verification": way}))
    assert outcome.failures == () and outcome.tally.steps_by_chance > 8
    assert 0 < outcome.counts["drafts rejected"] < outcome.counts["drafts"]


def test_masks_of_grammars_count_behind_each_draft():
    events = (Arrive((1, 2), replace(DRAWS, grammar=GRAMMAR_CHOICES[0], stop_token_ids=(STOP,))), Arrive((3,), DRAWS))
    outcome = run_case(TARGET, Script(events, {**SETTINGS, "verification": "block", "grammars": True}))
    assert outcome.failures == () and outcome.tally.steps_by_chance > 4


@pytest.mark.parametrize("fault", DISTRIBUTION[::2], ids=lambda fault: fault.name)
def test_what_changes_a_distribution_changes_a_step(fault):
    """No token of it is forbidden, and the oracle of draws without drafts knows nothing of it."""
    events = tuple(Arrive((index, 2, 3), replace(DRAWS, seed=index)) for index in range(3))
    with mutant(fault) as target:
        (failure, *_) = run_case(target, Script(events, {**SETTINGS, "verification": "block"})).failures
    assert "as the formulas have it" in failure.text


def test_what_nobody_knows_the_source_of_is_judged_by_what_may_be_drawn(monkeypatch):
    monkeypatch.setattr(ReferenceTarget, "draft_model", lambda self, settings: None)
    outcome = run_case(TARGET, Script(EVENTS, {**SETTINGS, "verification": "token"}))
    assert outcome.failures == () and outcome.tally.steps_by_chance == 0 and outcome.tally.tokens > 20


def test_a_token_that_may_never_be_drawn_is_told():
    checkpoint = load_checkpoint("tiny")
    model = LlamaOracle(checkpoint.config, checkpoint.tensors)
    asked = NewRequest("r0", (1, 2), 2, replace(DRAWS, allowed_token_ids=(5, 6)))
    faults = [
        [*impossible(asked, Oracle(model).score(asked, tokens), Float32Twins(model).measure((1, 2, *tokens[:-1])))]
        for tokens in ((5, 6, 5), (5, 9))
    ]
    assert faults == [[], ["request r0, position 3: token 9 is one that its parameters forbid"]]


def test_a_step_too_few_or_a_token_that_no_step_emitted_is_told():
    asked, judge = NewRequest("r0", (1, 2, 3), 3, DRAWS), chance_judge_of("tiny", "tiny-draft")
    emissions = []
    tokens = []
    for drafts in (0, 3, 3):
        wanted = judge._oracle.step(asked, [1, 2, 3, *tokens], drafts, in_blocks=False)
        emissions.append(Emission(len(emissions), drafts, wanted.token_ids))
        tokens += wanted.token_ids
    assert judge.judge(asked, tokens, emissions, "token").failures == ()
    assert judge.judge(asked, tokens[:-1], emissions, "token").failures == (), "the last one is behind its end"
    assert "not those that its steps emitted" in judge.judge(asked, tokens, emissions[:-1], "token").failures[0]
    other = [*emissions[:-1], replace(emissions[-1], token_ids=(*emissions[-1].token_ids[:-1], 255))]
    assert "as the formulas have it" in judge.judge(asked, tokens, other, "token").failures[0]


def test_a_knob_that_needs_another_fits_only_there():
    knob = Knob(("equal", "token"), "", needs={"speculation": ("draft",)})
    assert [knob.fits({"speculation": value}) for value in ("draft", "none")] == [True, False]
    assert Knob((1, 2), "").fits({})
