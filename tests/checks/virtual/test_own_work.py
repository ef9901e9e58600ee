"""What the device does by itself is no doing of the program's, whichever call of the program makes it do it now."""

import copy

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.semantics import LAUNCH_QUEUE_ENTRIES
from mrv2.checks.virtual import register_op, uva_view, virtual_device
from mrv2.checks.virtual.explore import explore

from .conftest import RecordingSink, codes

MORE_THAN_FIT = LAUNCH_QUEUE_ENTRIES + 30


#: What the operator below raises once, by the address of what it is given.
INTERRUPTS: dict[int, type[BaseException]] = {}


def _interrupted(x: torch.Tensor) -> None:
    if x.data_ptr() in INTERRUPTS:
        raise INTERRUPTS.pop(x.data_ptr())
    x.add_(1)


register_op("mrv2_test_own_work::interrupted", _interrupted, reads=(), writes=("x",))


def _in_python(x: torch.Tensor) -> torch.Tensor:
    """Twice its argument, by what torch does in Python."""
    copies = [copy.deepcopy(x), x.to(torch.float64).to(x.dtype), torch.tensor(x.tolist()), torch.as_tensor(x.numpy())]
    copies += [x.new_tensor([0] * 4), torch.from_dlpack(x.clone())]
    return sum(copies, -3 * x)


register_op("mrv2_test_own_work::in_python", _in_python, reads=("x",), writes=())


@triton.jit
def increment(values, count: tl.constexpr):
    lanes = tl.arange(0, count)
    tl.store(values + lanes, tl.load(values + lanes) + 1)


def launch(x):
    increment[(1,)](x, 4)


def sleep(x):
    torch.cuda._sleep(100)


def in_place(x):
    x.add_(1)


LAUNCHES = {"kernel": launch, "sleep": sleep, "operator": in_place}


class TestFullQueue:
    """A launch for which the queue has no room runs the oldest operations, whatever kind of call it is."""

    @pytest.mark.parametrize("kind", LAUNCHES)
    def test_work_made_room_for_is_the_devices(self, late, kind):
        x, other = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        host = torch.zeros(4, pin_memory=True)
        for _ in range(40):
            other.copy_(x).add_(1)
        for _ in range(MORE_THAN_FIT):
            LAUNCHES[kind](x)
        torch.cuda.synchronize()
        assert codes(late) == [] and other.tolist() == [1] * 4 and host.tolist() == [0] * 4

    def test_replays(self, late):
        x, host, graph = torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x.add_(1) * 2
            launch(x)
        for _ in range(MORE_THAN_FIT):
            graph.replay()
        torch.cuda.synchronize()
        assert codes(late) == [] and y.tolist() == [2 * (2 * MORE_THAN_FIT - 1)] * 4 and host.tolist() == [0] * 4

    def test_outside_of_inference_mode(self, late):
        with torch.inference_mode():
            x = torch.zeros(4, device="cuda")
            y = x.add_(1).mul_(3) + 1
        z = torch.zeros(4, device="cuda")
        for _ in range(MORE_THAN_FIT):
            launch(z)
        assert y.tolist() == [4] * 4 and codes(late) == []

    def test_a_race_is_found_as_before(self, vd):
        x, host = torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True)
        x.copy_(host, non_blocking=True)
        for _ in range(MORE_THAN_FIT):
            launch(x)
        host.fill_(1)
        assert codes(vd) == ["MRV201"]


WRITERS = {
    "download": lambda host, x: host.copy_(x, non_blocking=True),
    "in place": lambda host, x: uva_view(host).copy_(x),
    "kernel": lambda host, x: launch(host),
}


class TestReplayedUpload:
    """A replay remembers what the source of an upload holds; that is no read of the host's."""

    @pytest.mark.parametrize("kind", WRITERS)
    def test_source_written_inside_the_graph(self, vd, kind):
        x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        host = torch.zeros(4, pin_memory=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            WRITERS[kind](host, x.add_(1))
            y.copy_(host, non_blocking=True)
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        assert codes(vd) == [] and y.tolist() == host.tolist() == [4] * 4

    def test_source_written_on_another_stream_before_the_replay(self, vd):
        x, y, host = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True)
        graph, side, main = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        with torch.cuda.graph(graph):
            y.copy_(host, non_blocking=True)
        for _ in range(4):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                host.copy_(x.add_(1), non_blocking=True)
            main.wait_stream(side)
            graph.replay()
        torch.cuda.synchronize()
        assert codes(vd) == [] and y.tolist() == [4] * 4

    @pytest.mark.parametrize("code", ["MRV201", "MRV207"])
    def test_source_written_by_the_host(self, vd, code):
        y, host, graph = torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True), torch.cuda.CUDAGraph()
        memory = memoryview(host.numpy()).cast("B")
        with torch.cuda.graph(graph):
            y.copy_(host, non_blocking=True)
        graph.replay()
        if code == "MRV201":
            host[0] = 1
        else:
            memory[0] = 1
        torch.cuda.synchronize()
        assert codes(vd) == [code]


