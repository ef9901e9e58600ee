"""The decision rule: repeat what looks suspicious, then judge all tests together.

A test with a p-value below ``ESCALATE_BELOW`` (1e-3) is repeated once with fresh seeds and four times the draws. With p
of the first run and q of the second the p-value of both is ``2 * min(p, 1e-3 * q)``. It is valid: it is below t only if
p is below t/2, or if p is below 1e-3 and q, independent of it, below t/2/1e-3; each has a chance of at most t/2. So a
defect that shows in both runs fails, one that shows overwhelmingly in the first fails too, an unlucky draw does not.
It also makes tests cheap: they need draws for 1e-3, not for the far smaller level of one test among hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mrv2.checks.findings import RunVerdict

from .errors import ArgumentError
from .layers import ESCALATE_BELOW, AuditPlan, Layer, LayerResult, LayerTest, Progress
from .multiplicity import benjamini_hochberg, weighted_holm

# A first run with a p-value below this fails whatever a second one says, which would only cost time.
OVERWHELMING = 1e-15


@dataclass(frozen=True)
class JudgedTest:
    """A test with what the rule made of it.

    Attributes:
        layer: name of its layer.
        first: the first run.
        repeat: the run with fresh seeds, if there was one.
        p_value: of both runs together.
        verdict: PASS, SUSPICIOUS (it was repeated, and the repeat did not clear it), FAIL or INCONCLUSIVE (it could
            have missed what it must see, or looked suspicious and there was no time for the whole repeat).
    """

    layer: str
    first: LayerTest
    repeat: LayerTest | None
    p_value: float
    verdict: RunVerdict

    @property
    def last(self) -> LayerTest:
        """The run with the most draws."""
        return self.repeat or self.first


@dataclass(frozen=True)
class Decision:
    """The verdict on a sampler.

    Attributes:
        verdict: of the whole audit.
        tests: every test, judged.
        suspects: tests to look at first, the most telling first (Benjamini and Hochberg at 5 %); they decide nothing.
    """

    verdict: RunVerdict
    tests: tuple[JudgedTest, ...]
    suspects: tuple[JudgedTest, ...]

    @property
    def failed(self) -> tuple[JudgedTest, ...]:
        """The tests that failed."""
        return tuple(test for test in self.tests if test.verdict is RunVerdict.FAIL)

    @property
    def could_have_missed(self) -> tuple[str, ...]:
        """What the tests without enough power could have missed."""
        return tuple(test.first.missed() for test in self.tests if test.first.short)


@dataclass(frozen=True)
class Audit:
    """A run of layers.

    Attributes:
        decision: the verdict.
        results: of each layer, first run.
        repeats: of each layer that was run again.
    """

    decision: Decision
    results: tuple[LayerResult, ...]
    repeats: Mapping[str, LayerResult]


def run_audit(layers: Sequence[Layer], target: object, plan: AuditPlan, progress: Progress) -> Audit:
    """Run layers, repeat their suspicious parts, and decide.

    Args:
        layers: with different names.
        target: what is audited.
        plan: seeds and rates.
        progress: told of draws and tests.

    Raises:
        ArgumentError: two layers share a name, or two tests of a layer do.
    """
    _require_unique("layers", [layer.name for layer in layers])
    results = []
    repeats: dict[str, LayerResult] = {}
    for layer in layers:
        result = layer.run(target, plan, progress)
        _require_unique(f"tests of layer {layer.name}", [test.name for test in result.tests])
        results.append(result)
        parts = frozenset(test.part for test in result.tests if _escalates(test) and test.result.p_value > OVERWHELMING)
        if parts:
            repeats[layer.name] = layer.run(target, plan.repeated(parts), progress)
    return Audit(decide(results, repeats, plan.false_fail_rate), tuple(results), repeats)


def decide(results: Sequence[LayerResult], repeats: Mapping[str, LayerResult], false_fail_rate: float) -> Decision:
    """Judge the tests of all layers together.

    The false alarm rate is shared equally between the layers that ran, and within a layer between its statistical
    tests; Holm's step-down rule passes on what a failed test leaves. Exact tests need no share.

    Args:
        results: first runs.
        repeats: second runs, by layer.
        false_fail_rate: chance that a correct sampler fails.

    Returns:
        FAIL if a test fails; else INCONCLUSIVE if a test had too few draws or nothing ran; else SUSPICIOUS if one
        looked bad and could not be confirmed; else PASS.
    """
    judged = [_combined(result, test, repeats.get(result.layer)) for result in results for test in result.tests]
    statistical = [index for index, test in enumerate(judged) if not test.first.exact]
    fails = {index for index, test in enumerate(judged) if test.first.exact and test.p_value == 0.0}
    if statistical:
        values = [judged[index].p_value for index in statistical]
        chosen = weighted_holm(values, false_fail_rate, _weights([judged[index].layer for index in statistical]))
        fails |= {index for index, failed in zip(statistical, chosen.tolist(), strict=True) if failed}
    tests = tuple(replace(test, verdict=_verdict(test, index in fails)) for index, test in enumerate(judged))
    return Decision(_overall(tests), tests, _suspects(tests))


def _escalates(test: LayerTest) -> bool:
    return not test.exact and not test.sequential and test.result.p_value < ESCALATE_BELOW


def _combined(result: LayerResult, test: LayerTest, repeats: LayerResult | None) -> JudgedTest:
    again = next((other for other in repeats.tests if other.name == test.name), None) if repeats else None
    if test.exact and again is not None:
        # Nothing is repeated for its sake, but a violation is one in whatever draws it is seen.
        return JudgedTest(result.layer, test, again, min(test.result.p_value, again.result.p_value), RunVerdict.PASS)
    if not _escalates(test):
        return JudgedTest(result.layer, test, None, test.result.p_value, RunVerdict.PASS)
    if again is None:
        return JudgedTest(result.layer, test, None, min(1.0, 2.0 * test.result.p_value), RunVerdict.PASS)
    both = 2.0 * min(test.result.p_value, ESCALATE_BELOW * again.result.p_value)
    return JudgedTest(result.layer, test, again, both, RunVerdict.PASS)


def _weights(layers: Sequence[str]) -> list[float]:
    return [1.0 / (len(set(layers)) * layers.count(layer)) for layer in layers]


def _verdict(test: JudgedTest, failed: bool) -> RunVerdict:
    if failed:
        return RunVerdict.FAIL
    if test.first.short:
        return RunVerdict.INCONCLUSIVE
    if test.first.exact or test.first.result.p_value >= ESCALATE_BELOW:
        return RunVerdict.PASS
    if test.first.sequential:
        return RunVerdict.SUSPICIOUS
    if test.repeat is None or test.repeat.short:
        return RunVerdict.INCONCLUSIVE
    # An honest sampler is repeated once in a thousand tests; a repeat without any sign of the error clears it.
    return RunVerdict.PASS if test.repeat.result.p_value > 0.05 else RunVerdict.SUSPICIOUS


def _overall(tests: Sequence[JudgedTest]) -> RunVerdict:
    seen = {test.verdict for test in tests}
    for verdict in (RunVerdict.FAIL, RunVerdict.INCONCLUSIVE, RunVerdict.SUSPICIOUS):
        if verdict in seen:
            return verdict
    return RunVerdict.PASS if tests else RunVerdict.INCONCLUSIVE


def _suspects(tests: Sequence[JudgedTest]) -> tuple[JudgedTest, ...]:
    if not tests:
        return ()
    chosen = benjamini_hochberg([test.p_value for test in tests], 0.05)
    return tuple(sorted((t for t, is_in in zip(tests, chosen.tolist(), strict=True) if is_in), key=lambda t: t.p_value))


def _require_unique(what: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError(
            f"{what}: {', '.join(twice)} twice",
            "names are unique",
            "a repeated test is found by its name",
            "another name for one of them",
        )
