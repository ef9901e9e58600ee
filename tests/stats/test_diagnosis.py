"""Causes are named when the data single them out, and only then."""

import numpy as np
import pytest

from mrv2.stats.diagnosis import distribution_cause, fit_temperature, reuse_cause
from mrv2.stats.gof import pair_agreement_test
from mrv2.stats.strata import Stratum, log_softmax

V, DRAWS = 400, 500
ROWS = np.random.default_rng(0).normal(size=(3, V)) * 2.5


def strata(defect=lambda row, p, temperature: p, temperatures=(0.7, 1.3), seed=0):
    """Draws whose probabilities a defect changes: (row, probabilities, temperature) to weights."""
    rng = np.random.default_rng(seed)
    result = {}
    for temperature in temperatures:
        for row in ROWS:
            claimed = log_softmax(row, temperature)
            weights = defect(row, np.exp(claimed), temperature)
            tokens = rng.choice(V, DRAWS, p=weights / weights.sum())
            result.setdefault(temperature, []).append(Stratum(claimed, tokens))
    return result


def only(keep):
    return lambda row, p, temperature: np.where(keep(row, p), p, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_correct_sampler_has_no_cause(seed):
    assert distribution_cause(strata(seed=seed)) is None


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.2, 2.0])
def test_the_temperature_is_estimated(factor):
    draws = strata(lambda row, p, t: np.exp(log_softmax(row, t * factor)), temperatures=(1.0,))[1.0]
    estimate, gain = fit_temperature(draws)
    assert estimate == pytest.approx(factor, rel=0.06)
    assert (gain > 16) == (factor != 1.0)


def test_the_temperature_fit_ends_at_its_bounds():
    claimed = log_softmax(ROWS[0], 1.0)
    assert fit_temperature([Stratum(claimed, np.full(50, claimed.argmax()))])[0] < 0.03
    assert fit_temperature([Stratum(claimed, np.full(50, claimed.argmin()))])[0] == pytest.approx(50)


def test_the_temperature_fit_takes_masked_tokens():
    row = np.where(np.arange(V) % 3 == 0, -np.inf, ROWS[0])
    claimed = log_softmax(row, 1.0)
    tokens = np.random.default_rng(0).choice(V, 2000, p=np.exp(claimed))
    assert fit_temperature([Stratum(claimed, tokens)])[0] == pytest.approx(1.0, rel=0.06)


@pytest.mark.parametrize(
    ("defect", "kind", "detail"),
    [
        (lambda row, p, t: np.exp(log_softmax(row, 1.0)), "wrong temperature", "instead of 0.70, "),
        (lambda row, p, t: np.exp(log_softmax(row, 0.7)), "wrong temperature", "instead of 1.30"),
        (lambda row, p, t: (p == p.max()).astype(float), "always the argmax", "all 3000 draws"),
        (only(lambda row, p: p < p.max()), "the most likely token is never drawn", "never, "),
        (only(lambda row, p: (np.arange(V) < 200) | (np.arange(V) > 230)), "a range of ids is never drawn", "no id of"),
        (only(lambda row, p: p > p.max() * np.exp(-4)), "the tail is never drawn", "nats"),
        (lambda row, p, t: np.roll(p, 1), "token ids off by one", "adding 1"),
        (lambda row, p, t: np.roll(p, -1), "token ids off by one", "adding -1"),
    ],
)
def test_each_defect_is_named(defect, kind, detail):
    cause = distribution_cause(strata(defect))
    assert cause is not None
    assert cause.kind == kind
    assert detail in cause.detail
    assert cause.remedy


def test_an_unknown_defect_has_no_name():
    parity = np.where(np.arange(V) % 2, 1.3, 0.7)
    assert distribution_cause(strata(lambda row, p, t: p * parity)) is None


def test_shared_noise_names_the_seed_bits():
    result = pair_agreement_test(np.ones(64, bool), np.full(64, 0.1))
    cause = reuse_cause(result, "seeds", (0, 32, 33, 34, 63))
    assert "64 of 64 pairs agree, 6.4 expected" in cause.detail
    assert "seed bits 0, 32-34, 63" in cause.detail
    assert "positions" in reuse_cause(result, "positions", ()).kind
