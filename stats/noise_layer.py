"""The noise layer: what follows from a sampler's random words and from its transform of them, mostly without a draw.

Its tests have no error rate but for the three that ask whether words look random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .dependence import independence_g_test
from .distributions import LADDER
from .errors import ArgumentError
from .gof import TestResult, g_test
from .layers import AuditPlan, LayerResult, LayerTest, Progress, designed_test, exact_test, unasked_test, unless_cut
from .noise import (
    NoiseLaw,
    TransformErrors,
    enumerate_transform,
    noise_law,
    tail_error,
    true_tail_mass,
    words_to_enumerate,
)
from .noise_keys import Keys, duplicate_rows, key_domain, lattice_bits, stuck_bits
from .targets import NoiseTarget, Purpose

TAIL_TOLERANCE = 0.01  # relative error of the tail's mass that is a fault
# Noise that could win must be the Gumbel quantile of its rank to this many nats: 1 % of the chance of a token. Noise of
# float32 is within 2e-6; of bfloat16, off by a thousand times that.
NOISE_TOLERANCE = 1e-4
_LATTICE_KEYS = 64  # words looked at for stuck bits: 64 keys, each with one token
_MUST_SEE = 0.03  # discrepancy of the tests of randomness
_NIBBLE = 16
_PAIRED = ("tokens", "positions", "seeds")


@dataclass(frozen=True)
class NoiseLayer:
    """Tests of words and transform.

    Attributes:
        coarse_bits: leading bits of a word that are enumerated; 32 looks at every word of a sampler with 32 bits.
        keys: keys searched for duplicate rows of noise, each for two purposes.
        gaps: gaps, in nats, at which the mass of a flat tail is computed.
        random_words: words of each test of randomness.
    """

    coarse_bits: int = 18
    keys: int = 2**18
    gaps: Sequence[float] = LADDER
    random_words: int = 2**17
    name: str = "noise"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, NoiseTarget):
            return LayerResult(self.name, (), not_run="the target does not show its random words")
        tests: list[LayerTest] = []
        if plan.wants("transform"):
            tests += self._transform_tests(target, plan)
        if plan.wants("words"):
            tests += self._word_tests(target, plan, progress)
        for test in tests:
            progress.tested(test)
        bits = min(self.coarse_bits, target.noise_bits)
        coverage = (
            f"the noise of every value of the leading {bits} of {target.noise_bits} bits",
            f"tails down to {max(self.gaps, default=0.0):g} nats, from the law of the noise",
            f"{self.keys:,} keys without two alike",
        )
        return LayerResult(self.name, tuple(tests), coverage, (_AFTER_THE_NOISE,))

    def _transform_tests(self, target: NoiseTarget, plan: AuditPlan) -> Iterator[LayerTest]:
        errors = enumerate_transform(target.noise, target.noise_bits, self.coarse_bits, time=plan.time)
        planned = words_to_enumerate(target.noise_bits, self.coarse_bits)
        yield from (unless_cut(test, planned) for test in _enumeration_tests(errors))
        if plan.time.over():
            yield unasked_test("transform", "mass of tails, from the law of the noise", "gap", len(self.gaps))
            return
        try:
            law = noise_law(target.noise, target.noise_bits)
        except ArgumentError:  # not monotone or not a number, which the tests above have reported
            return
        for gap in self.gaps:
            yield _tail_test(law, gap, plan.vocab_size - 1)

    def _word_tests(self, target: NoiseTarget, plan: AuditPlan, progress: Progress) -> Iterator[LayerTest]:
        random = plan.generator("words")
        yield _lattice_test(target, random)
        keys = key_domain(self.keys, random)
        yield _duplicates_test(target, keys, plan, progress)
        count = self.random_words * plan.scale
        if plan.time.over():
            yield unasked_test("words", "words look random", "word", count, exact=False)
            return
        words = _words(target, random, count, plan.vocab_size, "tokens", 0)
        yield designed_test("words", _uniform_test(words, target.noise_bits), _MUST_SEE, 255, plan)
        for what in _PAIRED:
            table = _table(target, plan.generator(f"words/{what}"), count, plan.vocab_size, what)
            result = independence_g_test(table, f"words of neighbouring {what} are independent")
            yield designed_test("words", result, _MUST_SEE, (_NIBBLE - 1) ** 2, plan)


_AFTER_THE_NOISE = "anything behind the noise: how it is added, compared and masked (the other layers look there)"


def _enumeration_tests(errors: TransformErrors) -> Iterator[LayerTest]:
    seen = {"examples": [hex(word) for word in errors.examples]}
    yield exact_test("transform", "every word gives a finite noise", errors.words, errors.not_finite, "word", seen)
    yield exact_test("transform", "noise is monotone in the word", errors.words, errors.turns, "word")
    yield exact_test(
        "transform",
        "noise is the Gumbel quantile of its rank",
        errors.words,
        int(errors.winning_error > NOISE_TOLERANCE),
        "word",
        {"largest error, nats": errors.winning_error, "largest error of noise that cannot win": errors.losing_error},
    )


def _tail_test(law: NoiseLaw, gap: float, tokens: int) -> LayerTest:
    error = tail_error(law, gap, tokens)
    evidence = {
        "gap": gap,
        "relative error": error,
        "tail mass": true_tail_mass(gap, tokens),
        "tolerance": TAIL_TOLERANCE,
        "largest noise": law.largest,
    }
    wrong = int(not abs(error) <= TAIL_TOLERANCE)
    return exact_test("transform", f"mass of a tail {gap:g} nats down", tokens, wrong, "token", evidence)


def _lattice_test(target: NoiseTarget, random: np.random.Generator) -> LayerTest:
    words = _words(target, random, _LATTICE_KEYS, 2**16, "tokens", 0)
    stuck = stuck_bits(words, target.noise_bits)
    return exact_test(
        "words",
        "every bit of a word varies",
        words.size,
        len(stuck),
        "word",
        {"bits": target.noise_bits, "lattice of bits": lattice_bits(words, target.noise_bits), "stuck": list(stuck)},
    )


def _duplicates_test(target: NoiseTarget, keys: Keys, plan: AuditPlan, progress: Progress) -> LayerTest:
    done = 0

    def drawn(count: int) -> None:
        nonlocal done
        done += count
        progress.drawn(count)

    found = duplicate_rows(target, keys, (Purpose.TARGET, Purpose.DRAFT), plan.vocab_size, drawn, plan.time)
    examples: list[JSON] = [[list(duplicate.first), list(duplicate.second)] for duplicate in found[:4]]
    name = "no two keys have the same noise"
    return unless_cut(exact_test("words", name, done, len(found), "key", {"examples": examples}), 2 * keys.count)


def _words(
    target: NoiseTarget, random: np.random.Generator, count: int, vocab_size: int, what: str, step: int
) -> NDArray[np.uint64]:
    """Words of keys and tokens that are random, each moved by ``step`` in what is named; uint64 [count]."""
    seeds = random.integers(0, 2**64, count, dtype=np.uint64)
    positions = random.integers(0, 2**31 - 1, count)
    tokens = random.integers(0, max(1, vocab_size - 1), count)
    return target.words(
        seeds + np.uint64(step * (what == "seeds")),
        positions + step * (what == "positions"),
        tokens + step * (what == "tokens"),
    )


def _table(
    target: NoiseTarget, random: np.random.Generator, count: int, vocab_size: int, what: str
) -> NDArray[np.int64]:
    """Leading four bits of a word against those of its neighbour, int64 [16, 16]."""
    state = random.bit_generator.state
    first = _words(target, random, count, vocab_size, what, 0)
    random.bit_generator.state = state
    second = _words(target, random, count, vocab_size, what, 1)
    shift = np.uint64(max(0, target.noise_bits - 4))
    cells = (first >> shift) * np.uint64(_NIBBLE) + (second >> shift)
    return np.bincount(cells.astype(np.int64), minlength=_NIBBLE**2).reshape(_NIBBLE, _NIBBLE).astype(np.int64)


def _uniform_test(words: NDArray[np.uint64], bits: int) -> TestResult:
    leading = (words >> np.uint64(max(0, bits - 8))).astype(np.int64)
    cells = 2 ** min(8, bits)
    observed = np.bincount(leading, minlength=cells)
    return g_test(observed, np.full(cells, words.size / cells), "leading bits of words are uniform")
