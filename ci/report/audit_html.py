"""An audit as one HTML file without scripts: the first screen, plots as inline SVG, every test."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from pathlib import Path

from mrv2.checks.report.plain import as_text
from mrv2.stats.audit import AuditReport
from mrv2.stats.decision import JudgedTest
from mrv2.stats.report import could_have_missed, screen

from .audit_plots import block_lane_map, p_value_plot, power_plot, tail_plot

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1c2330}
pre{background:#f3f5f8;padding:1rem;overflow:auto;font-size:13px} table{border-collapse:collapse;font-size:13px}
td,th{border-bottom:1px solid #d9dee6;padding:.25rem .6rem;text-align:left} td.n{text-align:right}
.fail{color:#b42318;font-weight:600}.inconclusive,.suspicious{color:#8a6100;font-weight:600}.pass{color:#1b7a3d}
svg{max-width:100%;height:auto} figure{margin:1.5rem 0} figcaption{color:#52607a;font-size:13px}
"""


def write_html(path: Path, report: AuditReport) -> None:
    """Write the report, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(page(report), encoding="utf-8")
    temporary.replace(path)


def page(report: AuditReport) -> str:
    """The whole document."""
    title = _text(f"Sampler audit of {report.target}")
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
            f"<pre>{_screen(report)}</pre>",
            *_causes(report),
            *_figures(report),
            "<h2>Could have been missed</h2><ul>",
            *(f"<li>{_text(text)}</li>" for text in could_have_missed(report)),
            *(f"<li>{_text(text)}</li>" for result in report.audit.results for text in result.could_have_missed),
            "</ul><h2>Every test</h2>",
            *_table(report),
            "</body></html>",
        ]
    )


def _screen(report: AuditReport) -> str:
    return "\n".join(_text(line) for line in screen(report))


def _causes(report: AuditReport) -> Iterator[str]:
    for cause in report.causes:
        yield f"<h2>Likely cause: {_text(cause.kind)}</h2><p>{_text(cause.detail)}</p><p>{_text(cause.remedy)}</p>"


def _figures(report: AuditReport) -> Iterator[str]:
    plots = (
        (tail_plot(report), "Tails: observed over expected draws, with the curves of known defects of the noise."),
        (block_lane_map(report), "Root of G by block of 1,024 ids (down) and place in the block (across)."),
        (p_value_plot(report), "P-values of the statistical tests against those of a correct sampler."),
        (power_plot(report), "Smallest error that would have shown, over the error that must show, for each test."),
    )
    for drawing, caption in plots:
        if drawing:
            yield f"<figure>{drawing}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(report: AuditReport) -> Iterator[str]:
    heads = ("layer", "test", "verdict", "draws", "needed", "p", "seen")
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for test in sorted(report.audit.decision.tests, key=_order):
        first = test.first
        kind = test.verdict.value
        evidence = ", ".join(f"{key}: {value}" for key, value in first.evidence.items()) if kind == "fail" else ""
        yield (
            f'<tr><td>{_text(test.layer)}</td><td>{_text(first.name)}</td><td class="{kind}">{kind}</td>'
            f'<td class="n">{first.result.draws:,}</td><td class="n">{_number(first.needed)}</td>'
            f'<td class="n">{_p(test)}</td><td>{_text(evidence[:300])}</td></tr>'
        )
    yield "</table>"


def _order(test: JudgedTest) -> tuple[int, float]:
    ranks = {"fail": 0, "suspicious": 1, "inconclusive": 2, "pass": 3}
    return ranks[test.verdict.value], test.p_value


def _p(test: JudgedTest) -> str:
    return "exact" if test.first.exact else f"{test.p_value:.2g}"


def _number(value: float | None) -> str:
    return "none would do" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def _text(text: str) -> str:
    return html.escape(as_text(text))
