"""Uninitialised memory that reaches a result is found and named; what is written first, or never read, is not."""

import itertools
from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.codes import CODES
from mrv2.checks.virtual import VirtualDeviceError
from mrv2.checks.virtual.memory import POISON
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.uninitialised import find_uninitialised


@triton.jit
def double_first(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=lane < n) * 2, mask=lane < n)


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    end = n if MASKED else BLOCK
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + lane, mask=lane < end, other=0.0), 0))


def fresh(size=4, **options):
    return torch.empty(size, device="cuda", **options)


def used_before_written():
    torch.ones(4, device="cuda")
    return fresh() + torch.ones(4, device="cuda")


def written_before_used():
    return fresh().fill_(1) + torch.ones(4, device="cuda")


def partly_written(read=4):
    x, out = torch.ones(4, device="cuda"), fresh()
    double_first[(1,)](x, out, 3, BLOCK=4)
    return out[:read]


def written_part_read():
    return partly_written(3)


def padded_lane_read(masked=False):
    x, out = fresh(), torch.zeros(1, device="cuda")
    x[:3] = 1
    total[(1,)](x, out, 3, BLOCK=4, MASKED=masked)
    return out


def padded_lane_masked():
    return padded_lane_read(masked=True)


def never_read():
    fresh(), torch.empty(4, pin_memory=True)
    return torch.ones(4, device="cuda")


def freed_before_the_next_owner_writes():
    x = fresh().fill_(3)
    del x
    return torch.zeros(4, device="cuda")


def pinned_memory_uploaded():
    return torch.empty(4, pin_memory=True).to("cuda", non_blocking=True)


def hidden_by_an_activation():
    return fresh().relu()


def mask_read():
    return fresh(dtype=torch.bool)


def index_read():
    return torch.arange(4, device="cuda")[fresh(1, dtype=torch.int64) % 4]


def decides_where_the_program_goes():
    return torch.zeros(3) if fresh(1).item() < 0 else [fresh(2).zero_() for _ in range(9)]


def raises():
    return 1 / max(0, int(fresh(1, dtype=torch.int32).item()))


WRONG = {
    used_before_written: "fresh",
    partly_written: "fresh",
    padded_lane_read: "fresh",
    pinned_memory_uploaded: "pinned_memory_uploaded",
    hidden_by_an_activation: "fresh",
    mask_read: "fresh",
    index_read: "fresh",
    decides_where_the_program_goes: "fresh",
    raises: "fresh",
}
RIGHT = (
    written_before_used, written_part_read, padded_lane_masked, never_read, freed_before_the_next_owner_writes,
)  # fmt: skip


@pytest.mark.parametrize("schedule", ["early", "late", "random:1"])
@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_found_with_the_place_of_the_allocation(program, schedule):
    (finding,) = find_uninitialised(program, schedule)
    assert (finding.code, finding.soundness) == ("MRV213", CODES["MRV213"].soundness)
    assert finding.allocation[0].function == WRONG[program]
    assert program.__name__ in {site.function for site in finding.allocation}
    one, two = finding.evidence["values"]
    assert one != two and finding.evidence["poison"][0] == POISON and finding.remedy


@pytest.mark.parametrize("schedule", ["early", "late", "random:1"])
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_nothing_is_found(program, schedule):
    assert find_uninitialised(program, schedule) == []


@pytest.mark.parametrize("place", [0, 1, 5, 11])
def test_the_allocation_is_found_among_many(place):
    def program():
        return [fresh(1 + index) if index == place else fresh(1 + index).fill_(index) for index in range(12)]

    (finding,) = find_uninitialised(program)
    assert finding.evidence["block_size"] == 4 * (1 + place)
    assert finding.evidence["result"] == f"result[{place}][0]"


@dataclass
class Output:
    tokens: dict
    count: int = 1


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda x: {"r1": (7, x)}, "result['r1'][1][0]"),
        (lambda x: Output({3: x}), "result['tokens'][3][0]"),
        (lambda x: x.sum().item(), "result"),
    ],
)
def test_the_path_names_the_value(wrap, path):
    (finding,) = find_uninitialised(lambda: wrap(fresh()))
    assert finding.evidence["result"] == path


def test_what_the_program_raised_is_a_result():
    (finding,) = find_uninitialised(raises)
    assert finding.evidence["result"] == "error"
    assert "ZeroDivisionError" in finding.evidence["values"][0]


def test_a_result_of_another_length():
    (finding,) = find_uninitialised(lambda: [0] * (3 if fresh(1).item() < 0 else 2))
    assert (finding.evidence["result"], finding.evidence["values"]) == ("result[2]", [0, "(nothing)"])


def test_a_program_that_differs_by_itself_is_an_error():
    calls = itertools.count()
    with pytest.raises(VirtualDeviceError, match="two runs with the same poison") as caught:
        find_uninitialised(lambda: [0, next(calls)])
    assert "result[1] was 0 and then 1" in caught.value.rule


def test_each_allocation_can_hold_a_byte_of_its_own():
    def program():
        return [fresh(2, dtype=torch.uint8), torch.empty(1, dtype=torch.uint8, pin_memory=True), fresh(0)]

    assert run_program(program, poison=lambda number: 10 + number).data == [[10, 10], [11], []]
    assert run_program(program, poison=7).data == [[7, 7], [7], []]


@pytest.mark.parametrize("ending", [SystemExit(0), KeyError("x")])
def test_a_program_that_never_comes_to_its_end_is_no_clean_one(ending):
    def program():
        torch.zeros(4, device="cuda")
        raise ending

    with pytest.raises(VirtualDeviceError, match=f"it raised {type(ending).__name__}"):
        find_uninitialised(program)
