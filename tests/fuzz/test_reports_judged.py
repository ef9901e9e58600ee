"""Reports on log-probabilities are judged under grammars, too, and whatever a target makes of them is a finding."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llguidance")

from mrv2.fuzz.case import run_case
from mrv2.fuzz.feature_sets.judge import _rank_faults, _Row
from mrv2.fuzz.feature_sets.runners import RecordingRunner
from mrv2.fuzz.script import Arrive, Script
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import Grammar, SamplingParams, Step

SETTINGS = {
    "max_num_reqs": 1, "max_num_batched_tokens": 8, "max_model_len": 32, "block_size": 8, "num_kv_blocks": 9,
    "grammars": True,
}  # fmt: skip
REPORTING = SamplingParams(max_tokens=3, logprobs=3, logprob_token_ids=(97, 5))
#: Two tokens are left at first, then one.
UNDER_GRAMMAR = replace(REPORTING, grammar=Grammar("regex", "[ab]x"), stop_token_ids=(0,))


class Altered(ReferenceTarget):
    """Changes each report on a drawn token."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def build(self, config):
        return _Altering(super().build(config), self._change)


class _Altering:
    def __init__(self, runner, change):
        self._runner, self._change = runner, change

    def execute(self, step):
        return _Handle(self._runner.execute(step), self._change)

    def __getattr__(self, name):
        return getattr(self._runner, name)


class _Handle:
    def __init__(self, handle, change):
        self._handle, self._change = handle, change

    def result(self):
        output = self._handle.result()
        told = {name: tuple(map(self._change, told)) for name, told in output.top_logprobs.items()}
        return replace(output, top_logprobs=told)


def _failures(change, sampling=UNDER_GRAMMAR, **settings):
    script = Script((Arrive((1, 2), sampling),), {**SETTINGS, **settings})
    return [failure.text for failure in run_case(Altered(change), script).failures]


def _backwards(report):
    """Impossible tokens in another order, of which nobody but the contract can say that it is wrong."""
    possible = sum(value > -np.inf for value in report.values)
    tokens = (*report.token_ids[:possible], *reversed(report.token_ids[possible:]))
    return replace(report, token_ids=tokens)


class TestUnderGrammars:
    @pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
    @pytest.mark.parametrize("wanted", [{}, {"logprobs": -1}, {"temperature": 0.8, "seed": 1}])
    def test_right_ones_pass(self, mode, wanted):
        assert _failures(lambda report: report, replace(UNDER_GRAMMAR, **wanted), logprobs_mode=mode) == []

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda report: replace(report, value=report.value - 0.01), "reported value of token"),
            (lambda report: replace(report, fixed=(report.fixed[0], -9.0)), "reported value of token 5, -9.0"),
            (lambda report: replace(report, rank=3), "rank 3"),
            (lambda report: replace(report, token_ids=(7, 8, 9), values=(-np.inf,) * 3), "a likelier token"),
            (_backwards, "of impossible tokens those of the lowest ids come first"),
            (lambda report: replace(report, values=(*report.values[:2], -7.0)), "-7.0 is not the oracle's -inf"),
        ],
    )
    def test_wrong_ones_do_not(self, change, said):
        assert any(said in text for text in _failures(change))


def test_the_rank_of_a_token_that_its_grammar_forbids_is_nobodys_business():
    row = _Row(np.array([0.0, -np.inf, -1.0]), np.zeros(3))
    assert list(_rank_faults(row, 1, 7)) == [] and len(list(_rank_faults(row, 2, 7))) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda report: replace(report, token_ids=(1, 2, 10**9)), "token 1000000000 is reported, and there are 256"),
        (lambda report: replace(report, token_ids=(1, 2, -1)), "token -1 is reported"),
        (lambda report: replace(report, token_ids=(1, 2, 0.5)), "whole numbers for ranks and tokens"),
        (lambda report: replace(report, rank=None), "whole numbers for ranks and tokens"),
        (lambda report: replace(report, value="likely"), "real ones for values"),
        (lambda report: replace(report, values=report.values[:1]), "1 and 2 values of 3 and 2 tokens"),
        (lambda report: replace(report, fixed=()), "3 and 0 values of 3 and 2 tokens"),
        (lambda report: replace(report, token_ids=7), "is no report"),
        (lambda report: None, "is no report"),
    ],
)
def test_malformed_reports_are_findings_and_end_nothing(change, said):
    texts = _failures(change, REPORTING)
    assert any(said in text for text in texts), texts


def test_numbers_of_numpy_are_numbers():
    def change(report):
        tokens = tuple(map(np.int64, report.token_ids))
        return replace(report, rank=np.int32(report.rank), token_ids=tokens, value=np.float64(report.value))

    assert _failures(change, REPORTING) == []


def test_reports_on_a_prompt_that_are_no_sequence_are_the_targets_fault():
    class Handle:
        def result(self):
            return type("Output", (), {"top_logprobs": {}, "prompt_logprobs": {"r0": None}, "faults": {}})()

    class Runner:
        def execute(self, step):
            return Handle()

    with pytest.raises(TypeError):
        RecordingRunner(Runner()).execute(Step()).result()
