"""Traces as files have them that were joined, converted, stopped, or written by a profiler with faults of its own."""

import json
import random
import re

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.timeline.analysis import analyse
from mrv2.checks.timeline.intervals import clipped
from mrv2.ci.report.timeline_json import timeline_metrics
from mrv2.ci.report.timeline_text import timeline_lines

from .synthetic import HOST, THREAD, Recording, decode, event

EVENTS = decode(Recording()).events


@pytest.fixture
def read(tmp_path):
    def reading(content):
        path = tmp_path / "trace.json"
        path.write_text(content if isinstance(content, str) else json.dumps({"traceEvents": content}))
        return analyse(path)

    return reading


def changed(change):
    """The events, each after a change of a copy."""
    return [change(json.loads(json.dumps(one))) for one in EVENTS]


def warnings(analysis):
    return [line for line in timeline_lines(analysis) if line.startswith("warning:")]


def as_text(one):
    return {**one, "ts": f"{one['ts']}", "dur": f"{one['dur']}", "args": {k: f"{v}" for k, v in one["args"].items()}}


def with_fractions(one):
    return {**one, "args": {key: float(v) if isinstance(v, int) else v for key, v in one["args"].items()}}


def test_a_size_below_zero_is_no_size(read):
    less = changed(lambda one: {**one, "args": {**one["args"], "bytes": -5}} if "bytes" in one["args"] else one)
    assert {work.num_bytes for work in read(less).timeline.work} == {0}


@pytest.mark.parametrize("change", [as_text, with_fractions])
def test_numbers_as_text_and_with_fractions_are_the_same_numbers(read, change):
    assert timeline_lines(read(changed(change))) == timeline_lines(read(EVENTS))


def test_the_order_of_events_does_not_matter(read):
    shuffled = list(EVENTS)
    random.Random(1).shuffle(shuffled)
    assert timeline_metrics(read(shuffled)) == timeline_metrics(read(EVENTS))


def test_times_since_1970_are_read_to_the_nanosecond(read):
    """As float64, microseconds of this century are multiples of a quarter."""
    text = json.dumps({"traceEvents": EVENTS})
    absolute = re.sub(r'"ts": (\d+)\.(\d+)', lambda found: f'"ts": 17{found[1]:0>14}.{found[2]:0<3}', text)
    assert absolute != text
    steps = timeline_metrics(read(absolute))["steps"]
    assert [{**one, "ahead_us": None} for one in steps] == [
        {**one, "ahead_us": None} for one in timeline_metrics(read(EVENTS))["steps"]
    ]
    near = event("kernel", "near", 0, 0.001, 0, 7, stream=7, device=0)
    times = [f"1712345678901234.00{digit}" for digit in (1, 2)]
    two = json.dumps([{**near, "ts": time} for time in times])
    assert [one.start for one in read(two).timeline.work] == [1712345678901234001, 1712345678901234002]


def test_events_that_are_there_twice_count_once(read):
    once, twice = read(EVENTS), read(EVENTS + EVENTS)
    assert timeline_metrics(twice)["steps"] == timeline_metrics(once)["steps"]
    assert twice.timeline.num_twice == len(EVENTS) == timeline_metrics(twice)["trace"]["there_twice"]
    assert once.timeline.num_twice == 0 and warnings(once) == []
    assert f"{len(EVENTS)} records are there once more, and count once" in warnings(twice)[0]
    assert twice.is_complete


def test_work_that_ends_before_it_begins_is_left_out_and_told(read):
    reversed_ = read(changed(lambda one: {**one, "dur": -one["dur"]} if one["cat"] == "kernel" else one))
    kernels = sum(one["cat"] == "kernel" for one in EVENTS)
    assert reversed_.timeline.source.left_out == kernels == timeline_metrics(reversed_)["trace"]["left_out"]
    assert f"{kernels} records have no times, or end before they begin" in warnings(reversed_)[0]
    assert not reversed_.is_complete
    # One of hundreds is a fault of the profiler that changes nothing.
    few = read([*decode(Recording(), 60).events, event("kernel", "k", 1000, -5, 0, 7)])
    assert few.is_complete and "1 records have no times" in warnings(few)[0]


