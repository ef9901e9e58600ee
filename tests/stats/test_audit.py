"""Whole audits: each planted fault is caught and named, correct samplers pass, errors of a sampler are findings."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.fuzz.targets.plain_samplers import CallableSampler, multinomial_sampler
from mrv2.stats import audit as audits
from mrv2.stats.assertion import SamplerIncorrectError, assert_sampler_correct
from mrv2.stats.audit import NO_TIME, audit, settings
from mrv2.stats.distribution_layer import DistributionLayer, row_tests
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED, TokensOnly
from mrv2.stats.profiles import NARROW, AffordableDistribution, profile_of
from mrv2.stats.report import LINES, WIDTH, meaning, next_step, screen
from mrv2.stats.timing import TimeBudget

from .timed import timed

SMALL = 5003
SLOW = TokensOnly(CleanSampler())  # for the time that it is given here
ALONE = {planted.name: planted for planted in PLANTED if planted.layer not in {"distribution", "speculative"}}


def run(target, *layers, **options):
    return audit(target, settings(vocab_size=SMALL, layers=layers, **options))


@pytest.mark.parametrize("planted", ALONE.values(), ids=ALONE)
def test_a_planted_fault_is_caught_and_named(planted):
    report = run(planted.make(), planted.layer)
    assert report.verdict is RunVerdict.FAIL
    assert report.causes[0].kind == planted.cause
    lines = screen(report)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert planted.cause in "\n".join(lines)


@pytest.mark.parametrize("layer", ["contract", "filters", "logprobs"])
def test_the_correct_sampler_passes(layer):
    report = run(CleanSampler(), layer)
    assert report.verdict is RunVerdict.PASS
    assert report.causes == ()


def test_without_time_a_layer_is_not_run_and_nothing_passes():
    ticks = iter(range(0, 10**6, 100))
    report = audit(CleanSampler(), settings(vocab_size=600, layers=("contract", "noise")), clock=lambda: next(ticks))
    assert [result.not_run for result in report.audit.results] == ["", NO_TIME]
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert any("no time" in line for line in screen(report))
    assert "time was over (180 s)" in screen(report)[1]


def test_a_slow_sampler_is_inconclusive_and_says_what_it_missed():
    report = run(SLOW, "distribution", seconds=1e-3)
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert any(line.startswith("  - rare tokens, 12.5 nats") for line in screen(report))


def test_rows_that_were_left_out_are_not_called_cut():
    target, clock = timed(TokensOnly(CleanSampler()), call=1e-4, draw=1e-4)
    report = audit(target, settings(vocab_size=SMALL, layers=("distribution",)), clock=clock)
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert report.seconds < report.settings.limit
    text = "\n".join(screen(report))
    assert "tests had too few draws" in text
    assert "time was over" not in text
    assert "TOO FEW DRAWS" in text


def test_a_slow_sampler_that_shows_its_bits_gets_narrow_rows():
    plan = AuditPlan(SMALL, 0, time=TimeBudget(itertools.count().__next__, 1e6))
    chosen = AffordableDistribution(profile_of("pr", 1e-6)).chosen(CleanSampler(), plan)
    assert chosen.rows[1] == chosen.pairs[1] == NARROW
    assert chosen.left_out
    few = dataclasses.replace(chosen, rows=_NOTHING, left_out=(), pairs=_NOTHING)
    plan = AuditPlan(SMALL, 0)
    result = few.told(few.run(CleanSampler(), plan, Silent()), plan)
    assert result.could_have_missed[0].startswith("what shows only in rows of more than 500 tokens")


_NOTHING = (DistributionLayer((), 0), NARROW)


def test_a_broken_contract_stops_the_rest():
    report = run(CallableSampler(lambda logits, *keys: np.full(len(keys[1]), -1)), "contract", "replay")
    assert report.verdict is RunVerdict.FAIL
    assert report.audit.results[1].not_run
    assert report.causes[0].kind == "answers of the wrong form"


def test_an_error_of_the_sampler_is_a_finding():
    class Raising(CleanSampler):
        def kept(self, logits, temperature, filters):
            raise ZeroDivisionError("no filters today")

    report = run(Raising(), "filters")
    assert report.verdict is RunVerdict.FAIL
    assert "no filters today" in report.causes[0].detail


@pytest.mark.parametrize("layer", ["contract", "distribution"])
def test_an_error_in_every_call_is_a_finding_too(layer):
    """Also the calls that time the sampler, before any layer runs."""

    def raising(logits, temperature, seeds, positions):
        raise RuntimeError("out of memory today")

    report = run(CallableSampler(raising), layer)
    assert report.verdict is RunVerdict.FAIL
    assert report.causes[0].kind == "the sampler raises an error"
    assert "out of memory today" in report.causes[0].detail
    assert "[N, V], or one row [V]" in report.causes[0].remedy
    told = meaning(report)
    assert told.startswith("The sampler raised an error")
    assert "certain" not in told


class _Answering(CleanSampler):
    """Answers one method in another form."""

    def __init__(self, method, answer):
        setattr(self, method, lambda *arguments: answer(getattr(CleanSampler, method)(self, *arguments)))


@pytest.mark.parametrize(
    ("layer", "method", "answer"),
    [
        ("noise", "noise", lambda right: np.zeros(3)),
        ("noise", "words", lambda right: right.astype(float)),
        ("replay", "noise", lambda right: None),
        ("filters", "kept", lambda right: right[:, :3]),
        ("filters", "sample_filtered", lambda right: right[:-1]),
        ("logprobs", "logprobs", lambda right: right[:, :3]),
        ("logprobs", "ranks", lambda right: right.astype(np.float32)),
        ("logprobs", "prompt_logprobs", lambda right: "none"),
        ("speculative", "speculate", lambda right: 5),
        ("distribution", "count", lambda right: 0 * right),
        ("distribution", "count", lambda right: right.astype(float)),
        ("distribution", "count", lambda right: right[:-1]),
    ],
)
def test_an_answer_of_another_form_is_a_finding_and_no_error_of_ours(layer, method, answer):
    report = run(_Answering(method, answer), layer)
    assert report.verdict is RunVerdict.FAIL
    assert report.causes[0].kind == "answers of the wrong form"


@pytest.mark.parametrize("bits", [0, -1, 65, 200, "many", None])
def test_bits_that_no_word_has_are_a_finding(bits):
    target = CleanSampler()
    target.noise_bits = bits
    report = run(target, "noise")
    assert report.verdict is RunVerdict.FAIL
    assert f"noise_bits = {bits!r}" in report.causes[0].detail


def test_answers_may_be_lists_of_integers():
    """Whatever numpy takes for an array of the right form."""
    target = _Answering("sample", lambda right: right.tolist())
    assert run(target, "contract", "replay").verdict is RunVerdict.PASS


def test_a_long_name_is_one_short_line():
    target = CleanSampler()
    target.name = "a\nname " + 500 * "x"
    report = run(target, "contract")
    assert len(report.target) <= 60
    assert "\n" not in report.target


@pytest.mark.parametrize("vocab_size", [2, 3, 17, 32, 512])
def test_with_the_draws_that_are_planned_no_row_is_too_short_however_small_the_vocabulary(vocab_size):
    plan = AuditPlan(vocab_size, 0)
    (layer, size) = AffordableDistribution(profile_of("pr")).chosen(TokensOnly(CleanSampler()), plan).rows
    assert size == vocab_size
    for planned in layer.rows:
        shares = np.exp(planned.row.log_probabilities)
        drawn = np.random.default_rng(0).multinomial(planned.draws, shares / shares.sum())
        tests = row_tests(planned.row, np.append(drawn, 0), plan)
        assert [test.name for test in tests if test.short] == []


@pytest.mark.parametrize(
    ("draws_a_second", "told"),
    [
        (1e12, "Next: give it more time (--time 10m, in a test seconds=600), or draw on a GPU."),
        (3e5, "Next: give it more time (--time 5h, in a test seconds=18000), or draw on a GPU."),
        (1e3, "hours at this speed. Draw on a GPU, or let the sampler show its bits (words, noise): rare tokens"),
    ],
)
def test_who_has_too_few_draws_is_told_how_much_time_they_take_or_that_none_is_enough(draws_a_second, told):
    ticks = itertools.count()
    chosen = settings(vocab_size=600, layers=("distribution",), seconds=1.0)
    report = audit(TokensOnly(CleanSampler()), chosen, clock=lambda: next(ticks) * 0.1)
    report = dataclasses.replace(report, draws=int(draws_a_second), seconds=1.0)
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert told in next_step(report)


def test_a_rate_is_refused_by_the_name_that_was_written():
    with pytest.raises(ArgumentError, match=r"^alpha=0\.0"):
        settings(alpha=0.0)


def test_an_error_of_ours_is_none(monkeypatch):
    monkeypatch.setattr(audits, "contract_causes", functools.partial(settings, layers=("nonsense",)))
    with pytest.raises(ArgumentError, match="nonsense"):
        run(CallableSampler(lambda logits, *keys: np.full(len(keys[1]), -1)), "contract")


def test_in_a_test_it_is_one_line():
    assert assert_sampler_correct(CleanSampler(), layers=("contract",), vocab_size=SMALL).verdict is RunVerdict.PASS
    with pytest.raises(SamplerIncorrectError, match="Likely cause: last block is never drawn"):
        assert_sampler_correct(PLANTED[8].make(), layers=("contract",), vocab_size=SMALL)
    slow = {"layers": ("distribution",), "vocab_size": SMALL, "seconds": 1e-3}
    with pytest.raises(SamplerIncorrectError, match="Do not take this for a pass"):
        assert_sampler_correct(SLOW, **slow)
    assert assert_sampler_correct(SLOW, **slow, allow_inconclusive=True).verdict is RunVerdict.INCONCLUSIVE


@pytest.mark.parametrize("options", [{"profile": "x"}, {"layers": ("x",)}, {"alpha": 0.0}, {"seconds": 0.0}])
def test_bad_settings_are_refused(options):
    with pytest.raises(ArgumentError):
        settings(**options)


def test_torchs_multinomial_loses_a_tail_in_float32():
    """A real fault: sums of float32 probabilities cannot hold tokens of 1e-8 behind a head of nearly 1."""
    sampler = multinomial_sampler()
    row = np.full(200_000, -18.0, np.float32)
    row[100_000] = 0.0
    counts = sampler.count(row, 1.0, 1, 0, 200_000)
    expected = 200_000 * 99_999 * np.exp(-18.0) / (1 + 199_999 * np.exp(-18.0))
    behind, before = counts[100_001:-1].sum(), counts[:100_000].sum()
    assert abs(before - expected) < 6 * np.sqrt(expected)
    assert abs(behind - expected) > 6 * np.sqrt(expected)
