"""The race recorder over a device that is played: the catalogue of races, without a GPU."""

import pytest
import torch

from mrv2.checks.virtual.runs import run_program

from ..race_programs import ITEMS, device
from .facade import on_facade

#: Found inside of a kernel, by running it: not this front end's; and a wait that torch does not tell of.
NOT_HERE = {"MRV211", "MRV212", "MRV210"}


def run(program):
    with on_facade() as (recorder, _):
        result = program()
        del result
    return recorder.findings


def places(findings):
    """What a finding says that both front ends know alike: names of operations differ, places do not."""
    return [
        (finding.code, finding.verdict, line(finding.where), line(finding.other), finding.evidence.get("offset"))
        for finding in findings
    ]


def line(sites):
    """The innermost line of the program: what plays the device has frames of its own."""
    return next((site.line for site in sites if site.file.endswith("race_programs.py")), None)


@pytest.mark.parametrize(
    "item", [item for item in ITEMS if item.code not in NOT_HERE], ids=lambda item: f"{item.source[:6]}-{item.name}"
)
def test_the_recorder_finds_what_the_virtual_device_finds(item):
    recorded, expected = run(lambda: item.program(False)), run_program(lambda: item.program(False)).findings
    assert [finding.code for finding in recorded] == [item.code]
    assert places(recorded) == places(expected)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item.source[:6]}-{item.name}")
def test_the_mended_program_is_silent(item):
    assert [finding.title for finding in run(lambda: item.program(True))] == []


@pytest.mark.parametrize("mended", [False, True])
def test_polls_of_both_classes_of_events_order(mended):
    def program():
        result, event = device().to("cpu", non_blocking=True), torch.Event()
        event.record()
        while mended and not event.query():
            pass
        return result.tolist()

    assert [finding.code for finding in run(program)] == ([] if mended else ["MRV203"])


def test_questions_about_pinned_memory_read_nothing():
    """Beside a download that is under way; a look at the values is a race."""

    def program(look):
        with on_facade() as (recorder, _):
            host = torch.zeros(8, pin_memory=True)
            host.copy_(torch.ones(8, device="cuda"), non_blocking=True)
            look(host)
            torch.cuda.synchronize()
        return [finding.code for finding in recorder.findings]

    assert program(lambda host: (host.is_pinned(), host.is_set_to(host), torch.is_same_size(host, host))) == []
    assert program(lambda host: host.sum()) == ["MRV203"]
