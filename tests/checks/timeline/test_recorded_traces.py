"""Traces recorded on an H200 (``ci/gpu/record_traces.py``): the analyzer against counting their events again."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from mrv2.checks.timeline.analysis import analyse
from mrv2.checks.timeline.loading import Launches, load
from mrv2.checks.timeline.phases import Part
from mrv2.checks.timeline.steps import find_steps

FOLDER = Path(__file__).parent / "traces"
FACTS = json.loads((FOLDER / "facts.json").read_text())
NAMES = {
    "mrv2.scheduler": Part.SCHEDULER, "mrv2.state_update": Part.STATE_UPDATE, "mrv2.staging": Part.STAGING,
    "mrv2.input_prep": Part.INPUT_PREP, "mrv2.forward": Part.FORWARD, "mrv2.sampler": Part.SAMPLER,
    "mrv2.drafting": Part.DRAFTING, "mrv2.download": Part.DOWNLOAD, "mrv2.wait": Part.WAIT,
}  # fmt: skip
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ANNOTATED = sorted(name for name, facts in FACTS.items() if facts["runner"])


class Plain:
    """The events of a trace, as they are in the file; times in µs."""

    def __init__(self, name):
        events = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))["traceEvents"]
        self.events = [event for event in events if event["ph"] == "X"]

    def of(self, *categories):
        return [event for event in self.events if event["cat"] in categories]

    def steps(self):
        """Begin of each step, and that of the next one or the end of the last."""
        ranges = [event for event in self.of("user_annotation") if event["name"] == "mrv2.step"]
        starts = [event["ts"] for event in ranges]
        return list(zip(starts, [*starts[1:], ranges[-1]["ts"] + ranges[-1]["dur"]], strict=True))

    def within(self, step, *categories):
        return [event for event in self.of(*categories) if step[0] <= event["ts"] < step[1]]

    def own_times(self, step):
        """Time in each range of a step without the ranges, and the waits, that lie in it."""
        ranges = [event for event in self.within(step, "user_annotation") if event["name"] in NAMES]
        waits = [event for event in self.within(step, "cuda_runtime") if event["name"] == "cudaEventSynchronize"]
        spans = [(one["ts"], one["ts"] + one["dur"], one["name"]) for one in ranges]
        spans += [(one["ts"], one["ts"] + one["dur"], "mrv2.wait") for one in waits]
        own = Counter()
        for low, high, name in spans:
            own[name] += high - low
            around = [one for one in spans if one[0] <= low and high <= one[1] and one != (low, high, name)]
            if around:
                own[min(around, key=lambda one: one[1] - one[0])[2]] -= high - low
        return own

    def launched(self, step):
        """Device work of the calls of a step."""
        calls = {event["args"]["correlation"] for event in self.within(step, "cuda_runtime", "cuda_driver")}
        return [event for event in self.of(*ON_DEVICE) if event["args"]["correlation"] in calls]


def idle(work, low, high, least=0.0):
    """Idle time between two moments in gaps longer than the least, found by walking along the work."""
    total, at = 0.0, low
    for event in sorted(work, key=lambda one: one["ts"]):
        gap = min(event["ts"], high) - at
        total += gap if gap > least else 0.0
        at = max(at, event["ts"] + event["dur"])
    return total + (high - at if high - at > least else 0.0)


@pytest.fixture(scope="module", params=ANNOTATED)
def both(request):
    return Plain(request.param), analyse(FOLDER / f"{request.param}.json.gz"), FACTS[request.param]


def test_steps_are_those_that_were_run(both):
    plain, analysis, facts = both
    assert len(analysis.steps.steps) == len(plain.steps()) == facts["steps"]
    assert analysis.steps.found_by == "ranges mrv2.step"


def test_host_time_by_part_is_that_of_the_ranges(both):
    plain, analysis, _ = both
    for step, times in zip(plain.steps(), analysis.times, strict=True):
        own = plain.own_times(step)
        for name, part in NAMES.items():
            assert times.host.get(part, 0) / 1000 == pytest.approx(own.get(name, 0.0), abs=0.05)
        assert sum(times.host.values()) / 1000 == pytest.approx(step[1] - step[0], abs=0.01)


def test_device_time_is_that_of_what_the_step_launched(both):
    plain, analysis, _ = both
    for step, times in zip(plain.steps(), analysis.times, strict=True):
        launched = plain.launched(step)
        assert sum(times.device.values()) / 1000 == pytest.approx(sum(one["dur"] for one in launched), abs=0.1)
        uploads = [one for one in launched if "HtoD" in one["name"]]
        assert (times.uploads, times.upload_bytes) == (len(uploads), sum(one["args"]["bytes"] for one in uploads))
        assert times.downloads == sum("DtoH" in one["name"] for one in launched)
        sampler = sum(one["dur"] for one in launched if "sample" in one["name"] or "combine_blocks" in one["name"])
        assert times.device[Part.SAMPLER] / 1000 == pytest.approx(sampler, abs=0.1)


def test_launches_are_the_calls_that_launch(both):
    plain, analysis, _ = both
    for step, times in zip(plain.steps(), analysis.times, strict=True):
        calls = [event["name"] for event in plain.within(step, "cuda_runtime", "cuda_driver")]
        assert times.launches == sum("LaunchKernel" in name or "GraphLaunch" in name for name in calls)
        assert times.graph_launches == calls.count("cudaGraphLaunch")


def test_idle_time_and_its_long_gaps(both):
    plain, analysis, _ = both
    work = plain.of(*ON_DEVICE)
    mine = [event for step in plain.steps() for event in plain.launched(step)]
    low, high = min(one["ts"] for one in mine), max(one["ts"] + one["dur"] for one in mine)
    (device,) = analysis.devices
    assert device.window / 1000 == pytest.approx(high - low, abs=0.01)
    assert (device.window - device.busy) / 1000 == pytest.approx(idle(work, low, high), abs=0.5)
    assert device.idle_in_gaps / 1000 == pytest.approx(idle(work, low, high, 5.0), abs=0.5)
    starts = [min(one["ts"] for one in plain.launched(step)) for step in plain.steps()]
    for times, begin, end in zip(analysis.times, starts, [*starts[1:], high], strict=True):
        assert times.bubble / 1000 == pytest.approx(idle(work, begin, end), abs=1.0)


def test_waits_in_a_step_are_those_of_the_design(both):
    """The reference runner waits for its output alone, the older design for its inputs to be read as well."""
    plain, analysis, facts = both
    (group,) = analysis.waits
    each = {"refrunner": 1, "baseline_v1": 2}[facts["runner"]]
    assert (group.name, group.count, group.steps) == ("cudaEventSynchronize", each * facts["steps"], facts["steps"])
    waits = [event for event in plain.of("cuda_runtime") if event["name"] == "cudaEventSynchronize"]
    assert group.total / 1000 == pytest.approx(sum(one["dur"] for one in waits), abs=0.01)
    assert not analysis.pageable
    assert not any("Pageable" in event["name"] for event in plain.of("gpu_memcpy"))


@pytest.mark.parametrize(("name", "found_by"), [("ordinary", "once in each"), ("ordinary_marked", "ranges step")])
def test_an_ordinary_program(name, found_by):
    plain, analysis, facts = Plain(name), analyse(FOLDER / f"{name}.json.gz"), FACTS[name]
    steps = facts["steps"]
    assert len(analysis.steps.steps) == steps and found_by in analysis.steps.found_by
    uploads = [event for event in plain.of("gpu_memcpy") if event["name"] == "Memcpy HtoD (Pageable -> Device)"]
    pageable = {group.what: group for group in analysis.pageable}
    assert len(uploads) == pageable["pageable upload"].count == steps * facts["pageable uploads per step"]
    assert pageable["pageable upload"].num_bytes == sum(event["args"]["bytes"] for event in uploads)
    items = [group for group in analysis.waits if group.stack[0] == "aten::item"]
    assert [(group.name, group.count) for group in items] == [
        ("cudaStreamSynchronize", steps * facts["items per step"])
    ]
    streams = sum(group.count for group in analysis.waits if group.name == "cudaStreamSynchronize")
    assert streams == steps * facts["waiting downloads per step"]
    assert streams == sum(event["name"] == "cudaStreamSynchronize" for event in plain.of("cuda_runtime"))
    assert all("record_traces.py" in group.stack[1] and group.stack[1].endswith(": step") for group in analysis.waits)


@pytest.mark.parametrize("name", ["v1_tiny", "v1_06b", "v2_tiny", "v2_06b", "v2_tiny_arrivals"])
def test_steps_are_found_without_their_names(name):
    timeline = load(FOLDER / f"{name}.json.gz")
    timeline.ranges.clear()
    found = find_steps(timeline, Launches(timeline))
    assert len(found.steps) == FACTS[name]["steps"], found.found_by
    # They begin with the upload, so each begins within a step as it was named.
    assert all(
        low < step.start / 1000 < high for step, (low, high) in zip(found.steps, Plain(name).steps(), strict=True)
    )
