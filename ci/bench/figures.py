"""From rounds to the figures that are shown: latencies, throughput, goodput, the host's time by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from mrv2.checks.findings import JSON
from mrv2.refrunner.phases import Phase

from .compare import Comparison, Conditions, Goal, Measured
from .drive import Answer, Round

PERCENTILES = (50, 95, 99)
#: What a phase is called in the decomposition; what is left of a step beside them is the loop around the engine.
PARTS = {
    Phase.SCHEDULER: "scheduler",
    Phase.STATE_UPDATE: "state update",
    Phase.STAGING: "staging and upload",
    Phase.INPUT_PREP: "input preparation",
    Phase.FORWARD: "forward",
    Phase.SAMPLER: "sampler",
    Phase.DRAFTING: "drafting",
    Phase.DOWNLOAD: "download",
    Phase.WAIT: "waits",
    Phase.STEP: "rest of the loop",
}


def first_token_ms(done: Round) -> list[float]:
    """Of each request, from its arrival to its first token on the host."""
    return [(answer.times[0] - answer.arrived) / 1e6 for answer in done.answers.values() if answer.times]


def per_token_ms(done: Round) -> list[float]:
    """Of each request with at least two tokens, the mean time from one to the next."""
    return [_per_token_ms(answer) for answer in done.answers.values() if len(answer.times) > 1]


def _per_token_ms(answer: Answer) -> float:
    return (answer.times[-1] - answer.times[0]) / 1e6 / (len(answer.times) - 1)


def good_requests(done: Round, goal: Goal) -> int:
    """Those whose tokens came in time; of a single token only its own time counts, and none at all is too late."""
    return sum(_is_good(answer, goal) for answer in done.answers.values())


def _is_good(answer: Answer, goal: Goal) -> bool:
    if not answer.times:
        return False
    soon = goal.first_token_ms is None or (answer.times[0] - answer.arrived) / 1e6 <= goal.first_token_ms
    fast = goal.per_token_ms is None or len(answer.times) < 2 or _per_token_ms(answer) <= goal.per_token_ms
    return soon and fast


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """P50, P95 and P99; None of nothing."""
    return {f"p{which}": float(np.percentile(values, which)) for which in PERCENTILES} if len(values) else None


def per_second(done: Round) -> dict[str, float]:
    """Requests and tokens a second."""
    seconds = done.nanoseconds / 1e9
    tokens = sum(len(answer.token_ids) for answer in done.answers.values())
    return {"requests": len(done.answers) / seconds, "tokens": tokens / seconds}


def microseconds_a_step(done: Round) -> float:
    """Of the whole loop."""
    return done.nanoseconds / 1e3 / done.steps


def host_parts(measured: Measured) -> dict[str, list[float]]:
    """The host's µs a step in each round with a clock, by part, and ``"in all, without waits"``."""
    told = [_parts(host) for host in measured.host]
    return {name: [parts.get(name, 0.0) for parts in told] for name in dict.fromkeys(name for p in told for name in p)}


def _parts(host: Mapping[str, float]) -> dict[str, float]:
    """Of one round."""
    parts = {name: host[which.value] for which, name in PARTS.items() if which.value in host}
    parts["rest of the loop"] = parts.get("rest of the loop", 0.0) + host.get("other", 0.0)
    own = sum(time for name, time in parts.items() if name != PARTS[Phase.WAIT])
    return parts | {"in all, without waits": own}


def of_side(measured: Measured, conditions: Conditions) -> dict[str, JSON]:
    """All figures of one side.

    Latencies are of all rounds together, rates and times are medians of the rounds, counts are the last round's. What
    was switched off is None.
    """
    rounds, config, goal = measured.rounds, conditions.config, conditions.goal
    last, rates = rounds[-1], [per_second(done) for done in rounds]
    drafts, prefixes, parts = last.speculation, last.prefixes, host_parts(measured)
    good = None if goal is None else [good_requests(done, goal) / (done.nanoseconds / 1e9) for done in rounds]
    return {
        "TTFT ms": _json(percentiles([value for done in rounds for value in first_token_ms(done)])),
        "TPOT ms": _json(percentiles([value for done in rounds for value in per_token_ms(done)])),
        "requests a second": median(rate["requests"] for rate in rates),
        "good requests a second": None if good is None else median(good),
        "tokens a second": median(rate["tokens"] for rate in rates),
        "tokens a second, by round": [rate["tokens"] for rate in rates],
        "steps": last.steps,
        "us a step": median(map(microseconds_a_step, rounds)),
        "us a step, by round": [microseconds_a_step(done) for done in rounds],
        "host us a step": {name: median(times) for name, times in parts.items()},
        "host us a step, by round": {name: list(times) for name, times in parts.items()},
        "CPU cores used": median(done.cpu_nanoseconds / done.nanoseconds for done in rounds),
        "preemptions": last.preemptions,
        "prefix cache, tokens found of queried": [prefixes.found, prefixes.queried] if config.prefix_caching else None,
        "drafts, accepted of verified": None if config.speculation == "none" else [drafts.accepted, drafts.drafts],
        "peak": _json(measured.peaks),
        "device, profiled": None if measured.device is None else measured.device.as_json(),
    }


