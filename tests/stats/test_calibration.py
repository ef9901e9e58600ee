"""The calibration itself is long: ``python -m mrv2.stats.calibration``; here are its parts and a short one."""

import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.stats.calibration import NullRun, NullSampler, clopper_pearson_upper, main, null_run, summarised
from mrv2.stats.errors import ArgumentError
from mrv2.stats.gof import g_test
from mrv2.stats.speculative import joint_law, near_case


def runs(count, make, verdict=RunVerdict.PASS):
    random = np.random.default_rng(0)
    return [NullRun(seed, verdict, make(random), ()) for seed in range(count)]


def test_uniform_p_values_are_kept():
    result = summarised(runs(1000, lambda random: {f"t{i}": random.random() for i in range(20)}))
    assert result.kept and result.tests == 20
    assert all(rate == pytest.approx(1.0, abs=0.3) for rate in result.rates.values())
    assert "at most 0.30%" in "\n".join(result.lines())


def test_p_values_on_the_safe_side_are_kept():
    assert summarised(runs(500, lambda random: {"t": min(1.0, 3 * random.random())})).kept


@pytest.mark.parametrize("spoil", [lambda p: p**1.6, lambda p: p if p > 0.02 else p / 10])
def test_p_values_that_are_too_small_are_found(spoil):
    result = summarised(runs(2000, lambda random: {"good": random.random(), "bad": spoil(random.random())}))
    assert not result.kept and {excess.test for excess in result.excess} == {"bad"}
    assert any("p-values too small: bad" in line for line in result.lines())


def test_a_false_alarm_is_found():
    fine = runs(99, lambda random: {"t": random.random()})
    result = summarised([*fine, NullRun(99, RunVerdict.FAIL, {"t": 1e-9}, ("t",))])
    assert not result.kept and result.failed == ("t",) and result.upper == pytest.approx(0.0466, abs=1e-3)


def test_bounds_of_rates():
    assert clopper_pearson_upper(0, 1000, 0.95) == pytest.approx(1 - 0.05 ** (1 / 1000))
    assert clopper_pearson_upper(5, 5, 0.95) == 1.0
    with pytest.raises(ArgumentError):
        summarised([])


def test_the_null_speculates_by_the_joint_law():
    case, count = near_case(16, 3), 60_000
    seeds = np.arange(count, dtype=np.uint64)
    answer = NullSampler().speculate(
        case.target_logits, case.draft_logits, np.ones(count, np.float32), seeds, seeds.astype(np.int64)
    )
    accepted = answer.emitted[:, 1] >= 0
    table = np.zeros((16, 17), np.int64)
    np.add.at(table, (answer.drafts[:, 0], np.where(accepted, 16, answer.emitted[:, 0])), 1)
    law, counts = joint_law(case.target(0), case.draft(0)).ravel(), table.ravel()
    filled = law * count > 25
    expected = law[filled] / law[filled].sum() * counts[filled].sum()
    assert counts[law == 0].sum() == 0 and g_test(counts[filled], expected).p_value > 1e-4


def test_a_run_gives_a_p_value_to_every_test():
    run = null_run(3, 2048, 1e-4)
    assert run.verdict is RunVerdict.PASS and len(run.p_values) > 90 and run.failed == ()


def test_the_command(capsys):
    assert main(["--runs", "1", "--vocab-size", "2048", "--seed", "5"]) == 0
    assert "1 audits of a correct sampler" in capsys.readouterr().out
