"""``mrv2 bench``: the runners of both designs under the same conditions, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from mrv2.checks.findings import JSON, Finding, RunVerdict, combine, verdict_of
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding
from mrv2.ci.report.problem import InputError

from .environment import describe
from .shared import DebugOption, JsonOption, ModelOption, exit_code, guarded, notes, output

if TYPE_CHECKING:
    from mrv2.ci.bench.compare import Comparison, Goal
    from mrv2.ci.bench.traces import Arrival

#: Tokens of a sequence at most, where the model has room for more.
LONGEST = 4096


def bench(
    runner: Annotated[str, typer.Option(metavar="LIST", help="Which runners, in which order: v2, v1.")] = "v2,v1",
    model: ModelOption = "tiny",
    trace: Annotated[
        str, typer.Option(metavar="TRACE", help="poisson, bursts, long-prompts, or a file of JSON lines.")
    ] = "poisson",
    requests: Annotated[int, typer.Option(metavar="N", min=1, help="How many of the trace.")] = 32,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Measured rounds of each runner.")] = 3,
    temperature: Annotated[float, typer.Option(metavar="T", help="Of all requests; 0 is greedy.")] = 0.8,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Of traces, tokens and draws.")] = 0,
    shared_prefix: Annotated[
        int, typer.Option(metavar="N", min=0, help="Leading tokens that prompts have in common; switches caching on.")
    ] = 0,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="float32, bfloat16 or float16.")] = "float32",
    attention: Annotated[str, typer.Option(metavar="NAME", help="torch or triton.")] = "triton",
    graph_mode: Annotated[str, typer.Option(metavar="MODE", help="eager, piecewise or full.")] = "eager",
    speculation: Annotated[str, typer.Option(metavar="NAME", help="none, or ngram, which v1 lacks.")] = "none",
    max_num_reqs: Annotated[int, typer.Option(metavar="N", help="Requests in a step at most.")] = 16,
    max_num_batched_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens in a step at most.")] = 512,
    goodput: Annotated[
        str | None, typer.Option(metavar="GOAL", help="Count requests that meet it: ttft:MS,tpot:MS, or one of both.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Also write a page with pictures.")] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare both runners: latency, throughput, the host's time by part, the device's, memory, and the tokens.

    Model, weights, settings, requests and seeds are the same, and the sides take turns. Refused: launches that
    block, and a side that fell back to something else. Fails if tokens are wrong; speed is reported, not judged.
    """
    with guarded(debug):
        from mrv2.ci.bench.compare import Conditions, compare, num_rounds, refuse_spoiled_environment
        from mrv2.ci.bench.figures import as_json
        from mrv2.ci.report.bench_html import write_bench_html
        from mrv2.refrunner.api import SamplingParams
        from mrv2.refrunner.config import RunnerConfig
        from mrv2.refrunner.models.checkpoint import load_checkpoint

        from .kernels import compiled_kernels

        refuse_spoiled_environment()
        check_destinations({"--json": json, "--html": html}, (Path(trace), Path(model)))
        goal = _goal(goodput)
        names, checkpoint = _names(runner), load_checkpoint(model)
        longest = min(checkpoint.config.max_position_embeddings, LONGEST)
        arrivals = _within(_trace(trace, requests, seed), longest)
        _require_room(shared_prefix, arrivals)
        config = RunnerConfig(
            device=device, dtype=dtype, attention=attention, graph_mode=graph_mode, max_num_reqs=max_num_reqs,
            max_num_batched_tokens=max_num_batched_tokens, max_model_len=longest, speculation=speculation,
            prefix_caching=shared_prefix > 0, num_kv_blocks=1 + _blocks(arrivals, max_num_reqs),
        )  # fmt: skip
        sampling = SamplingParams(temperature=temperature)
        conditions = Conditions(names, config, arrivals, sampling, seed, rounds, shared_prefix=shared_prefix, goal=goal)
        interpreted: set[str] = set()
        with compiled_kernels(interpreted) as found, _progress(num_rounds(conditions)) as advance:
            comparison = compare(conditions, checkpoint, advance, interpreted=interpreted)
        findings = [ReportedFinding(finding) for finding in found]
        verdict = _verdict(comparison, found)
        title = f"model: {checkpoint.description}; trace {trace}, {len(arrivals)} requests"
        try:
            if json:
                about: dict[str, JSON] = {"name": runner, "model": model}
                write_report(json, Report("bench", describe(), verdict, about, tuple(findings), as_json(comparison)))
            if html:
                write_bench_html(html, comparison, (title, *_notes(comparison), _tokens(comparison)))
        finally:
            screen.line(output(), title)
            _show(comparison)
            screen.print_findings(output(), findings)
            screen.line(output(), f"{verdict.value.upper()}: {_tokens(comparison)}")
        raise typer.Exit(exit_code(verdict))