class TestInterrupt:
    """An interrupt inside of deferred work ends the program with that interrupt, and nothing else."""

    @staticmethod
    def program(kind, results):
        x, y, host = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True)
        results.append(host)
        INTERRUPTS[x.data_ptr()] = kind
        torch.ops.mrv2_test_own_work.interrupted(x)
        y.add_(1)
        host.copy_(y, non_blocking=True)
        torch.cuda.synchronize()

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_raised_to_the_program(self, kind, schedule):
        with pytest.raises(kind), virtual_device(schedule) as vd:
            self.program(kind, [])
        assert INTERRUPTS == {} and codes(vd) == []

    @pytest.mark.parametrize("held_back", ["late", "starve:0"])
    def test_what_is_behind_it_runs(self, held_back):
        results = []
        with pytest.raises(KeyboardInterrupt), virtual_device(held_back) as vd:
            self.program(KeyboardInterrupt, results)
        assert results[0].tolist() == [1] * 4 and codes(vd) == []

    def test_none(self, vd):
        x = torch.zeros(4, device="cuda")
        torch.ops.mrv2_test_own_work.interrupted(x)
        assert x.tolist() == [1] * 4 and codes(vd) == []


class TestEndedBranches:
    """A graph is dropped or reset while a branch of its replay is pending."""

    @staticmethod
    def program(end, ordered):
        x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        graph, side, main = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        with torch.cuda.graph(graph):
            captured = torch.cuda.current_stream()
            side.wait_stream(captured)
            with torch.cuda.stream(side):
                launch(y)
                y.add_(1)
            x.add_(1)
            captured.wait_stream(side)
        graph.replay()
        if ordered:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            y.add_(1)
        if end == "reset":
            graph.reset()
        del graph
        main.wait_stream(side)
        return x + y

    @pytest.mark.parametrize("end", ["reset", "drop"])
    def test_in_order(self, vd, end):
        assert self.program(end, ordered=True).tolist() == [4] * 4 and codes(vd) == []

    @pytest.mark.parametrize("end", ["reset", "drop"])
    def test_without_an_order(self, vd, end):
        self.program(end, ordered=False)
        torch.cuda.synchronize()
        assert codes(vd) == ["MRV204"] * 2

    @pytest.mark.parametrize("end", ["reset", "drop"])
    def test_explored(self, end):
        found = explore(lambda: self.program(end, ordered=True))
        assert found.exhausted and [run.findings for run in found.runs] == [()]
        raced = explore(lambda: self.program(end, ordered=False))
        assert raced.exhausted and len(raced.runs) > 1
        assert {tuple(finding.code for finding in run.findings) for run in raced.runs} == {("MRV204",) * 2}


class TestTwins:
    """What stands in for the work of an operator is on plain memory, whatever functions of torch it calls."""

    def test_in_order(self, vd):
        x, host = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True)
        y = torch.ops.mrv2_test_own_work.in_python(x)
        x.add_(1)
        torch.cuda.synchronize()
        assert y.tolist() == [2] * 4 and codes(vd) == [] and host.tolist() == [0] * 4

    def test_without_an_order(self, vd):
        x, host, side = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True), torch.cuda.Stream()
        torch.cuda.synchronize()
        y = torch.ops.mrv2_test_own_work.in_python(x)
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.synchronize()
        assert codes(vd) == ["MRV204"] and y.is_cuda and host.tolist() == [0] * 4


class TestDefaultDevice:
    """Values that go to a device by name go there at once, also where the program has named a default device."""

    CALLS = (
        lambda: torch.tensor([1.0, 2.0], device="cuda"),
        lambda: torch.as_tensor(np.ones(2, np.float32), device="cuda"),
        lambda: torch.asarray(np.ones(2, np.float32), device="cuda"),
        lambda: torch.ones(2, device="cuda").new_tensor([1.0, 2.0]),
        lambda: torch.tensor([1.0, 2.0], device="cpu"),
    )

    @staticmethod
    def told(sink):
        return [(method, args[2:]) for method, args, _ in sink.calls if method in ("operation", "sync", "allocate")]

    @pytest.mark.parametrize("call", CALLS)
    def test_nothing_else_is_done(self, call):
        told = []
        for default in ("cpu", "cuda"):
            sink = RecordingSink()
            with virtual_device("late", sink=sink), torch.device(default):
                call()
            told.append([(method, args[0] if method == "operation" else None) for method, args in self.told(sink)])
        assert told[0] == told[1]

    def test_pinned_memory_is_on_the_host(self, late):
        with torch.device("cuda"), pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
            torch.tensor([1.0], pin_memory=True)
        with torch.device("cuda"):
            assert torch.tensor([1.0], device="cpu", pin_memory=True).is_pinned() and torch.tensor([1.0]).is_cuda


READS = {
    "item": lambda host: int(host[0].item()),
    "tolist": lambda host: int(host.tolist()[0]),
    "numpy": lambda host: int(host.numpy()[0]),
}


class TestGrids:
    """A grid that is a function reads for the program, though a launch is being prepared."""

    @pytest.mark.parametrize("kind", READS)
    def test_read_before_the_download_is_over(self, vd, kind):
        x, host = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True)
        host.copy_(x, non_blocking=True)
        increment[lambda meta: (READS[kind](host),)](x, 4)
        torch.cuda.synchronize()
        assert "MRV203" in codes(vd)

    @pytest.mark.parametrize("kind", READS)
    def test_read_afterwards(self, vd, kind):
        x, host = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True)
        host.copy_(x, non_blocking=True)
        torch.cuda.synchronize()
        increment[lambda meta: (READS[kind](host),)](x, 4)
        assert x.tolist() == [2] * 4 and codes(vd) == []
