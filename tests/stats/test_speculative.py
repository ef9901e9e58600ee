import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.stats.decision import run_audit
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.speculative import (
    acceptance,
    certain_case,
    joint_law,
    near_case,
    reversed_case,
    speculation_cases,
)
from mrv2.stats.speculative_layer import SpeculativeLayer
from mrv2.stats.strata import log_softmax
from mrv2.stats.targets import SpeculativeDraws

PLAN = AuditPlan(64, seed=8)


class Rejection:
    """Rejection sampling with Gumbel noise; ``fault`` names what is wrong."""

    def __init__(self, fault=""):
        self.fault = fault

    def speculate(self, target_logits, draft_logits, temperature, seeds, positions):
        random, warmth = np.random.default_rng(int(seeds[0])), float(temperature[0])
        count, drafts, size = seeds.size, *draft_logits.shape
        p = [np.exp(log_softmax(row, warmth)) for row in target_logits]
        q = [np.exp(log_softmax(row, warmth)) for row in draft_logits]
        proposed = np.empty((count, drafts), np.int64)
        emitted = np.full((count, drafts + 1), -1)
        alive = np.ones(count, bool)
        for j in range(drafts):
            noise = random.gumbel(size=(count, size))
            with np.errstate(divide="ignore"):
                draft = (np.log(q[j]) + noise).argmax(axis=1)
                again = noise if self.fault == "shared noise" else random.gumbel(size=(count, size))
                believed = self._believed(q[j], draft_logits[j])
                accepted = random.random(count) < p[j][draft] / believed[draft]
                out = (np.log(self._residual(p[j], q[j], draft)) + again).argmax(axis=1)
            if self.fault == "accept always":
                accepted[:] = True
            proposed[:, j] = draft
            emitted[alive, j] = np.where(accepted, draft, out)[alive]
            alive &= accepted
        row = p[drafts - 1] if self.fault == "bonus of the row before" else p[drafts]
        emitted[alive, drafts] = random.choice(size, alive.sum(), p=row)
        return SpeculativeDraws(proposed, emitted)

    def _believed(self, q, logits):
        return np.exp(log_softmax(logits, 0.8)) if self.fault == "q of another temperature" else q

    def _residual(self, p, q, draft):
        if self.fault == "recover from p":
            return np.tile(p, (draft.size, 1))
        if self.fault == "recover from p without the draft":
            rows = np.tile(p, (draft.size, 1))
            rows[np.arange(draft.size), draft] = 0.0
            return rows
        return np.tile(np.maximum(p - q, 0.0), (draft.size, 1))


def audit(fault, case, draws=25_000):
    return run_audit([SpeculativeLayer(draws, (case,))], Rejection(fault), PLAN, Silent()).decision


@pytest.mark.parametrize("case", [reversed_case(3, 1), near_case(16, 3), certain_case(16, 3)], ids=lambda c: c.name)
def test_rejection_sampling_passes(case):
    decision = audit("", case, 100_000)
    assert decision.verdict is RunVerdict.PASS, [t.first.missed() for t in decision.tests if t.verdict.name != "PASS"]


@pytest.mark.parametrize(
    ("fault", "case", "expected"),
    [
        ("shared noise", reversed_case(3, 1), "draft 0, joint table"),
        ("recover from p", reversed_case(16, 1), "draft 0, only possible outcomes"),
        ("recover from p", near_case(16, 1), "draft 0, only possible outcomes"),
        ("recover from p without the draft", reversed_case(16, 1), "draft 0, only possible outcomes"),
        ("accept always", reversed_case(3, 1), "draft 0, acceptance"),
        ("q of another temperature", reversed_case(16, 1), "draft 0, joint table"),
        ("bonus of the row before", near_case(16, 1), "bonus token"),
    ],
)
def test_planted_faults(fault, case, expected):
    decision = audit(fault, case)
    assert f"{case.name}: {expected}" in {test.first.name for test in decision.failed}


def test_the_joint_table_tells_shared_noise_sooner_than_the_outcome():
    decision = audit("shared noise", reversed_case(3, 1), 2500)
    p_values = {test.first.name.rpartition(", ")[2]: test.p_value for test in decision.tests}
    assert p_values["joint table"] < 0.1 * p_values["outcome"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda drafts, emitted: (drafts, np.where(emitted < 0, 0, emitted)),  # no end
        lambda drafts, emitted: (drafts, np.full_like(emitted, -1)),  # nothing
        lambda drafts, emitted: (drafts, emitted + 3 * (emitted >= 0)),  # ids beyond the vocabulary
        lambda drafts, emitted: ((drafts + 1) % 3, emitted),  # accepted is not what was drafted
    ],
)
def test_malformed_outcomes(spoil):
    class Malformed(Rejection):
        def speculate(self, *arguments):
            answer = super().speculate(*arguments)
            return SpeculativeDraws(*spoil(answer.drafts, answer.emitted))

    case = near_case(3, 1)
    decision = run_audit([SpeculativeLayer(500, (case,))], Malformed(), PLAN, Silent()).decision
    assert [test.first.name for test in decision.failed] == [f"{case.name}: form"]
    assert decision.failed[0].first.evidence["examples"]


