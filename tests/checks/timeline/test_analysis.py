"""What is said of traces whose content is known."""

import os

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.timeline.analysis import analyse
from mrv2.checks.timeline.phases import Part, part_of_kernel, part_of_range
from mrv2.checks.timeline.records import WaitFor, waits_for
from mrv2.ci.report.timeline_json import timeline_metrics
from mrv2.ci.report.timeline_text import timeline_lines
from mrv2.refrunner.phases import Phase

from .synthetic import GPU, HOST, THREAD, Recording, decode, event, write


@pytest.fixture
def analysed(tmp_path):
    def analysed(events, step_name=None, bubble_us=50.0, **header):
        return analyse(write(tmp_path / "trace.json", events, **header), step_name, bubble_us)

    return analysed


def us(times):
    return {part: time / 1000 for part, time in times.items()}


def test_parts_of_a_named_step(analysed):
    analysis = analysed(decode(Recording()).events)
    assert (len(analysis.steps.steps), analysis.steps.found_by) == (4, "ranges mrv2.step")
    second = analysis.times[1]
    assert us(second.host) == {
        Part.SCHEDULER: 50, Part.STAGING: 50, Part.INPUT_PREP: 40, Part.FORWARD: 160, Part.SAMPLER: 50,
        Part.DOWNLOAD: 50, Part.WAIT: 100, Part.OTHER: 500,
    }  # fmt: skip
    assert us(second.device) == {
        Part.STAGING: 10, Part.INPUT_PREP: 30, Part.FORWARD: 598, Part.SAMPLER: 30, Part.DOWNLOAD: 10,
    }  # fmt: skip
    assert (second.launches, second.graph_launches, second.uploads, second.downloads) == (4, 0, 1, 1)
    assert second.upload_bytes == 4096
    assert second.bubble / 1000 == 20 + 2 + 300


def test_idle_time_is_counted_in_long_gaps_only(analysed):
    (device,) = analysed(decode(Recording()).events).devices
    assert (device.device, device.works, device.window / 1000) == (GPU, 24, 3700)
    assert device.busy / 1000 == 3700 - 4 * (20 + 2) - 3 * 300
    assert device.idle_in_gaps / 1000 == 4 * 20 + 3 * 300, "the 2 µs between two kernels are no bubble"


def test_bubbles_above_the_threshold_with_what_the_host_did(analysed):
    analysis = analysed(decode(Recording()).events)
    assert (analysis.num_bubbles, [bubble.length / 1000 for bubble in analysis.bubbles]) == (3, [300, 300, 300])
    bubble = analysis.bubbles[0]
    assert (bubble.before, bubble.after) == ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)")
    shares = dict(bubble.meanwhile)  # the three largest: of 300 µs 100 lie between the steps
    assert shares == pytest.approx({"other": 100 / 300, "forward": 60 / 300, "scheduler": 50 / 300})
    assert analysed(decode(Recording()).events, bubble_us=15.0).num_bubbles == 7
    assert analysed(decode(Recording()).events, bubble_us=300.0).num_bubbles == 0


def test_overlap_of_the_host_with_the_step_before(analysed):
    behind = analysed(decode(Recording()).events)
    assert behind.times[0].ahead is None
    assert behind.times[1].ahead / 1000 == -100, "the device has done 100 µs before the host begins again"
    assert behind.overlap() == 0
    ahead = analysed(decode(Recording(), every=500.0).events)
    # Steps begin every 500 µs, and the device works on each from 200 to 900 µs: on the one before from -300 to 400.
    assert ahead.times[2].ahead / 1000 == 400
    assert ahead.overlap() == pytest.approx(1.0, abs=0.06)


def test_waits_are_listed_with_their_stack(analysed):
    recording = decode(Recording())
    for number in range(4):
        recording.range("engine/loop.py(12): collect", 1000 + number * 1000 + 390, 120, category="python_function")
        recording.range("torch/cuda/streams.py(7): synchronize", 1000 + number * 1000 + 395, 110, "python_function")
    (group,) = analysed(recording.events).waits
    assert (group.name, group.what, group.count, group.steps) == ("cudaEventSynchronize", "event", 4, 4)
    assert (group.total / 1000, group.longest / 1000) == (400, 100)
    assert group.stack == ("engine/loop.py(12): collect",)


def test_waits_of_two_places_are_two(analysed):
    recording = decode(Recording())
    recording.range("engine/loop.py(12): collect", 1390, 120, category="python_function")
    recording.range("engine/loop.py(40): drain", 2390, 1200, category="python_function")
    groups = analysed(recording.events).waits
    assert {(group.stack, group.count) for group in groups} == {
        (("engine/loop.py(12): collect",), 1), (("engine/loop.py(40): drain",), 2), ((), 1),
    }  # fmt: skip


