"""The filters layer: kept sets against float64 at their threshold, and draws through the filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .filters import FilterCase, Kept, threshold_cases
from .gof import binomial_test
from .layers import (
    AuditPlan,
    LayerResult,
    LayerTest,
    Progress,
    call_size,
    designed_event,
    exact_test,
    unasked_test,
    unless_cut,
)
from .strata import log_softmax
from .targets import FilteringTarget, Filters, MaskTarget

SMALLEST_SHARE = 0.05  # tokens kept with a smaller one are not expected among few draws
MUST_SEE = 0.9  # loss of a token's share that must show: a token that is never drawn has lost all of it
BATCHES = (1, 16)  # rows of a call: samplers sort large batches and search small ones, and must not differ
_EXAMPLES = 8


@dataclass(frozen=True)
class FiltersLayer:
    """Tests of masks and of draws through them.

    Attributes:
        draws: draws of each row.
    """

    draws: int = 1000
    name: str = "filters"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, FilteringTarget | MaskTarget):
            return LayerResult(self.name, (), not_run="the target has no filters")
        cases = [case for case in threshold_cases(max(256, plan.vocab_size)) if plan.wants(case.name)]
        tests: list[LayerTest] = []
        for case in cases:
            if plan.time.over():
                tests.append(unasked_test(case.name, f"{case.name}: kept set and draws", "draw", self.draws))
                continue
            if isinstance(target, MaskTarget) and plan.scale == 1:
                tests += [_mask_test(target, case, batch) for batch in BATCHES]
            if isinstance(target, FilteringTarget):
                tests += _draw_tests(target, case, self.draws * plan.scale, plan, progress)
        for test in tests:
            progress.tested(test)
        ambiguous = sum(case.kept().ambiguous for case in cases)
        missing = [f"thresholds closer to a token than float32 can tell ({ambiguous} tokens of these rows)"]
        if not isinstance(target, MaskTarget):
            missing.append("tokens kept by mistake with a share too small to be drawn: the target shows no mask")
        return LayerResult(
            self.name,
            tuple(tests),
            (f"{len(cases)} rows with a threshold beside a token",),
            tuple(missing),
            width=max((case.logits.size for case in cases), default=0),
        )


def _mask_test(target: MaskTarget, case: FilterCase, batch: int) -> LayerTest:
    """The kept set of each of ``batch`` equal rows; of those that are wrong the first is shown."""
    rows = np.broadcast_to(case.logits, (batch, case.logits.size)).copy()
    given = target.kept(rows, np.full(batch, case.temperature, np.float32), _filters(case, batch))
    right = case.kept()
    wrong = np.flatnonzero(((given & ~right.possibly) | (right.surely & ~given)).any(axis=1))
    name = f"{case.name}: kept set" + ("" if batch == 1 else f" in a batch of {batch}")
    return _kept_test(case, name, given[wrong[0] if wrong.size else 0], right, given.size, "token")


def _draw_tests(
    target: FilteringTarget, case: FilterCase, draws: int, plan: AuditPlan, progress: Progress
) -> Iterator[LayerTest]:
    """Only kept tokens are drawn, and those with a share worth the name are."""
    seeds, positions = plan.keys(case.name, draws)
    some = []
    for part in plan.time.calls(draws, call_size(case.logits.size, draws)):
        keys = seeds[part], positions[part]
        warmth = np.full(keys[0].size, case.temperature, np.float32)
        some.append(target.sample_filtered(case.logits, warmth, *keys, _filters(case, keys[0].size)))
        progress.drawn(keys[0].size)
    tokens = np.concatenate(some)
    right = case.kept()
    drawn = np.zeros(case.logits.size, np.bool_)
    inside = (tokens >= 0) & (tokens < case.logits.size)
    drawn[tokens[inside]] = True
    seen = Kept(np.zeros_like(drawn), right.possibly)
    test = _kept_test(case, f"{case.name}: only kept tokens are drawn", drawn, seen, tokens.size, "draw")
    yield unless_cut(test, draws)
    if right.ambiguous == 0:
        yield from _share_test(case, right.surely, tokens, plan)


def _share_test(
    case: FilterCase, kept: NDArray[np.bool_], tokens: NDArray[np.int64], plan: AuditPlan
) -> Iterator[LayerTest]:
    """The least likely token kept has its share: it is the one that a threshold set too high drops first."""
    log_p = np.where(kept, log_softmax(case.logits, case.temperature), -np.inf)
    shares = np.exp(log_p) / np.exp(log_p).sum()
    worth = np.flatnonzero(shares >= SMALLEST_SHARE)
    if worth.size < 2:
        return
    least = worth[::-1][shares[worth[::-1]].argmin()]  # of equal ones the last: a cut among ties drops it first
    name = f"{case.name}: least token kept"
    result = binomial_test(int((tokens == least).sum()), tokens.size, float(shares[least]), name)
    yield designed_event(case.name, result, float(shares[least]), MUST_SEE, "the least token's share", plan)


def _kept_test(
    case: FilterCase, name: str, given: NDArray[np.bool_], right: Kept, checked: int, unit: str
) -> LayerTest:
    extra, lost = np.flatnonzero(given & ~right.possibly), np.flatnonzero(right.surely & ~given)
    evidence: dict[str, JSON] = {
        "kept by mistake": extra[:_EXAMPLES].tolist(),
        "dropped by mistake": lost[:_EXAMPLES].tolist(),
        "top_k": case.top_k,
        "top_p": case.top_p,
        "min_p": case.min_p,
        "temperature": case.temperature,
    }
    return exact_test(case.name, name, checked, int(extra.size + lost.size), unit, evidence)


def _filters(case: FilterCase, count: int) -> Filters:
    return Filters.same(count, case.top_k, case.top_p, case.min_p)