def _json(values: Mapping[str, float] | None) -> dict[str, JSON] | None:
    return None if values is None else dict(values)


def as_json(comparison: Comparison) -> dict[str, JSON]:
    """The whole comparison."""
    conditions, trace = comparison.conditions, comparison.conditions.trace
    correctness = comparison.correctness
    return {
        "conditions": {
            "settings": {name: _plain(value) for name, value in asdict(conditions.config).items()},
            "requests": len(trace),
            "prompt tokens": sum(one.prompt for one in trace),
            "output tokens": sum(one.output for one in trace),
            "temperature": conditions.sampling.temperature,
            "seed": conditions.seed,
            "rounds": conditions.rounds,
            "rounds thrown away": 1,
            "rounds with a clock": conditions.rounds,
            "goal": None if conditions.goal is None else dict(asdict(conditions.goal)),
            "shared prefix": conditions.shared_prefix,
        },
        "sides": {name: of_side(measured, conditions) for name, measured in comparison.sides.items()},
        "correctness": {**asdict(correctness), "wrong": correctness.wrong},
    }


def _plain(value: object) -> JSON:
    return list(value) if isinstance(value, tuple) else value  # type: ignore[return-value]  # fields are plain values


def headers(comparison: Comparison) -> tuple[str, ...]:
    """Of the columns of :func:`rows`."""
    names = tuple(comparison.sides)
    return ("figure", *names, *([f"{names[0]} / {names[1]}"] if len(names) == 2 else []))


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The table: what, and a column for each side; of two sides also how much the first one is of the second.

    Medians are followed by the lowest and the highest round.
    """
    told = [of_side(measured, comparison.conditions) for measured in comparison.sides.values()]
    for name, unit in (("TTFT ms", "TTFT"), ("TPOT ms", "TPOT")):
        for which in (f"p{number}" for number in PERCENTILES):
            yield _row(f"{unit} {which.upper()}, ms", [_of(side[name], which) for side in told], 2)
    yield _row("requests a second", [side["requests a second"] for side in told], 1)
    if comparison.conditions.goal is not None:
        yield _row("requests a second that meet the goal", [side["good requests a second"] for side in told], 1)
    yield _row_of_rounds("tokens a second", [side["tokens a second, by round"] for side in told])
    yield _row_of_rounds("us a step, in all", [side["us a step, by round"] for side in told])
    parts = [host_parts(measured) for measured in comparison.sides.values()]
    for name in dict.fromkeys(name for part in parts for name in part):
        yield _row_of_rounds(f"host us a step: {name}", [part.get(name, [0.0]) for part in parts])
    yield _row("CPU cores used", [side["CPU cores used"] for side in told], 2)
    yield from _device_rows(list(comparison.sides.values()))
    yield _row("preemptions", [side["preemptions"] for side in told], 0, compared=False)
    for name, key in (
        ("prefix cache, tokens found", "prefix cache, tokens found of queried"),
        ("drafts accepted", "drafts, accepted of verified"),
    ):
        yield (name, *(_share(side[key]) for side in told), *([""] if len(told) == 2 else []))


def _device_rows(sides: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    devices = [side.device for side in sides]
    known = [device for device in devices if device is not None]
    if len(known) < len(devices):
        return
    shares = [100 * device.busy / device.microseconds for device in known]
    yield _row("profiled: device busy, %", shares, 1)
    yield _row("profiled: idle in gaps over 5 us, %", [100 * device.idle_share for device in known], 1, compared=False)
    yield _row("profiled: launches a step", [device.launches / device.steps for device in known], 1)
    yield _row("profiled: upload bytes a step", [device.upload_bytes / device.steps for device in known], 0)
    for part in dict.fromkeys(part for device in known for part in device.by_part):
        times = [device.by_part.get(part, 0.0) / device.steps for device in known]
        yield _row(f"profiled: device us a step: {part}", times, 1)
    for name in sides[0].peaks:
        yield _row(f"peak MB, {name.removesuffix(' bytes')}", [side.peaks[name] / 1e6 for side in sides], 1)


def _of(values: JSON, which: str) -> JSON:
    return values[which] if isinstance(values, dict) else None


def _share(pair: JSON) -> str:
    if not isinstance(pair, list):
        return "off"
    part, whole = pair
    return f"{part} of {whole}" if whole else "none"


def _row_of_rounds(name: str, sides: Sequence[Any]) -> tuple[str, ...]:
    """Medians of some rounds, each with the lowest and the highest one, if they are shown as other numbers."""
    _, *shown = _row(name, [median(rounds) for rounds in sides], 0)
    for index, rounds in enumerate(sides):
        low, high = f"{min(rounds):,.0f}", f"{max(rounds):,.0f}"
        shown[index] += f" ({low} to {high})" if low != high else ""
    return (name, *shown)


def _row(name: str, values: Sequence[JSON], digits: int, *, compared: bool = True) -> tuple[str, ...]:
    numbers = [float(value) if isinstance(value, int | float) else None for value in values]
    shown = ["none" if number is None else f"{number:,.{digits}f}" for number in numbers]
    if len(numbers) != 2:
        return (name, *shown)
    first, second = numbers
    ratio = f"{first / second:.2f}" if compared and first is not None and second else ""
    return (name, *shown, ratio)
