"""What the GPU suite makes of compute-sanitizer's words."""

import json

import pytest

from mrv2.ci.gpu import sanitizer

STEPS = "========= COMPUTE-SANITIZER\nsteps 12\n"
OUT_OF_BOUNDS = """========= Invalid __global__ write of size 4 bytes
=========     at {kernel}+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: python
"""
HAZARD = """========= Error: Potential WAW hazard detected at __shared__ 0x10 in block (0,0,0) :
=========     Write Thread (64,0,0) at {kernel}+0x70 in attention.py:115
=========     Write Thread (0,0,0) at {kernel}+0x70 in attention.py:115
=========     Current Value : {current}, Incoming Value : {incoming}
"""
RACE = """========= Error: Race reported between Write access at {kernel}+0x70
=========     and Read access at {kernel}+0xb0 [256 hazards]
"""


@pytest.mark.parametrize("fault", [OUT_OF_BOUNDS, RACE])
def test_nothing_but_the_planted_fault_passes(fault):
    result = sanitizer.judge(STEPS + fault.format(kernel="planted"), 1)
    assert (result["outcome"], result["steps"], result["errors"]) == ("passed", 12, {"planted": 1})


@pytest.mark.parametrize("fault", [OUT_OF_BOUNDS, RACE])
def test_a_fault_of_ours_fails(fault):
    result = sanitizer.judge(fault.format(kernel="gather_rows") + STEPS + fault.format(kernel="planted"), 1)
    assert result["outcome"] == "failed" and result["errors"] == {"gather_rows": 1, "planted": 1}


def test_two_stores_of_one_value_are_no_fault():
    hazards = HAZARD.format(kernel="attend", current=7, incoming=7) + RACE.format(kernel="planted")
    result = sanitizer.judge(STEPS + hazards, 1)
    assert (result["outcome"], result["same_value_stores"]) == ("passed", {"attend": 1})


def test_two_stores_of_different_values_are():
    hazards = HAZARD.format(kernel="attend", current=7, incoming=8) + RACE.format(kernel="planted")
    assert sanitizer.judge(STEPS + hazards, 1)["errors"] == {"attend": 1, "planted": 1}


def test_a_read_of_what_is_written_is_one_whatever_the_values():
    hazards = HAZARD.format(kernel="attend", current=7, incoming=7).replace("WAW", "RAW")
    assert sanitizer.judge(STEPS + hazards, 1)["errors"] == {"attend": 1}


def test_a_tool_that_misses_the_planted_fault_fails():
    assert sanitizer.judge(STEPS + "========= ERROR SUMMARY: 0 errors\n", 0)["outcome"] == "failed"


def test_a_tool_that_does_not_start_is_not_run():
    result = sanitizer.judge("========= Error: Device not supported\n", 1)
    assert result["outcome"] == "not run" and "Device not supported" in result["why"]


def test_one_that_does_not_end_is_not_run():
    assert sanitizer.judge(STEPS, None)["outcome"] == "not run"


def test_without_a_tool_it_is_named_as_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(sanitizer, "find_tool", lambda: None)
    assert sanitizer.main(str(tmp_path / "out.json")) == 0
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["outcome"] == "not run" and "neither" in record["why"]
