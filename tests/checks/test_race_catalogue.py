"""Every kind of race that must be caught, and every look-alike that must not, in every schedule."""

import functools
from collections import Counter

import pytest
import torch

from mrv2.checks.findings import Verdict
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import Schedule
from mrv2.checks.virtual.uninitialised import find_uninitialised

from .race_programs import CATCH, CONTROL, CORRECT, ITEMS, QUIET, SEEDED, STEP, pinned_source_overwritten

SCHEDULES = ("late", "early", "random:1", "random:2", "starve:0", "starve:1", "starve:2")
RACES = ("MRV201", "MRV202", "MRV203", "MRV204", "MRV205", "MRV206")
OTHERS_OF_MEMORY = ("MRV211", "MRV212", "MRV501")
ids = [f"{entry.source[:6]}-{entry.name}" for entry in ITEMS]
each_item = pytest.mark.parametrize("item", ITEMS, ids=ids)
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def findings_of(item, mended, schedule):
    # Not as text, which must name streams that exist: few of these programs make three.
    run = run_program(item.twin(mended), Schedule.parse(schedule))
    assert run.error is None
    return run.findings


@each_schedule
@each_item
def test_the_wrong_program_is_found(item, schedule):
    (finding,) = findings_of(item, False, schedule)
    assert finding.code == item.code
    assert finding.step == STEP
    assert finding.remedy
    assert finding.where and all("race_programs.py" in site.file for site in finding.where)
    assert finding.verdict is (Verdict.SUSPECT if item.code == "MRV210" else Verdict.VIOLATION)


@each_schedule
@each_item
def test_the_mended_program_is_not(item, schedule):
    assert findings_of(item, True, schedule) == ()


@each_schedule
@each_item
def test_every_schedule_gives_the_same_findings(item, schedule):
    def known(schedule):
        return [finding.fingerprint() for finding in findings_of(item, False, schedule)]

    assert known(schedule) == known("late")


def with_code(codes):
    chosen = [entry for entry in ITEMS if entry.code in codes]
    return pytest.mark.parametrize("item", chosen, ids=lambda item: item.name)


@with_code(RACES)
def test_a_race_comes_with_all_that_there_is_to_know(item):
    (finding,) = findings_of(item, False, "late")
    low, high = finding.evidence["offset"]
    assert 0 <= low < high <= finding.evidence["block_size"]
    assert finding.other and finding.allocation
    assert finding.evidence["missing_edge"].startswith("nothing ")


@with_code(OTHERS_OF_MEMORY)
def test_what_else_is_wrong_with_memory_names_its_bytes_and_its_allocation(item):
    (finding,) = findings_of(item, False, "late")
    low, high = finding.evidence["bytes"]
    assert low < high and finding.evidence["block"]["size"] == 16
    assert finding.allocation and (finding.other or item.code == "MRV212")


def test_the_lists_are_complete():
    assert Counter(item.source for item in ITEMS) == {CATCH: 14, QUIET: 12, SEEDED: 8, CORRECT: 3, CONTROL: 2}


@each_schedule
def test_uninitialised_memory_that_reaches_a_result(schedule):
    def wrong():
        return torch.empty(4, device="cuda") + 1

    def mended():
        return torch.empty(4, device="cuda").fill_(0) + 1

    (finding,) = find_uninitialised(wrong, Schedule.parse(schedule))
    assert finding.code == "MRV213" and finding.allocation[0].function.endswith("wrong") and finding.remedy
    assert find_uninitialised(mended, Schedule.parse(schedule)) == []


def test_the_first_bug_gives_wrong_data_whenever_the_device_is_late():
    for _ in range(3):
        assert run_program(lambda: pinned_source_overwritten(False)).data == [2.0] * 4
    assert run_program(lambda: pinned_source_overwritten(True)).data == [1.0] * 4
