"""What a target returns, checked before anything relies on it: a wrong form is a fault of the target, not of ours."""

from __future__ import annotations

import json
import math
import numbers
import operator
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from mrv2.checks.codes import CODES
from mrv2.checks.findings import Finding, Site, Soundness, Verdict
from mrv2.fuzz.targets.protocols import InputSnapshot, Runner
from mrv2.refrunner.api import StepOutput


class MalformedOutput(Exception):
    """Something that a target returned breaks its contract."""


def checked_runner(runner: Any) -> Runner:
    """What ``build`` returned, if it has the methods of a runner."""
    missing = [name for name in ("execute", "invariants", "close") if not callable(getattr(runner, name, None))]
    if missing:
        raise MalformedOutput(f"build() returned {_short(runner)}, which has no {'() and no '.join(missing)}()")
    checked: Runner = runner
    return checked


def checked_output(
    output: Any, draws: frozenset[str], vocab_size: int, drafts: Mapping[str, int] = MappingProxyType({})
) -> StepOutput:
    """The output, if it has one token and one finite logprob for each request that must have a draw.

    A request with drafts may have up to one more for each of them.
    """
    if set(output.token_ids) != draws or set(output.logprobs) != draws:
        raise MalformedOutput(f"tokens for {sorted(output.token_ids, key=str)}, expected for {sorted(draws)}")
    for name in draws:
        _check_counts(name, output.token_ids[name], output.logprobs[name], 1 + drafts.get(name, 0))
    tokens = {name: tuple(_token(name, token, vocab_size) for token in output.token_ids[name]) for name in draws}
    logprobs = {name: tuple(_logprob(name, value) for value in output.logprobs[name]) for name in draws}
    # Targets that do not speculate may know nothing of proposals.
    proposals = {
        name: tuple(_token(name, token, vocab_size) for token in proposed)
        for name, proposed in getattr(output, "drafts", {}).items()
    }
    return StepOutput(tokens, logprobs, drafts=proposals)


def _check_counts(name: str, tokens: Any, logprobs: Any, most: int) -> None:
    if not 1 <= len(tokens) <= most or len(logprobs) != len(tokens):
        wanted = "one finite draw" if most == 1 else f"1 to {most} finite draws"
        raise MalformedOutput(f"request {name}: tokens {tokens} with logprobs {logprobs}, expected {wanted}")


def _token(name: str, token: Any, vocab_size: int) -> int:
    # A bool is an int to Python and an index mask to numpy.
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
        raise MalformedOutput(f"request {name}: token {token!r}, expected an int in 0..{vocab_size - 1}")
    return int(token)


def _logprob(name: str, value: Any) -> float:
    is_number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    number = float(value) if is_number else math.nan
    if not math.isfinite(number):
        raise MalformedOutput(f"request {name}: logprob {value!r}, expected one finite draw with a float")
    return number


def checked_snapshot(snapshot: Any) -> InputSnapshot:
    """The snapshot in plain tuples of ints, if it has that form."""
    lengths = {name: len(getattr(snapshot, name)) for name in ("request_ids", "rows", "seq_lens", "block_tables")}
    if len(set(lengths.values())) != 1:
        raise MalformedOutput(f"a snapshot has one entry per request in each of these, but the lengths are {lengths}")
    return InputSnapshot(
        **{field.name: _plain(field.name, getattr(snapshot, field.name)) for field in fields(InputSnapshot)}
    )


def _plain(name: str, value: Any) -> Any:
    try:
        if name == "request_ids":
            return tuple(map(str, value))
        if name == "block_tables":
            return tuple(tuple(map(operator.index, table)) for table in value)
        return operator.index(value) if name.startswith("padding") else tuple(map(operator.index, value))
    except TypeError as error:
        raise MalformedOutput(f"{name} of a snapshot is {_short(value)}, expected whole numbers") from error


def checked_site(field: str, site: Any) -> Site | None:
    """What ``producer`` returned, if it is a place in source code or None."""
    if site is None or _is_site(site):
        place: Site | None = site
        return place
    raise MalformedOutput(f"producer({field!r}) returned {_short(site)}, expected a Site or None")


def checked_findings(findings: Iterable[Any]) -> list[Finding]:
    """What ``invariants`` returned, if these are findings that can be reported."""
    found = list(findings)
    for finding in found:
        if not isinstance(finding, Finding) or not _is_reportable(finding):
            raise MalformedOutput(f"invariants() returned {_short(finding)}, expected Finding objects with known codes")
    return found


def checked_counts(counts: Any) -> Mapping[str, int]:
    """What ``poisoned`` returned, if these are numbers by name."""
    if not isinstance(counts, Mapping):
        raise MalformedOutput(f"poisoned() returned {_short(counts)}, expected numbers of places by kind")
    return {str(kind): operator.index(count) for kind, count in counts.items()}


def _is_reportable(finding: Finding) -> bool:
    kinds = isinstance(finding.verdict, Verdict) and isinstance(finding.soundness, Soundness)
    words = all(isinstance(text, str) for text in (finding.code, finding.title, finding.remedy))
    places = (*finding.where, *finding.other, *finding.allocation)
    if not (kinds and words and finding.code in CODES and all(map(_is_site, places))):
        return False
    try:
        json.dumps(dict(finding.evidence), allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _is_site(site: Any) -> bool:
    return isinstance(site, Site) and isinstance(site.file, str) and isinstance(site.line, int)


def _short(value: Any) -> str:
    return f"{value!r:.80}"
