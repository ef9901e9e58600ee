"""Stretching: the earlier side of a race is parked, and nothing else."""

import pytest

from mrv2.checks.cuda.stretch import Serial, Stretch

from ..race_programs import ITEMS, SEEDED, pinned_source_overwritten
from .facade import on_facade

SEEDED_ITEMS = [item for item in ITEMS if item.source == SEEDED]


def run(program, pace=None):
    with on_facade(pace=pace) as (recorder, _):
        result = program()
        del result
    return recorder.findings, recorder.runtime.backend.slept


@pytest.mark.parametrize("item", SEEDED_ITEMS, ids=lambda item: item.name)
def test_the_earlier_side_of_each_seeded_race_is_parked_once(item):
    findings, slept = run(lambda: item.program(False))
    assert slept == []
    again, slept = run(lambda: item.program(False), Stretch(findings, cycles=5))
    assert slept == [5]
    assert [finding.code for finding in again] == [item.code]


def test_without_findings_nothing_is_parked():
    assert run(lambda: pinned_source_overwritten(False), Stretch(()))[1] == []


def test_a_serial_run_has_no_race_left():
    assert run(lambda: pinned_source_overwritten(False), Serial())[0] == []
