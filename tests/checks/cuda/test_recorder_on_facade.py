"""The race recorder over a device that is played: the catalogue of races, without a GPU."""

import pytest

from tests.checks.race_programs import ITEMS

from .facade import on_facade

#: Found inside of a kernel, by running it: not this front end's; and a wait that torch does not tell of.
NOT_HERE = {"MRV211", "MRV212", "MRV210"}
ids = [f"{entry.source[:6]}-{entry.name}" for entry in ITEMS]


def run(item, mended):
    with on_facade() as (recorder, device):
        result = item.program(mended)
        del result
    return recorder.findings, device.findings


each_item = pytest.mark.parametrize("item", ITEMS, ids=ids)


@each_item
def test_the_recorder_finds_what_the_virtual_device_finds(item):
    if item.code in NOT_HERE:
        pytest.skip(f"{item.code} is not the recorder's")
    recorded, _ = run(item, False)
    assert [finding.code for finding in recorded] == [item.code]


@each_item
def test_the_mended_program_is_silent(item):
    recorded, _ = run(item, True)
    assert [finding.title for finding in recorded] == []
