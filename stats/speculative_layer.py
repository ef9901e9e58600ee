"""The speculative layer: joint tables of draft and outcome, acceptance, outcomes and bonus tokens, per position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .dependence import independence_g_test
from .gof import binomial_test, g_test
from .layers import (
    AuditPlan,
    LayerResult,
    LayerTest,
    Progress,
    designed_event,
    designed_test,
    exact_test,
    unasked_test,
    unless_cut,
)
from .pooling import pool_expected
from .speculative import SpeculationCase, acceptance, joint_law, speculation_cases
from .targets import OwnAcceptanceTarget, SpeculativeDraws, SpeculativeTarget

MUST_SEE = 0.04  # discrepancy of the tables that must show
ACCEPTANCE_ERROR = 0.05  # relative loss of acceptance that must show
MIN_REACH = 0.25  # positions reached less often are not tested
_CALL = 2**16
_POSITIONS = 64
_SEQUENCES = 1024
_LARGEST_DF = 255  # pooled tables have no more cells at the numbers of draws of an audit
_EXAMPLES = 6
_FEWEST = 1000  # draws of a case; fewer, when time is over, do not reach every position


@dataclass(frozen=True, eq=False)
class SpeculativeLayer:
    """Tests of draft and verification.

    Attributes:
        draws: of each case.
        cases: rows; :func:`mrv2.stats.speculative.speculation_cases` if left out.
    """

    draws: int = 200_000
    cases: Sequence[SpeculationCase] = ()
    name: str = "speculative"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, SpeculativeTarget):
            return LayerResult(self.name, (), not_run="the target does not speculate")
        cases = [case for case in self.cases or speculation_cases() if plan.wants(case.name)]
        own = isinstance(target, OwnAcceptanceTarget) and target.own_acceptance
        tests: list[LayerTest] = []
        for case in cases:
            planned = self.draws * plan.scale
            if plan.time.over():
                tests.append(unasked_test(case.name, f"{case.name}: all tables", "draw", planned, exact=False))
                continue
            draws = _draw(target, case, planned, plan, progress)
            form, *tables = outcome_tests(case, draws, plan) if own else case_tests(case, draws, plan)
            tests += [unless_cut(form, planned), *tables]
        for test in tests:
            progress.tested(test)
        unreached = [
            f"{case.name}: draft {position}, reached by {case.reach(position):.0%} of the draws"
            for case in cases
            for position in range(case.drafts)
            if case.reach(position) < MIN_REACH
        ]
        coverage = tuple(f"{self.draws:,} draws of {case.name}" for case in cases)
        missing = (*unreached, *(test.missed() for test in tests if test.short))
        width = max((case.target_logits.shape[1] for case in cases), default=0)
        return LayerResult(self.name, tuple(tests), coverage, missing, width=width)


def _draw(
    target: SpeculativeTarget, case: SpeculationCase, draws: int, plan: AuditPlan, progress: Progress
) -> SpeculativeDraws:
    # A runner's token table is as wide as its largest position, so positions are small, and seeds tell the keys apart.
    seeds, positions = plan.keys(case.name, draws)
    positions = 1 + positions % _POSITIONS
    drafts, emitted = [], []
    for part in plan.time.calls(draws, _CALL):
        warmth = np.full(seeds[part].size, case.temperature, np.float32)
        answer = target.speculate(case.target_logits, case.draft_logits, warmth, seeds[part], positions[part])
        drafts.append(answer.drafts)
        emitted.append(answer.emitted)
        progress.drawn(warmth.size)
    return SpeculativeDraws(np.concatenate(drafts), np.concatenate(emitted))


def case_tests(case: SpeculationCase, draws: SpeculativeDraws, plan: AuditPlan) -> list[LayerTest]:
    """All tests of one case.

    Args:
        case: the rows.
        draws: what came out.
        plan: its rates.

    Returns:
        that the outcome has the right form (else nothing more), and per position that is reached often enough the joint
        table, impossible recoveries, acceptance and the outcome; then the bonus token, and whether neighbouring
        positions are independent.
    """
    form, well_formed = _form_test(case, draws)
    if not well_formed or len(draws.drafts) < _FEWEST:
        return [form]
    accepted = (draws.emitted >= 0).sum(axis=1) - 1
    tests = [form, _sequence_test(case, draws, plan)]
    for position in range(case.drafts):
        if case.reach(position) >= MIN_REACH:
            reached = accepted >= position
            draft, outcome = draws.drafts[reached, position], draws.emitted[reached, position]
            tests += _position_tests(case, position, draft, outcome, accepted[reached] > position, plan)
    tests += _bonus_tests(case, draws, accepted == case.drafts, plan)
    return tests


def outcome_tests(case: SpeculationCase, draws: SpeculativeDraws, plan: AuditPlan) -> list[LayerTest]:
    """Form, and what comes out, for a target whose acceptance has a law of its own; see :func:`case_tests`."""
    form, well_formed = _form_test(case, draws)
    return [form, _sequence_test(case, draws, plan)] if well_formed else [form]


def _form_test(case: SpeculationCase, draws: SpeculativeDraws) -> tuple[LayerTest, bool]:
    malformed = _malformed(case, draws)
    examples: list[JSON] = [
        {"drafts": draws.drafts[row].tolist(), "emitted": draws.emitted[row].tolist()} for row in malformed[:_EXAMPLES]
    ]
    name = f"{case.name}: form"
    return exact_test(
        case.name, name, len(draws.drafts), malformed.size, "draw", {"examples": examples}
    ), not malformed.size


def _sequence_test(case: SpeculationCase, draws: SpeculativeDraws, plan: AuditPlan) -> LayerTest:
    """The first tokens together, as many as have a table of at most 1,024 cells, follow the target.

    Where a step ended early, the next one would draw from the target; a generator stands in for it.
    """
    size = case.target_logits.shape[1]
    length = min(case.drafts + 1, int(np.log(_SEQUENCES) / np.log(size) + 1e-9))
    random, laws = plan.generator(f"{case.name}/later"), [case.target(place) for place in range(length)]
    later = np.stack([random.choice(size, len(draws.emitted), p=law) for law in laws], axis=1)
    tokens = np.where(draws.emitted[:, :length] >= 0, draws.emitted[:, :length], later)
    cells, joint = np.zeros(len(tokens), np.int64), np.ones(1)
    for place, law in enumerate(laws):
        cells, joint = cells * size + tokens[:, place], np.outer(joint, law).ravel()
    counts = np.bincount(cells, minlength=joint.size)
    return _table_test(case.name, f"{case.name}: first {length} tokens together", counts, joint, plan)


def _malformed(case: SpeculationCase, draws: SpeculativeDraws) -> NDArray[np.int64]:
    """Rows that are not: accepted drafts, one more token, then -1."""
    vocab_size, drafts = case.target_logits.shape[1], case.drafts
    emitted, proposed = draws.emitted, draws.drafts
    length = (emitted >= 0).sum(axis=1)
    place = np.arange(drafts + 1)
    filled = place[np.newaxis] < length[:, np.newaxis]
    good = (length >= 1) & ((emitted >= 0) == filled).all(axis=1)
    good &= ((emitted < vocab_size) & (emitted >= -1)).all(axis=1)
    good &= ((proposed >= 0) & (proposed < vocab_size)).all(axis=1)
    is_draft = place[np.newaxis, :drafts] < length[:, np.newaxis] - 1
    good &= (~is_draft | (emitted[:, :drafts] == proposed)).all(axis=1)
    return np.flatnonzero(~good).astype(np.int64)


def _position_tests(
    case: SpeculationCase,
    position: int,
    draft: NDArray[np.int64],
    outcome: NDArray[np.int64],
    accepted: NDArray[np.bool_],
    plan: AuditPlan,
) -> Iterator[LayerTest]:
    p, q = case.target(position), case.draft(position)
    size, law, where = p.size, joint_law(p, q), f"{case.name}: draft {position}"
    cells = np.where(accepted, size, outcome) + draft * (size + 1)
    table = np.bincount(cells, minlength=law.size)
    impossible = np.flatnonzero((table > 0) & (law.ravel() == 0))
    examples: list[JSON] = [_cell_name(cell, size) for cell in impossible[:_EXAMPLES].tolist()]
    seen: dict[str, JSON] = {"examples": examples, "draws": int(table[impossible].sum())}
    yield exact_test(case.name, f"{where}, only possible outcomes", draft.size, impossible.size, "draw", seen)
    possible = law.ravel() > 0
    yield _table_test(case.name, f"{where}, joint table", table[possible], law.ravel()[possible], plan)
    rate = acceptance(p, q)
    result = binomial_test(int(accepted.sum()), accepted.size, rate, f"{where}, acceptance")
    if 0.0 < rate < 1.0:
        yield designed_event(case.name, result, rate, ACCEPTANCE_ERROR, "acceptance", plan)
    yield _table_test(case.name, f"{where}, outcome", np.bincount(outcome, minlength=size), p, plan)


def _bonus_tests(
    case: SpeculationCase, draws: SpeculativeDraws, complete: NDArray[np.bool_], plan: AuditPlan
) -> Iterator[LayerTest]:
    """The token behind the last accepted draft, and its independence of that draft."""
    last, size = case.drafts, case.target_logits.shape[1]
    if case.reach(last) < MIN_REACH or not complete.any():
        return
    bonus, before = draws.emitted[complete, last], draws.emitted[complete, last - 1]
    counts = np.bincount(bonus, minlength=size)
    yield _table_test(case.name, f"{case.name}: bonus token", counts, case.target(last), plan)
    # Eight groups each, so that all cells fill.
    groups = min(8, size)
    table = np.zeros((groups, groups), np.int64)
    np.add.at(table, (before * groups // size, bonus * groups // size), 1)
    result = independence_g_test(table, f"{case.name}: bonus token and last draft are independent")
    if result.degrees_of_freedom:
        yield designed_test(case.name, result, MUST_SEE, (groups - 1) ** 2, plan)


def _table_test(
    part: str, name: str, counts: NDArray[np.int64], law: NDArray[np.float64], plan: AuditPlan
) -> LayerTest:
    """G test of counts pooled to 25 expected in the order of the cells; impossible cells are not among them."""
    draws = int(counts.sum())
    expected = law / law.sum() * draws
    labels = pool_expected(expected)
    observed = np.bincount(labels, weights=counts)
    result = g_test(observed, np.bincount(labels, weights=expected), name)
    full = min(_LARGEST_DF, int((law > 0).sum()) - 1)
    test = designed_test(part, result, MUST_SEE, max(1, full), plan)
    worst = int(np.argmax(np.abs(counts - expected) / np.sqrt(np.maximum(expected, 1.0))))
    return replace(
        test, evidence={"worst cell": worst, "expected": float(expected[worst]), "observed": int(counts[worst])}
    )


def _cell_name(cell: int, size: int) -> str:
    draft, outcome = divmod(cell, size + 1)
    return f"draft {draft} accepted" if outcome == size else f"draft {draft} rejected, outcome {outcome}"
