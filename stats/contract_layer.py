"""The contract layer: what every draw must fulfil, whatever the distribution. Exact, and a matter of seconds.

Each call is small and asks for one thing at an edge: ids inside the vocabulary, masked tokens, greedy draws, the ends
of rows of many widths (the last block of a vocabulary, and padding behind it, are where masks go wrong), keys at the
ends of their ranges, and tokens that may not depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .errors import ArgumentError
from .layers import AuditPlan, LayerResult, LayerTest, Progress, exact_test, unasked_test, unless_cut
from .targets import SamplerTarget, is_keyed

BLOCKS = (128, 1024)  # usual sizes of blocks; widths of rows lie just before, at and behind them
SEEDS = (0, 1, 2**31, 2**32, 2**63, 2**64 - 1)
POSITIONS = (0, 1, 2**16, 2**31 - 1)
_FAVOURITE = 60.0  # a logit that is drawn although noise may reach 45
_LANES = 24
_CROWD = 44 * _LANES  # rows of a large batch: more than 1024

_Keys = tuple[NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64]]


@dataclass(frozen=True)
class ContractLayer:
    """Small calls with one right answer each, or one right property."""

    name: str = "contract"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, SamplerTarget):
            return LayerResult(self.name, (), not_run="the target draws no tokens: it has no name and sample()")
        caller = _Caller(target, plan, progress)
        tests: list[LayerTest] = []
        checks = {**_CHECKS, **(_KEYED_CHECKS if is_keyed(target) else {})}
        for name, check in checks.items():
            if plan.wants(name):
                asked = not plan.time.over()
                tests.append(_tested(name, check, caller, plan) if asked else unasked_test(name, name, "row"))
                progress.tested(tests[-1])
        form = "one id of the vocabulary per row"
        tests.append(exact_test("calls", form, caller.calls, caller.broken, "call", caller.first))
        progress.tested(tests[-1])
        missed = () if is_keyed(target) else ("draws that depend on the batch: the target has no keys",)
        return LayerResult(self.name, tuple(tests), tuple(checks), missed, width=plan.vocab_size)


@dataclass
class _Case:
    """A call with what is wrong about it, if something is."""

    rows: int
    wrong: int
    evidence: Mapping[str, JSON] = field(default_factory=dict)


class _BrokenCallError(Exception):
    """A call had no usable answer; the caller has counted it."""


class _Call(Protocol):
    """What a check calls."""

    def __call__(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        may_refuse: bool = False,
    ) -> NDArray[np.int64]:
        """Tokens int64 [N]."""
        ...


class _Caller:
    """Calls the target and judges the form of its answers: one id in [0, V) per row, and arguments left alone."""

    def __init__(self, target: SamplerTarget, plan: AuditPlan, progress: Progress) -> None:
        self.calls = 0
        self.broken = 0
        self.first: dict[str, JSON] = {}
        self._target = target
        self._plan = plan
        self._progress = progress
        self._check = ""
        self._before = 0

    def begin(self, check: str) -> None:
        """The calls that follow are those of a check."""
        self._check, self._before = check, self.calls

    def again(self) -> str:
        """How to make the arguments of the last call again."""
        number, seed, size = self.calls - self._before, self._plan.seed, self._plan.vocab_size
        return f"mrv2.stats.contract_layer.call_again({self._check!r}, {number}, seed={seed}, vocab_size={size})"

    def __call__(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        may_refuse: bool = False,
    ) -> NDArray[np.int64]:
        """Tokens int64 [N]. Where the target may refuse, an error of its own is no fault, and ids are not judged here.

        Raises:
            _BrokenCallError: there are none, or not of the right form.
        """
        self.calls += 1
        given = (_copied(logits), temperature.copy(), seeds.copy(), positions.copy())
        before = [argument.tobytes() for argument in given]
        try:
            answer = np.asarray(self._target.sample(*given))
        except Exception as error:
            if may_refuse:
                raise _BrokenCallError from error
            raised = f"{type(error).__name__}: {error}"[:300]
            temperatures: list[JSON] = [round(float(some), 4) for some in np.unique(temperature)[:4]]
            raise self._fault({"raised": raised, "width": logits.shape[-1], "temperatures": temperatures}) from error
        self._progress.drawn(len(seeds))
        if [argument.tobytes() for argument in given] != before:
            raise self._fault({"changed": "its arguments"})
        if answer.shape != seeds.shape or answer.dtype.kind not in "iu":
            raise self._fault({"shape": list(answer.shape), "dtype": str(answer.dtype), "rows": len(seeds)})
        tokens: NDArray[np.int64] = answer.astype(np.int64)
        outside = np.flatnonzero((tokens < 0) | (tokens >= logits.shape[-1]))
        if outside.size and not may_refuse:
            lane = int(outside[0])
            key: dict[str, JSON] = {"seed": int(seeds[lane]), "position": int(positions[lane])}
            raise self._fault({"drawn": int(tokens[lane]), "width": logits.shape[-1], **key})
        return tokens

    def _fault(self, evidence: dict[str, JSON]) -> _BrokenCallError:
        self.broken += 1
        self.first = self.first or {**evidence, "arguments": self.again()}
        return _BrokenCallError()


def _copied(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """A copy with the same strides, inside a copy of the table around it."""
    if logits.flags.c_contiguous or logits.base is None:
        return logits.copy()
    return logits.base.copy()[:, : logits.shape[1]]


Check = Callable[[_Call, AuditPlan, np.random.Generator], Iterator[_Case]]


def _tested(name: str, check: Check, caller: _Caller, plan: AuditPlan) -> LayerTest:
    checked = wrong = missing = 0
    evidence: Mapping[str, JSON] = {}
    caller.begin(name)
    try:
        for case in check(caller, plan, plan.generator(name)):
            checked += case.rows
            wrong += case.wrong
            if case.wrong and not evidence:
                evidence = {**case.evidence, "arguments": caller.again()}
            if plan.time.over():
                missing = 1  # or more: the cases are made as they are asked for
                break
    except _BrokenCallError:
        # The form of the answer is a test of its own; this one has seen what it has seen.
        checked = max(checked, 1)
    return unless_cut(exact_test(name, name, checked, wrong, "row", evidence), checked + missing)


def call_again(check: str, number: int, seed: int, vocab_size: int) -> Arguments:
    """The arguments of one call of this layer, to repeat it by hand: ``sampler.sample(*call_again(...))``.

    Args:
        check: name of what was asked.
        number: of the call among those of the check, from 1.
        seed: of the audit.
        vocab_size: of the audit.

    Returns:
        logits float32 [N, V], temperature float32 [N], seeds uint64 [N] and positions int64 [N].

    Raises:
        ArgumentError: there is no such check, or it makes fewer calls.
    """
    checks = {**_CHECKS, **_KEYED_CHECKS}
    recorder = _Recorder()
    if check in checks:
        plan = AuditPlan(vocab_size, seed)
        for _ in checks[check](recorder, plan, plan.generator(check)):
            pass
    if not 1 <= number <= len(recorder.calls):
        raise ArgumentError(
            f"call {number} of check {check!r}",
            f"a check exists and makes so many calls; this one makes {len(recorder.calls)}",
            "a call that was never made cannot be repeated",
            f"what an audit says under 'arguments'; the checks are {', '.join(checks)}",
        )
    return recorder.calls[number - 1]


Arguments = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64]]


class _Recorder:
    """Notes the arguments of each call and draws id 0; no check decides by what was drawn what it asks next."""

    def __init__(self) -> None:
        self.calls: list[Arguments] = []

    def __call__(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        may_refuse: bool = False,
    ) -> NDArray[np.int64]:
        self.calls.append((logits, temperature, seeds, positions))
        return np.zeros(len(seeds), np.int64)


# What is asked


def _masked(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """Most logits are -inf, in every block."""
    yield from _with_holes(call, plan, random, -np.inf)


def _not_a_number(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """Most logits are NaN: they lose against every number."""
    yield from _with_holes(call, plan, random, np.nan)


def _with_holes(call: _Call, plan: AuditPlan, random: np.random.Generator, hole: float) -> Iterator[_Case]:
    for width in (129, plan.vocab_size):
        rows = random.normal(size=(8, width)).astype(np.float32)
        rows[:, random.random(width) < 0.9] = hole
        rows[:, width // 2] = 0.0
        tokens = call(rows, *_keys(random, 8), may_refuse=True)
        inside = (tokens >= 0) & (tokens < width)
        impossible = ~inside | ~np.isfinite(rows[np.arange(8), np.where(inside, tokens, 0)])
        yield _case(impossible, {"width": width}, tokens)


def _one_left(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """One token has a finite logit, very low, so that whatever stands in for a masked one would win."""
    for width in _widths(plan):
        rows = np.full((4, width), -np.inf, np.float32)
        rows[:, width - 1] = (-1e4, -100.0, 0.0, 1e4)
        tokens = call(rows, *_keys(random, 4))
        yield _case(tokens != width - 1, {"width": width, "expected": width - 1}, tokens)


def _none_left(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """No token has a finite logit: an error of the target's, or an id of the vocabulary; the other row is drawn."""
    rows = np.full((3, 129), -np.inf, np.float32)
    rows[1] = np.nan
    rows[2, 7] = 0.0
    tokens = call(rows, *_keys(random, 3), may_refuse=True)
    wrong = (tokens < 0) | (tokens >= 129)
    wrong[2] |= tokens[2] != 7
    yield _case(wrong, {"width": 129}, tokens)


