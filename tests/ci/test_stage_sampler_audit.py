"""The stage "sampler audit": the reference passes, planted samplers fail with their cause."""

from types import SimpleNamespace

from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages.base import Budget, Silent
from mrv2.ci.stages.sampler_audit import SamplerAudit
from mrv2.fuzz.targets.protocols import Feature
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.planted.faults import LostLastBlock, TopPKeepsOneMore

STAGE = SamplerAudit(2500)


def run(sampler):
    def build(config):
        raise NotImplementedError

    target = SimpleNamespace(
        name="t", features=frozenset({Feature.SAMPLER}), knobs={}, build=build, sampler=lambda: sampler
    )
    return STAGE.run(target, Budget(), Silent())


def test_the_reference_passes():
    result = run(ReferenceSampler(compiled=True))
    assert result.verdict is RunVerdict.PASS
    assert result.summary.endswith("tests of contract, noise, filters, logprobs")


def test_faults_fail_with_their_cause():
    for sampler, cause, code in (
        (LostLastBlock(), "last block is never drawn", "MRV403"),
        (TopPKeepsOneMore(), "top-p keeps one more", "MRV403"),
    ):
        result = run(sampler)
        assert result.verdict is RunVerdict.FAIL
        assert result.summary.startswith(cause)
        assert {finding.code for finding in result.findings} == {code}


def test_a_target_without_a_sampler_is_inconclusive():
    target = SimpleNamespace(name="t", features=frozenset(), knobs={}, build=None)
    result = STAGE.run(target, Budget(), Silent())
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "lacks the feature" in result.summary
