"""Tails, gap by gap, against what known defects of the noise would draw.

Each defect has a law (:mod:`mrv2.stats.noise`), hence a mass of each tail, hence a likelihood of what was counted. The
likelihoods name the defect, or say that none of the known ones explains the counts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from .layers import RowDraws
from .noise import NoiseLaw, noise_law, tail_mass, true_tail_mass

SOUND = "no defect"
_STRAY = 1e-9  # chance of a draw by something that is in no model
_FEWEST = 2
_FITS = 1e-3  # p-value from which on a model explains the counts
_DECISIVE = math.log(1000.0)  # lead in log-likelihood that names a model


@dataclass(frozen=True)
class TailPoint:
    """What was drawn of one flat tail.

    Attributes:
        gap: nats below the head.
        tokens: in the tail.
        draws: of the row.
        observed: draws of the tail.
    """

    gap: float
    tokens: int
    draws: int
    observed: int

    @property
    def expected(self) -> float:
        """Draws of the tail by a correct sampler."""
        return self.draws * true_tail_mass(self.gap, self.tokens)


@dataclass(frozen=True)
class TailModel:
    """What a defect would draw.

    Attributes:
        name: of the defect.
        masses: probability of each tail, in the order of the points.
        log_likelihood: of all counts, natural logarithm.
        p_value: of the counts against the model; small where it does not explain them.
    """

    name: str
    masses: tuple[float, ...]
    log_likelihood: float
    p_value: float


@dataclass(frozen=True)
class TailProfile:
    """Tails with the models, the likeliest first."""

    points: tuple[TailPoint, ...]
    models: tuple[TailModel, ...]

    @property
    def named(self) -> TailModel | None:
        """The defect that explains the counts, if one does and leads the others; a correct sampler is no defect.

        One tail alone names nothing: another temperature would change it as well.
        """
        if len(self.points) < _FEWEST:
            return None
        best, second = self.models[0], self.models[1]
        leads = best.log_likelihood - second.log_likelihood >= _DECISIVE
        return best if best.name != SOUND and best.p_value >= _FITS and leads else None


def tail_profile(draws: Mapping[str, Sequence[RowDraws]]) -> TailProfile | None:
    """The profile of all rows that are a head above a flat tail.

    Args:
        draws: of each row, one or more runs.
    """
    points = [point for runs in draws.values() if (point := _point(runs)) is not None]
    if not points:
        return None
    points.sort(key=lambda point: point.gap)
    models = [_model(name, law(), points) for name, law in KNOWN.items()]
    models.append(_judged(SOUND, tuple(true_tail_mass(point.gap, point.tokens) for point in points), points))
    return TailProfile(tuple(points), tuple(sorted(models, key=lambda model: -model.log_likelihood)))


def _point(runs: Sequence[RowDraws]) -> TailPoint | None:
    log_p = runs[0].log_probabilities
    head = int(log_p.argmax())
    rest = np.delete(log_p, head)
    if not np.isfinite(rest).all() or rest.max() - rest.min() > 1e-9 or log_p[head] - rest[0] < 3.0:
        return None
    total = sum(int(run.counts.sum()) for run in runs)
    tail = total - sum(int(run.counts[head]) for run in runs)
    return TailPoint(round(float(log_p[head] - rest[0]), 6), rest.size, total, tail) if total else None


def _model(name: str, law: NoiseLaw, points: Sequence[TailPoint]) -> TailModel:
    return _judged(name, tuple(tail_mass(law, point.gap, point.tokens) for point in points), points)


def _judged(name: str, masses: tuple[float, ...], points: Sequence[TailPoint]) -> TailModel:
    likelihood, deviance = 0.0, 0.0
    for mass, point in zip(masses, points, strict=True):
        share = min(max(mass, 0.0) + _STRAY, 1.0 - _STRAY)
        here = float(binom.logpmf(point.observed, point.draws, share))
        best = float(binom.logpmf(point.observed, point.draws, point.observed / point.draws))
        likelihood += here
        deviance += 2.0 * (best - here)
    return TailModel(name, masses, likelihood, float(chi2.sf(deviance, len(points))))


# Known defects


def _lattice(bits: int, raised: bool) -> Callable[[NDArray[np.uint64]], NDArray[np.float64]]:
    """``-log(-log(1 - u))`` of ``u = (word + 1) / 2**bits``, or of ``max(word, 1) / 2**bits`` if 0 is raised to 1."""

    def transform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
        places = words.astype(np.float64)
        places = np.maximum(places, 1.0) if raised else places + 1.0
        return -np.log(-np.log1p(-np.minimum(places * 2.0**-bits, 1.0 - 2.0**-53)))

    return transform


def _float32_top(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """``-log(-log(u))`` of 31 bits as a float32, which below 1 has steps of 2**-24."""
    uniform = np.minimum((words.astype(np.float64) * 2.0**-31).astype(np.float32), np.float32(1.0 - 2.0**-24))
    return -np.log(-np.log(np.maximum(uniform.astype(np.float64), 2.0**-31)))


def _half_steps(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """``-log(-log1p(-u))`` of ``u = (word + 1/2) / 2**32``."""
    return -np.log(-np.log1p(-(words.astype(np.float64) + 0.5) * 2.0**-32))


def _law(transform: Callable[[NDArray[np.uint64]], NDArray[np.float64]], bits: int) -> Callable[[], NoiseLaw]:
    return functools.cache(lambda: noise_law(transform, bits))


KNOWN: Mapping[str, Callable[[], NoiseLaw]] = {
    "24-bit noise": _law(_lattice(24, raised=False), 24),
    "24-bit noise, zero raised": _law(_lattice(24, raised=True), 24),
    "31-bit noise rounded to float32 below 1": _law(_float32_top, 31),
    "31-bit noise": _law(_lattice(31, raised=True), 31),
    "32-bit noise": _law(_half_steps, 32),
}