def _greedy(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """Temperature 0, with ties inside a block, across blocks and at the last id: the lowest id wins."""
    for width in _widths(plan):
        rows = random.normal(size=(4, width)).astype(np.float32)
        rows[1, [width // 3, width - 1]] = 9.0
        rows[2, width - 1] = 9.0
        rows[3] = 0.0
        seeds, positions = _keys(random, 4)[1:]
        tokens = call(rows, np.zeros(4, np.float32), seeds, positions)
        yield _case(tokens != rows.argmax(axis=1), {"width": width}, tokens, rows.argmax(axis=1))


def _last_id(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """The last id leads by far: a block that is lost, or masked too early, draws another one."""
    for width in _widths(plan):
        rows = random.normal(size=(4, width)).astype(np.float32)
        rows[:, width - 1] = _FAVOURITE
        tokens = call(rows, *_keys(random, 4))
        yield _case(tokens != width - 1, {"width": width, "expected": width - 1}, tokens)


def _padding(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """All logits are far below 0, which is what forgotten padding holds."""
    for width in _widths(plan):
        rows = (random.normal(size=(4, width)) - _FAVOURITE).astype(np.float32)
        yield _Case(len(call(rows, *_keys(random, 4))), 0)


def _strides(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """Rows of a wider table whose other columns would win.

    One token of each row leads by far, so that a sampler with a generator of its own has one right answer, too.
    """
    for width in (129, 1025):
        table = random.normal(size=(6, 2 * width)).astype(np.float32)
        table[:, width:] = 2 * _FAVOURITE
        leads = random.integers(width, size=6)
        table[np.arange(6), leads] = _FAVOURITE
        tokens = call(table[:, :width], *_keys(random, 6))
        yield _case(tokens != leads, {"width": width, "stride": 2 * width}, tokens, leads)


def _far_keys(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """Seeds and positions at the ends of their ranges, temperatures far from 1."""
    rows = random.normal(size=(_LANES, 129)).astype(np.float32)
    temperature = np.resize(np.array([1e-3, 0.05, 1.0, 50.0], np.float32), _LANES)
    seeds = np.resize(np.array(SEEDS, np.uint64), _LANES)
    positions = np.resize(np.array(POSITIONS, np.int64), _LANES)
    tokens = call(rows, temperature, seeds, positions)
    cold = temperature < 0.01
    gaps = rows.max(axis=1) - rows[np.arange(_LANES), tokens]
    yield _case(cold & (gaps > 0.05), {"width": 129, "temperature": 1e-3}, tokens, rows.argmax(axis=1))


def _repeats(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """The same call twice."""
    rows, keys = random.normal(size=(_LANES, 1025)).astype(np.float32), _keys(random, _LANES)
    first, again = call(rows, *keys), call(rows, *keys)
    yield _case(first != again, {"width": 1025}, again, first)


def _order_of_batch(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """The rows of a call in another order."""
    for width in (129, 2053):
        rows, keys = random.normal(size=(_LANES, width)).astype(np.float32), _keys(random, _LANES)
        order = random.permutation(_LANES)
        first, moved = call(rows, *keys), call(rows[order], *_some(keys, order))
        yield _case(moved != first[order], _key_of(keys, order, moved != first[order], width), moved, first[order])


def _company(call: _Call, plan: AuditPlan, random: np.random.Generator) -> Iterator[_Case]:
    """Rows alone, in pairs, and at the end of a batch of others; batches larger than a block of rows, and one row."""
    rows, keys = random.normal(size=(_LANES, 1025)).astype(np.float32), _keys(random, _LANES)
    together = call(rows, *keys)
    for size in (1, 2, 5):
        some = np.arange(_LANES - size, _LANES)
        alone = call(rows[some], *_some(keys, some))
        yield _case(alone != together[some], _key_of(keys, some, alone != together[some], 1025), alone, together[some])
    keys = _keys(random, _CROWD)
    keys[0][::8] = 0.0
    for crowd in (random.normal(size=(_CROWD, 129)), random.normal(size=129)):
        yield from _crowd(call, crowd.astype(np.float32), keys)


def _crowd(call: _Call, rows: NDArray[np.float32], keys: _Keys) -> Iterator[_Case]:
    """A batch beyond the usual limits of fast paths (64, 256, 1024 rows), against the same rows in small ones."""
    together = call(rows, *keys)
    for start in range(0, _CROWD, _LANES):
        some = np.arange(start, start + _LANES)
        few = call(rows if rows.ndim == 1 else rows[some], *_some(keys, some))
        wrong = few != together[some]
        yield _case(wrong, {"batch": _CROWD, **_key_of(keys, some, wrong, 129)}, together[some], few)


_CHECKS: dict[str, Check] = {
    "masked ids are never drawn": _masked,
    "NaN is never drawn": _not_a_number,
    "a single possible id is drawn": _one_left,
    "a row without a possible id": _none_left,
    "temperature 0 draws the largest logit": _greedy,
    "the last id can be drawn": _last_id,
    "nothing behind the last id is drawn": _padding,
    "rows with a stride": _strides,
    "keys and temperatures at their ends": _far_keys,
}
_KEYED_CHECKS: dict[str, Check] = {
    "the same call draws the same": _repeats,
    "draws do not depend on the order of the batch": _order_of_batch,
    "draws do not depend on the other rows": _company,
}


def _widths(plan: AuditPlan) -> list[int]:
    edges = [block + change for block in BLOCKS for change in (-1, 0, 1)]
    # Few different ones elsewhere, too: a compiler may make a kernel of each.
    return sorted({1, 2, *edges, 2 * BLOCKS[-1] + 5, plan.vocab_size})


def _keys(random: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64]]:
    """Temperatures, seeds and positions of a call; no two seeds are equal."""
    temperature = random.choice(np.array([0.7, 1.0, 1.3], np.float32), count)
    return temperature, random.integers(0, 2**64, count, dtype=np.uint64), random.integers(0, 2**31, count)


def _some(keys: _Keys, lanes: NDArray[np.int64]) -> _Keys:
    temperature, seeds, positions = keys
    return temperature[lanes], seeds[lanes], positions[lanes]


def _key_of(
    keys: _Keys,
    lanes: NDArray[np.int64],
    wrong: NDArray[np.bool_],
    width: int,
) -> dict[str, JSON]:
    if not wrong.any():
        return {}
    lane = int(lanes[np.flatnonzero(wrong)[0]])
    return {"width": width, "seed": int(keys[1][lane]), "position": int(keys[2][lane])}


def _case(
    wrong: NDArray[np.bool_],
    evidence: Mapping[str, JSON],
    drawn: NDArray[np.int64],
    expected: NDArray[np.int64] | None = None,
) -> _Case:
    if not wrong.any():
        return _Case(wrong.size, 0)
    lane = int(np.flatnonzero(wrong)[0])
    told = {} if expected is None else {"expected": int(expected[lane])}
    return _Case(wrong.size, int(wrong.sum()), {"row": lane, "drawn": int(drawn[lane]), **evidence, **told})
