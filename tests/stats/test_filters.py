import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.decision import run_audit
from mrv2.stats.errors import ArgumentError
from mrv2.stats.filters import FilterCase, kept_tokens, threshold_cases
from mrv2.stats.filters_layer import FiltersLayer
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.strata import log_softmax

PLAN = AuditPlan(2000, seed=6)


class Sampler:
    """Masks and draws by the specification, but for ``spoil``, which gets a row's kept set and its case."""

    def __init__(self, spoil=lambda kept, logits, filters: kept):
        self.spoil = spoil

    def _kept(self, logits, temperature, filters):
        parameters = int(filters.top_k[0]), float(filters.top_p[0]), float(filters.min_p[0])
        kept = kept_tokens(logits, temperature, *parameters).surely
        return self.spoil(kept, logits, parameters)

    def sample_filtered(self, logits, temperature, seeds, positions, filters):
        log_p = log_softmax(logits, float(temperature[0]))
        p = np.where(self._kept(logits, float(temperature[0]), filters), np.exp(log_p), 0.0)
        return np.random.default_rng(int(seeds[0])).choice(p.size, seeds.size, p=p / p.sum())


class Masked(Sampler):
    def kept(self, logits, temperature, filters):
        return np.stack([self._kept(row, float(temperature[0]), filters) for row in logits])


def failed(target):
    decision = run_audit([FiltersLayer()], target, PLAN, Silent()).decision
    return {test.first.name for test in decision.failed}


def test_the_specification_passes():
    for target in (Sampler(), Masked()):
        assert run_audit([FiltersLayer()], target, PLAN, Silent()).decision.verdict is RunVerdict.PASS


def test_the_reference_passes():
    target = ReferenceSampler(compiled=True)
    audit = run_audit([FiltersLayer(300)], target, AuditPlan(512, seed=1), Silent())
    assert audit.decision.verdict is RunVerdict.PASS
    assert sum("kept set" in test.first.name for test in audit.decision.tests) == 2 * 19  # alone and in a batch


def one_more(kept, logits, parameters):
    if parameters[1] == 1.0 or kept.all():
        return kept
    return logits >= logits[~kept].max()


def without_boundary(kept, logits, parameters):
    if parameters[1] == 1.0 or kept.sum() < 2:
        return kept
    return kept & (logits > logits[kept].min())


def ties_by_id(kept, logits, parameters):
    order = np.lexsort((np.arange(logits.size), -logits))
    return kept & np.isin(np.arange(logits.size), order[: parameters[0] or logits.size])


def one_fewer(kept, logits, parameters):
    fewer = kept & (logits > logits[kept].min())
    return fewer if parameters[0] == 3 and fewer.any() else kept


def min_p_with_slack(kept, logits, parameters):
    return logits >= logits[kept].min() - 1e-3 if 0.0 < parameters[2] < 0.2 else kept


def top_p_of_everything(kept, logits, parameters):
    top_k, top_p, min_p = parameters
    return kept_tokens(logits, 1.0, top_k, 1.0, min_p).surely & kept_tokens(logits, 1.0, 0, top_p, 0.0).surely


@pytest.mark.parametrize("kind", [Sampler, Masked])
@pytest.mark.parametrize(
    ("spoil", "case"),
    [
        (one_more, "top-p between two tokens"),
        (without_boundary, "top-p between two tokens"),
        (one_fewer, "top-k of 3"),
        (min_p_with_slack, "min-p beside two tokens"),
        (lambda kept, x, p: kept_tokens(x, 1.0, *p).surely, "top-p after the temperature"),
        (top_p_of_everything, "all three filters"),
    ],
)
def test_planted_faults(kind, spoil, case):
    assert any(name.startswith(f"{case}:") for name in failed(kind(spoil)))


def test_ties_by_id_show_in_the_mask():
    assert failed(Masked(ties_by_id)) >= {
        "top-k of 3 with a tie of two: kept set",
        "top-k of 3 with a tie of a hundred: kept set",
    }


def test_kept_sets_by_hand():
    kept = {case.name: case.kept() for case in threshold_cases(2000)}
    sizes = {name: int(tokens.surely.sum()) for name, tokens in kept.items()}
    assert sizes == {
        "top-p between two tokens": 3,
        "top-p just below a sum": 3,
        "top-p just above a sum": 4,
        "top-p below the first token": 1,
        "top-p inside a group of ties": 7,
        "top-p of a long ramp": sizes["top-p of a long ramp"],
        "top-p after the temperature": 2,
        "top-k of 1": 1,
        "top-k of 3": 3,
        "top-k of 3 with a fourth one unit below": 3,
        "top-k of 3 with a tie of two": 4,
        "top-k of 3 with a tie of a hundred": 100,
        "top-k of all": 2000,
        "min-p beside two tokens": 3,
        "min-p after the temperature": 2,
        "min-p of 1": 2,
        "top-p of what top-k left": 1,
        "top-p of what min-p left": 1,
        "all three filters": 2,
    }
    # exp(-8 i / 2000) summed to a half: i = 2000 / 8 * ln 2
    assert sizes["top-p of a long ramp"] == pytest.approx(2000 / 8 * np.log(2), abs=1.5)
    assert all(tokens.ambiguous == 0 for name, tokens in kept.items() if "ramp" not in name)


def test_a_threshold_on_a_token_is_ambiguous():
    row = np.log([0.5, 0.25, 0.25 - 1e-9, 1e-9]).astype(np.float32)
    assert FilterCase("on a sum", row, top_p=0.5).kept().ambiguous >= 1
    assert FilterCase("on the line", row, min_p=0.5).kept().ambiguous >= 1


@pytest.mark.parametrize("parameters", [(-1, 1.0, 0.0), (0, 1.5, 0.0), (0, 1.0, -0.1)])
def test_bad_parameters_are_refused(parameters):
    with pytest.raises(ArgumentError):
        kept_tokens(np.zeros(4, np.float32), 1.0, *parameters)


def test_small_vocabularies_are_refused_and_other_targets_not_asked():
    with pytest.raises(ArgumentError):
        threshold_cases(100)
    assert FiltersLayer().run(object(), PLAN, Silent()).not_run
