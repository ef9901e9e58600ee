"""Plots of an audit as inline SVG, drawn by hand: a few lines, dots and boxes need no library."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from mrv2.stats.audit import AuditReport
from mrv2.stats.causes.draws import drawn_rows
from mrv2.stats.tail_profile import SOUND, TailProfile

_WIDTH, _HEIGHT, _MARGIN = 720, 300, 56
_COLOURS = ("#b42318", "#8a6100", "#6941c6", "#026aa2", "#1b7a3d", "#667085")
_BLOCK, _CELLS = 1024, 32
_DEEPEST = 10.0  # signed roots of G beyond it have the full colour


@dataclass(frozen=True)
class _Frame:
    """Axes: the ranges that are shown, and names."""

    left: float
    right: float
    low: float
    high: float
    across: str
    up: str

    def place(self, x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
        share = (min(max(y, self.low), self.high) - self.low) / (self.high - self.low)
        across = (min(max(x, self.left), self.right) - self.left) / (self.right - self.left)
        return _MARGIN + inner_width * across, _HEIGHT - _MARGIN - inner_height * share

    def wrap(self, parts: Sequence[str]) -> str:
        ticks = []
        for step in range(5):
            x, y = (low + (high - low) * step / 4 for low, high in ((self.left, self.right), (self.low, self.high)))
            at_x, at_y = self.place(x, self.low), self.place(self.left, y)
            ticks.append(_label(at_x[0], _HEIGHT - _MARGIN + 16, f"{x:.3g}", "middle"))
            ticks.append(_label(_MARGIN - 6, at_y[1] + 4, f"{y:.3g}", "end"))
        box = f'<rect x="{_MARGIN}" y="{_MARGIN}" width="{_WIDTH - 2 * _MARGIN}" height="{_HEIGHT - 2 * _MARGIN}"'
        names = [
            _label(_WIDTH / 2, _HEIGHT - 12, self.across, "middle"),
            _label(_MARGIN, _MARGIN - 12, self.up, "start"),
        ]
        body = "".join([f'{box} fill="none" stroke="#98a2b3"/>', *ticks, *names, *parts])
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{body}</svg>'


def tail_plot(report: AuditReport) -> str:
    """Observed over expected draws of each tail with its range, and the curves of the likeliest models."""
    profile = report.tails
    if profile is None or len(profile.points) < 2:
        return ""
    gaps = [point.gap for point in profile.points]
    frame = _Frame(min(gaps), max(gaps), 0.0, 2.0, "nats below the best token", "observed / expected")
    parts = [_polyline(frame, gaps, [1.0] * len(gaps), "#98a2b3", "4 3")]
    models = [model for model in profile.models if model.name != SOUND][:4]
    for colour, model in zip(_COLOURS, models, strict=False):
        true = [point.expected / point.draws for point in profile.points]
        parts.append(_polyline(frame, gaps, [m / t for m, t in zip(model.masses, true, strict=True)], colour))
    parts += _tail_dots(frame, profile)
    for index, (colour, model) in enumerate(zip(_COLOURS, models, strict=False)):
        text = f"{model.name} (log-likelihood {model.log_likelihood:.0f})"
        parts.append(_label(_WIDTH - _MARGIN - 6, _MARGIN + 16 + 16 * index, text, "end", colour))
    return frame.wrap(parts)


def _tail_dots(frame: _Frame, profile: TailProfile) -> list[str]:
    """Dots with Clopper and Pearson's 99 % intervals."""
    parts = []
    for point in profile.points:
        low = float(beta.ppf(0.005, point.observed, point.draws - point.observed + 1)) if point.observed else 0.0
        high = float(beta.ppf(0.995, point.observed + 1, max(point.draws - point.observed, 1)))
        scale = point.draws / point.expected
        (x, top), (_, bottom) = frame.place(point.gap, high * scale), frame.place(point.gap, low * scale)
        middle = frame.place(point.gap, point.observed / point.expected)[1]
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="#1c2330"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="4" fill="#1c2330"/>')
    return parts


