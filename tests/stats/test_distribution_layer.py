import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.stats.causes.draws import distribution_causes
from mrv2.stats.decision import run_audit
from mrv2.stats.distribution_layer import DistributionLayer, RowPlan, count_draws, draws_needed, pairs_needed
from mrv2.stats.distributions import (
    LADDER,
    cliff,
    flat,
    half_head,
    ladder,
    last_block,
    offset,
    recorded,
    two_level,
    zipf,
)
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent

from .samplers import Multinomial

V = 5000
PLAN = AuditPlan(V, seed=3)
ROWS = (flat(V), zipf(V), cliff(V, 9.0, 0.2), last_block(V), two_level(V), half_head(V))


class SamplesOnly:
    """A sampler that cannot count."""

    name = "samples only"

    def __init__(self, inner):
        self.sample = inner.sample


def audit(target, rows=ROWS, plan=PLAN):
    layer = DistributionLayer([RowPlan(row, draws_needed(row, plan)) for row in rows], pairs_needed(plan))
    return run_audit([layer], target, plan, Silent()).decision


def failed(decision):
    return {test.first.name for test in decision.failed}


def test_a_correct_sampler_passes_with_power_for_every_test():
    decision = audit(Multinomial())
    assert decision.verdict is RunVerdict.PASS
    assert len(decision.tests) == 6 + 6 + 4 + 3 + 4 * 2 + 1, (
        "support, events, zipf, flat (no surprisal), pairs, repeats"
    )


def test_few_draws_are_inconclusive_and_say_what_they_missed():
    layer = DistributionLayer([RowPlan(cliff(V, 9.0, 0.2), 500)], 0)
    audit_ = run_audit([layer], Multinomial(), PLAN, Silent())
    assert audit_.decision.verdict is RunVerdict.INCONCLUSIVE
    assert any("relative loss of the share of tail" in text for text in audit_.results[0].could_have_missed)
    assert "noise shared between keys: no pairs were drawn" in audit_.results[0].could_have_missed


def hole(start: int, stop: int):
    def spoil(p):
        p = p.copy()
        p[start:stop] = 0.0
        return p

    return spoil


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Multinomial(temperature=1.0011), "half head: tail"),
        (Multinomial(spoil=hole(4096, V)), "last block: last block"),
        (Multinomial(spoil=lambda p: np.roll(p, 1)), "two level: odd ids"),
        (Multinomial(spoil=lambda p: np.where(p < 2e-4, 0.7 * p, p)), "cliff 9: tail"),
        (Multinomial(spoil=lambda p: p * np.linspace(1.02, 0.98, p.size)), "flat: trend over ids"),
        (Multinomial(key=lambda s: s >> np.uint64(8)), "agreement of keys that differ in one seed bit"),
        (Multinomial(key=np.zeros_like), "agreement of keys that differ in seeds"),
    ],
)
def test_planted_defects_fail_where_they_should(target, expected):
    decision = audit(target, [row for row in ROWS if expected.startswith(f"{row.name}:")])
    assert decision.verdict is RunVerdict.FAIL
    assert expected in failed(decision)


def test_shared_noise_is_told_in_pairs_and_not_in_p_values():
    pairs = pairs_needed(PLAN)
    found = run_audit([DistributionLayer([], pairs)], Multinomial(key=np.zeros_like), PLAN, Silent())
    causes = distribution_causes(found, found.decision.failed)
    told = next(cause.detail for cause in causes if cause.kind.endswith("differ in seeds"))
    assert (
        told
        == f"Of {pairs:,} pairs of keys that differ in seeds, {pairs:,} drew the same token, {pairs / V:,.2f} expected"
    )


def test_keys_that_are_added_show_in_the_traded_pairs():
    class Sum(Multinomial):
        def sample(self, logits, temperature, seeds, positions):
            return super().sample(logits, temperature, seeds + positions.astype(np.uint64), np.zeros_like(positions))

    assert failed(audit(Sum(), rows=())) == {
        "agreement of keys that differ in seed and position traded",
        "independence of keys that differ in seed and position traded",
    }


def test_a_masked_id_fails_at_once():
    row = recorded(50_000)[0]
    leaky = Multinomial(spoil=lambda p: np.where(p == 0, 1e-3, p))
    decision = run_audit([DistributionLayer([RowPlan(row, 2000)], 0)], leaky, PLAN, Silent()).decision
    support = next(test for test in decision.failed if test.first.name.endswith("only possible ids"))
    assert support.first.exact and min(support.first.evidence["masked ids drawn"]) >= 49_152


def test_counting_and_sampling_targets_are_both_counted():
    row = zipf(V)
    for target in (Multinomial(), SamplesOnly(Multinomial())):
        counts = count_draws(target, row, 40_000, PLAN, Silent())
        assert counts.size == V + 1 and counts.sum() == 40_000 and counts[-1] == 0


def test_a_target_that_cannot_draw_is_not_passed():
    result = DistributionLayer([], 0).run(object(), PLAN, Silent())
    assert result.not_run and not result.tests


def test_rows_have_the_mass_that_their_names_promise():
    assert [row.name for row in ladder(V)] == [f"cliff {gap:g}" for gap in LADDER]
    tail = cliff(262_144, 18.0)
    assert np.exp(tail.log_probabilities)[tail.events[0].tokens].sum() == pytest.approx(3.98e-3, rel=2e-3)
    for row, share in ((half_head(V), 0.5), (last_block(V), 0.5)):
        assert np.exp(row.log_probabilities)[row.events[0].tokens].sum() == pytest.approx(share, rel=1e-5)
    assert np.allclose(offset(V).log_probabilities, zipf(V, temperature=1.0).log_probabilities, atol=1e-5)
    assert last_block(700).events[0].tokens.sum() == 350


def test_recorded_logits_are_a_models():
    rows = recorded()
    entropies = [-float(np.exp(row.log_probabilities) @ row.log_probabilities) for row in rows]
    assert rows[0].logits.shape == (49_152,) and entropies == pytest.approx([7.83, 6.12, 0.171], abs=0.01)
    assert recorded(1000)[1].logits.size == 1000
    with pytest.raises(ArgumentError):
        recorded(1)
