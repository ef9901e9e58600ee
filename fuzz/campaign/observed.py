"""What a case showed, in a form that its repetition can be compared with, byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mrv2.checks.findings import JSON
from mrv2.checks.report.text import count
from mrv2.checks.virtual.transcript import Digest, Note
from mrv2.fuzz.case import CaseOutcome

_TEXTS = ("logprobs", "timeline")


@dataclass(frozen=True)
class Observed:
    """What was seen.

    Attributes:
        failures: everything that was wrong, in words.
        tokens: of each request.
        logprobs: SHA-256 of their log-probabilities, to the last bit.
        events: of the virtual device, those of changed scripts included; 0 on the plain CPU.
        timeline: SHA-256 of what happened there, one event after another.
    """

    failures: tuple[str, ...]
    tokens: Mapping[str, tuple[int, ...]]
    logprobs: str
    events: int
    timeline: str

    def as_json(self) -> dict[str, JSON]:
        """As a finding has it."""
        return {
            "failures": list(self.failures),
            "tokens": {name: list(tokens) for name, tokens in self.tokens.items()},
            "logprobs": self.logprobs,
            "events": self.events,
            "timeline": self.timeline,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Observed:
        """The inverse of ``as_json``.

        Raises:
            ValueError, TypeError, AttributeError: it is none.
        """
        failures, tokens, events = content["failures"], content["tokens"], content["events"]
        if set(content) != {"failures", "tokens", "events", *_TEXTS} or not all(
            isinstance(text, str) for text in (*failures, *map(content.get, _TEXTS))
        ):
            raise ValueError("what was observed are failures, tokens, logprobs, events and a timeline")
        kept = {str(name): tuple(map(int, each)) for name, each in tokens.items()}
        return cls(tuple(failures), kept, content["logprobs"], int(events), content["timeline"])


def observe(run: Callable[[Note], CaseOutcome]) -> tuple[Observed, CaseOutcome]:
    """Run a case and note what it showed.

    Args:
        run: runs it, and tells each event of the virtual device.

    Raises:
        Refused: its target refuses its settings.
    """
    digest = Digest()
    outcome = run(digest.add)
    results = outcome.results
    numbers = json.dumps({name: [value.hex() for value in result.logprobs] for name, result in results.items()})
    return (
        Observed(
            tuple(failure.text for failure in outcome.failures),
            {name: result.token_ids for name, result in results.items()},
            hashlib.sha256(numbers.encode()).hexdigest(),
            digest.events,
            digest.hexdigest(),
        ),
        outcome,
    )


def parts(before: Observed, now: Observed) -> Iterator[tuple[str, bool]]:
    """What is compared, in words, and whether it is the same."""
    yield "tokens", before.tokens == now.tokens
    yield "log-probabilities", before.logprobs == now.logprobs
    yield "findings", before.failures == now.failures
    yield f"timeline of {count(now.events, 'event')}", (before.events, before.timeline) == (now.events, now.timeline)
