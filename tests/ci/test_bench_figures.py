"""Every figure of ``mrv2 bench`` against a count of its own, by a log of steps and a clock that only the log moves."""

import gzip
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner

from mrv2.checks import triton_cpu
from mrv2.checks.timeline.analysis import analyse
from mrv2.ci.bench import compare as comparing
from mrv2.ci.bench import figures
from mrv2.ci.bench.compare import Comparison, Conditions, Correctness, Goal, Measured, compare
from mrv2.ci.bench.device_time import FIRST_STEPS, LAST_STEPS, device_time
from mrv2.ci.bench.drive import Answer, Round, drive, requests_of
from mrv2.ci.bench.traces import Arrival
from mrv2.ci.command.app import app
from mrv2.ci.command.kernels import compiled_kernels
from mrv2.ci.report.bench_html import bench_page
from mrv2.ci.report.problem import InputError
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.phases import Phase, phase

MILLISECOND = 1_000_000
SMALL = {"max_num_reqs": 3, "max_num_batched_tokens": 32, "max_model_len": 64, "attention": "triton"}
#: All arrive while others run, so that no idle time is skipped.
TRACE = (Arrival(0.0, 5, 9), Arrival(0.0045, 3, 6), Arrival(0.011, 7, 1), Arrival(0.013, 4, 7), Arrival(0.02, 6, 3))
RECORDED = Path(__file__).parents[1] / "checks" / "timeline" / "traces" / "v2_06b.json.gz"


@pytest.fixture(autouse=True)
def compiled():
    with triton_cpu.enabled():
        yield


