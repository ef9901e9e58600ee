"""Draws at the edges of a sampler's ranges, each with one right answer; a distribution would never show them.

* greedy rows: ties inside a block and across blocks, a row that is -inf but for one token, a row with NaN;
* far keys: seeds over all 64 bits and at their ends, positions up to 2**31 - 1, temperatures far below and above 1;
* vocabularies that end just before, inside or behind a block, with neighbours in memory that would win;
* tails: rows made from the exact noise so that a token with rare, large noise leads or trails by little more than
  rounding. A noise of too few bits, or a careless logarithm, decides them wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON, Finding
from mrv2.stats.replay import ExactScores, Mismatch, float32_guard, replay
from mrv2.stats.targets import SamplerTarget

from .sampler_call import ask, violation

TEMPERATURES = (0.05, 0.4999, 1.0, 40.0)
SEEDS = (0, 1, 2**31, 2**32, 2**63, 2**63 - 1, 2**64 - 1)
POSITIONS = (0, 1, 2**12, 2**16, 2**24, 2**31 - 1)
FAR_DRAWS = 48
# Columns more or less than the model's vocabulary, which itself is often a multiple of every block size.
WIDTHS = (-1, -6, 1)
WIDTH_DRAWS = 12
# In the noise of mrv2.refrunner.oracle.noise token 179 of this key has a high word of 0, so that its noise is above
# 32 * log(2) = 22.2 and rests on the low word alone. One token in 2**32 is such; found by trying a billion positions.
RARE_KEY = (0x9E3779B97F4A7C15, 13_983_464)
TAIL_WIDTH = 257
TAIL_KEYS = 6
# By how much a tail row is decided, in units of what float32 can get wrong.
TAIL_MARGIN = 3.0
EXAMPLES = 5

_HEADROOM = 32.0
_ABSENT = -60.0


@dataclass(frozen=True, eq=False)
class EdgeBatch:
    """One call.

    Attributes:
        name: the edge.
        logits: float32 [N, width].
        temperatures: float32 [N].
        seeds: uint64 [N].
        positions: int64 [N].
        magnitudes: float64 [N], largest score or scaled logit that can win, which decides what rounding may change.
    """

    name: str
    logits: NDArray[np.float32]
    temperatures: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]
    magnitudes: NDArray[np.float64]


@dataclass(frozen=True)
class EdgeResult:
    """What was asked and what was wrong.

    Attributes:
        names: the edges.
        draws: in all of them.
        wrong: what was wrong with an edge, by its name.
    """

    names: tuple[str, ...]
    draws: int
    wrong: Mapping[str, Finding]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One for each edge at most, and each of them once."""
        return tuple({finding.fingerprint(): finding for finding in self.wrong.values()}.values())

    def metrics(self) -> dict[str, JSON]:
        """The numbers, for a report."""
        return {"edge_draws": self.draws, "edges": list(self.names), "wrong_edges": list(self.wrong)}


def check_edges(
    sampler: SamplerTarget, logits: NDArray[np.float32], exact_scores: ExactScores | None, seed: int
) -> EdgeResult:
    """Ask a sampler for all edges.

    Args:
        logits: of the model, float32 [rows, V].
        exact_scores: what each draw is the argmax of; without it only greedy draws and the range of ids are checked.
        seed: of everything random.
    """
    random = np.random.default_rng(seed)
    batches = [_greedy(random, logits.shape[1]), _far_keys(random, logits), *_widths(random, logits)]
    if exact_scores is not None:
        batches.append(_tails(random, exact_scores))
    wrong = {batch.name: finding for batch in batches if (finding := _judge(sampler, batch, exact_scores))}
    return EdgeResult(tuple(b.name for b in batches), sum(b.seeds.size for b in batches), wrong)


# The batches


