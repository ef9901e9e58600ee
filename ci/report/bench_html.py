"""A comparison of runners as one HTML file without scripts: the table, the parts of a step as bars, timelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from mrv2.checks.timeline.phases import Part
from mrv2.ci.bench.compare import Comparison, Measured
from mrv2.ci.bench.figures import PARTS, headers, host_parts, rows
from mrv2.refrunner.phases import Phase

from .destinations import write_whole
from .timeline_html import COLOURS, document, escaped, key, picture, preformatted

_WIDTH, _LANE, _MARGIN, _FOR_TOTAL = 1000, 30, 120, 100
#: What the figures call a part, as timelines do.
_PART: Mapping[str, Part] = {
    **{part.value: part for part in Part},
    PARTS[Phase.WAIT]: Part.WAIT,
    PARTS[Phase.STEP]: Part.OTHER,
}


def write_bench_html(path: Path, comparison: Comparison, notes: Sequence[str]) -> None:
    """Write the page, whole or not at all.

    Args:
        path: of the file.
        comparison: what was measured.
        notes: lines above the table.

    Raises:
        InputError: the file cannot be written.
    """
    write_whole(path, bench_page(comparison, notes), "--html")


def bench_page(comparison: Comparison, notes: Sequence[str]) -> str:
    """The whole document."""
    sides = comparison.sides
    host = {name: _medians(measured) for name, measured in sides.items()}
    device = {
        name: {part: time / side.device.steps for part, time in side.device.by_part.items()}
        for name, side in sides.items()
        if side.device is not None
    }
    return document(
        f"mrv2 bench: {', '.join(sides)}",
        (
            preformatted(notes),
            *_table(headers(comparison), rows(comparison)),
            *_bars("Host, median µs a step", host),
            *(_bars("Device, µs a step under the profiler", device) if device else ()),
            *(line for name, side in sides.items() for line in _timeline(name, side)),
        ),
    )


def _medians(measured: Measured) -> dict[str, float]:
    return {name: median(times) for name, times in host_parts(measured).items() if name in _PART}


def _table(heads: Sequence[str], lines: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"<table><tr>{''.join(f'<th>{escaped(head)}</th>' for head in heads)}</tr>"
    for name, *cells in lines:
        numbers = "".join(f'<td class="n">{escaped(cell)}</td>' for cell in cells)
        yield f"<tr><td>{escaped(name)}</td>{numbers}</tr>"
    yield "</table>"


def _bars(title: str, sides: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """A bar for each side, of its parts one behind the other, all to one scale."""
    longest = max(sum(parts.values()) for parts in sides.values())
    scale = (_WIDTH - _MARGIN - _FOR_TOTAL) / longest if longest > 0 else 0.0
    yield f"<h2>{escaped(title)}</h2><figure>"
    box = f"0 0 {_WIDTH} {_LANE * len(sides)}"
    yield f'<svg viewBox="{box}" xmlns="http://www.w3.org/2000/svg" font-size="13" role="img">'
    for index, (name, parts) in enumerate(sides.items()):
        left, top = float(_MARGIN), index * _LANE
        yield f'<text x="0" y="{top + 19}">{escaped(name)}</text>'
        for part in sorted(parts, key=lambda part: list(Part).index(_PART[part])):
            width = max(parts[part], 0.0) * scale
            yield (
                f'<rect x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{_LANE - 6}" '
                f'fill="{COLOURS[_PART[part]]}"><title>{escaped(part)}, {parts[part]:.1f} µs</title></rect>'
            )
            left += width
        yield f'<text x="{left + 6:.1f}" y="{top + 19}">{sum(parts.values()):,.0f}</text>'
    yield "</svg>"
    yield from key({_PART[part] for parts in sides.values() for part in parts})


def _timeline(name: str, measured: Measured) -> Iterator[str]:
    """Some steps of the round under the profiler."""
    if measured.timeline is not None:
        yield f"<h2>{escaped(name)}: some steps under the profiler</h2>"
        yield from picture(measured.timeline)
