from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from mrv2.checks.findings import RunVerdict
from mrv2.stats.decision import decide, run_audit
from mrv2.stats.design import noncentrality
from mrv2.stats.errors import ArgumentError
from mrv2.stats.gof import TestResult
from mrv2.stats.layers import (
    ESCALATE_BELOW,
    ESCALATED_DRAWS,
    AuditPlan,
    LayerResult,
    LayerTest,
    Silent,
    designed_event,
    exact_test,
)

PLAN = AuditPlan(16, seed=1)


def a_test(p_value: float, name: str = "t", draws: int = 1000, needed: int | None = 100) -> LayerTest:
    return LayerTest(f"part of {name}", TestResult(name, 1.0, p_value, draws, 1), False, "error", 0.1, 0.05, needed)


def verdict_of(*tests: LayerTest, repeats: tuple[LayerTest, ...] = ()) -> RunVerdict:
    again = {"layer": LayerResult("layer", repeats)} if repeats else {}
    return decide([LayerResult("layer", tests)], again, 1e-4).verdict


def test_nothing_is_inconclusive():
    assert verdict_of() is RunVerdict.INCONCLUSIVE


def test_large_p_values_pass():
    assert verdict_of(a_test(0.2), a_test(0.9, "u")) is RunVerdict.PASS


def test_without_power_nothing_passes():
    assert verdict_of(a_test(0.2), a_test(0.9, "u", draws=99)) is RunVerdict.INCONCLUSIVE
    assert verdict_of(a_test(0.9, needed=None)) is RunVerdict.INCONCLUSIVE


def test_a_failure_needs_no_power():
    assert verdict_of(a_test(1e-12, draws=5)) is RunVerdict.FAIL


def test_the_repeat_confirms_or_clears():
    others = tuple(a_test(0.5, f"other {i}") for i in range(99))  # so that each test has a level of 1e-6
    assert verdict_of(a_test(5e-4), *others, repeats=(a_test(1e-2),)) is RunVerdict.SUSPICIOUS
    assert verdict_of(a_test(5e-4), *others, repeats=(a_test(4e-4),)) is RunVerdict.FAIL
    assert verdict_of(a_test(5e-4), *others, repeats=(a_test(0.5),)) is RunVerdict.PASS


def test_an_overwhelming_first_run_fails_whatever_the_repeat_says():
    assert verdict_of(a_test(1e-9), repeats=(a_test(0.9),)) is RunVerdict.FAIL


def test_a_suspicion_without_a_whole_repeat_is_inconclusive():
    assert verdict_of(a_test(5e-4)) is RunVerdict.INCONCLUSIVE
    others = tuple(a_test(0.5, f"other {i}") for i in range(99))
    assert verdict_of(a_test(5e-4), *others, repeats=(a_test(0.5, draws=99),)) is RunVerdict.INCONCLUSIVE
    assert verdict_of(a_test(5e-4), *others, repeats=(a_test(4e-4, draws=99),)) is RunVerdict.FAIL


def test_sequential_evidence_is_never_repeated():
    layer = Scripted({1: [1e-4]}, sequential=True)
    audit = run_audit([layer], None, AuditPlan(16, seed=1, false_fail_rate=1e-6), Silent())
    assert len(layer.asked) == 1 and audit.decision.verdict is RunVerdict.SUSPICIOUS


def test_one_violation_of_an_exact_rule_fails():
    assert verdict_of(exact_test("p", "rule", 10, 0, "case")) is RunVerdict.PASS
    assert verdict_of(exact_test("p", "rule", 10, 1, "case")) is RunVerdict.FAIL
    assert verdict_of(exact_test("p", "rule", 0, 0, "case")) is RunVerdict.INCONCLUSIVE


def test_a_violation_that_only_the_repeat_shows_fails_too():
    rule, broken = exact_test("p", "rule", 10, 0, "case"), exact_test("p", "rule", 40, 1, "case")
    assert verdict_of(a_test(5e-4), rule, repeats=(a_test(0.5), rule)) is RunVerdict.PASS
    assert verdict_of(a_test(5e-4), rule, repeats=(a_test(0.5), broken)) is RunVerdict.FAIL


def test_layers_share_the_rate_equally():
    fine = [a_test(0.5, f"t{i}") for i in range(99)]
    many = LayerResult("many", (*fine, a_test(4e-7, "low")))
    one = LayerResult("one", (a_test(2e-5, "low"),))
    judged = decide([many, one], {}, 1e-4).tests
    # 1e-4 / 2 for the single test; 1e-4 / 200 for each of the hundred, a little more after the first failure.
    assert [t.verdict for t in judged if t.first.name == "low"] == [RunVerdict.FAIL, RunVerdict.FAIL]
    weak = LayerResult("many", (*fine, a_test(2e-6, "low")))
    assert decide([weak, one], {}, 1e-4).tests[99].verdict is RunVerdict.INCONCLUSIVE


