"""An audit as one HTML file without scripts: verdict and causes, what was missed, plots as inline SVG, every test."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from pathlib import Path

from mrv2.checks.report.plain import as_text
from mrv2.stats.audit import AuditReport
from mrv2.stats.decision import JudgedTest
from mrv2.stats.report import could_have_missed, layer_answers, meaning, next_step, what_ran

from .audit_plots import block_lane_map, p_value_plot, power_plot, tail_plot
from .destinations import write_whole

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
        InputError: the file cannot be written.
    """
    write_whole(path, page(report), "--html")


def page(report: AuditReport) -> str:
    """The whole document."""
    title, verdict = _text(f"Sampler audit of {report.target}"), report.verdict.value
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body>",
            f'<h1>{title}: <span class="{verdict}">{verdict.upper()}</span></h1><p>{_text(meaning(report))}</p>',
            *_causes(report),
            f"<p>{_text(next_step(report))}</p><h2>What was tested</h2><p>{_text(what_ran(report))}</p>",
            *_layers(report),
            "<h2>Could have been missed</h2><ul>",
            *(f"<li>{_text(text)}</li>" for text in _missed(report)),
            "</ul>",
            *_figures(report),
            "<h2>Every test</h2>",
            *_table(report),
            "</body></html>",
        ]
    )


def _layers(report: AuditReport) -> Iterator[str]:
    yield "<table><tr><th>layer</th><th>answer</th><th>asked</th></tr>"
    for cells in layer_answers(report):
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _missed(report: AuditReport) -> list[str]:
    """What the first screen says, and what the layers say beyond it; nothing twice."""
    told = could_have_missed(report)
    for result in report.audit.results:
        details = [*result.could_have_missed, *([f"{result.layer}: {result.not_run}"] if result.not_run else [])]
        told += [text for text in details if not any(text in other for other in told)]
    return told


def _causes(report: AuditReport) -> Iterator[str]:
    for cause in report.causes:
        detail = cause.detail[:1].upper() + cause.detail[1:]
        yield f"<h2>Likely cause: {_text(cause.kind)}</h2><p>{_text(detail)}.</p>"
        yield f"<p>To repair: {_text(cause.remedy)}.</p>"


_TAILS = (
    "Rare tokens: how often they were drawn, over how often they should be (1 is right; a bar holds the true value 99 "
    "times in 100). Coloured lines show what known defects of the noise would draw."
)
_IDS = (
    "Where in the vocabulary tokens come too often or too rarely: blocks of 1,024 ids from top to bottom, places in "
    "the block from left to right. An even, pale pattern is right; a stripe or a spot is a fault."
)
_SURPRISE = (
    "How surprising each test's draws are, as powers of ten (3: once in a thousand tests of a correct sampler). Dots "
    "near the dashed line are right; dots far above it are a fault."
)
_POWER = (
    "What each test could see: the smallest error that would have shown, over the one it must show. Dots above the "
    "dashed line had too few draws."
)


def _figures(report: AuditReport) -> Iterator[str]:
    plots = (
        (tail_plot(report), _TAILS),
        (block_lane_map(report), _IDS),
        (p_value_plot(report), _SURPRISE),
        (power_plot(report), _POWER),
    )
    for drawing, caption in plots:
        if drawing:
            yield f"<figure>{drawing}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(report: AuditReport) -> Iterator[str]:
    heads = ("layer", "test", "verdict", "looked at", "needed", "p-value", "seen")
    yield "<p>A p-value is the chance that a correct sampler draws something at least as odd. 'Exact' tests have none: "
    yield "one violation is proof. A test that looked at fewer cases than needed does not pass.</p>"
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for test in sorted(report.audit.decision.tests, key=_order):
        first, kind = test.first, test.verdict.value
        yield (
            f'<tr><td>{_text(test.layer)}</td><td>{_text(first.name)}</td><td class="{kind}">{kind}</td>'
            f'<td class="n">{first.result.draws:,}</td><td class="n">{_number(first.needed)}</td>'
            f'<td class="n">{_p(test)}</td><td>{_text(_seen(test) if kind in _SHOWN else "")}</td></tr>'
        )
    yield "</table>"


_SHOWN = ("fail", "suspicious")


def _seen(test: JudgedTest) -> str:
    """The group of draws that is farthest off, if there are groups, and what the layer noted."""
    groups = [group for group in test.last.result.groups if group.expected > 0]
    facts = [f"{key}: {value}" for key, value in test.first.evidence.items()]
    if groups:
        worst = max(groups, key=lambda group: abs(group.observed - group.expected) / math.sqrt(group.expected))
        facts.insert(0, f"{worst.name}: {worst.observed:,.6g} seen, {worst.expected:,.6g} expected")
    return ", ".join(facts)


def _order(test: JudgedTest) -> tuple[int, float]:
    ranks = {"fail": 0, "suspicious": 1, "inconclusive": 2, "pass": 3}
    return ranks[test.verdict.value], test.p_value


def _p(test: JudgedTest) -> str:
    return "exact" if test.first.exact else f"{test.p_value:.2g}"


def _number(value: float | None) -> str:
    return "none would do" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def _text(text: str) -> str:
    return html.escape(as_text(text))
