"""An analysed trace as one HTML file without scripts: the first screen, a picture of some steps, all that is listed."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from mrv2.checks.timeline.analysis import Analysis, StepTimes
from mrv2.checks.timeline.intervals import Interval
from mrv2.checks.timeline.phases import Part

from .destinations import write_whole
from .timeline_text import summary_lines, timeline_lines

#: Steps in the picture: those in the middle, where a profiler has warmed up and nothing ends yet.
PICTURED = 4
_WIDTH, _LANE, _MARGIN = 1100, 26, 120
#: What is narrower is drawn together with its neighbour.
_NARROWEST = 0.6
COLOURS: Mapping[Part, str] = MappingProxyType(
    {
        Part.SCHEDULER: "#7a5195", Part.STATE_UPDATE: "#bc5090", Part.STAGING: "#ef5675", Part.INPUT_PREP: "#ff764a",
        Part.FORWARD: "#2f6db3", Part.SAMPLER: "#2a9d8f", Part.DRAFTING: "#8ab17d", Part.DOWNLOAD: "#e9c46a",
        Part.WAIT: "#b42318", Part.LAUNCH_CALLS: "#5b8fd1", Part.COPY_CALLS: "#ef5675", Part.OTHER: "#c4ccd8",
    }
)  # fmt: skip
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:78rem;padding:0 1rem;color:#1c2330}
pre{background:#f3f5f8;padding:1rem;overflow:auto;font-size:13px} table{border-collapse:collapse;font-size:13px}
td,th{border-bottom:1px solid #d9dee6;padding:.25rem .6rem;text-align:left} td.n{text-align:right}
svg{max-width:100%;height:auto} .key span{display:inline-block;margin-right:1rem}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
"""


def write_timeline_html(path: Path, analysis: Analysis) -> None:
    """Write the page, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    write_whole(path, timeline_page(analysis), "--html")


def timeline_page(analysis: Analysis) -> str:
    """The whole document."""
    rest = timeline_lines(analysis)[len(summary_lines(analysis)) :]
    return document(
        f"Timeline of {analysis.timeline.path.name}",
        (
            preformatted(summary_lines(analysis)),
            *picture(analysis),
            "<h2>Steps</h2>",
            *_steps(analysis.times),
            *(("<h2>Waits, copies, bubbles</h2>", preformatted(rest)) if rest else ()),
        ),
    )


def document(title: str, body: Iterable[str]) -> str:
    """A whole document of some elements."""
    told = escaped(title)
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{told}</title>',
            f"<style>{_STYLE}</style></head><body><h1>{told}</h1>",
            *body,
            "</body></html>",
        ]
    )


def preformatted(lines: Iterable[str]) -> str:
    """Lines of text as they are on a terminal."""
    return f"<pre>{escaped(chr(10).join(lines))}</pre>"


def key(parts: Iterable[Part]) -> Iterator[str]:
    """What the colours mean, below a picture."""
    yield "<figcaption class='key'>"
    for part in sorted(parts, key=list(Part).index):
        yield f'<span><i style="background:{COLOURS[part]}"></i>{escaped(part.value)}</span>'
    yield "</figcaption></figure>"


def picture(analysis: Analysis) -> Iterator[str]:
    """Host and streams below each other, some steps wide."""
    window = _window(analysis)
    if window is None or window[0] == window[1]:
        return
    lanes = list(_lanes(analysis, window))
    height = _LANE * (len(lanes) + 1)
    scale = (_WIDTH - _MARGIN) / (window[1] - window[0])
    yield f'<figure><svg viewBox="0 0 {_WIDTH} {height}" xmlns="http://www.w3.org/2000/svg" font-size="12" role="img">'
    for index, (name, pieces) in enumerate(lanes):
        top = index * _LANE
        yield f'<text x="0" y="{top + 16}">{escaped(name)}</text>'
        for start, end, part in _joined(pieces, 1 / scale):
            left, width = _MARGIN + (start - window[0]) * scale, max((end - start) * scale, _NARROWEST)
            yield (
                f'<rect x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{_LANE - 6}" fill="{COLOURS[part]}">'
                f"<title>{escaped(part.value)}, {(end - start) / 1000:.1f} µs</title></rect>"
            )
    yield from _marks(analysis, window, scale, height)
    yield "</svg>"
    yield from key({part for _, pieces in lanes for _, _, part in pieces})


def _window(analysis: Analysis) -> Interval | None:
    times = analysis.times
    first = max((len(times) - PICTURED) // 2, 0)
    shown = times[first : first + PICTURED]
    if not shown:
        return None
    ends = [one.busy[1] for one in shown if one.busy is not None]
    return shown[0].step.start, max((shown[-1].step.until, *ends))


def _lanes(analysis: Analysis, window: Interval) -> Iterator[tuple[str, list[tuple[int, int, Part]]]]:
    """The host's thread, then each stream of each device, with the pieces of both by part."""
    yield "host", list(analysis.host_pieces(window))
    for (device, stream), pieces in sorted(analysis.device_pieces(window).items()):
        yield f"GPU {device} stream {stream}", pieces


def _joined(pieces: Iterable[tuple[int, int, Part]], narrowest: float) -> Iterator[tuple[int, int, Part]]:
    """Pieces of one part that no eye could tell apart, as one."""
    last: tuple[int, int, Part] | None = None
    for start, end, part in pieces:
        if last is not None and part is last[2] and start - last[1] < narrowest:
            last = last[0], max(last[1], end), part
            continue
        if last is not None:
            yield last
        last = start, end, part
    if last is not None:
        yield last


def _marks(analysis: Analysis, window: Interval, scale: float, height: int) -> Iterator[str]:
    """A line where the host begins each step."""
    for one in analysis.times:
        if window[0] <= one.step.start < window[1]:
            at = _MARGIN + (one.step.start - window[0]) * scale
            yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - 14}" stroke="#1c2330" stroke-width="0.6"/>'
            yield f'<text x="{at + 3:.1f}" y="{height - 4}">step {one.step.number}</text>'


def _steps(times: Sequence[StepTimes]) -> Iterator[str]:
    parts = [part for part in Part if any(one.host.get(part) for one in times)]
    heads = (
        "step",
        *(f"{part.value}, host µs" for part in parts),
        "device µs",
        "bubble µs",
        "launches",
        "upload bytes",
    )
    yield f"<table><tr>{''.join(f'<th>{escaped(head)}</th>' for head in heads)}</tr>"
    for one in times:
        numbers = [
            *(one.host.get(part, 0) / 1000 for part in parts),
            sum(one.device.values()) / 1000,
            one.bubble / 1000,
        ]
        cells = [f"{number:.1f}" for number in numbers] + [str(one.launches), str(one.upload_bytes)]
        name = escaped(f"{one.step.number} {one.step.name}")
        yield f"<tr><td>{name}</td>{''.join(f'<td class=n>{cell}</td>' for cell in cells)}</tr>"
    yield "</table>"


def escaped(text: str) -> str:
    """Text as HTML."""
    return html.escape(text)
