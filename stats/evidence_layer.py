"""The evidence layer: draws of audit rows that add up over nights, judged by e-processes at any time.

For runs without an end: a night adds its draws to the ledger, and the verdict counts all of them since the kernel, the
device or the compiler last changed. The false alarm rate holds for the whole campaign, not for a night.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .design import min_discrepancy, min_num_samples
from .distribution_layer import RowPlan, count_draws
from .distributions import AuditRow
from .gof import GroupCount, TestResult
from .layers import AuditPlan, LayerResult, LayerTest, Progress, RowDraws
from .ledger import EvidenceKey, EvidenceLedger
from .pooling import rank_groups
from .sequential import DirichletMixtureEProcess, confidence_sequence
from .targets import IdentifiedTarget, Identity, SamplerTarget

# An e-process needs up to 1.35 times the draws of a fixed test at the level of one test among a hundred.
_COST = 1.35
_TESTS = 100
_GROUPING = 10**6  # draws for which cells are made: they must not change from night to night
_STRIDE = 2**40  # between the seeds of portions
_MISS_RATE = 1e-3  # of the confidence sequences shown


@dataclass(frozen=True, eq=False)
class EvidenceLayer:
    """Sequential tests.

    Attributes:
        rows: what to draw from, and how much of it tonight.
        ledger: where the counts are kept.
        key: what they are about; the name of the test is filled in per row.
    """

    rows: Sequence[RowPlan]
    ledger: EvidenceLedger
    key: EvidenceKey
    name: str = "evidence"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`; adds one portion per row, named by the plan's seed."""
        if not isinstance(target, SamplerTarget):
            return LayerResult(self.name, (), not_run="the target draws no tokens")
        tests: list[LayerTest] = []
        draws: dict[str, RowDraws] = {}
        for row_plan in self.rows:
            row = row_plan.row
            if not plan.wants(row.name):
                continue
            # Without time for more, what earlier nights drew is judged.
            late = plan.time.over()
            nothing = np.zeros(row.logits.size + 1, np.int64)
            counts = nothing if late else count_draws(target, row, row_plan.draws, plan, progress)
            draws[row.name] = RowDraws(row.log_probabilities, counts[:-1])
            test = self._test(row, counts, plan)
            progress.tested(test)
            tests.append(test)
        coverage = tuple(f"{test.result.draws:,} draws so far of row {test.part!r}" for test in tests)
        missing = tuple(test.missed() for test in tests if test.short)
        return LayerResult(self.name, tuple(tests), coverage, missing, draws=draws, width=self.key.vocab_size)

    def _test(self, row: AuditRow, counts: NDArray[np.int64], plan: AuditPlan) -> LayerTest:
        labels, names, cells = cells_of(row)
        key = replace(self.key, test=f"{row.name}: {len(names)} cells")
        outside = int(counts[-1])
        portion = np.bincount(labels, weights=counts[:-1], minlength=len(names)).astype(np.int64)
        portion[-1] += outside  # the cell of what is impossible
        if portion.any():
            self.ledger.append(key, f"seed {plan.seed}", portion)
        total = self.ledger.total(key, len(names))
        process = DirichletMixtureEProcess(cells, total)
        draws = process.draws
        groups = tuple(
            GroupCount(name, float(draws * share), float(count))
            for name, share, count in zip(names, cells, total, strict=True)
        )
        df = int((cells > 0).sum()) - 1
        result = TestResult(f"{row.name}: evidence", process.log_e, process.p_value, draws, df, groups)
        level = plan.false_fail_rate / _TESTS
        must_see = row.must_see if row.must_see is not None else _event_discrepancy(row, cells)
        needed = round(_COST * min_num_samples(must_see, level, plan.false_pass_rate, df))
        could_see = min_discrepancy(max(1, round(draws / _COST)), level, plan.false_pass_rate, df)
        evidence = _evidence(process, names)
        return LayerTest(row.name, result, False, "discrepancy", must_see, could_see, needed, evidence, sequential=True)


def evidence_key(target: object, vocab_size: int) -> EvidenceKey:
    """What evidence about a target is kept under; the name of the test is left empty.

    A target that is no :class:`~mrv2.stats.targets.IdentifiedTarget` is known by its name and the source of its class,
    and what it calls is not: its ledger must be emptied by hand when that changes.

    Args:
        target: what is audited.
        vocab_size: V.
    """
    if isinstance(target, IdentifiedTarget):
        identity = target.identity()
    else:
        kind = type(target)
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):
            source = f"{kind.__module__}.{kind.__qualname__}"
        named = f"{getattr(target, 'name', '')}\n{source}"
        identity = Identity(hashlib.sha256(named.encode()).hexdigest(), "cpu", "none")
    return EvidenceKey("", identity.kernel, identity.device, identity.compiler, identity.dtype, vocab_size)


@dataclass(frozen=True, eq=False)
class Campaign:
    """The evidence layer, portion after portion, until the evidence is overwhelming or time is over.

    Attributes:
        layer: rows with the draws of one portion each.
        over: asked after each portion.
    """

    layer: EvidenceLayer
    over: Callable[[], bool]
    name: str = "evidence"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`; each portion has a seed that no portion in the ledger has."""
        while True:
            portion = sum(1 for _ in self.layer.ledger.portions())
            result = self.layer.run(target, replace(plan, seed=plan.seed + portion * _STRIDE), progress)
            level = plan.false_fail_rate / _TESTS
            if (
                not result.tests
                or self.over()
                or plan.time.over()
                or any(test.result.p_value <= level for test in result.tests)
            ):
                return result


def cells_of(row: AuditRow) -> tuple[NDArray[np.int64], tuple[str, ...], NDArray[np.float64]]:
    """Cells of a row that do not depend on the number of draws.

    Returns:
        label of each token int64 [V], names, and probabilities float64 [cells], the last one 0 for impossible tokens:
        the row's first event against the rest, or rank groups where it has none.
    """
    probabilities = np.exp(row.log_probabilities)
    if row.events:
        labels = np.where(row.events[0].tokens, 0, 1)
        labels[probabilities == 0] = 2
        names: tuple[str, ...] = (row.events[0].name, "other tokens")
    else:
        grouping = rank_groups(probabilities, _GROUPING)
        labels, names = grouping.labels, grouping.names
    cells = np.bincount(labels, weights=probabilities, minlength=len(names) + 1)
    return labels, (*names, "impossible"), cells / cells.sum()


def _event_discrepancy(row: AuditRow, cells: NDArray[np.float64]) -> float:
    return float(row.events[0].must_see * np.sqrt(cells[0] / (1.0 - cells[0])))


def _evidence(process: DirichletMixtureEProcess, names: Sequence[str]) -> dict[str, JSON]:
    low, high = confidence_sequence(int(process.counts[0]), process.draws, _MISS_RATE)
    return {
        "log10 of the evidence": process.log_e / np.log(10.0) if np.isfinite(process.log_e) else None,
        "draws": process.draws,
        "cell": names[0],
        "claimed": float(process.probabilities[0]),
        "interval at all times": [low, high],
    }
