"""The first screen of an audit: what was tested, the verdict, and what could have been missed, in plain words.

At most :data:`LINES` lines, for a reader who knows samplers and no statistics. Everything else is in the JSON and HTML.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mrv2.checks.findings import RunVerdict

from .audit import NO_TIME, AuditReport
from .causes.draws import rarity
from .decision import JudgedTest
from .layers import LayerResult, LayerTest
from .profiles import NARROW_ROWS
from .replay_layer import ReplayResult

LINES = 24
WIDTH = 112
NARROWEST = 40  # narrower terminals have to fold lines by themselves
_MISSED = 8  # lines for what could have been missed
_NAMED = 3  # examples of a list
_FOR_DRAWS = 0.5  # share of a longer time that goes to the rows, about
_LONGEST = 8 * 3600.0  # seconds of a longer run that is worth proposing
#: What each layer asks, in plain words, in the order in which they run.
PLAIN = {
    "contract": "ids, masks, greedy draws, batches",
    "noise": "the random bits behind each token",
    "replay": "draws recomputed one by one",
    "filters": "top-k, top-p, min-p at their threshold",
    "logprobs": "reported log-probabilities",
    "speculative": "drafts accepted and replaced",
    "distribution": "how often tokens come",
    "evidence": "draws of all nights together (with --ledger)",
}


def screen(report: AuditReport, width: int = WIDTH) -> list[str]:
    """The lines of the first screen, none longer than ``width``; long ones are wrapped and nothing is cut off.

    Args:
        report: of the audit.
        width: characters of a line, taken as at least :data:`NARROWEST` and at most :data:`WIDTH`; from 80 on there are
            at most :data:`LINES` lines.
    """
    page = _Page(max(NARROWEST, min(width, WIDTH)))
    head = page.wrapped(f"SAMPLER AUDIT of {report.target}: {report.verdict.value.upper()}")
    head += page.wrapped(meaning(report), "  ")
    ran = ["", *page.wrapped(what_ran(report)), *_layer_lines(report, page), "Could have been missed:"]
    last = page.wrapped(next_step(report))
    causes = _told_causes(report, page, LINES - len(head) - len(ran) - len(last) - 2)
    missed = _told_missed(report, page, LINES - len(head) - len(ran) - len(last) - len(causes))
    return [*head, *causes, *ran, *missed, *last]


@dataclass(frozen=True)
class _Page:
    """Wraps text to a width."""

    width: int

    def wrapped(self, text: str, first: str = "", others: str | None = None) -> list[str]:
        """Lines of a text; ``first`` stands before the first one, ``others`` before the rest."""
        return textwrap.wrap(
            text, self.width, initial_indent=first, subsequent_indent=first if others is None else others
        )


def _told_causes(report: AuditReport, page: _Page, room: int) -> list[str]:
    """The likeliest cause, and others if there is room for all of what they say."""
    lines: list[str] = []
    for index, cause in enumerate(report.causes[:2]):
        first = "Likely cause" if index == 0 else "Also"
        detail = cause.detail[:1].upper() + cause.detail[1:]
        told = page.wrapped(f"{first}: {cause.kind}. {detail}.", "  ", "    ")
        told += page.wrapped(f"To repair: {cause.remedy}.", "  ", "    ")
        if index == 0 or len(lines) + len(told) <= room:
            lines += told
    return lines


def _told_missed(report: AuditReport, page: _Page, room: int) -> list[str]:
    """The most important of what could have been missed, and how much more there is."""
    found = [page.wrapped(text, "  - ", "    ") for text in could_have_missed(report)]
    lines: list[str] = []
    for place, item in enumerate(found):
        left = min(_MISSED, room) - len(lines) - len(item)
        if place and left < (place + 1 < len(found)):
            return [*lines, f"  - and {len(found) - place} more (--json or --html lists them)"]
        lines += item
    return lines


def could_have_missed(report: AuditReport) -> list[str]:
    """What this run could not have shown, one sentence each, the most important first."""
    found = [*_late(report), *_short(report), *_resolution(report)]
    found += _not_tested(report)
    return found or ["nothing that these layers ask about; other models, devices and settings were not run"]


def _not_tested(report: AuditReport) -> Iterator[str]:
    """Layers that asked nothing; those with the same reason together."""
    reasons = {result.layer: result.not_run for result in report.audit.results}
    known = [layer for layer in PLAIN if layer != "evidence" or report.settings.ledger]
    reasons = {layer: reasons.get(layer, _LEFT_OUT) for layer in known}
    lacking = [layer for layer in known if reasons[layer].startswith("the target")]
    if len(lacking) > 1:
        yield f"not tested, because the sampler does not offer what they ask for: {', '.join(lacking)}"
        reasons.update(dict.fromkeys(lacking, ""))
    for reason in dict.fromkeys(reasons.values()):
        layers = [layer for layer in known if reasons[layer] == reason]
        if reason and reason != NO_TIME:
            told = f"{layers[0]} ({PLAIN[layers[0]]})" if len(layers) == 1 else ", ".join(layers)
            yield f"not tested: {told}; {reason}"


_LEFT_OUT = "left out by --layers"


def meaning(report: AuditReport) -> str:
    """The verdict in plain words."""
    once = f"once in {round(1 / report.settings.alpha):,} audits at most"
    failed, short = report.audit.decision.failed, _short_tests(report)
    if report.verdict is RunVerdict.FAIL:
        how = f"{len(failed)} tests failed" if len(failed) > 1 else "1 test failed"
        if all("raised" in test.first.evidence for test in failed):
            return f"The sampler raised an error instead of answering: {how}. This says nothing about what it draws."
        if any(test.first.exact and "raised" not in test.first.evidence for test in failed):
            return (
                f"The sampler is wrong: {how}. This is certain: a single draw or value that no correct sampler gives."
            )
        return f"The sampler is wrong: {how}. A correct sampler would be called wrong {once}."
    if report.verdict is RunVerdict.INCONCLUSIVE:
        return f"Do not take this for a pass. No fault was seen, but {_why_inconclusive(report, len(short))}."
    if report.verdict is RunVerdict.SUSPICIOUS:
        return "Something looked odd, and a second look neither confirmed nor cleared it. Run again with another seed."
    return f"No fault was found, and every test had the draws it needs. A correct sampler would fail {once}."


def what_ran(report: AuditReport) -> str:
    """Draws, seconds, and the widest rows of each layer, for what is true of wide rows need not be of narrow ones."""
    settings, widths = report.settings, {result.layer: result.width for result in report.audit.results if result.width}
    told = [
        f"{width:,} tokens ({', '.join(layer for layer in widths if widths[layer] == width)})"
        for width in sorted(set(widths.values()), reverse=True)
    ]
    wide = f" Widest rows: {', '.join(told)}." if told else ""
    return (
        f"Tested with profile {settings.profile.name}, seed {settings.seed}: {report.draws:,} draws in "
        f"{report.seconds:.0f} s.{wide}"
    )


def _layer_lines(report: AuditReport, page: _Page) -> Iterator[str]:
    for layer, answer, what in layer_answers(report):
        yield from page.wrapped(what, f"  {layer:<13}{answer:<15}", " " * 30)


def layer_answers(report: AuditReport) -> list[tuple[str, str, str]]:
    """Name, answer and what was asked, of each layer."""
    return [
        (result.layer, _answer(report, result), f"{PLAIN[result.layer]}{_weight(result)}")
        for result in report.audit.results
    ]


def _answer(report: AuditReport, result: LayerResult) -> str:
    if result.not_run:
        return "not tested"
    tests = [test for test in report.audit.decision.tests if test.layer == result.layer]
    short = "CUT SHORT" if any(test.first.cut for test in tests) else "TOO FEW DRAWS"
    for verdict, word in (
        (RunVerdict.FAIL, "WRONG"),
        (RunVerdict.INCONCLUSIVE, short),
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


def _why_inconclusive(report: AuditReport, short: int) -> str:
    tests = report.audit.decision.tests
    late = any(result.not_run == NO_TIME for result in report.audit.results)
    if late or any(test.first.cut for test in tests):
        return f"time was over ({report.settings.limit:.3g} s) before all of it was asked"
    if short:
        return f"{short} of {len(tests)} tests had too few draws"
    if any(test.verdict is RunVerdict.INCONCLUSIVE for test in tests):
        return "something looked odd, and there was no time for a second look"
    return "a part was not run"


def _late(report: AuditReport) -> Iterator[str]:
    """Layers for which there was no time, and those that were cut."""
    names = [result.layer for result in report.audit.results if result.not_run == NO_TIME]
    if names:
        yield f"all that {', '.join(names)} would have shown: {NO_TIME}"
    for result in report.audit.results:
        # Rows that were not drawn at all are told apart, with those that were left out from the start.
        cut = [test for test in result.tests if test.cut and (test.result.draws or result.layer != "distribution")]
        parts = list(dict.fromkeys(_part(result, test) for test in cut))
        if parts:
            yield f"{result.layer} was not finished in its time: it lacks {_some(parts)}"


def _part(result: LayerResult, test: LayerTest) -> str:
    """What a test is a part of, by a name that says it."""
    if result.layer == "noise":
        return test.name
    is_pair = result.layer == "distribution" and test.part not in result.draws
    return f"keys that differ in {test.part}" if is_pair else test.part


def _some(names: Sequence[str]) -> str:
    """A few of many names."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _short_tests(report: AuditReport) -> list[JudgedTest]:
    return [test for test in report.audit.decision.tests if test.first.short]


