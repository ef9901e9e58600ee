"""Does the decision rule keep its promise? Simulated correct samplers, audited: ``python -m mrv2.stats.calibration``.

Each run draws from the law itself, with seeds of its own, and goes through all statistical layers, escalation and
verdict. A FAIL is a false alarm. The p-values of each test must be uniform, or on the safe side of it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from mrv2.checks.findings import RunVerdict

from .decision import run_audit
from .distribution_layer import DistributionLayer, RowPlan, draws_needed, pairs_needed
from .distributions import AuditRow, flat, half_head, ladder, last_block, offset, recorded, two_level, zipf
from .errors import ArgumentError
from .filters_layer import FiltersLayer
from .layers import AuditPlan, Layer, Silent
from .noise_layer import NoiseLayer
from .planted.clean import CleanSampler
from .speculative import SpeculationCase, joint_law
from .speculative_layer import SpeculativeLayer
from .strata import log_softmax
from .targets import Filters, SpeculativeDraws

LEVELS = (0.5, 0.1, 1e-2, 1e-3)  # where the distribution of p-values is looked at
LIMITS = {0.5: 1.1, 0.1: 1.15, 1e-2: 1.3, 1e-3: 1.6}  # largest true rate over nominal rate
MOST_DRAWS = 10**7
_CONFIDENCE = 0.99
_SPARE = 1.25


class NullSampler(CleanSampler):
    """A correct sampler that is as fast as its law: every call draws from float64 probabilities with fresh numbers."""

    name = "simulated correct sampler"

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`; one row and one temperature for all draws."""
        edges = np.cumsum(np.exp(log_softmax(logits, float(temperature[0]))))
        uniform = _fresh(seeds).random(seeds.size)
        tokens = np.searchsorted(edges, uniform * edges[-1], side="right")
        return np.asarray(np.minimum(tokens, logits.size - 1), np.int64)

    def sample_filtered(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        filters: Filters,
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.FilteringTarget`."""
        one = Filters(filters.top_k[:1], filters.top_p[:1], filters.min_p[:1])
        kept = self.kept(logits[np.newaxis], temperature[:1], one)[0]
        return self.sample(np.where(kept, logits, np.float32(-np.inf)), temperature, seeds, positions)

    def speculate(
        self,
        target_logits: NDArray[np.float32],
        draft_logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> SpeculativeDraws:
        """See :class:`mrv2.stats.targets.SpeculativeTarget`; drawn from the joint law of draft and outcome."""
        case = SpeculationCase("", target_logits, draft_logits, float(temperature[0]))
        random, count, size = _fresh(seeds), seeds.size, target_logits.shape[1]
        drafts = np.empty((count, case.drafts), np.int64)
        emitted = np.full((count, case.drafts + 1), -1, np.int64)
        alive = np.ones(count, np.bool_)
        for place in range(case.drafts):
            drafts[:, place], outcome = _drawn_pairs(case, place, count, random)
            emitted[alive, place] = np.where(outcome == size, drafts[:, place], outcome)[alive]
            alive &= outcome == size
        edges = np.cumsum(case.target(case.drafts))
        emitted[alive, -1] = np.minimum(np.searchsorted(edges, random.random(int(alive.sum()))), size - 1)
        return SpeculativeDraws(drafts, emitted)


def _drawn_pairs(
    case: SpeculationCase, place: int, count: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Drafts and outcomes, int64 [count] each; an outcome of V is acceptance."""
    law = joint_law(case.target(place), case.draft(place)).ravel()
    cells = np.repeat(np.arange(law.size), random.multinomial(count, law / law.sum()))
    random.shuffle(cells)
    drafts, outcomes = np.divmod(cells, case.target_logits.shape[1] + 1)
    return drafts, outcomes


def _fresh(seeds: NDArray[np.uint64]) -> np.random.Generator:
    return np.random.default_rng([int(seeds[0]), int(seeds[-1]), seeds.size])


def null_layers(plan: AuditPlan) -> list[Layer]:
    """All layers with an error rate, each with the draws that its tests need for what they must see.

    Rows that need more than :data:`MOST_DRAWS` (the far cliffs of small vocabularies) are left out.
    """
    size = plan.vocab_size
    made = [*ladder(size), half_head(size), last_block(size), two_level(size), flat(size), zipf(size), offset(size)]
    rows = [RowPlan(row, math.ceil(_SPARE * draws_needed(row, plan))) for row in (*made, *_recorded(size))]
    rows = [row_plan for row_plan in rows if row_plan.draws <= MOST_DRAWS]
    return [
        DistributionLayer(rows, math.ceil(_SPARE * pairs_needed(plan))),
        NoiseLayer(coarse_bits=4, keys=512, gaps=()),
        FiltersLayer(),
        SpeculativeLayer(),
    ]


def _recorded(size: int) -> tuple[AuditRow, ...]:
    return tuple(row for row in recorded(size) if np.isfinite(row.log_probabilities).sum() > 1)


@dataclass(frozen=True)
class NullRun:
    """One audit of a correct sampler.

    Attributes:
        seed: of the run.
        verdict: its answer.
        p_values: of the first run of each test with an error rate, by layer and name.
        failed: names of tests that failed.
    """

    seed: int
    verdict: RunVerdict
    p_values: Mapping[str, float]
    failed: tuple[str, ...]


def null_run(seed: int, vocab_size: int, false_fail_rate: float) -> NullRun:
    """Audit the simulated correct sampler once."""
    plan = AuditPlan(vocab_size, seed, false_fail_rate)
    decision = run_audit(null_layers(plan), NullSampler(), plan, Silent()).decision
    p_values = {
        f"{test.layer}, {test.first.name}": test.first.result.p_value for test in decision.tests if not test.first.exact
    }
    return NullRun(seed, decision.verdict, p_values, tuple(test.first.name for test in decision.failed))


@dataclass(frozen=True)
class Excess:
    """A level at which p-values are too often small.

    Attributes:
        test: its name; ``"all tests"`` for all of them together.
        level: nominal rate.
        seen: observed rate.
        surely: what the true rate is at least, with confidence 99 %, after allowing for all tests looked at.
    """

    test: str
    level: float
    seen: float
    surely: float


@dataclass(frozen=True)
class Calibration:
    """What many runs showed.

    Attributes:
        runs: how many.
        verdicts: how often each was given.
        failed: names of tests that failed.
        upper: Clopper and Pearson's upper bound of the false alarm rate, with confidence 95 %.
        rates: observed over nominal rate at each level, all tests together.
        excess: tests whose p-values are surely too small, more than :data:`LIMITS` allows.
        tests: number of tests with an error rate.
    """

    runs: int
    verdicts: Mapping[RunVerdict, int]
    failed: tuple[str, ...]
    upper: float
    rates: Mapping[float, float]
    excess: tuple[Excess, ...]
    tests: int

    @property
    def kept(self) -> bool:
        """Whether there was no false alarm and no p-value surely too small."""
        return not self.verdicts.get(RunVerdict.FAIL, 0) and not self.excess

    def lines(self) -> list[str]:
        """A report."""
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in sorted(self.verdicts.items(), key=str))
        rates = ", ".join(f"{rate:.3f} at {level:g}" for level, rate in self.rates.items())
        lines = [
            f"{self.runs} audits of a correct sampler, {self.tests} tests each with an error rate: {counts}",
            f"false alarm rate of an audit at most {self.upper:.2%} (Clopper and Pearson, 95 %)",
            f"rate of small p-values over their nominal rate, all tests: {rates}",
        ]
        lines += [f"false alarm: {name}" for name in self.failed]
        lines += [
            f"p-values too small: {e.test}: {e.seen:.2e} at {e.level:g}, surely {e.surely:.2e}" for e in self.excess
        ]
        return lines


def summarised(runs: Sequence[NullRun]) -> Calibration:
    """Put runs together.

    Raises:
        ArgumentError: there is none.
    """
    if not runs:
        raise ArgumentError("runs", "at least one run", "nothing was simulated", "1000 runs, say")
    verdicts = {verdict: sum(run.verdict is verdict for run in runs) for verdict in {run.verdict for run in runs}}
    alarms = verdicts.get(RunVerdict.FAIL, 0)
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.p_values.items():
            values.setdefault(name, []).append(value)
    everything = np.array([value for some in values.values() for value in some])
    return Calibration(
        len(runs),
        verdicts,
        tuple(name for run in runs for name in run.failed),
        clopper_pearson_upper(alarms, len(runs), 0.95),
        {level: float((everything <= level).mean()) / level for level in LEVELS},
        tuple(_excesses(values)),
        len(values),
    )


def clopper_pearson_upper(events: int, trials: int, confidence: float) -> float:
    """Exact one-sided upper bound of a rate (Clopper and Pearson 1934, Biometrika 26)."""
    return 1.0 if events == trials else float(beta.ppf(confidence, events + 1, trials - events))


def _excesses(values: Mapping[str, Sequence[float]]) -> Iterable[Excess]:
    """Tests whose true rate is above the limit, shown with a confidence shared by all tests and levels."""
    doubt = (1.0 - _CONFIDENCE) / (len(values) * len(LEVELS))
    for name, some in values.items():
        array = np.asarray(some)
        for level in LEVELS:
            count = int((array <= level).sum())
            if binom.sf(count - 1, array.size, min(1.0, LIMITS[level] * level)) < doubt:
                yield Excess(name, level, count / array.size, float(beta.ppf(doubt, count, array.size - count + 1)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; 0 if the promise is kept, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m mrv2.stats.calibration", description="Audits of a correct sampler."
    )
    parser.add_argument("--runs", type=int, default=1000, help="simulated audits (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--vocab-size", type=int, default=32768, help="tokens of the rows")
    parser.add_argument("--alpha", type=float, default=1e-4, help="false alarm rate of an audit")
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time")
    options = parser.parse_args(arguments)
    one = partial(null_run, vocab_size=options.vocab_size, false_fail_rate=options.alpha)
    seeds = range(options.seed, options.seed + options.runs)
    if options.processes > 1:
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            runs = list(pool.map(one, seeds, chunksize=4))
    else:
        runs = [one(seed) for seed in seeds]
    result = summarised(runs)
    print("\n".join(result.lines()))
    return 0 if result.kept else 1


if __name__ == "__main__":
    sys.exit(main())