def test_functions_of_objects_are_named_without_their_address(analysed):
    recording = decode(Recording())
    for number in range(4):
        name = f"engine/loop.py(12): collect of Loop object at 0x7f{number}2c"
        recording.range(name, 1390 + 1000 * number, 120, category="python_function")
    (group,) = analysed(recording.events).waits
    assert (group.count, group.stack) == (4, ("engine/loop.py(12): collect of Loop object",))


def test_copies_of_pageable_memory(analysed):
    recording = decode(Recording())
    recording.copy("up", 1070, 1185, 5, 100, "Pageable")
    recording.copy("down", 1370, 1950, 5, 200, "Pageable", took=20)
    analysis = analysed(recording.events)
    assert {(group.what, group.count, group.num_bytes) for group in analysis.pageable} == {
        ("pageable upload", 1, 100), ("pageable download", 1, 200),
    }  # fmt: skip
    assert {group.what for group in analysis.waits} == {"event", "pageable download"}
    recording.copy("up", 2070, 2185, 5, 2 << 20, "Pageable")
    assert "pageable upload" not in {group.what for group in analysed(recording.events).waits}, "the driver stages it"
    recording.copy("up", 2065, 2190, 5, (2 << 20) + 1, "Pageable", took=30)
    analysis = analysed(recording.events)
    assert [(group.what, group.count) for group in analysis.waits if "upload" in group.what] == [("pageable upload", 1)]
    assert us(analysis.times[1].host)[Part.WAIT] == 130
    assert not analysed(decode(Recording()).events).pageable