def _short(report: AuditReport) -> Iterator[str]:
    """Tests without the draws for what they must see; tails in words."""
    cut = {(test.layer, test.first.part) for test in report.audit.decision.tests if test.first.cut}
    tests = [test for test in _short_tests(report) if test.layer == "distribution" or not _is_cut(test, cut)]
    tails = sorted(gap for test in tests if (gap := _gap(test)) is not None)
    if tails:
        yield f"rare tokens, {tails[0]:g} nats and more below the best ({rarity(tails[0])} less likely): too few drawn"
    others = [test for test in tests if _gap(test) is None]
    rows = [test.first.name.split(": no time")[0] for test in others if test.first.result.draws == 0]
    if rows:
        yield f"whatever {len(rows)} kinds of rows or keys would show that there was no time to draw: {_some(rows)}"
    for test in others:
        if test.first.result.draws and not _is_cut(test, cut):
            yield f"{test.first.name}: {_below(test)}"
    unsure = [test.first.name for test in report.audit.decision.tests if _unconfirmed(test)]
    if unsure:
        yield f"what looked odd, and had no second look with all its draws: {_some(unsure)}"


def _is_cut(test: JudgedTest, cut: Collection[tuple[str, str]]) -> bool:
    return (test.layer, test.first.part) in cut


