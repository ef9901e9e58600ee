"""``mrv2 bench``: the same conditions or a refusal, latencies to the nanosecond, and tokens beside speed."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mrv2.checks import triton_cpu
from mrv2.checks.findings import RunVerdict
from mrv2.checks.timeline.analysis import analyse
from mrv2.checks.virtual import virtual_device
from mrv2.ci.bench import compare as comparing
from mrv2.ci.bench import figures, sides
from mrv2.ci.bench.compare import Conditions, Correctness, compare, num_rounds
from mrv2.ci.bench.device_time import FIRST_STEPS, LAST_STEPS, device_time
from mrv2.ci.bench.drive import Answer, Round, drive, requests_of
from mrv2.ci.bench.traces import SYNTHETIC, Arrival, read_trace
from mrv2.ci.command.app import app
from mrv2.ci.report.problem import InputError
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.baseline_v1.runner import BaselineRunner
from mrv2.refrunner.baseline_v1.step_inputs import StepInputs
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.kv_cache_manager import PrefixCacheStats
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.scheduler import SpeculationStats

SMALL = {"max_num_reqs": 3, "max_num_batched_tokens": 32, "max_model_len": 64, "attention": "triton"}
TRACE = (Arrival(0.0, 5, 4), Arrival(0.001, 3, 2), Arrival(2.0, 4, 1))
WINDOWS = (0,)
RECORDED = Path(__file__).parents[1] / "checks" / "timeline" / "traces" / "v2_06b.json.gz"
MILLISECOND = 1_000_000


@pytest.fixture(autouse=True)
def compiled():
    with triton_cpu.enabled():
        yield


def ticking(step=MILLISECOND):
    """A clock that moves on by a millisecond whenever somebody looks."""
    return count(0, step).__next__


def conditions(**changes):
    return replace(
        Conditions(("v2", "v1"), RunnerConfig(**SMALL), TRACE, SamplingParams(), rounds=2, judged=1), **changes
    )


def test_synthetic_traces_are_the_same_every_time_and_in_order():
    for make in SYNTHETIC.values():
        trace = make(40, 7)
        assert trace == make(40, 7) != make(40, 8)
        assert [one.seconds for one in trace] == sorted(one.seconds for one in trace)
    assert max(one.prompt for one in SYNTHETIC["long-prompts"](60, 1)) > 250
    assert len({one.seconds for one in SYNTHETIC["bursts"](32, 1)}) == 2


@pytest.mark.parametrize(
    "lines",
    [
        ['{"arrival": 7.5, "input_length": 9, "output_length": 2}',
         '{"arrival": 5, "input_length": 3, "output_length": 4}'],
        ['{"timestamp": 2.5, "input_tokens": 9, "output_tokens": 2, "user": "x"}', "",
         '{"timestamp": 0.0, "input_tokens": 3, "output_tokens": 4}'],
        ['{"TIMESTAMP": 12.5, "ContextTokens": 9, "GeneratedTokens": 2}',
         '{"TIMESTAMP": 10, "ContextTokens": 3, "GeneratedTokens": 4}'],
        ['{"timestamp": 1700000002500, "input_length": 9, "output_length": 2, "hash_ids": [0, 1]}',
         '{"timestamp": 1700000000000, "input_length": 3, "output_length": 4, "hash_ids": []}'],
        ['{"TIMESTAMP": "2023-11-16 18:17:06.4799600", "ContextTokens": 9, "GeneratedTokens": 2}',
         '{"TIMESTAMP": "2023-11-16 18:17:03.9799600", "ContextTokens": 3, "GeneratedTokens": 4}'],
        ['{"timestamp": "2023-11-16T19:00:02.5+01:00", "input_length": 9, "output_length": 2, "hash_ids": []}\r',
         '{"timestamp": "2023-11-16T18:00:00", "input_length": 3, "output_length": 4, "hash_ids": []}\r'],
        ['\ufeff{"arrival": 3.5, "input_length": 9, "output_length": 2, "prompt": "a\u2028b\x85c"}',
         '{"arrival": 1, "input_length": 3, "output_length": 4}'],
    ],
)  # fmt: skip
def test_traces_of_others_are_read_in_order_and_begin_at_0(tmp_path, lines):
    path = tmp_path / "trace.jsonl"
    path.write_bytes("\n".join(lines).encode())
    assert read_trace(path, 10) == (Arrival(0.0, 3, 4), Arrival(2.5, 9, 2))
    assert len(read_trace(path, 1)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one line"),
        ("[1]", "line 1.*one JSON object"),
        ("{", "line 1.*one JSON object"),
        ('{"input_length": 3, "output_length": 4}\n{"input_length": 3}', "line 2.*output_length"),
        ('{"input_length": 0, "output_length": 4}', "input_length.*at least 1, and is 0"),
        ('{"input_length": true, "output_length": 4}', "is True"),
        ('{"arrival": "now", "input_length": 2, "output_length": 4}', "arrival must be a number"),
        ('{"arrival": NaN, "input_length": 2, "output_length": 4}', "arrival must be a number"),
        ('{"arrival": -1e308, "input_length": 2, "output_length": 4}', "arrival must be a number.*is -1e[+]308"),
        (f'{{"arrival": {"9" * 400}, "input_length": 2, "output_length": 4}}', "arrival.*and is a larger one"),
        (f'{{"arrival": {"9" * 5000}, "input_length": 2, "output_length": 4}}', "line 1.*one JSON object"),
        ("[" * 100_000, "line 1.*one JSON object"),
        ('{"arrival": "20231116", "input_length": 2, "output_length": 4}', "or a date and time, and is '20231116'"),
        ('{"arrival": "0001-01-01 00:00", "input_length": 2, "output_length": 4}', "up to 4e[+]09.*and is '0001"),
        (
            '{"input_length": 2, "output_length": 4}\n{"arrival": 1, "input_length": 2, "output_length": 4}',
            "line 2.*as the first one does: not at all",
        ),
        (
            '{"arrival": 1, "input_length": 2, "output_length": 4}\n\n{"input_length": 2, "output_length": 4}',
            "line 3.*as arrival in seconds",
        ),
        (
            '{"timestamp": 1, "hash_ids": [], "input_length": 2, "output_length": 4}\n{"timestamp": 1}',
            "line 2.*as timestamp in milliseconds",
        ),
    ],
)
def test_a_trace_that_says_something_else_is_refused_with_its_line(tmp_path, text, words):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_trace(path, 10)
    for name in ("nowhere", "a\0b"):
        with pytest.raises(InputError, match="can be read"):
            read_trace(tmp_path / name, 10)


def test_a_drive_stamps_every_token_and_jumps_over_idle_time():
    checkpoint, config = load_checkpoint("tiny"), RunnerConfig(**SMALL)
    requests = requests_of(TRACE, 256, 1, SamplingParams())
    assert [len(one.prompt) for one in requests] == [5, 3, 4]
    runner = ModelRunner(config, checkpoint.config, checkpoint.tensors)
    done = drive(runner, config, WINDOWS, requests, ticking(), ticking(500_000))
    again = drive(runner, config, WINDOWS, requests, ticking(), ticking(500_000))
    assert done == again  # a runner may be driven again, and the same clock gives the same figures
    answers = done.answers
    assert [len(answers[name].token_ids) for name in ("r0", "r1", "r2")] == [4, 2, 1]
    for answer in answers.values():
        assert len(answer.times) == len(answer.token_ids) == len(answer.logprobs)
        assert answer.arrived < answer.times[0] and list(answer.times) == sorted(answer.times)
    # The last one comes after two seconds, which nobody waits for.
    assert done.nanoseconds < 100 * MILLISECOND
    assert answers["r2"].times[0] - answers["r2"].arrived < 10 * MILLISECOND
    assert done.cpu_nanoseconds == 500_000
    assert runner.invariants() == []


def test_prompts_share_a_prefix_that_the_cache_finds():
    checkpoint, config = load_checkpoint("tiny"), RunnerConfig(**SMALL, prefix_caching=True, block_size=4)
    trace = tuple(Arrival(0.01 * number, 20, 2) for number in range(3))
    requests = requests_of(trace, 256, 1, SamplingParams(), shared_prefix=12)
    assert len({one.prompt[:12] for one in requests}) == 1 and len({one.prompt for one in requests}) == 3
    done = drive(ModelRunner(config, checkpoint.config, checkpoint.tensors), config, WINDOWS, requests, ticking())
    assert done.prefixes.found >= 12


def a_round(times, arrived=0):
    answers = {"r": Answer(arrived, tuple(times), tuple(range(len(times))), ())}
    return Round(answers, 4, 8 * MILLISECOND, 4 * MILLISECOND, 0, SpeculationStats(), PrefixCacheStats(), tuple(times))


def test_figures_of_known_times():
    done = a_round([3 * MILLISECOND, 5 * MILLISECOND, 9 * MILLISECOND], arrived=MILLISECOND)
    assert figures.first_token_ms(done) == [2.0]
    assert figures.per_token_ms(done) == [3.0]
    assert figures.per_token_ms(a_round([5])) == []
    assert figures.percentiles([]) is None
    assert figures.percentiles(range(101)) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert figures.per_second(done) == {"requests": 125.0, "tokens": 375.0}
    assert figures.microseconds_a_step(done) == 2000.0


def test_sides_take_turns_under_the_same_conditions_and_give_the_same_tokens(monkeypatch):
    turns = []
    inner = comparing.drive

    def driven(side, config, *arguments):
        turns.append(type(side).__name__)
        assert side.config is config
        return inner(side, config, *arguments)

    monkeypatch.setattr(comparing, "drive", driven)
    rounds = []
    comparison = compare(conditions(), load_checkpoint("tiny"), lambda: rounds.append(1), ticking())
    new, old = "ModelRunner", "BaselineRunner"
    assert turns == [new, old, *2 * [new, old, old, new]]
    assert len(rounds) == num_rounds(conditions()) == 10
    assert comparison.correctness == Correctness(2, 3, 3, 4, 4, 0)
    told = figures.as_json(comparison)
    assert json.loads(json.dumps(told, allow_nan=False))["sides"].keys() == {"v2", "v1"}
    side = told["sides"]["v2"]
    parts = side["host us a step"]
    assert {"scheduler", "state update", "staging and upload", "input preparation", "forward", "sampler"} < parts.keys()
    own = sum(time for part, time in parts.items() if part not in ("waits", "in all, without waits"))
    assert parts["in all, without waits"] == pytest.approx(own)
    assert all(len(row) == 4 for row in figures.rows(comparison))


def test_launches_that_block_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(InputError, match="CUDA_LAUNCH_BLOCKING=1"):
        compare(conditions(), load_checkpoint("tiny"))
    result = CliRunner().invoke(app, ["bench"])
    assert result.exit_code == 2
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    comparing.refuse_spoiled_environment()


def test_a_side_with_other_settings_is_refused(monkeypatch):
    def fallen_back(config, model, tensors):
        return BaselineRunner(replace(config, attention="torch"), model, tensors)

    monkeypatch.setattr(comparing, "SIDES", {**sides.SIDES, "v1": fallen_back})
    with pytest.raises(InputError, match="runner v1: v1 runs with other settings"):
        compare(conditions(), load_checkpoint("tiny"))


@pytest.mark.parametrize("kind", [ModelRunner, BaselineRunner])
def test_decodes_that_no_graph_admits_are_a_fallback_and_those_in_graphs_are_none(kind):
    checkpoint = load_checkpoint("tiny")
    requests = requests_of((Arrival(0.0, 2, 3),) * 3, 256, 1, SamplingParams())
    for sizes, told in (((1, 2), 1), ((1, 2, 3), 0)):
        with virtual_device("early"):
            config = RunnerConfig(**SMALL, device="cuda", graph_mode="full", graph_sizes=sizes)
            runner = kind(config, checkpoint.config, checkpoint.tensors)
            drive(runner, config, WINDOWS, requests, ticking())
            assert len(sides.fallbacks("v", runner, config)) == told
            runner.close()


def test_wrong_tokens_fail_however_fast(monkeypatch):
    monkeypatch.setattr(StepInputs, "_fill_drawn", lambda *_: None)
    comparison = compare(conditions(rounds=1), load_checkpoint("tiny"), now=ticking())
    assert comparison.correctness.equal < comparison.correctness.requests
    assert comparison.correctness.wrong > 0


def test_tokens_that_were_compared_with_nothing_are_inconclusive():
    assert not Correctness(1, 3, 3, not_judged="too large").is_known
    assert not Correctness(2, 3, 2, not_judged="too large").is_known
    assert Correctness(2, 3, 3, not_judged="too large").is_known
    assert Correctness(1, 3, 3, 5, 5).is_known


def test_device_time_of_a_recorded_trace():
    analysis = analyse(RECORDED)
    found = device_time(analysis)
    launching = [one for one in analysis.times if one.launches and one.busy is not None]
    middle = launching[FIRST_STEPS:-LAST_STEPS] if len(launching) > FIRST_STEPS + LAST_STEPS else launching
    assert (found.steps, found.launches) == (len(middle), sum(one.launches for one in middle))
    assert found.busy + found.idle_in_gaps <= found.microseconds
    assert 0 < found.idle_share < 1
    assert found.as_json()["per step"]["upload bytes"] == found.upload_bytes / found.steps


def test_the_command_prints_a_table_and_writes_a_report(tmp_path):
    path, trace = tmp_path / "report.json", tmp_path / "trace.jsonl"
    trace.write_text('{"input_length": 4, "output_length": 3}\n' * 2)
    arguments = ["bench", "--trace", str(trace), "--rounds", "1", "--json", str(path), "--temperature", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "TPOT P95, ms" in result.output and "v2 / v1" in result.output
    assert "these figures are of the CPU" in result.output
    assert "2 of 2 requests have the same tokens" in result.output
    report = json.loads(path.read_text())
    assert (report["command"], report["verdict"]) == ("bench", RunVerdict.PASS.value)
    assert report["metrics"]["conditions"]["output tokens"] == 6


def test_what_was_measured_is_printed_though_the_report_cannot_be_written(tmp_path, monkeypatch):
    def refuse(path, report):
        raise InputError(f"--json {path}", "No space left on device", "why", "instead")

    monkeypatch.setattr("mrv2.ci.command.bench.write_report", refuse)
    arguments = ["bench", "--runner", "v2", "--requests", "1", "--rounds", "1", "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "No space left on device" in result.output
    assert "TPOT P95, ms" in result.output and "PASS: of " in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--runner", "v3"], "--runner v3"),
        (["--runner", "v2,v2"], "each once"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--speculation", "ngram"], "for baseline_v1"),
        (["--shared-prefix", "128"], "at least two prompts of the trace must be longer"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, words):
    result = CliRunner().invoke(app, ["bench", "--requests", "2", *arguments])
    assert result.exit_code == 2
    assert words in result.output
