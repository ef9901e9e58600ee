"""Counts of what a step gives the device to do, and what differs from a record of them."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from mrv2.checks.codes import CODES
from mrv2.checks.findings import Verdict
from mrv2.checks.happens_before.core import HappensBefore
from mrv2.checks.happens_before.recording import Tee
from mrv2.checks.timeline.step_counts import StepCounter, StepCounts, Work, WorkKind, deviations
from mrv2.checks.virtual import virtual_device

KINDS = (WorkKind.LAUNCH, WorkKind.UPLOAD, WorkKind.DOWNLOAD, WorkKind.EVENT, WorkKind.HOST_WAIT)


def step(more: bool = False) -> None:
    source = torch.ones(16, pin_memory=True)
    on_device = source.to("cuda", non_blocking=True)
    doubled = on_device + on_device
    if more:
        doubled = doubled * 1.0  # the launch that a test is to find
    target = torch.empty(16, pin_memory=True)
    target.copy_(doubled, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def counted(*kinds: bool, schedule: str = "late") -> dict[int | None, StepCounts]:
    counter = StepCounter()
    with virtual_device(schedule, sink=counter) as device:
        for number, more in enumerate(kinds):
            with device.at_step(number):
                step(more)
    return counter.steps


def test_a_step_is_counted() -> None:
    counts = counted(False)[0]
    assert [counts.total(kind) for kind in KINDS] == [1, 1, 1, 1, 1]
    assert counts.num_bytes == {WorkKind.UPLOAD: 64, WorkKind.DOWNLOAD: 64}
    assert counts.work[Work(WorkKind.LAUNCH, "aten.add", "step < counted")] == 1
    assert counts.read_in_place == 0


def test_equal_steps_have_equal_counts_on_every_schedule() -> None:
    late, early = counted(False, False), counted(False, schedule="early")
    assert late[0].as_json() == late[1].as_json() == early[0].as_json()
    assert deviations("decode", late[0].as_json(), late[1]) == []


def test_one_launch_more_is_named_with_its_line() -> None:
    steps = counted(False, True)
    (finding,) = deviations("decode", steps[0].as_json(), steps[1])
    text = Path(__file__).read_text().splitlines()
    (line,) = (number for number, content in enumerate(text, 1) if content.endswith("that a test is to find"))
    assert (finding.code, finding.verdict) == ("MRV123", Verdict.VIOLATION)
    assert finding.soundness is CODES["MRV123"].soundness
    assert finding.title == "decode: 1 more than recorded: launch aten.mul"
    assert finding.where[0].file.endswith("test_step_counts.py") and finding.where[0].line == line
    assert finding.evidence == {"step": "decode", "recorded": 0, "counted": 1}


def test_one_launch_fewer_is_told_too() -> None:
    steps = counted(True, False)
    (finding,) = deviations("decode", steps[0].as_json(), steps[1])
    assert finding.title == "decode: 1 fewer than recorded: launch aten.mul"


def test_work_that_moved_to_another_function_is_no_difference() -> None:
    counts = counted(True)[0]
    record = json.loads(json.dumps(counts.as_json()).replace("in step <", "in earlier_name <"))
    assert record != counts.as_json() and deviations("decode", record, counts) == []


def test_the_place_that_grew_is_shown() -> None:
    def twice() -> None:
        for _ in range(2):
            values.neg()

    def once() -> None:
        values.neg()

    counter = StepCounter()
    with virtual_device(sink=counter) as device:
        values = torch.ones(4, device="cuda")
        for number in range(2):
            with device.at_step(number):
                twice()
                for _ in range(number + 1):
                    once()
    (finding,) = deviations("decode", counter.steps[0].as_json(), counter.steps[1])
    assert finding.title == "decode: 1 more than recorded: launch aten.neg"
    assert finding.where[0].function.endswith("once") and finding.evidence["recorded"] == 3


def test_bytes_are_compared() -> None:
    counts = counted(False)[0]
    record = counts.as_json()
    counts.num_bytes[WorkKind.UPLOAD] += 16
    (finding,) = deviations("decode", record, counts)
    assert finding.title == "decode: 16 more than recorded: bytes of upload"


def test_work_of_a_graph_is_no_launch() -> None:
    counter = StepCounter()
    with virtual_device(sink=counter) as device:
        values = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values.add_(1)
            values.mul_(2)
        with device.at_step(0):
            graph.replay()
    counts = counter.steps[0]
    assert (counts.total(WorkKind.GRAPH_LAUNCH), counts.total(WorkKind.GRAPH_NODE)) == (1, 2)
    assert counts.total(WorkKind.LAUNCH) == counts.total(WorkKind.EVENT) == 0


@pytest.mark.parametrize("way", ["item", "mask", "synchronize"])
def test_waits_of_the_host_are_counted(way: str) -> None:
    counter = StepCounter()
    with virtual_device(sink=Tee(HappensBefore(), counter)) as device:
        values = torch.ones(4, device="cuda")
        with device.at_step(0):
            if way == "item":
                values[0].item()
            elif way == "mask":
                _ = values[values > 0]
            else:
                torch.cuda.synchronize()
    assert counter.steps[0].total(WorkKind.HOST_WAIT) == 1


def test_each_kind_of_work_has_a_stack() -> None:
    counts = counted(False)[0]
    assert {work: len(stacks) for work, stacks in counts.stacks.items()} == Counter(counts.work)
