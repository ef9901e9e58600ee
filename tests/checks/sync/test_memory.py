"""Regions with a bound on device memory: one above it is a finding, one below it is none."""

import asyncio
import sys
import threading

import pytest
import torch

from mrv2.checks.findings import Verdict
from mrv2.checks.hot_path import HotPathError
from mrv2.checks.memory import MemoryBound, MemoryBoundError, memory_bound
from mrv2.checks.sync.memory import MemoryWatch
from mrv2.checks.sync.settings import find_settings, read_settings, settings_from
from mrv2.checks.sync.virtual import sync_trap
from mrv2.checks.virtual import virtual_device

SCHEDULES = ("late", "early", "random:0")
TOKENS, VOCAB = 64, 1000
ALL = TOKENS * VOCAB * 4


def whole(logits, tokens):
    return logits.log_softmax(-1).gather(-1, tokens)


def in_chunks(logits, tokens):
    return torch.cat([whole(rows, wanted) for rows, wanted in zip(logits.split(4), tokens.split(4), strict=True)])


def run(logprobs, bound, schedule="late", steps=1):
    with sync_trap(schedule=schedule) as trap:
        logits = torch.zeros(TOKENS, VOCAB, device="cuda")
        tokens = torch.zeros(TOKENS, 1, dtype=torch.int64, device="cuda")
        for step in range(steps):
            with trap.device.at_step(step), memory_bound("logprobs", bytes=bound):
                logprobs(logits, tokens)
    assert trap.watch.findings == []
    return trap.memory.findings


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_logprobs_of_the_whole_vocabulary_are_found_where_they_cross_the_bound(schedule):
    (finding,) = run(whole, ALL // 2, schedule, steps=3)
    assert (finding.code, finding.verdict, finding.step) == ("MRV601", Verdict.VIOLATION, 0)
    assert finding.title == "region logprobs takes more device memory than its bound"
    assert [site.function for site in finding.allocation] == ["whole", "run"] and finding.where == finding.allocation
    evidence = dict(finding.evidence)
    assert (evidence["bound"], evidence["allocation"], evidence["times"]) == (ALL // 2, ALL, 3)
    assert evidence["peak"] == ALL + TOKENS * 4 and evidence["held at entry"] == ALL + TOKENS * 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_in_chunks_is_none(schedule):
    assert run(in_chunks, ALL // 2, schedule, steps=3) == []


def test_a_bound_that_is_just_met_is_kept():
    assert run(whole, ALL + TOKENS * 4) == []
    assert len(run(whole, ALL + TOKENS * 4 - 1)) == 1


def test_what_was_held_before_and_what_is_freed_do_not_count():
    def again(logits, tokens):
        for _ in range(5):
            torch.empty(1000, device="cuda")

    assert run(again, 4000) == []
    assert len(run(lambda *_: [torch.empty(1000, device="cuda") for _ in range(2)], 4000)) == 1


def test_inner_and_outer_regions_are_judged_apart():
    with sync_trap() as trap, memory_bound("outer", bytes=6000):
        first = torch.empty(1000, device="cuda")
        with memory_bound("inner", bytes=4000):
            second = torch.empty(1000, device="cuda")
        third = torch.empty(1, device="cuda")
        del first, second, third
    assert [finding.evidence["region"] for finding in trap.memory.findings] == ["outer"]
    assert trap.memory.entries == {"inner": 1, "outer": 1}


def test_memory_that_another_thread_takes_counts():
    kept = []

    @memory_bound("decode", bytes=100)
    def decode():
        thread = threading.Thread(target=lambda: kept.append(torch.empty(100, device="cuda")))
        thread.start()
        thread.join()

    with sync_trap() as trap:
        decode()
        kept.clear()
        kept.append(torch.empty(1000, device="cuda"))  # outside of the region
        kept.clear()
    (finding,) = trap.memory.findings
    assert finding.evidence["peak"] == 400


def test_a_coroutine_is_a_region_until_it_is_over_and_a_generator_is_refused():
    @memory_bound("logprobs", bytes=ALL // 2)
    async def later():
        await asyncio.sleep(0)
        return whole(torch.zeros(TOKENS, VOCAB, device="cuda"), torch.zeros(TOKENS, 1, dtype=torch.int64).cuda())

    def each():
        yield 1

    with sync_trap() as trap:
        asyncio.run(later())
    assert [finding.code for finding in trap.memory.findings] == ["MRV601"]
    with pytest.raises(HotPathError, match="generator"):
        memory_bound("each", bytes=1)(each)


def test_nothing_is_measured_without_a_watch_and_nothing_is_left():
    with virtual_device() as device:
        with memory_bound("free", bytes=0):
            torch.empty(100, device="cuda")
        assert device.runtime.memory.when_over is None
    with MemoryWatch() as watch:
        with virtual_device(hooks=(watch.hook(),)) as device, memory_bound("r", bytes=0):
            pass
        assert device.runtime.memory.when_over is None
        with memory_bound("no device", bytes=0):
            pass
    assert watch.findings == [] and watch.entries == {"r": 1}


def test_only_one_watch_at_a_time():
    with MemoryWatch(), pytest.raises(MemoryBoundError, match="only one"), MemoryWatch():
        pass
    with MemoryWatch():
        pass


@pytest.mark.parametrize("bound", [-1, 1.5, True, "64 MB", None])
def test_a_bound_that_is_no_number_of_bytes_is_refused(bound):
    with pytest.raises(MemoryBoundError, match="whole number of bytes"):
        memory_bound("logprobs", bytes=bound)


ENGINE = """
import torch

class Runner:
    @staticmethod
    def logprobs(x):
        return x.log_softmax(-1).max()

    def unused(self):
        pass
"""
TABLE = """
[tool.mrv2]
hot_paths = []
[[tool.mrv2.memory]]
site = "bounded_engine:Runner.logprobs"
bytes = 1000
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    (tmp_path / "bounded_engine.py").write_text(ENGINE)
    (tmp_path / "pyproject.toml").write_text(TABLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import bounded_engine

    yield bounded_engine
    sys.modules.pop("bounded_engine")


def test_a_region_can_be_named_in_the_settings(engine, tmp_path):
    original = vars(engine.Runner)["logprobs"]
    with sync_trap(read_settings(tmp_path / "pyproject.toml")) as trap:
        x = torch.zeros(1000, device="cuda")
        with pytest.raises(MemoryBoundError, match=r"never judged: bounded_engine:Runner\.logprobs"):
            trap.memory.require_entered()
        engine.Runner.logprobs(x)
    (finding,) = trap.memory.findings
    trap.memory.require_entered()
    assert finding.where[0].function == "Runner.logprobs" and finding.where[-1].function == "Runner.logprobs"
    assert vars(engine.Runner)["logprobs"] is original


def test_the_nearest_project_with_a_table_counts(engine, tmp_path):
    below = tmp_path / "package" / "tests"
    below.mkdir(parents=True)
    (tmp_path / "package" / "pyproject.toml").write_text("[project]\nname = 'package'\n")
    settings, path = find_settings(below)
    assert path == tmp_path / "pyproject.toml"
    assert settings.memory == (MemoryBound("bounded_engine:Runner.logprobs", 1000, "bounded_engine:Runner.logprobs"),)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("all", "memory"),
        ([3], "memory"),
        ([{"bytes": 3}], "memory.site"),
        ([{"site": "a:b", "byte": 3}], "'byte'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(memory, message):
    with pytest.raises(HotPathError, match=message):
        settings_from({"memory": memory})


def test_a_site_without_bytes_is_refused():
    with pytest.raises(MemoryBoundError, match="whole number of bytes"):
        settings_from({"memory": [{"site": "a:b"}]})


def test_regions_break_no_graph():
    @memory_bound("compiled", bytes=1)
    def double(x):
        return x * 2

    def step(x):
        with memory_bound("inside", bytes=1):
            return double(x) + 1

    with MemoryWatch():
        assert torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [3, 3]