def test_suspects_are_ranked():
    decision = decide([LayerResult("l", (a_test(0.5, "a"), a_test(1e-3, "b"), a_test(1e-5, "c")))], {}, 1e-4)
    assert [t.first.name for t in decision.suspects] == ["c", "b"]


def test_the_rule_keeps_its_rate():
    # p-values of 20 tests under the null, every test below 1e-3 repeated: the rate of any failure at alpha = 0.02.
    random, alpha, failures, runs = np.random.default_rng(0), 0.02, 0, 4000
    values = random.random((runs, 20))
    for row in values[values.min(axis=1) < 2 * alpha]:
        tests = tuple(a_test(p, f"t{i}") for i, p in enumerate(row.tolist()))
        again = tuple(a_test(random.random(), t.name) for t in tests)
        decision = decide([LayerResult("l", tests)], {"l": LayerResult("l", again)}, alpha)
        failures += decision.verdict is RunVerdict.FAIL
    assert 40 <= failures <= 110, "expected at most 80, and little less"


@dataclass
class Scripted:
    """A layer that answers p-values by scale."""

    answers: dict[int, list[float]]
    name: str = "scripted"
    asked: list[AuditPlan] = field(default_factory=list)
    sequential: bool = False

    def run(self, target: object, plan: AuditPlan, progress: object) -> LayerResult:
        self.asked.append(plan)
        tests = [
            replace(a_test(p, f"t{i}"), sequential=self.sequential) for i, p in enumerate(self.answers[plan.scale])
        ]
        return LayerResult(self.name, tuple(t for t in tests if plan.wants(t.part)))


def test_only_suspicious_parts_are_repeated_with_fresh_keys():
    layer = Scripted({1: [0.5, 1e-4], ESCALATED_DRAWS: [0.0, 1e-6]})
    audit = run_audit([layer], None, PLAN, Silent())
    first, again = layer.asked
    assert again.parts == {"part of t1"} and again.scale == ESCALATED_DRAWS
    assert set(first.keys("x", 1000)[0]).isdisjoint(again.keys("x", 1000)[0])
    assert audit.decision.verdict is RunVerdict.FAIL
    assert [t.first.name for t in audit.decision.failed] == ["t1"]
    assert audit.decision.failed[0].p_value == pytest.approx(2e-9)


def test_keys_of_parts_differ_and_repeat():
    plan = AuditPlan(16, seed=7)
    seeds, positions = plan.keys("a", 4096)
    assert seeds.dtype == np.uint64 and positions.max() < 2**31
    assert set(seeds).isdisjoint(plan.keys("b", 4096)[0])
    assert (plan.keys("a", 4096)[0] == seeds).all()


def test_names_are_unique():
    layer = Scripted({1: [0.5]})
    with pytest.raises(ArgumentError):
        run_audit([layer, layer], None, PLAN, Silent())


def test_power_of_an_event():
    few = designed_event("p", TestResult("tail", 0.0, 1.0, 1000, 1), 0.01, 0.5, "tail mass", PLAN)
    many = designed_event("p", TestResult("tail", 0.0, 1.0, 10**6, 1), 0.01, 0.5, "tail mass", PLAN)
    assert few.short and not many.short
    assert few.missed().startswith("tail: a relative loss of tail mass below 0.9")
    assert few.could_see > few.must_see > many.could_see


@pytest.mark.parametrize("arguments", [{"vocab_size": 1}, {"scale": 0}, {"false_fail_rate": 0.0}])
def test_bad_plans_are_refused(arguments):
    with pytest.raises(ArgumentError):
        AuditPlan(**{"vocab_size": 16, "seed": 1, **arguments})


@pytest.mark.parametrize("df", [1, 15, 255])
@pytest.mark.parametrize("tests", [1, 200])
def test_an_error_that_shows_at_first_is_confirmed_by_four_times_the_draws(df, tests):
    """So the power of both runs together is that of the first, which is designed for 1e-3."""
    first = noncentrality(ESCALATE_BELOW, 0.1, df)
    level = 1e-4 / tests / 2.0 / ESCALATE_BELOW
    assert ncx2.sf(chi2.isf(min(level, 0.9), df), df, ESCALATED_DRAWS * first) > 0.9995
