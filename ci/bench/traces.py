"""Who asks for how much, and when: synthetic traces, and traces of others as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mrv2.ci.report.problem import InputError

#: Names under which public traces have the three numbers of a request, ours first.
ARRIVAL = ("arrival", "arrival_time", "arrived_at", "timestamp", "TIMESTAMP")
INPUT = ("input_length", "input_tokens", "num_prefill_tokens", "ContextTokens", "prompt_len")
OUTPUT = ("output_length", "output_tokens", "num_decode_tokens", "GeneratedTokens", "output_len")
#: Lines with this entry are of the traces that Mooncake published, and those count arrivals in milliseconds.
IN_MILLISECONDS = "hash_ids"
#: Seconds before or after 0 at most: the calendar's are among them, and a clock of ns in 64 bits counts them.
LATEST = 4e9


@dataclass(frozen=True)
class Arrival:
    """One request of a trace.

    Attributes:
        seconds: when it comes, from the start of the trace.
        prompt: tokens of its prompt.
        output: tokens that it generates; exactly, whatever they are.
    """

    seconds: float
    prompt: int
    output: int


def poisson(requests: int, seed: int, *, rate: float = 50.0) -> tuple[Arrival, ...]:
    """Requests of ordinary chat lengths that come independently of each other, ``rate`` a second."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, requests))
    return tuple(_arrivals(times, rng.integers(16, 129, requests), rng.integers(8, 97, requests)))


def bursts(requests: int, seed: int, *, size: int = 16, gap: float = 0.5) -> tuple[Arrival, ...]:
    """The same lengths, ``size`` requests at once, every ``gap`` seconds."""
    rng = np.random.default_rng(seed)
    times = np.arange(requests) // size * gap
    return tuple(_arrivals(times, rng.integers(16, 129, requests), rng.integers(8, 97, requests)))


def long_prompts(requests: int, seed: int, *, rate: float = 50.0, share: float = 0.2) -> tuple[Arrival, ...]:
    """As ``poisson``, but a ``share`` of the prompts is eight times as long, and its answers are short."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, requests))
    long = rng.random(requests) < share
    prompts = np.where(long, rng.integers(256, 513, requests), rng.integers(16, 65, requests))
    return tuple(_arrivals(times, prompts, np.where(long, 8, rng.integers(8, 97, requests))))


SYNTHETIC: Mapping[str, Callable[[int, int], tuple[Arrival, ...]]] = {
    "poisson": poisson,
    "bursts": bursts,
    "long-prompts": long_prompts,
}


def _arrivals(times: Iterable[float], prompts: Iterable[int], outputs: Iterable[int]) -> Iterator[Arrival]:
    for seconds, prompt, output in zip(times, prompts, outputs, strict=True):
        yield Arrival(float(seconds), int(prompt), int(output))


def read_trace(path: Path, limit: int) -> tuple[Arrival, ...]:
    """The first ``limit`` requests of a file of JSON lines, in order of arrival, which begins at 0.

    Each line is an object with an arrival in seconds (in milliseconds where ``IN_MILLISECONDS`` is among its entries)
    or as a date and time, in all lines alike, and two lengths in tokens, under one of the names of ``ARRIVAL``,
    ``INPUT`` and ``OUTPUT``; whatever else is in it is passed over. Without arrivals all come at once.

    Raises:
        InputError: the file cannot be read, or a line says something else.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other ends of lines may stand in a text
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a null character in the name
        raise _wrong(f"--trace {path}", f"it must be a text file that can be read: {error}") from error
    found = sorted(_requests(path, lines), key=lambda arrival: arrival.seconds)
    if not found:
        raise _wrong(f"--trace {path}", "it must have at least one line")
    begin = found[0].seconds
    return tuple(Arrival(one.seconds - begin, one.prompt, one.output) for one in found[:limit])


def _requests(path: Path, lines: Iterable[str]) -> Iterator[Arrival]:
    """Requests of the lines, all of which tell the time in one way: that of the first."""
    first: tuple[str | None, int] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        subject = f"--trace {path}, line {number}"
        entry = _entry(subject, line)
        name, unit = clock = _clock(entry)
        first = first or clock
        if clock != first:
            raise _wrong(subject, f"all lines must tell the arrival as the first one does: {_told(*first)}")
        seconds = 0.0 if name is None else _seconds(subject, entry[name], unit)
        yield Arrival(seconds, _length(subject, entry, INPUT), _length(subject, entry, OUTPUT))


def _told(name: str | None, unit: int) -> str:
    return "not at all" if name is None else f"as {name} in {'seconds' if unit == 1 else 'milliseconds'}"


def _clock(entry: Mapping[str, Any]) -> tuple[str | None, int]:
    """The name of the arrival, None without one, and how many of its units are a second."""
    return next((name for name in ARRIVAL if name in entry), None), 1000 if IN_MILLISECONDS in entry else 1


def _entry(subject: str, line: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(subject, f"it must be one JSON object: {error}") from error
    if not isinstance(entry, dict):
        raise _wrong(subject, "it must be one JSON object")
    return entry


def _seconds(subject: str, told: object, unit: int) -> float:
    """An arrival, as a number of units or as a date and time."""
    value = _since_1970(told) if isinstance(told, str) else told
    most = LATEST if isinstance(told, str) else LATEST * unit
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
        raise _wrong(
            subject,
            f"the arrival must be a number of seconds up to {LATEST:g}, or a date and time, and is {_shown(told)}",
        )
    return value if isinstance(told, str) else value / unit


def _since_1970(text: str) -> float | None:
    """Seconds of a date and time in the form of ISO 8601, of UTC if it names no zone; None if it is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() if ":" in text else None


def _length(subject: str, entry: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = next((entry[name] for name in names if name in entry), None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(subject, f"one of {', '.join(names)} must be a whole number of at least 1, and is {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A wrong value, not all of a long one; Python writes out no number of thousands of digits."""
    return f"{value!r:.40}" if not isinstance(value, int) or abs(value) < LATEST else "a larger one"


def _wrong(subject: str, rule: str) -> InputError:
    return InputError(
        subject,
        rule,
        "every request of a trace has an arrival and two lengths, or the two sides would not do the same work",
        f'lines such as {{"{ARRIVAL[0]}": 0.25, "{INPUT[0]}": 128, "{OUTPUT[0]}": 32}}',
    )