def _below(test: JudgedTest) -> str:
    """The errors that a test could not see, in plain words."""
    seen, unit = test.first.could_see, test.first.unit
    if not math.isfinite(seen):
        return "anything"
    if unit == "discrepancy":
        return f"shares that are off by less than {seen:.1%} on the whole"
    return f"a {unit} below {seen:.2g}"


def _unconfirmed(test: JudgedTest) -> bool:
    """Whether a second look was wanted, and cut."""
    return test.verdict is RunVerdict.INCONCLUSIVE and not test.first.short


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
    computed = [float(str(test.first.evidence["gap"])) for test in tests if test.layer == "noise" and _is_tail(test)]
    if gaps:
        yield f"tokens more than {max(gaps):g} nats below the best ({rarity(max(gaps))} less likely)"
    elif computed:
        yield (
            f"rare tokens, beyond what follows from the noise (computed down to {max(computed):g} nats below the best, "
            f"{rarity(max(computed))} less likely): none were drawn"
        )
    for test in tests:
        factor = test.first.evidence.get("temperature_factor")
        if isinstance(factor, float):
            yield f"a temperature off by less than {test.first.could_see / factor:.2%}"


def _is_tail(test: JudgedTest) -> bool:
    return "gap" in test.first.evidence


def next_step(report: AuditReport) -> str:
    """What to do now."""
    steps = {
        RunVerdict.PASS: "Next: nothing. A longer run (--profile nightly) sees smaller faults.",
        RunVerdict.SUSPICIOUS: "Next: run again with another --seed; a real fault comes back.",
        RunVerdict.FAIL: "Next: repair it and run again with the same seed; mrv2 audit --html FILE shows the draws.",
        RunVerdict.INCONCLUSIVE: _after_too_little(report),
    }
    return steps[report.verdict]


def _after_too_little(report: AuditReport) -> str:
    """How much more time it takes, about, or that no time is enough."""
    missing = _draws_missing(report)
    speed = report.draws / report.seconds if report.seconds else 0.0
    seconds = report.seconds + missing / speed / _FOR_DRAWS if speed else 0.0
    if seconds <= _LONGEST:
        minutes = max(10, math.ceil(seconds / 60))
        told, minutes = (f"{minutes}m", minutes) if minutes <= 90 else (f"{-(-minutes // 60)}h", -(-minutes // 60) * 60)
        return f"Next: give it more time (--time {told}, in a test seconds={minutes * 60}), or draw on a GPU."
    shows_bits = any(result.layer == "noise" and not result.not_run for result in report.audit.results)
    bits = "" if shows_bits else ", or let the sampler show its bits (words, noise): rare tokens follow from them"
    return (
        f"Next: more time hardly helps: {missing / 1e6:,.0f} million draws are missing, {seconds / 3600:,.0f} hours at "
        f"this speed. Draw on a GPU{bits}."
    )


def _draws_missing(report: AuditReport) -> int:
    """Draws of which tests had too few, each row's counted once."""
    missing: dict[tuple[str, str], int] = {}
    for test in _short_tests(report):
        row = (test.layer, test.first.part)
        missing[row] = max(missing.get(row, 0), (test.first.needed or 0) - test.first.result.draws)
    return sum(missing.values())


def as_text(lines: Sequence[str]) -> str:
    """Lines as one text."""
    return "\n".join(lines)