def block_lane_map(report: AuditReport) -> str:
    """Signed root of G of groups of ids, blocks by place in the block, of the row with the most draws per id."""
    rows = drawn_rows(report.audit.results, tuple(report.audit.repeats.values()))
    wide = {name: runs for name, runs in rows.items() if runs[0].counts.size > _BLOCK and not name.startswith("cliff")}
    if not wide:
        return ""
    name, runs = max(wide.items(), key=lambda entry: sum(int(run.counts.sum()) for run in entry[1]))
    counts = np.sum([run.counts for run in runs], axis=0)
    expected = np.exp(runs[0].log_probabilities) * counts.sum()
    ids = np.arange(counts.size)
    blocks = min(_CELLS, -(-counts.size // _BLOCK))
    down = ids // _BLOCK * blocks // -(-counts.size // _BLOCK)
    cell = down * _CELLS + ids % _BLOCK * _CELLS // _BLOCK
    seen, wanted = (np.bincount(cell, weights=part, minlength=blocks * _CELLS) for part in (counts, expected))
    ratio = np.where(seen > 0, seen / np.maximum(wanted, 1e-12), 1.0)
    root = np.sign(seen - wanted) * np.sqrt(2.0 * np.maximum(seen * np.log(ratio) - seen + wanted, 0.0))
    size = (_WIDTH - 2 * _MARGIN) / _CELLS
    height = 2 * _MARGIN + size * blocks
    parts = [
        f'<rect x="{_MARGIN + index % _CELLS * size:.1f}" y="{_MARGIN + index // _CELLS * size:.1f}" '
        f'width="{size:.1f}" height="{size:.1f}" fill="{_heat(value)}"/>'
        for index, value in enumerate(root.tolist())
    ]
    label = _label(_MARGIN, _MARGIN - 12, f"row {name!r}: red too often, blue too rarely", "start")
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{label}{"".join(parts)}</svg>'


def p_value_plot(report: AuditReport) -> str:
    """Ordered p-values against the quantiles of a uniform law, both as powers of ten."""
    values = sorted(test.p_value for test in report.audit.decision.tests if not test.first.exact)
    if len(values) < 3:
        return ""
    wanted = [-math.log10((index + 0.5) / len(values)) for index in range(len(values))]
    found = [min(30.0, -math.log10(max(value, 1e-300))) for value in values]
    most = max(3.0, *wanted, *found)
    frame = _Frame(0.0, max(wanted), 0.0, most, "-log10 p expected", "-log10 p found")
    dots = []
    for x, y in zip(wanted, found, strict=True):
        at = frame.place(x, y)
        dots.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="#026aa2"/>')
    ends = [0.0, max(wanted)]
    return frame.wrap([_polyline(frame, ends, ends, "#98a2b3", "4 3"), *dots])


def power_plot(report: AuditReport) -> str:
    """``could_see / must_see`` of each statistical test; above 1 the test had too few draws."""
    ratios = sorted(
        min(4.0, test.first.could_see / test.first.must_see)
        for test in report.audit.decision.tests
        if not test.first.exact and test.first.must_see > 0
    )
    if len(ratios) < 2:
        return ""
    frame = _Frame(0.0, len(ratios) - 1.0, 0.0, 4.0, "tests, the sharpest first", "could see / must see")
    dots = []
    for index, ratio in enumerate(ratios):
        x, y = frame.place(index, ratio)
        colour = "#b42318" if ratio > 1 else "#1b7a3d"
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    return frame.wrap([_polyline(frame, [0.0, len(ratios) - 1.0], [1.0, 1.0], "#98a2b3", "4 3"), *dots])


def _polyline(frame: _Frame, xs: Sequence[float], ys: Sequence[float], colour: str, dashes: str = "") -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (frame.place(*pair) for pair in zip(xs, ys, strict=True)))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-dasharray="{dashes}"/>'


def _label(x: float, y: float, text: str, anchor: str, colour: str = "#52607a") -> str:
    shown = html.escape(text)
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">{shown}</text>'


def _heat(value: float) -> str:
    strength = round(255 * (1.0 - min(1.0, abs(value) / _DEEPEST)))
    return f"#ff{strength:02x}{strength:02x}" if value > 0 else f"#{strength:02x}{strength:02x}ff"
