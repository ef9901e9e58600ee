"""The first screen of an audit: what was tested, the verdict, and what could have been missed, in plain words.

At most :data:`LINES` lines, for a reader who knows samplers and no statistics. Everything else is in the JSON and HTML.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from mrv2.checks.findings import RunVerdict

from .audit import NO_TIME, AuditReport
from .causes.draws import rarity
from .decision import JudgedTest
from .layers import LayerResult
from .profiles import NARROW_ROWS
from .replay_layer import ReplayResult

LINES = 24
WIDTH = 112
_MISSED = 7  # lines for what could have been missed
_PLAIN = {
    "contract": "ids, masks, greedy draws, batches",
    "noise": "the random bits behind each token",
    "replay": "draws recomputed one by one",
    "filters": "top-k, top-p, min-p at their threshold",
    "distribution": "how often tokens come",
    "speculative": "drafts accepted and replaced",
    "logprobs": "reported log-probabilities",
    "evidence": "draws of all nights together",
}


def screen(report: AuditReport) -> list[str]:
    """The lines of the first screen, each at most :data:`WIDTH` characters."""
    lines = [f"SAMPLER AUDIT of {report.target}: {report.verdict.value.upper()}", *_wrapped(_meaning(report), 2)]
    lines += [line for cause in _told_causes(report) for line in cause]
    lines += ["", _what_ran(report), *_layer_lines(report)]
    missed = could_have_missed(report)
    shown = missed[: max(1, min(_MISSED, LINES - len(lines) - 3))]
    lines.append("Could have been missed:")
    lines += [_cut(f"  - {text}") for text in shown]
    if len(missed) > len(shown):
        lines.append(f"  - and {len(missed) - len(shown)} more (--json or --html lists them)")
    return [*lines[: LINES - 1], _next_step(report)]


def could_have_missed(report: AuditReport) -> list[str]:
    """What this run could not have shown, one sentence each, the most important first."""
    found = [*_late(report), *_short(report), *_resolution(report)]
    found += _not_tested(report)
    return found or ["nothing that these layers ask about; other models, devices and settings were not run"]


def _not_tested(report: AuditReport) -> Iterator[str]:
    """Layers that asked nothing; those with the same reason together."""
    reasons = {result.layer: result.not_run for result in report.audit.results}
    known = [layer for layer in _PLAIN if layer != "evidence" or report.settings.ledger]
    reasons = {layer: reasons.get(layer, "they were left out") for layer in known}
    for reason in dict.fromkeys(reasons.values()):
        layers = [layer for layer in known if reasons[layer] == reason]
        if reason and reason != NO_TIME:
            told = f"{layers[0]} ({_PLAIN[layers[0]]})" if len(layers) == 1 else ", ".join(layers)
            yield f"not tested: {told}; {reason}"


def _meaning(report: AuditReport) -> str:
    once = f"once in {round(1 / report.settings.alpha):,} audits at most"
    failed, short = report.audit.decision.failed, _short_tests(report)
    if report.verdict is RunVerdict.FAIL:
        how = f"{len(failed)} tests failed" if len(failed) > 1 else "1 test failed"
        if any(test.first.exact for test in failed):
            return (
                f"The sampler is wrong: {how}. This is certain: a single draw or value that no correct sampler gives."
            )
        return f"The sampler is wrong: {how}. A correct sampler would be called wrong {once}."
    if report.verdict is RunVerdict.INCONCLUSIVE:
        what = f"{len(short)} of {len(report.audit.decision.tests)} tests had too few draws"
        return f"Do not take this for a pass. No fault was seen, but {what if short else 'a part was not run'}."
    if report.verdict is RunVerdict.SUSPICIOUS:
        return "Something looked odd, and a second look neither confirmed nor cleared it. Run again with another seed."
    return f"No fault was found, and every test had the draws it needs. A correct sampler would fail {once}."


def _told_causes(report: AuditReport) -> Iterator[list[str]]:
    for index, cause in enumerate(report.causes[:2]):
        first = "Likely cause" if index == 0 else "Also"
        yield [
            *_wrapped(f"{first}: {cause.kind}. {cause.detail}.", 2)[:2],
            _cut(f"  To repair: {cause.remedy}."),
        ]


def _what_ran(report: AuditReport) -> str:
    settings = report.settings
    return (
        f"Tested with profile {settings.profile.name}, seed {settings.seed}: rows of up to {settings.vocab_size:,} "
        f"tokens, {report.draws:,} draws, {report.seconds:.0f} s"
    )


def _layer_lines(report: AuditReport) -> list[str]:
    return [
        _cut(f"  {result.layer:<13}{_answer(report, result):<14}{_PLAIN[result.layer]}{_weight(result)}")
        for result in report.audit.results
    ]


def _answer(report: AuditReport, result: LayerResult) -> str:
    if result.not_run:
        return "not tested"
    tests = [test for test in report.audit.decision.tests if test.layer == result.layer]
    for verdict, word in (
        (RunVerdict.FAIL, "WRONG"),
        (RunVerdict.INCONCLUSIVE, "TOO FEW DRAWS"),
        (RunVerdict.SUSPICIOUS, "odd"),
    ):
        if any(test.verdict is verdict for test in tests):
            return word
    return "right"


def _weight(result: LayerResult) -> str:
    if result.not_run:
        return ""
    if isinstance(result, ReplayResult):
        return f": {result.replayed:,} draws, {len(result.cases):,} differ"
    return f": {len(result.tests)} tests"


def _late(report: AuditReport) -> Iterator[str]:
    names = [result.layer for result in report.audit.results if result.not_run == NO_TIME]
    if names:
        yield f"all that {', '.join(names)} would have shown: {NO_TIME}"


def _short_tests(report: AuditReport) -> list[JudgedTest]:
    return [test for test in report.audit.decision.tests if test.first.short]


def _short(report: AuditReport) -> Iterator[str]:
    """Tests without the draws for what they must see; tails in words."""
    tests = _short_tests(report)
    tails = sorted(gap for test in tests if (gap := _gap(test)) is not None)
    if tails:
        yield f"rare tokens, {tails[0]:g} nats and more below the best ({rarity(tails[0])} less likely): too few drawn"
    others = [test for test in tests if _gap(test) is None]
    rows = [test.first.part for test in others if test.first.result.draws == 0]
    if rows:
        yield f"whatever {len(rows)} rows would show that there was no time to draw: {', '.join(rows)}"
    for test in others:
        if test.first.result.draws:
            seen = test.first.could_see
            yield f"{test.first.name}: " + (
                f"a {test.first.unit} below {seen:.2g}" if math.isfinite(seen) else "anything"
            )


def _gap(test: JudgedTest) -> float | None:
    words = test.first.part.split()
    return float(words[1]) if words[:1] == ["cliff"] else None


def _resolution(report: AuditReport) -> Iterator[str]:
    """The smallest faults that would have shown, of the tests that had their draws."""
    tests = [test for test in report.audit.decision.tests if not test.first.short]
    replayed = [test.first.could_see for test in tests if test.layer == "replay"]
    if replayed:
        yield f"a fault that changes fewer than one draw in {1 / min(replayed):,.0f}, unless it shows in another layer"
    for result in report.audit.results:
        yield from (text for text in result.could_have_missed if text.startswith(NARROW_ROWS))
    gaps = [gap for test in tests if (gap := _gap(test)) is not None]
    if gaps:
        yield f"tokens more than {max(gaps):g} nats below the best ({rarity(max(gaps))} less likely)"
    for test in tests:
        factor = test.first.evidence.get("temperature_factor")
        if isinstance(factor, float):
            yield f"a temperature off by less than {test.first.could_see / factor:.2%}"


def _next_step(report: AuditReport) -> str:
    steps = {
        RunVerdict.PASS: "Next: nothing. A longer run (--profile nightly) sees smaller faults.",
        RunVerdict.SUSPICIOUS: "Next: run again with another --seed; a real fault comes back.",
        RunVerdict.FAIL: "Next: repair the cause and run again with the same seed; --html FILE shows the draws.",
        RunVerdict.INCONCLUSIVE: "Next: draw more (--time 10m, or on the GPU); with more draws it passes or fails.",
    }
    return steps[report.verdict]


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin)


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def as_text(lines: Sequence[str]) -> str:
    """Lines as one text."""
    return "\n".join(lines)
