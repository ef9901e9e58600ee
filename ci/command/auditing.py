"""What ``mrv2 audit`` does: find the sampler, audit it, report; or audit the samplers with planted faults."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from mrv2.checks.findings import JSON, Finding, RunVerdict, combine
from mrv2.ci.report import console as screen
from mrv2.ci.report.audit_json import coverage_of, findings_of, metrics_of
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding
from mrv2.ci.report.problem import InputError, four_parts
from mrv2.fuzz.targets.audited import NAMED, PLANTED_PREFIX
from mrv2.fuzz.targets.plain_samplers import CallableSampler
from mrv2.stats.audit import VOCAB_SIZE, AuditReport, Settings, audit, settings
from mrv2.stats.planted.faults import PLANTED, Planted
from mrv2.stats.report import PLAIN, WIDTH
from mrv2.stats.report import screen as first_screen
from mrv2.stats.targets import SamplerTarget

from .audit_progress import watched
from .environment import describe
from .kernels import compiled_kernels
from .shared import exit_code, notes, output
from .targets import importable, or_meant, resolve_object

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
NAMED_RIGHTLY = 12  # of the fourteen causes


@dataclass(frozen=True)
class Options:
    """The options of ``mrv2 audit``."""

    target: str
    profile: str
    time: str | None
    alpha: float
    layers: str
    vocab: int | None
    seed: int
    strict: bool
    ledger: Path | None
    json: Path | None
    html: Path | None

    def settings(self) -> Settings:
        """Checked.

        Raises:
            InputError: the time cannot be read; ArgumentError: another option is out of its range.
        """
        names = tuple(name.strip() for name in self.layers.split(",") if name.strip())
        seconds = None if self.time is None else seconds_of(self.time)
        return settings(self.profile, seconds, self.seed, self.alpha, self.vocab or VOCAB_SIZE, names, self.ledger)


def seconds_of(text: str) -> float:
    """``90``, ``90s``, ``1.5m`` or ``8h`` in seconds.

    Raises:
        InputError: it is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found or float(found[1]) == 0:
        raise InputError(
            f"--time {text!r}", "a time is a number above 0 and s, m or h", "the profile's draws are cut to it", "60s"
        )
    return float(found[1]) * _UNITS[found[2]]


def show_names() -> None:
    """Print the samplers that have names, and the layers, with what each is."""
    known = {name: named.about for name, named in NAMED.items() if not name.startswith(PLANTED_PREFIX)}
    planted = {f"'{name}'": named.about for name, named in NAMED.items() if name.startswith(PLANTED_PREFIX)}
    parts = (
        ("Samplers with a name, for mrv2 audit NAME:", known),
        ("A correct sampler with a planted fault, to see what an audit says of it:", planted),
        ("Layers, for --layers NAME,NAME:", PLAIN),
    )
    out = output()
    for title, entries in parts:
        screen.line(out, title)
        width = max(map(len, entries)) + 2
        for name, about in entries.items():
            screen.line(out, f"  {name:<{width}}{about}")
    screen.line(out, "Your own sampler: mrv2 audit package.module:object")


def run(options: Options) -> None:
    """Audit one sampler and report.

    Raises:
        InputError: an option cannot be used.
        typer.Exit: with the exit code of the verdict.
    """
    check_destinations({"--json": options.json, "--html": options.html}, (options.ledger,))
    chosen = options.settings()
    with importable(Path.cwd()):
        target = resolve_sampler(options.target)
        with _kernels(options.target) as found, watched(notes(), chosen) as progress:
            report = audit(target, chosen, progress)
    verdict = combine([report.verdict, RunVerdict.FAIL]) if found else report.verdict
    try:
        _write(options, report, verdict, found)
    finally:
        _print(report, found)
    raise typer.Exit(exit_code(verdict, options.strict))


def _print(report: AuditReport, found: list[Finding]) -> None:
    out = output()
    for line in first_screen(report, out.width if out.is_terminal else WIDTH):
        screen.line(out, line)
    screen.print_findings(out, [ReportedFinding(finding) for finding in found])


def resolve_sampler(reference: str) -> object:
    """The sampler of a name: one of :data:`NAMED`, or ``package.module:object``, which may be a class or a function.

    Raises:
        InputError: there is none, or it is no sampler.
    """
    if reference in NAMED:
        return NAMED[reference].make()
    if ":" not in reference or reference.startswith(PLANTED_PREFIX):
        raise _unknown(reference)
    found = resolve_object(f"TARGET {reference!r}", reference)
    made: Any = _made(reference, found) if isinstance(found, type) else found
    if isinstance(made, SamplerTarget):
        _check_arguments(reference, made.sample)
        return made
    if callable(getattr(made, "sampler", None)):
        return resolve_provided(reference, _made(reference, made.sampler))
    if callable(made):
        _check_arguments(reference, made)
        return CallableSampler(made)
    raise _no_sampler(reference, made)