class Watched:
    """A runner whose steps and waits take a time that this log decides, growing from step to step."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.config, self.graphs = runner, runner.config, runner.graphs
        self.nanoseconds, self.cpu = 0, 0
        self.steps, self.outputs, self.parts = [], [], []

    def execute(self, step):
        self.steps.append(step)
        self.parts.append(3 * MILLISECOND + len(self.steps) ** 3 % 29 * 137_000)
        with phase(Phase.FORWARD):
            self.nanoseconds += self.parts[-1]
        self.cpu += 5 * MILLISECOND
        handle = self._runner.execute(step)
        return SimpleNamespace(result=lambda: self._result(handle))

    def _result(self, handle):
        output = handle.result()
        with phase(Phase.WAIT):
            self.nanoseconds += 2 * MILLISECOND
        self.outputs.append((self.nanoseconds, output))
        return output

    def check_request(self, request):
        return self._runner.check_request(request)

    def invariants(self):
        return self._runner.invariants()

    def close(self):
        self._runner.close()


@dataclass
class Driven:
    """A round, the log of its runner, and what was asked for."""

    done: Round
    log: Watched
    requests: tuple

    def times(self, name: str) -> list[int]:
        """When the tokens of a request came, by the log, without those drawn behind its end."""
        wanted = next(one.sampling.max_tokens for one in self.requests if one.name == name)
        return [stamp for stamp, output in self.log.outputs for _ in output.token_ids.get(name, ())][:wanted]


def driven(trace=TRACE, shared_prefix=0, sampling=None, **settings):
    checkpoint = load_checkpoint("tiny")
    config = RunnerConfig(**{**SMALL, **settings})
    log = Watched(ModelRunner(config, checkpoint.config, checkpoint.tensors))
    requests = requests_of(trace, 256, 1, sampling or SamplingParams(temperature=0), shared_prefix)
    done = drive(log, config, (0,), requests, lambda: log.nanoseconds, lambda: log.cpu)
    return Driven(done, log, requests)


@pytest.fixture(scope="module")
def plain():
    with triton_cpu.enabled():
        return driven()


def percentile(values, which):
    """Between the two nearest ranks, in proportion."""
    ordered, place = sorted(values), (len(values) - 1) * which / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def test_latencies(plain):
    first = [plain.times(f"r{number}")[0] / 1e6 - 1000 * one.seconds for number, one in enumerate(TRACE)]
    each = [
        (times[-1] - times[0]) / 1e6 / (len(times) - 1)
        for times in (plain.times(f"r{number}") for number, one in enumerate(TRACE) if one.output > 1)
    ]
    assert figures.first_token_ms(plain.done) == pytest.approx(first)
    assert figures.per_token_ms(plain.done) == pytest.approx(each)
    assert len(set(first)) == 5 and len(set(each)) == 4  # or equal values would hide a mix-up
    told = figures.of_side(Measured((plain.done,), ({},), None, {}), a_comparison(plain.done).conditions)
    for name, values in (("TTFT ms", first), ("TPOT ms", each)):
        assert told[name] == pytest.approx({f"p{which}": percentile(values, which) for which in (50, 95, 99)})


def test_throughput_and_cores(plain):
    seconds, end = plain.log.nanoseconds / 1e9, max(plain.times(f"r{number}")[-1] for number in range(5))
    assert plain.done.nanoseconds == plain.log.nanoseconds
    assert end <= plain.log.nanoseconds
    tokens = sum(len(plain.times(f"r{number}")) for number in range(5))
    assert tokens == sum(one.output for one in TRACE)
    assert figures.per_second(plain.done) == pytest.approx({"requests": 5 / seconds, "tokens": tokens / seconds})
    scheduled = sum(bool(step.scheduled) for step in plain.log.steps)
    assert plain.done.steps == scheduled
    assert figures.microseconds_a_step(plain.done) == pytest.approx(seconds * 1e6 / scheduled)
    told = figures.of_side(Measured((plain.done,), ({},), None, {}), a_comparison(plain.done).conditions)
    assert told["CPU cores used"] == pytest.approx(len(plain.log.steps) * 5 * MILLISECOND / plain.log.nanoseconds)


def test_requests_that_meet_a_goal(plain):
    rates = {}
    for goal in (Goal(20.0, 7.5), Goal(20.0), Goal(None, 7.5), Goal(1000.0, 1000.0), Goal(0.001)):
        good = 0
        for number, one in enumerate(TRACE):
            times = plain.times(f"r{number}")
            soon = goal.first_token_ms is None or times[0] <= (1000 * one.seconds + goal.first_token_ms) * 1e6
            steady = (len(times) - 1) * (goal.per_token_ms or 1e9) * 1e6
            good += soon and times[-1] - times[0] <= steady
        assert figures.good_requests(plain.done, goal) == good
        rates[good] = goal
    assert set(rates) >= {0, 5} and len(rates) > 2  # bounds that matter
    comparison = a_comparison(plain.done, goal=Goal(20.0, 7.5))
    told = figures.as_json(comparison)
    seconds = plain.log.nanoseconds / 1e9
    good = figures.good_requests(plain.done, Goal(20.0, 7.5))
    assert told["sides"]["v2"]["good requests a second"] == pytest.approx(good / seconds)
    assert told["conditions"]["goal"] == {"first_token_ms": 20.0, "per_token_ms": 7.5}
    assert any(row[0] == "requests a second that meet the goal" for row in figures.rows(comparison))
    assert figures.good_requests(replace(plain.done, answers={"r": Answer(0, (), (), ())}), Goal(1.0)) == 0


def test_preemptions():
    crowd = tuple(Arrival(0.0, 9, 20) for _ in range(3))
    few = driven(crowd, num_kv_blocks=12, block_size=4)
    lost = sum(len(step.preempted) for step in few.log.steps)
    assert few.done.preemptions == lost > 0
    assert driven(crowd, num_kv_blocks=40, block_size=4).done.preemptions == 0


def test_prefix_hits_and_that_the_cache_is_off():
    trace = tuple(Arrival(0.03 * number, 21, 2) for number in range(3))
    on = driven(trace, shared_prefix=13, prefix_caching=True, block_size=4)
    news = [new for step in on.log.steps for new in step.new]
    computed = sum(
        min(step.scheduled[name], 21)
        for step in on.log.steps
        for name in step.scheduled
        if name in {new.request_id for new in step.new}
    )
    assert on.done.prefixes.found == sum(new.num_computed_tokens for new in news) == 3 * 21 - computed > 0
    assert on.done.prefixes.queried == sum(len(new.token_ids) for new in news) == 3 * 21
    for caching, shown in ((True, f"{on.done.prefixes.found} of 63"), (False, "off")):
        comparison = a_comparison(on.done, prefix_caching=caching)
        (row,) = [row for row in figures.rows(comparison) if row[0] == "prefix cache, tokens found"]
        assert row[1] == shown
        said = figures.as_json(comparison)["sides"]["v2"]["prefix cache, tokens found of queried"]
        assert said == ([on.done.prefixes.found, 63] if caching else None)


def test_accepted_drafts_and_that_there_are_none():
    with_drafts = driven((Arrival(0.0, 12, 24), Arrival(0.0, 9, 30)), speculation="ngram", num_drafts=2)
    verified = accepted = 0
    for step, (_, output) in zip(with_drafts.log.steps, with_drafts.log.outputs, strict=True):
        for name, drafts in step.drafts.items():
            verified += drafts
            accepted += len(output.token_ids[name]) - 1
    found = with_drafts.done.speculation
    assert (found.drafts, found.accepted) == (verified, accepted)
    assert 0 < accepted < verified
    for speculation, shown in (("ngram", f"{accepted} of {verified}"), ("none", "off")):
        comparison = a_comparison(with_drafts.done, speculation=speculation)
        assert [row[1] for row in figures.rows(comparison) if row[0] == "drafts accepted"] == [shown]


def test_the_parts_of_a_step_are_medians_of_rounds_and_tell_their_spread(monkeypatch):
    logs = []

    def side(config, model, tensors):
        logs.append(Watched(ModelRunner(config, model, tensors)))
        return logs[-1]

    monkeypatch.setattr(comparing, "SIDES", {"v2": side})
    conditions = Conditions(("v2",), RunnerConfig(**SMALL), TRACE, SamplingParams(), rounds=3, judged=0)
    ends: list[int] = []
    comparison = compare(
        conditions, load_checkpoint("tiny"), lambda: ends.append(len(logs[0].parts)), lambda: logs[0].nanoseconds
    )
    measured = comparison.sides["v2"]
    assert len(ends) == 7  # one thrown away, three measured, three with a clock
    rounds = [slice(low, high) for low, high in pairwise(ends)][3:]
    steps = [sum(bool(step.scheduled) for step in logs[0].steps[one]) for one in rounds]
    forward = [sum(logs[0].parts[one]) / 1e3 / count for one, count in zip(rounds, steps, strict=True)]
    waits = [2000.0 * (one.stop - one.start) / count for one, count in zip(rounds, steps, strict=True)]
    assert len(set(forward)) > 1
    told = figures.as_json(comparison)["sides"]["v2"]
    assert told["host us a step, by round"]["forward"] == pytest.approx(forward)
    assert told["host us a step"]["forward"] == pytest.approx(sorted(forward)[1])
    assert told["host us a step, by round"]["waits"] == pytest.approx(waits)
    assert told["host us a step"]["in all, without waits"] == pytest.approx(sorted(forward)[1])
    assert measured.host[0]["other"] == pytest.approx(0.0)
    (row,) = [row for row in figures.rows(comparison) if row[0] == "host us a step: forward"]
    assert row[1] == f"{sorted(forward)[1]:,.0f} ({min(forward):,.0f} to {max(forward):,.0f})"
    conditions = figures.as_json(comparison)["conditions"]
    assert (conditions["rounds thrown away"], conditions["rounds with a clock"]) == (1, 3)


def test_memory_at_most_is_that_of_one_side(monkeypatch):
    """A side holds 700 bytes; in rounds with a clock 1,000, 1,300 and 1,100 are in use at most, 400 of them others'."""
    device = {"current": 400, "peak": 0}
    peaks = iter((1000, 1300, 1100))
    monkeypatch.setattr(
        torch.cuda, "memory_stats", lambda: {f"allocated_bytes.all.{key}": device[key] for key in device}
    )
    monkeypatch.setattr(
        torch.cuda, "host_memory_stats", lambda: {"allocated_bytes.current": 5, "allocated_bytes.peak": 7}
    )
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: device.update(peak=next(peaks)))
    monkeypatch.setattr(torch.cuda, "reset_peak_host_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(comparing, "profiled_trace", lambda run: analyse(RECORDED))

    def side(config, model, tensors):
        device["current"] = 1100
        return ModelRunner(replace(config, device="cpu"), model, tensors)

    monkeypatch.setattr(comparing, "SIDES", {"v2": side})
    monkeypatch.setattr(comparing, "fallbacks", lambda *_: [])
    config = RunnerConfig(**SMALL, device="cuda")
    conditions = Conditions(("v2",), config, TRACE[:1], SamplingParams(), rounds=3, judged=0)
    # Held: 1,100 - 400. At most 1,300 in use, of which 1,100 were in use before: 200 more.
    measured = compare(conditions, load_checkpoint("tiny")).sides["v2"]
    assert measured.peaks == {"device bytes": 900, "pinned bytes": 2}
    assert measured.device == device_time(analyse(RECORDED))


def test_utilisation_of_a_recorded_device():
    """By a walk over the raw events, moment by moment, of the steps that ``device_time`` looks at."""
    events = json.loads(gzip.decompress(RECORDED.read_bytes()))["traceEvents"]
    works = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    calls = {one["args"]["correlation"]: one for one in events if one.get("cat") in ("cuda_runtime", "cuda_driver")}
    marks = sorted(one["ts"] for one in events if one.get("name") == "mrv2.step" and one["cat"] == "user_annotation")
    of_step = [
        [w for w in works if low <= calls[w["args"]["correlation"]]["ts"] < high]
        for low, high in zip(marks, [*marks[1:], float("inf")], strict=True)
    ]
    whole = [step for step in of_step if step][FIRST_STEPS:-LAST_STEPS]
    begin, end = min(w["ts"] for w in whole[0]), max(w["ts"] + w["dur"] for step in whole for w in step)
    busy = idle = 0.0
    done = begin
    for work in sorted(works, key=lambda one: one["ts"]):
        low, high = max(work["ts"], begin), min(work["ts"] + work["dur"], end)
        if high > low:
            idle += low - done if low - done > 5 else 0.0
            busy += max(0.0, high - max(low, done))
            done = max(done, high)
    found = device_time(analyse(RECORDED))
    assert found.steps == len(whole)
    assert found.microseconds == pytest.approx(end - begin)
    assert found.busy == pytest.approx(busy, rel=1e-5)
    assert found.idle_in_gaps == pytest.approx(idle, rel=1e-5)
    uploads = [w for step in whole for w in step if "HtoD" in w["name"]]
    assert (found.uploads, found.upload_bytes) == (len(uploads), sum(w["args"]["bytes"] for w in uploads))


def a_comparison(done, goal=None, **settings):
    config = RunnerConfig(**{**SMALL, **settings})
    measured = Measured((done,), ({Phase.FORWARD.value: 5.0, Phase.WAIT.value: 2.0, "other": 1.0},), None, {})
    conditions = Conditions(("v2",), config, TRACE, SamplingParams(), rounds=1, goal=goal)
    return Comparison(conditions, {"v2": measured}, Correctness(1, 5, 5))


def test_the_page_holds_the_table_bars_and_a_timeline_where_there_is_a_device(plain):
    comparison = a_comparison(plain.done)
    assert "under the profiler" not in bench_page(comparison, ())
    device = replace(
        comparison.sides["v2"], device=device_time(analyse(RECORDED)), peaks={}, timeline=analyse(RECORDED)
    )
    page = bench_page(replace(comparison, sides={"v2": device, "<v1>": device}), ("a & b",))
    root = ElementTree.fromstring(re.sub(r"<!doctype html>|<meta [^>]*>", "", page))
    assert "script" not in page and "a &amp; b" in page and "&lt;v1&gt;" in page
    bars, *pictures = root.iter("{http://www.w3.org/2000/svg}svg")
    rectangles = list(bars.iter("{http://www.w3.org/2000/svg}rect"))
    assert [float(one.get("width")) / float(rectangles[0].get("width")) for one in rectangles[:3]] == pytest.approx(
        [1.0, 0.4, 0.2], abs=0.01
    )
    assert len(pictures) == 3  # the device's bars, and a timeline of each side
    table = next(root.iter("table"))
    assert [cell.text for cell in table[0]] == ["figure", "v2", "<v1>", "v2 / <v1>"]


def test_the_command_writes_a_page_counts_good_requests_and_says_what_was_thrown_away(tmp_path):
    trace, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    trace.write_text('{"input_length": 4, "output_length": 3}\n' * 2)
    arguments = ["bench", "--trace", str(trace), "--rounds", "1", "--runner", "v2", "--html", str(page)]
    done = CliRunner().invoke(app, [*arguments, "--goodput", "ttft:1e6, tpot:1e6"])
    assert done.exit_code == 0, done.output
    assert "a first round of each was thrown away" in done.output
    assert "requests a second that meet the goal" in done.output
    assert re.search(r"prefix cache, tokens found\W+off", done.output)
    assert "host us a step" in page.read_text() and "thrown away" in page.read_text()


@pytest.mark.parametrize(
    "goal", ["", "ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:nan", "ttft:inf", "e2e:5", "ttft:1,ttft:2"]
)
def test_goals_that_are_none_are_refused(goal):
    done = CliRunner().invoke(app, ["bench", "--goodput", goal])
    assert done.exit_code == 2
    assert f"--goodput {goal}" in done.output and "--goodput ttft:200,tpot:50" in done.output


@pytest.mark.parametrize("name", comparing.SPOILING)
def test_an_environment_that_makes_everything_slow_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(InputError, match=f"{name}=1"):
        comparing.refuse_spoiled_environment()
    monkeypatch.setenv(name, "0")
    comparing.refuse_spoiled_environment()


@triton.jit
def _not_compiled(pointer):
    tl.store(pointer, tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], dtype=tl.int32, is_pure=True, pack=1))


def test_a_side_whose_kernels_are_interpreted_is_refused():
    interpreted: set[str] = set()
    with compiled_kernels(interpreted):
        conditions = Conditions(("v2",), RunnerConfig(**SMALL), TRACE[:1], SamplingParams(), rounds=1, judged=0)
        compare(conditions, load_checkpoint("tiny"), interpreted=interpreted)
        assert interpreted == set()
        interpreted.add("some_kernel")
        with pytest.raises(InputError, match="runner v2: kernels run in Triton's interpreter: some_kernel"):
            compare(conditions, load_checkpoint("tiny"), interpreted=interpreted)