def _greedy(random: np.random.Generator, width: int) -> EdgeBatch:
    rows = random.normal(size=(4, width)).astype(np.float32)
    inside, across = (width // 8, width // 8 + 1), (width // 4, width - 1)
    rows[0, inside] = rows[1, across] = 9.0
    rows[2] = -np.inf
    rows[2, width - 1] = -30.0
    rows[3, [0, width // 2]] = np.nan
    return _batch(random, "greedy rows with ties, -inf and NaN", rows, [0.0])


def _far_keys(random: np.random.Generator, logits: NDArray[np.float32]) -> EdgeBatch:
    rows = logits[np.arange(FAR_DRAWS) % len(logits)]
    return _batch(random, "far seeds, positions and temperatures", rows, TEMPERATURES)


def _widths(random: np.random.Generator, logits: NDArray[np.float32]) -> Iterator[EdgeBatch]:
    """Rows whose neighbour in memory starts with a logit that beats all of theirs."""
    wide = np.concatenate([logits, logits[:, :1]], axis=1)
    for change in WIDTHS:
        width = logits.shape[1] + change
        if width > 1:
            rows = wide[np.arange(WIDTH_DRAWS) % len(wide), :width]
            rows[1::2, 0] = rows.max() + 10
            yield _batch(random, f"vocabulary of {change:+d} columns", rows, (0.0, 0.0, 1.0, 1.0))


def _batch(
    random: np.random.Generator, name: str, rows: NDArray[np.float32], temperatures: Sequence[float]
) -> EdgeBatch:
    count = len(rows)
    lanes = np.arange(count)
    seeds, positions = random.integers(0, 2**64, count, dtype=np.uint64), random.integers(0, 2**31, count)
    # Every other draw at an end of the range; of the two parts of a key never both.
    seeds[::4] = np.asarray(SEEDS, np.uint64)[lanes[::4] // 4 % len(SEEDS)]
    positions[2::4] = np.asarray(POSITIONS)[lanes[2::4] // 4 % len(POSITIONS)]
    warmth = np.asarray(temperatures, np.float32)[lanes % len(temperatures)]
    largest = np.where(np.isfinite(rows), np.abs(rows), 0.0).max(axis=1).astype(np.float64)
    magnitudes = largest / np.where(warmth > 0, warmth, 1.0) + _HEADROOM
    return EdgeBatch(name, np.ascontiguousarray(rows), warmth, seeds, positions, magnitudes)


def _tails(random: np.random.Generator, exact_scores: ExactScores) -> EdgeBatch:
    keys = [RARE_KEY] + [(int(random.integers(2**63)), int(random.integers(2**31))) for _ in range(TAIL_KEYS)]
    rows, magnitudes = [], []
    for key in keys:
        noise = exact_scores(np.zeros(TAIL_WIDTH, np.float32), 1.0, *key)
        for side in (-1, 1):
            row, magnitude = _tail_row(noise, side)
            rows.append(row)
            magnitudes.append(magnitude)
    seeds = np.repeat(np.asarray([seed for seed, _ in keys], np.uint64), 2)
    positions = np.repeat(np.asarray([position for _, position in keys], np.int64), 2)
    ones = np.ones(len(rows), np.float32)
    return EdgeBatch("tails of the noise", np.stack(rows), ones, seeds, positions, np.asarray(magnitudes))


def _tail_row(noise: NDArray[np.float64], side: int) -> tuple[NDArray[np.float32], float]:
    """A row that the token of largest noise wins (side 1) or loses (-1) by a small margin, and its magnitude."""
    rare, plain = int(noise.argmax()), int(np.abs(noise).argmin())
    magnitude = float(noise[rare])
    row = np.full(noise.size, _ABSENT, np.float32)
    row[plain] = -noise[plain]
    row[rare] = side * TAIL_MARGIN * float32_guard(magnitude) - noise[rare]
    return row, magnitude


# The judgement


def _judge(sampler: SamplerTarget, batch: EdgeBatch, exact_scores: ExactScores | None) -> Finding | None:
    tokens = ask(sampler, batch.logits, batch.temperatures, batch.seeds, batch.positions)
    if isinstance(tokens, Finding):
        return tokens
    numbers = np.where(np.isnan(batch.logits), -np.inf, batch.logits)
    width = numbers.shape[1]
    inside = (tokens >= 0) & (tokens < width)
    possible = inside & ~np.isneginf(numbers[np.arange(len(tokens)), np.where(inside, tokens, 0)])
    if not possible.all():
        wrong = [_evidence(batch, lane, int(tokens[lane])) for lane in np.flatnonzero(~possible).tolist()]
        title = f"{sampler.name} drew a token that does not exist or cannot be drawn: {batch.name}"
        remedy = "mask the lanes beyond the vocabulary, and let -inf and NaN lose against every number"
        return _finding("MRV403", title, batch, wrong, remedy)
    wrong = [*_wrong_greedy(batch, numbers, tokens), *_wrong_draws(batch, tokens, exact_scores)]
    if not wrong:
        return None
    title = f"{sampler.name} draws other tokens than the exact replay: {batch.name}"
    return _finding("MRV402", title, batch, wrong, "recompute the first example by hand: its noise, then its scores")


def _wrong_greedy(
    batch: EdgeBatch, numbers: NDArray[np.float32], tokens: NDArray[np.int64]
) -> Iterator[dict[str, JSON]]:
    exact = numbers.argmax(axis=1)
    for lane in np.flatnonzero((batch.temperatures == 0) & (tokens != exact)).tolist():
        yield {**_evidence(batch, lane, int(tokens[lane])), "exact": int(exact[lane])}


def _wrong_draws(
    batch: EdgeBatch, tokens: NDArray[np.int64], exact_scores: ExactScores | None
) -> Iterator[dict[str, JSON]]:
    if exact_scores is None:
        return
    for lane in np.flatnonzero(batch.temperatures > 0).tolist():
        one = slice(lane, lane + 1)
        scores = partial(exact_scores, batch.logits[lane], float(batch.temperatures[lane]))
        guard = float32_guard(float(batch.magnitudes[lane]))
        result = replay(tokens[one], batch.seeds[one], batch.positions[one], scores, guard)
        for mismatch in result.mismatches:
            yield {**_evidence(batch, lane, mismatch.drawn), **_scores(mismatch)}


def _scores(mismatch: Mismatch) -> dict[str, JSON]:
    drawn = mismatch.drawn_score if np.isfinite(mismatch.drawn_score) else None
    return {"exact": mismatch.exact, "drawn_score": drawn, "exact_score": mismatch.exact_score}


def _evidence(batch: EdgeBatch, lane: int, drawn: int) -> dict[str, JSON]:
    return {
        "seed": int(batch.seeds[lane]),
        "position": int(batch.positions[lane]),
        "temperature": round(float(batch.temperatures[lane]), 6),
        "row": lane,
        "drawn": drawn,
    }


def _finding(code: str, title: str, batch: EdgeBatch, wrong: Sequence[dict[str, JSON]], remedy: str) -> Finding:
    evidence: dict[str, JSON] = {
        "draws": int(batch.seeds.size),
        "wrong": len(wrong),
        "vocab_size": batch.logits.shape[1],
        "likely_cause": None,
        "examples": list(wrong[:EXAMPLES]),
    }
    return violation(code, title, evidence, remedy)
