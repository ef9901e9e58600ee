"""Races between launches name the lines of the kernels."""

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.events import LaneKind, OperationKind, Space
from mrv2.checks.findings import Site
from mrv2.checks.happens_before import HappensBefore
from mrv2.checks.hooks.kernel_lines import RecentLogs
from mrv2.checks.virtual import virtual_device


@triton.jit
def produce(out, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out + lane, 1.0)
    tl.store(out + BLOCK + lane, 2.0)


@triton.jit
def count(out, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    before = tl.load(out + lane)
    tl.atomic_add(out + lane, before)


def line(kernel, text: str) -> str:
    """The line of a kernel that holds a text, as findings show it."""
    lines = kernel.raw_src
    (offset,) = [number for number, code in enumerate(lines) if text in code]
    return f"test_kernel_lines.py:{kernel.starting_line_number + offset}"


def kernel_lines(finding) -> list[list[str]]:
    """Of each side, by the name of the operation."""
    sides = sorted(finding.evidence["operations"], key=lambda side: side["name"])
    return [side.get("kernel_lines", []) for side in sides]


@pytest.fixture(params=["compiled", "interpreted"])
def device(request):
    with virtual_device(kernels=request.param) as opened:
        yield opened


def aside(kernel, *arguments) -> None:
    """Launch on a stream of its own."""
    with torch.cuda.stream(torch.cuda.Stream()):
        kernel[(1,)](*arguments)


def test_both_kernels_of_a_race_name_the_lines_that_touch_the_bytes(device):
    table = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    aside(produce, table, 8)
    aside(count, table[8:], 8)
    torch.cuda.synchronize()
    (finding,) = device.findings
    assert kernel_lines(finding) == [[line(count, "atomic_add")], [line(produce, "2.0")]]


def test_what_is_no_kernel_has_no_lines(device):
    table = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    aside(produce, table, 8)
    table.add_(1)
    torch.cuda.synchronize()
    (finding,) = device.findings
    adding, producing = kernel_lines(finding)
    assert adding == []
    assert producing == [line(produce, "1.0"), line(produce, "2.0")]


class Log:
    """A launch that reads [0, 8) on line 1 and writes [8, 16) on line 2."""

    def __init__(self, size: int) -> None:
        self._size = size

    def ranges(self, *, write: bool):
        return [(8, 16)] if write else [(0, 8)]

    def lines(self, low: int, high: int, *, write: bool):
        return [Site("k.py", 1 + write, "k")]

    def size(self) -> int:
        return self._size


def test_ranges_are_lists_that_know_their_lines():
    reads, writes = RecentLogs().add(Log(1))
    assert (reads, writes) == ([(0, 8)], [(8, 16)])
    assert reads.lines(0, 1) == [Site("k.py", 1, "k")]
    assert writes.lines(8, 9) == [Site("k.py", 2, "k")]


def test_the_oldest_logs_make_room_for_the_latest():
    logs = RecentLogs(limit=10)
    kept = [logs.add(Log(size))[0] for size in (4, 4, 4)]
    assert [len(reads.lines(0, 1)) for reads in kept] == [0, 1, 1]
    assert not logs.add(Log(11))[0].lines(0, 1)


@pytest.mark.parametrize(("limit", "lines"), [(1, ["k.py:2"]), (0, [])])
def test_a_race_with_a_launch_whose_log_is_gone_is_told_without_lines(limit, lines):
    logs, judge = RecentLogs(limit), HappensBefore()
    host = judge.lane(LaneKind.HOST, "MainThread")
    streams = [judge.lane(LaneKind.STREAM, f"stream {number}") for number in (1, 2)]
    judge.allocate(streams[0], 0, 16, Space.DEVICE, ())
    _, writes = logs.add(Log(1))
    for stream, name in zip(streams, "ab", strict=True):
        operation = judge.operation(stream, OperationKind.KERNEL, name, (), issuer=host)
        judge.access(operation, writes, write=True)
    (finding,) = judge.findings
    assert (finding.code, kernel_lines(finding)) == ("MRV204", [lines, lines])
