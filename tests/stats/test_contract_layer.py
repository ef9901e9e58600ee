"""The contract layer: the correct sampler passes, and for each question there is a sampler that fails it."""

import numpy as np
import pytest

from mrv2.fuzz.targets.plain_samplers import CallableSampler, multinomial_sampler
from mrv2.stats.contract_layer import ContractLayer, call_again
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED, BroadcastSeed, LostLastBlock, PaddingSampled

PLAN = AuditPlan(vocab_size=5003, seed=4)
CLEAN = CleanSampler()


def failed(target):
    result = ContractLayer().run(target, PLAN, Silent())
    assert all(test.exact and not test.short for test in result.tests)
    return {test.name for test in result.tests if test.result.p_value == 0}


def changed(change):
    """The correct sampler with its tokens, or what it gets, changed."""

    def sample(logits, temperature, seeds, positions):
        return change(logits, temperature, seeds, positions)

    return CallableSampler(sample, "changed")


@pytest.mark.parametrize("target", [CLEAN, multinomial_sampler()], ids=lambda target: target.name)
def test_a_correct_sampler_passes(target):
    assert failed(target) == set()


def test_a_sampler_without_keys_is_not_asked_for_them():
    result = ContractLayer().run(multinomial_sampler(), PLAN, Silent())
    assert "the same call draws the same" not in {test.name for test in result.tests}
    assert "depend on the batch" in result.could_have_missed[0]
    own = CallableSampler(multinomial_sampler().sample)
    assert "draws do not depend on the order of the batch" in failed(own)


def test_what_is_no_sampler_is_not_run():
    assert ContractLayer().run(object(), PLAN, Silent()).not_run


FORM = "one id of the vocabulary per row"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (FORM, PaddingSampled()),
        ("the last id can be drawn", LostLastBlock()),
        ("a single possible id is drawn", LostLastBlock()),
        ("draws do not depend on the order of the batch", BroadcastSeed()),
        ("draws do not depend on the other rows", BroadcastSeed()),
        ("NaN is never drawn", changed(lambda x, *k: CLEAN.sample(np.where(np.isnan(x), 3, x).astype(np.float32), *k))),
        (
            "a row without a possible id",
            changed(
                lambda x, *k: np.where(np.isneginf(np.nan_to_num(x, nan=-np.inf).max(1)), 129, CLEAN.sample(x, *k))
            ),
        ),
        ("masked ids are never drawn", changed(lambda x, *k: CLEAN.sample(np.maximum(x, -3), *k))),
        ("a single possible id is drawn", changed(lambda x, *k: CLEAN.sample(np.maximum(x, -1e3), *k))),
        (
            "temperature 0 draws the largest logit",
            changed(lambda x, *k: x.shape[-1] - 1 - CLEAN.sample(x[:, ::-1], *k)),
        ),
        (
            "temperature 0 draws the largest logit",
            changed(lambda x, t, *k: CLEAN.sample(x, np.maximum(t, np.float32(0.5)), *k)),
        ),
        (
            "keys and temperatures at their ends",
            changed(lambda x, t, *k: CLEAN.sample(x, np.where(t > 0, np.maximum(t, np.float32(0.3)), t), *k)),
        ),
        (FORM, changed(lambda x, t, *k: CLEAN.sample(x, t, *k) + (x.shape[-1] == 2053))),
        (FORM, changed(lambda x, t, *k: CLEAN.sample(x, t, *k).astype(np.float32))),
        (FORM, changed(lambda x, t, *k: CLEAN.sample(x, t, *k)[:-1])),
        (FORM, changed(lambda x, t, *k: x.fill(0) or CLEAN.sample(x, t, *k))),
        (FORM, changed(lambda x, t, s, p: [][len(p)])),
    ],
)
def test_a_fault_fails_its_question(name, target):
    assert name in failed(target)


def test_a_sampler_that_ignores_strides_fails():
    def flattened(logits, temperature, seeds, positions):
        whole = logits if logits.base is None else logits.base
        return CLEAN.sample(whole.ravel()[: logits.size].reshape(logits.shape), temperature, seeds, positions)

    assert "rows with a stride" in failed(CallableSampler(flattened))


def test_a_correct_sampler_with_a_generator_of_its_own_fails_nothing():
    random = np.random.default_rng(0)

    def drawn(logits, temperature, seeds, positions):
        return CLEAN.sample(logits, temperature, random.integers(0, 2**64, len(seeds), dtype=np.uint64), positions)

    assert failed(CallableSampler(drawn, keyed=False)) == set()


@pytest.mark.parametrize("limit", [64, 256, 1024])
@pytest.mark.parametrize("shared", [False, True])
def test_a_fault_of_large_batches_alone_is_seen(limit, shared):
    """A path for large batches that reads another row's key; calls of all other checks are smaller."""

    def drawn(logits, temperature, seeds, positions):
        tokens = CLEAN.sample(logits, temperature, seeds, positions)
        if len(seeds) > limit and (logits.ndim == 1) == shared:
            tokens[limit] = tokens[0]
            tokens[limit + 1 :] = tokens[1 : len(seeds) - limit]
        return tokens

    assert failed(CallableSampler(drawn)) == {"draws do not depend on the other rows"}


def test_a_sampler_may_refuse_a_row_without_a_possible_id():
    def strict(logits, *keys):
        assert np.isfinite(np.nanmax(np.where(np.isnan(logits), -np.inf, logits), axis=-1)).all()
        return CLEAN.sample(logits, *keys)

    assert failed(CallableSampler(strict)) == set()


def test_a_sampler_whose_draws_change_from_call_to_call_fails():
    calls = iter(range(10**6))

    def restless(logits, temperature, seeds, positions):
        return CLEAN.sample(logits, temperature, seeds, positions + next(calls))

    assert "the same call draws the same" in failed(CallableSampler(restless))


class TestRepeating:
    def run(self, target, seed=3, vocab_size=1500):
        return ContractLayer().run(target, AuditPlan(vocab_size, seed), Silent())

    @pytest.mark.parametrize("planted", [fault for fault in PLANTED if fault.layer == "contract"], ids=lambda p: p.name)
    def test_a_call_that_showed_a_fault_can_be_made_again(self, planted):
        target = planted.make()
        failed = [test for test in self.run(target).tests if test.result.p_value == 0.0]
        assert failed
        for test in failed:
            told = test.evidence["arguments"]
            call, _, rest = told.rpartition("call_again(")
            assert call == "mrv2.stats.contract_layer."
            arguments = eval(f"call_again({rest}", {"call_again": call_again})
            drawn = target.sample(*arguments)
            assert test.evidence["drawn"] in drawn.tolist()
            assert arguments[0].shape[-1] == test.evidence["width"]

    def test_what_was_never_asked_is_refused(self):
        for check, number in (("no such check", 1), ("the last id can be drawn", 0), ("the last id can be drawn", 99)):
            with pytest.raises(ArgumentError, match="never made"):
                call_again(check, number, 0, 1500)