def test_steps_by_their_period(analysed):
    analysis = analysed(decode(Recording(), named=False).events)
    assert (len(analysis.steps.steps), analysis.steps.found_by) == (
        4, "6 kernels and copies that the device does once in each",
    )  # fmt: skip
    assert [step.start // 1000 for step in analysis.steps.steps] == [1060, 2060, 3060, 4060]
    assert not analysis.has_parts
    assert us(analysis.times[1].device) == {
        Part.STAGING: 10, Part.INPUT_PREP: 30, Part.FORWARD: 598, Part.SAMPLER: 30, Part.DOWNLOAD: 10,
    }  # fmt: skip
    assert us(analysis.times[1].host)[Part.WAIT] == 100


def test_layers_are_no_steps(analysed):
    """A layer of two kernels repeats, too, and every second step has a kernel of its own."""
    recording, at = Recording(), 0.0
    for number in range(5):
        at += 500
        if number % 2:
            recording.kernel("staged_write", at - 5, at + 45, 2)
        for layer in range(12):
            for kernel in ("attend", "project"):
                recording.kernel(kernel, at + 8 * layer, at + 50 + 8 * layer, 2)
        for kernel in ("norm", "logits", "sample"):
            recording.kernel(kernel, at + 110, at + 200, 5)
    analysis = analysed(recording.events)
    assert len(analysis.steps.steps) == 5
    assert [times.launches for times in analysis.times] == [27, 28, 27, 28, 27]


def test_nothing_that_repeats_is_one_step(analysed):
    recording = Recording()
    for index in range(9):
        recording.kernel(f"kernel_{index}", 10.0 * index, 10.0 * index + 5, 2)
    analysis = analysed(recording.events)
    assert (len(analysis.steps.steps), analysis.steps.found_by) == (1, "no sign of steps, so the whole trace is one")


def test_kernels_of_a_graph_belong_to_the_step_that_launched_it(analysed):
    recording = Recording()
    for number in range(3):
        at = 100.0 * number
        recording.range("mrv2.step", at, 50)
        recording.range("mrv2.forward", at, 40)
        correlation = recording.call("GraphLaunch", at + 10, 5)
        for kernel in range(3):
            recording.work("kernel", f"k{kernel}", at + 60 + 10 * kernel, 8, correlation)
    analysis = analysed(recording.events)
    assert [(one.launches, one.graph_launches) for one in analysis.times] == [(1, 1)] * 3
    assert [us(one.device) for one in analysis.times] == [{Part.FORWARD: 24}] * 3


@pytest.mark.parametrize("name", ["execute_context_1(8)_generation_3(3)", "ProfilerStep#4", "step", "EngineCore.step"])
def test_names_that_engines_give_to_steps(analysed, name):
    recording = decode(Recording(), named=False)
    for number in range(4):
        recording.range(name, 1000 + 1000 * number, 500)
    assert analysed(recording.events).steps.found_by == f"ranges {name}"


def test_a_name_of_the_users(analysed):
    recording = decode(Recording())
    for number in range(2):
        recording.range(f"turn {number}", 1000 + 2000 * number, 1500)
    analysis = analysed(recording.events, step_name=r"turn \d+")
    assert [step.name for step in analysis.steps.steps] == ["turn 0", "turn 1"]
    with pytest.raises(CheckError, match=r"one of those that the trace has: mrv2\."):
        analysed(recording.events, step_name="no such name")
    with pytest.raises(CheckError, match="it is a regular expression"):
        analysed(recording.events, step_name="(")


def test_amd(analysed):
    recording = decode(Recording("hip"))
    recording.copy("up", 1070, 1185, 5, 100, "Host")
    analysis = analysed(recording.events)
    assert analysis.timeline.is_amd
    assert [(group.name, group.what, group.count) for group in analysis.waits] == [("hipEventSynchronize", "event", 4)]
    assert [times.launches for times in analysis.times] == [4] * 4
    assert analysis.times[0].uploads == 2
    assert us(analysis.times[1].device)[Part.FORWARD] == 598


def test_only_the_host_was_recorded(analysed):
    recording = Recording()
    for number in range(3):
        recording.range("mrv2.step", 100.0 * number, 90)
        recording.range("mrv2.forward", 100.0 * number + 10, 50)
    analysis = analysed(recording.events)
    assert (analysis.devices, analysis.bubbles, analysis.waits) == ((), (), ())
    assert [us(one.host) for one in analysis.times] == [{Part.FORWARD: 50, Part.OTHER: 50}] * 2 + [
        {Part.FORWARD: 50, Part.OTHER: 40}
    ]


def test_operators_alone_are_no_steps(analysed):
    analysis = analysed([event("cpu_op", "aten::add", 1.0, 2.0)])
    assert (analysis.times, analysis.timeline.num_frames) == ((), 1)


def test_ranks_of_one_process_are_told_apart(analysed):
    first, second = decode(Recording()), Recording(device=1)
    second.correlation = 1000
    for number in range(4):
        second.kernel("other", 1100 + 1000 * number, 1200 + 1000 * number, 100)
    devices = analysed(first.events + second.events, distributedInfo={"rank": 2, "world_size": 4}).devices
    assert [(one.device, one.works, one.busy / 1000) for one in devices] == [(0, 24, 2712), (1, 4, 400)]


def test_processes_whose_calls_have_the_same_numbers_are_refused(analysed):
    merged = decode(Recording()).events + decode(Recording(pid=HOST + 1, device=1)).events
    with pytest.raises(CheckError, match="calls of the processes 100, 101 under the same numbers"):
        analysed(merged)


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name"}], [event("cpu_op", "x", None, 1)]])
def test_nothing_with_a_time_is_refused(analysed, events):
    with pytest.raises(CheckError, match="it holds no event with a time"):
        analysed(events)


def test_a_cut_trace_is_analysed_as_far_as_it_goes(tmp_path):
    path = write(tmp_path / "trace.json", decode(Recording()).events)
    text = path.read_text()
    path.write_text(text[: len(text) * 3 // 4])
    analysis = analyse(path)
    assert "the file ends early" in analysis.timeline.source.cut
    assert len(analysis.steps.steps) == 3


def test_begin_and_end_events_are_ranges(analysed):
    events = decode(Recording(), named=False).events
    for number in range(4):
        thread, at = {"pid": HOST, "tid": THREAD}, 1000 + 1000 * number
        events.append({"ph": "B", "cat": "user_annotation", "name": "step", "ts": at, **thread})
        events.append({"ph": "E", "ts": at + 500, **thread})
    assert [step.end - step.start for step in analysed(events).steps.steps] == [500_000] * 4


def test_every_phase_of_the_runner_has_its_part():
    parts = {phase: part_of_range(phase.value) for phase in Phase}
    assert parts.pop(Phase.STEP) is None
    assert len(set(parts.values())) == len(parts) and None not in parts.values()
    assert part_of_range("gpu_model_runner: forward") is Part.FORWARD and part_of_range("holiday") is None


def test_calls_that_wait():
    assert waits_for("cudaStreamSynchronize_v3020") is waits_for("hipStreamSynchronize") is WaitFor.STREAM
    assert waits_for("cuCtxSynchronize") is waits_for("cudaDeviceSynchronize") is WaitFor.DEVICE
    assert waits_for("cudaMemcpy") is WaitFor.COPY
    assert [waits_for(name) for name in ("cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaLaunchKernel")] == [None] * 3


def test_kernels_by_their_names():
    assert part_of_kernel("void at::native::reduce_kernel<argmax>") is Part.SAMPLER
    assert part_of_kernel("compute_slot_mapping") is Part.INPUT_PREP
    assert part_of_kernel("sm90_xmma_gemm_bf16") is Part.FORWARD


@pytest.mark.parametrize("value", [1e306, -1e306, 1e300, 10**400, 2**63, "1e400", float("nan")])
def test_moments_and_numbers_of_more_than_64_bits_are_none(analysed, value):
    events = decode(Recording()).events
    whole = analysed(events)
    copy = {**events[0], "cat": "gpu_memcpy", "name": "Memcpy HtoD"}
    times = [{**events[0], "ts": value}, {**events[0], "dur": value}]
    numbers = [{**copy, "args": {name: value}} for name in ("bytes", "correlation")]
    analysis = analysed([*events, *times, *numbers])
    assert timeline_metrics(analysis)["steps"] == timeline_metrics(whole)["steps"]
    assert timeline_lines(analysis)


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckError, match="not a pipe or a device"):
        analyse(tmp_path / "pipe")
