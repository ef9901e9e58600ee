import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.decision import run_audit
from mrv2.stats.distribution_layer import RowPlan
from mrv2.stats.distributions import cliff, flat, recorded
from mrv2.stats.evidence_layer import Campaign, EvidenceLayer, cells_of, evidence_key
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.ledger import EvidenceKey, EvidenceLedger
from mrv2.stats.targets import Identity

from .samplers import Multinomial

V = 4096
KEY = EvidenceKey("", "kernel", "cpu", "3.9", "float32", V)
CLIFF = cliff(V, 9.0, must_see=0.1)


def night(tmp_path, target, seed, draws=100_000, row=CLIFF):
    layer = EvidenceLayer([RowPlan(row, draws)], EvidenceLedger(tmp_path / "ledger.jsonl"), KEY)
    return run_audit([layer], target, AuditPlan(V, seed=seed), Silent()).decision


def test_evidence_grows_from_night_to_night(tmp_path):
    weak = Multinomial(spoil=lambda p: np.where(p < 0.1, 0.96 * p, p))
    verdicts = [night(tmp_path, weak, seed, 20_000) for seed in range(12)]
    evidence = [v.tests[0].first.evidence["log10 of the evidence"] for v in verdicts]
    assert verdicts[0].verdict is not RunVerdict.FAIL and verdicts[-1].verdict is RunVerdict.FAIL
    assert evidence[-1] > 4 and [v.tests[0].first.result.draws for v in verdicts[:2]] == [20_000, 40_000]
    low, high = verdicts[-1].tests[0].first.evidence["interval at all times"]
    claimed = verdicts[-1].tests[0].first.evidence["claimed"]
    assert low < 0.965 * claimed and high < claimed


def test_a_correct_sampler_passes_once_there_are_enough_draws(tmp_path):
    assert night(tmp_path, Multinomial(), 0, 1000).verdict is RunVerdict.INCONCLUSIVE
    for seed in range(1, 4):
        last = night(tmp_path, Multinomial(), seed)
    assert last.verdict is RunVerdict.PASS and last.tests[0].first.result.draws == 301_000


def test_the_same_seed_is_not_counted_twice(tmp_path):
    night(tmp_path, Multinomial(), 5)
    assert night(tmp_path, Multinomial(), 5).tests[0].first.result.draws == 100_000


def test_an_impossible_token_fails_at_once(tmp_path):
    row = recorded(50_000)[0]
    leaky = Multinomial(spoil=lambda p: np.where(p == 0, 1e-3, p))
    assert night(tmp_path, leaky, 0, 1000, row).verdict is RunVerdict.FAIL


@pytest.mark.parametrize("row", [CLIFF, flat(V), recorded(50_000)[2]], ids=lambda row: row.name)
def test_cells_hold_all_of_the_mass(row):
    labels, names, cells = cells_of(row)
    assert labels.max() < len(names) == cells.size and cells[:-1].sum() == pytest.approx(1.0) and cells[-1] == 0.0


def test_a_target_that_cannot_draw_is_not_asked(tmp_path):
    layer = EvidenceLayer([], EvidenceLedger(tmp_path / "x"), KEY)
    assert layer.run(object(), AuditPlan(V, 0), Silent()).not_run


def test_a_campaign_goes_on_until_it_is_sure_or_time_is_over(tmp_path):
    asked = []

    def over():
        asked.append(None)
        return len(asked) == 3

    def campaign(target, name):
        layer = EvidenceLayer([RowPlan(CLIFF, 20_000)], EvidenceLedger(tmp_path / name), KEY)
        return run_audit([Campaign(layer, over)], target, AuditPlan(V, seed=0), Silent()).decision

    clean = campaign(Multinomial(), "clean")
    assert clean.tests[0].first.result.draws == 60_000 and clean.verdict is not RunVerdict.FAIL
    # The next night has the same seed, and draws what was not drawn before.
    asked.clear()
    assert campaign(Multinomial(), "clean").tests[0].first.result.draws == 120_000
    asked.clear()
    wrong = campaign(Multinomial(spoil=lambda p: np.where(p < 0.1, 0.5 * p, p)), "wrong")
    assert wrong.verdict is RunVerdict.FAIL and wrong.tests[0].first.result.draws == 20_000


def test_a_campaign_of_a_target_that_cannot_draw_ends(tmp_path):
    layer = EvidenceLayer([RowPlan(CLIFF, 1)], EvidenceLedger(tmp_path / "x"), KEY)
    assert Campaign(layer, lambda: False).run(object(), AuditPlan(V, 0), Silent()).not_run


def test_keys_follow_the_code():
    class Other(Multinomial):
        """Another class."""

    one, other = evidence_key(Multinomial(), V), evidence_key(Other(), V)
    assert one == evidence_key(Multinomial(), V) != other and one.vocab_size == V

    class Identified(Multinomial):
        def identity(self):
            return Identity("hash", "H200", "triton 3.9", "bfloat16")

    assert evidence_key(Identified(), V) == EvidenceKey("", "hash", "H200", "triton 3.9", "bfloat16", V)


def test_the_reference_knows_its_sources():
    key = evidence_key(ReferenceSampler(), V)
    assert len(key.kernel) == 64 and key.gpu == "cpu" and key.triton.startswith("triton 3.")