def test_work_without_numbers_belongs_to_no_step_which_is_told(read):
    analysis = read(changed(lambda one: {**one, "args": {**one["args"], "correlation": 0}}))
    count = len(analysis.timeline.work)
    assert analysis.num_strays == count and not analysis.is_complete
    assert (
        f"the calls behind {count} of {count} kernels, copies and fills are not in the trace" in warnings(analysis)[0]
    )
    assert analysis.devices[0].busy == read(EVENTS).devices[0].busy


def test_a_call_of_the_driver_within_one_of_the_runtime_is_no_second_one(read):
    def calls(name, number):
        runtime = event("cuda_runtime", f"cuda{name}", 1009, 5, HOST, THREAD, correlation=1)
        return [runtime, event("cuda_driver", f"cu{name}", 1010, 2, HOST, THREAD, correlation=number)]

    kernel = event("kernel", "k", 1100, 50, 0, 7, correlation=1, stream=7, device=0)
    for number in (1, 2):
        (step,) = read([*calls("LaunchKernel", number), kernel]).times
        assert (step.launches, sum(step.device.values())) == (1, 50_000)
        (wait,) = read([*calls("StreamSynchronize", number), kernel]).waits
        assert (wait.name, wait.count, wait.total) == ("cudaStreamSynchronize", 1, 5000)
    behind = event("cuda_driver", "cuLaunchKernel", 1020, 2, HOST, THREAD, correlation=3)
    assert read([*calls("LaunchKernel", 2), kernel, behind]).times[0].launches == 2


def test_steps_that_overlap_are_steps_and_those_within_others_are_not(read):
    recording = Recording()
    for number in range(4):
        at = 1000.0 + 1000 * number
        recording.range(f"ProfilerStep#{number}", at, 1100)
        recording.range(f"ProfilerStep#{number}", at + 10, 50)
        recording.kernel("k", at + 310, at + 400, 100)
    analysis = read(recording.events)
    assert [step.name for step in analysis.steps.steps] == [f"ProfilerStep#{number}" for number in range(4)]
    assert [step.end - step.start for step in analysis.steps.steps] == [1_000_000] * 3 + [1_100_000]
    assert [one.launches for one in analysis.times] == [1] * 4


def test_what_is_nobody_s_idea_of_an_event_is_passed_over(read):
    odd = [
        None, 5, "x", [1], {}, {"ph": "X"}, {"ph": ["X"]}, {"ph": "X", "cat": 5, "name": None, "ts": 5, "dur": 1},
        {"ph": "B", "cat": "user_annotation", "name": "q", "ts": 1004, "pid": [1], "tid": {}},
        {"ph": "E", "ts": 1009, "pid": [1], "tid": {}}, {"ph": "E", "ts": 1, "pid": 2},
        {"ph": "X", "cat": "cpu_op", "ts": True, "dur": 1}, {"ph": "X", "cat": "cpu_op", "ts": 1, "dur": "soon"},
    ]  # fmt: skip
    assert timeline_metrics(read(EVENTS + odd))["steps"] == timeline_metrics(read(EVENTS))["steps"]


@pytest.mark.parametrize(
    "content", ["{}", '{"traceEvents": "no"}', '{"traceEvents": null}', '{"a": {"traceEvents": []}}']
)
def test_an_object_without_a_list_of_events_is_refused(read, content):
    with pytest.raises(CheckError, match='has no list "traceEvents"'):
        read(content)


def test_lines_of_events_are_refused(read):
    with pytest.raises(CheckError, match='has no list "traceEvents"'):
        read("\n".join(map(json.dumps, EVENTS)))


@pytest.mark.parametrize("behind", ["junk", json.dumps({"traceEvents": EVENTS}), "]"])
def test_what_goes_on_behind_its_end_is_told(read, behind):
    whole = json.dumps({"traceEvents": EVENTS})
    analysis = read(whole + "\n" + behind)
    assert not analysis.is_complete
    assert f"the file goes on behind the end of the trace, {len(whole) + 1} characters" in warnings(analysis)[0]
    assert read(whole + "\n\0\0 \n").is_complete


def test_no_step_costs_the_length_of_the_trace():
    """A list that counts how often it is looked at, in a window of two of its hundred thousand intervals."""

    class Watched(list):
        looked = 0

        def __getitem__(self, index):
            assert not isinstance(index, slice)
            Watched.looked += 1
            return super().__getitem__(index)

    covered = Watched((10 * number, 10 * number + 5) for number in range(100_000))
    assert clipped(covered, (5002, 5013)) == [(5002, 5005), (5010, 5013)]
    assert Watched.looked < 50