def _names(runner: str) -> tuple[str, ...]:
    from mrv2.ci.bench.sides import SIDES

    names = tuple(name.strip() for name in runner.split(","))
    if len(set(names)) != len(names) or not set(names) <= set(SIDES):
        raise InputError(
            f"--runner {runner}",
            f"it names runners among {', '.join(SIDES)}, each once, with commas between them",
            "they are built and driven in this order, and in turns",
            "--runner v2,v1 to compare, or --runner v2",
        )
    return names


def _goal(text: str | None) -> Goal | None:
    """What ``--goodput`` says.

    Raises:
        InputError: it says something else.
    """
    from mrv2.ci.bench.compare import Goal

    if text is None:
        return None
    pairs = [one.strip().partition(":") for one in text.split(",")]
    bounds = {name: _milliseconds(number) for name, _, number in pairs}
    if not set(bounds) <= {"ttft", "tpot"} or len(bounds) < len(pairs) or None in bounds.values():
        raise InputError(
            f"--goodput {text}",
            "it is ttft:MS, tpot:MS or both with a comma between them, each a positive number of milliseconds",
            "a request counts if its first token, and on average each further one, comes within these times",
            "--goodput ttft:200,tpot:50",
        )
    return Goal(bounds.get("ttft"), bounds.get("tpot"))


def _milliseconds(text: str) -> float | None:
    """A positive number; None if it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _trace(name: str, requests: int, seed: int) -> tuple[Arrival, ...]:
    from mrv2.ci.bench.traces import SYNTHETIC, read_trace

    make = SYNTHETIC.get(name)
    return read_trace(Path(name), requests) if make is None else make(requests, seed)


def _within(trace: tuple[Arrival, ...], longest: int) -> tuple[Arrival, ...]:
    """The trace, if the model has room for each of its requests.

    Raises:
        InputError: it has not; a request that is cut short would be another workload.
    """
    for number, one in enumerate(trace):
        if one.prompt + one.output > longest:
            raise InputError(
                f"request {number} of the trace, {one.prompt} + {one.output} tokens",
                f"prompt and output must fit into {longest} positions",
                "a request that is cut short would make another workload of it",
                "a model with a longer context, fewer --requests, or another --trace",
            )
    return trace


def _require_room(shared_prefix: int, trace: tuple[Arrival, ...]) -> None:
    """Two prompts at least must have the prefix, and something of their own.

    Raises:
        InputError: they are too short, and nothing would be shared although the report said so.
    """
    longest = sorted((one.prompt for one in trace), reverse=True)[:2]
    if shared_prefix and sum(length > shared_prefix for length in longest) < 2:
        told = " and ".join(map(str, longest))
        raise InputError(
            f"--shared-prefix {shared_prefix}",
            f"at least two prompts of the trace must be longer, and the longest have {told} tokens",
            "prompts that are shorter have no part in it, so nothing would be found in the cache",
            "a shorter prefix, more --requests, or a --trace of longer prompts",
        )


def _blocks(trace: tuple[Arrival, ...], requests: int, block_size: int = 16) -> int:
    """KV blocks for the longest requests at once, so that none is preempted."""
    sizes = sorted((-(-(one.prompt + one.output) // block_size) for one in trace), reverse=True)
    return sum(sizes[:requests]) + requests


def _verdict(comparison: Comparison, found: Sequence[Finding]) -> RunVerdict:
    if comparison.correctness.wrong:
        return RunVerdict.FAIL
    known = RunVerdict.PASS if comparison.correctness.is_known else RunVerdict.INCONCLUSIVE
    return combine([known, verdict_of(found)]) if found else known


def _show(comparison: Comparison) -> None:
    from mrv2.ci.bench.figures import headers, rows

    screen.table(output(), headers(comparison), rows(comparison))
    for note in _notes(comparison):
        screen.line(output(), note)


def _notes(comparison: Comparison) -> Iterator[str]:
    """What has to be known about the figures."""
    conditions = comparison.conditions
    yield (
        f"{screen.count(conditions.rounds, 'measured round')} of each runner and as many with a clock, of which "
        "medians are told, with the lowest and the highest; a first round of each was thrown away"
    )
    if conditions.config.device == "cpu":
        yield "these figures are of the CPU: kernels run one after another, checked, and nothing overlaps"


def _tokens(comparison: Comparison) -> str:
    """What the tokens say, in words."""
    told = comparison.correctness
    same = f"{told.equal} of {told.requests} requests have the same tokens on both sides; " if told.sides > 1 else ""
    if told.not_judged is not None:
        return f"{same}not judged by the oracle: {told.not_judged}"
    return (
        f"{same}of {told.judged} tokens judged by the oracle {told.right} are its own, {told.near_ties} near ties, "
        f"{told.wrong} wrong"
    )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar of the rounds on a terminal, nothing elsewhere."""
    console = notes()
    if not console.is_terminal:
        yield lambda: None
        return
    with Progress(console=console, transient=True) as bars:
        task = bars.add_task("rounds", total=total)
        yield lambda: bars.advance(task)