def test_joint_law_sums_to_one_and_has_both_margins():
    for case in speculation_cases():
        p, q = case.target(0), case.draft(0)
        law = joint_law(p, q)
        assert law.sum(axis=1) == pytest.approx(q)
        assert law[:, :-1].sum(axis=0) + law[:, -1] == pytest.approx(p)
        assert law[:, -1].sum() == pytest.approx(acceptance(p, q))


def test_joint_law_of_equal_models_never_rejects():
    p = np.array([0.2, 0.8])
    assert joint_law(p, p)[:, :-1].sum() == 0
    with pytest.raises(ArgumentError):
        joint_law(p, np.array([1.0]))


def test_last_positions_are_reached():
    assert near_case(64, 7).reach(7) > 0.4
    assert {case.drafts for case in speculation_cases()} == {1, 3, 7}


def test_too_few_draws_are_inconclusive():
    decision = audit("", reversed_case(3, 1), 2000)
    assert decision.verdict is RunVerdict.INCONCLUSIVE


def test_other_targets_are_not_asked():
    assert SpeculativeLayer().run(object(), PLAN, Silent()).not_run


class Blocks(Rejection):
    own_acceptance = True


def test_blocks_are_judged_by_what_comes_out():
    case = reversed_case(3, 3)
    for fault, passes in (("", True), ("shared noise", False)):
        decision = run_audit([SpeculativeLayer(80_000, (case,))], Blocks(fault), PLAN, Silent()).decision
        assert [test.first.name for test in decision.tests] == [
            f"{case.name}: form",
            f"{case.name}: first 4 tokens together",
        ]
        assert (decision.verdict is RunVerdict.PASS) == passes


class OwnWay:
    """Two ways to verify which public reports called biased and which are not, and the mistake that would make each so.

    ``equal``: a draft is accepted if it equals a fresh draw from the target, and that draw comes out in any case
    (mlx-swift-lm 459; N05 of the museum). ``equal, drawn again``: after a rejection another draw comes out.
    ``argmax``: the draft is the likeliest token of the draft model, held to be certain (vllm 16899; N07).
    ``argmax, believed a draw``: it is accepted and replaced as if it had been drawn (vllm 40651).
    """

    own_acceptance = True

    def __init__(self, way):
        self.way = way

    def speculate(self, target_logits, draft_logits, temperature, seeds, positions):
        random, warmth = np.random.default_rng(int(seeds[0])), float(temperature[0])
        count, drafts, size = seeds.size, *draft_logits.shape
        p, q = ([np.exp(log_softmax(row, warmth)) for row in rows] for rows in (target_logits, draft_logits))
        proposed, emitted = np.empty((count, drafts), np.int64), np.full((count, drafts + 1), -1)
        alive = np.ones(count, bool)
        for j in range(drafts):
            step = self._equal if self.way.startswith("equal") else self._argmax
            proposed[:, j], accepted, out = step(random, p[j], q[j], count)
            emitted[alive, j] = np.where(accepted, proposed[:, j], out)[alive]
            alive &= accepted
        emitted[alive, drafts] = random.choice(size, alive.sum(), p=p[drafts])
        return SpeculativeDraws(proposed, emitted)

    def _equal(self, random, p, q, count):
        draft, out = random.choice(p.size, count, p=q), random.choice(p.size, count, p=p)
        accepted = draft == out
        if self.way == "equal, drawn again":
            out = random.choice(p.size, count, p=p)
        return draft, accepted, out

    def _argmax(self, random, p, q, count):
        best = int(q.argmax())
        certain = np.eye(p.size)[best] if self.way == "argmax" else q
        accepted = random.random(count) < p[best] / certain[best]
        residual = np.maximum(p - certain, 0.0)
        return np.full(count, best), accepted, random.choice(p.size, count, p=residual / residual.sum())


@pytest.mark.parametrize("case", [reversed_case(3, 1), near_case(16, 3), reversed_case(3, 7)], ids=lambda c: c.name)
@pytest.mark.parametrize(("sound", "biased"), [("equal", "equal, drawn again"), ("argmax", "argmax, believed a draw")])
def test_negative_controls_of_public_reports(sound, biased, case):
    def verdict(way):
        return run_audit([SpeculativeLayer(100_000, (case,))], OwnWay(way), PLAN, Silent()).decision.verdict

    assert verdict(sound) is RunVerdict.PASS
    assert verdict(biased) is RunVerdict.FAIL


def test_ways_of_their_own_are_not_taken_for_rejection_sampling():
    """What comes out is right, but the acceptance is not what is claimed where no way of its own is."""
    for way in ("equal", "argmax"):
        target = OwnWay(way)
        target.own_acceptance = False
        decision = run_audit([SpeculativeLayer(25_000, (near_case(16, 1),))], target, PLAN, Silent()).decision
        assert any("acceptance" in test.first.name or "joint table" in test.first.name for test in decision.failed)