def _unknown(reference: str) -> InputError:
    close = difflib.get_close_matches(reference, NAMED, n=3, cutoff=0.5)
    own = or_meant(reference) or "; a sampler of your own is, for example, my_engine.audited:Sampler"
    near = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return InputError(
        f"TARGET {reference!r}",
        "a target is a name that mrv2 audit --list shows, or package.module:object for a sampler of your own",
        "no sampler has this name, and without a colon it names nothing that could be imported",
        f"{near}mrv2 audit --list shows all names{own}",
    )


def _made(reference: str, make: Callable[[], object]) -> object:
    """What a class or the method ``sampler`` of a target makes; whatever it raises is reported as its failure."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        if four_parts(error):
            raise
        name = getattr(make, "__qualname__", type(make).__name__)
        raise InputError(
            f"TARGET {reference!r}",
            f"{name}() must make a sampler without arguments; it raised {type(error).__name__}: {error}",
            "what is named on the command line gets no arguments",
            "name an instance instead, made in the module with the arguments it needs",
        ) from error


def _check_arguments(reference: str, sample: Callable[..., object]) -> None:
    """Refuse a function that four arguments cannot call; one whose signature is unknown is called to see."""
    try:
        signature = inspect.signature(sample)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*("logits", "temperature", "seeds", "positions"))
    except TypeError as error:
        raise InputError(
            f"TARGET {reference!r}, with the arguments {signature}",
            "a sampler is called with four arguments in this order: logits, temperature, seeds, positions",
            f"the audit could not call it: {error}",
            "take all four; mrv2.stats.targets.SamplerTarget.sample says what they hold",
        ) from error


def resolve_provided(reference: str, provided: object) -> SamplerTarget:
    """What a target of ``mrv2 verify`` gives as its sampler.

    Raises:
        InputError: it is no sampler.
    """
    if isinstance(provided, SamplerTarget):
        _check_arguments(reference, provided.sample)
        return provided
    raise _no_sampler(reference, provided)


def _no_sampler(reference: str, found: object) -> InputError:
    return InputError(
        f"TARGET {reference!r}, of type {type(found).__name__}",
        "a sampler has a name and sample(logits, temperature, seeds, positions), or is a function of these four",
        "the audit draws tokens with it",
        "fulfil mrv2.stats.targets.SamplerTarget",
    )


@contextmanager
def _kernels(reference: str) -> Iterator[list[Finding]]:
    """Kernels of the target compiled for the CPU and watched, unless they are to be interpreted."""
    if reference == "refrunner-interpreted" or not importlib.util.find_spec("triton"):
        yield []
        return
    with compiled_kernels() as found:
        yield found


def _write(options: Options, report: AuditReport, verdict: RunVerdict, found: list[Finding]) -> None:
    findings = tuple(ReportedFinding(finding) for finding in (*findings_of(report), *found))
    if options.json:
        parts: list[JSON] = [result.layer for result in report.audit.results if not result.not_run]
        about: dict[str, JSON] = {
            "name": report.target, "reference": options.target, "features": parts, "model": None,
        }  # fmt: skip
        written = Report("audit", describe(), verdict, about, findings, metrics_of(report), coverage_of(report))
        write_report(options.json, written)
    if options.html:
        from mrv2.ci.report.audit_html import write_html

        write_html(options.html, report)


def run_self_test(options: Options) -> None:
    """Audit every planted fault; each must be caught by its layer, and most be named rightly.

    Raises:
        typer.Exit: 0 if so, else 1.
    """
    chosen = options.settings()
    results = [_planted_result(planted, chosen) for planted in PLANTED]
    out = output()
    caught, named = sum(result[0] for result in results), sum(result[1] for result in results)
    screen.table(
        out,
        ("planted fault", "caught", "named", "seconds", "cause"),
        [
            (planted.name, "yes" if found else "NO", "yes" if right else "NO", f"{seconds:.0f}", cause)
            for planted, (found, right, seconds, cause) in zip(PLANTED, results, strict=True)
        ],
    )
    good = caught == len(PLANTED) and named >= NAMED_RIGHTLY
    verdict = RunVerdict.PASS if good else RunVerdict.FAIL
    if options.json:
        metrics: dict[str, JSON] = {
            planted.name: {"caught": found, "named": right, "seconds": round(seconds, 2), "cause": cause}
            for planted, (found, right, seconds, cause) in zip(PLANTED, results, strict=True)
        }
        write_report(options.json, Report("audit", describe(), verdict, metrics={"self-test": metrics}))
    text = f"{verdict.value.upper()}: {caught} of {len(PLANTED)} planted faults caught, {named} named rightly"
    screen.line(out, f"{text} (all must be caught, {NAMED_RIGHTLY} named)")
    raise typer.Exit(exit_code(verdict))


def _planted_result(planted: Planted, chosen: Settings) -> tuple[bool, bool, float, str]:
    """Whether it was caught in its layer and named rightly, the seconds, and the first cause."""
    with watched(notes(), chosen, planted.name) as progress:
        report = audit(planted.make(), chosen, progress)
    layers = {test.layer for test in report.audit.decision.failed}
    first = report.causes[0].kind if report.causes else "none"
    caught = report.verdict is RunVerdict.FAIL and planted.layer in layers
    return caught, first == planted.cause, report.seconds, first
