"""Graphs: what a capture refuses, what a replay reads, and what orders it."""

import functools
import gc
import threading
import types

import pytest
import torch

from mrv2.checks.virtual import virtual_device

from .conftest import codes


def capture(body, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        body()
    return graph


class TestReplay:
    def test_computes_with_new_inputs(self, vd):
        x, out = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            y = x + 1
            out.copy_(y * 2)
        assert not torch.cuda.is_current_stream_capturing() and out.tolist() == [0] * 4
        for i in range(3):
            x.fill_(i)
            graph.replay()
            assert out.tolist() == [2.0 * (i + 1)] * 4
        assert codes(vd) == []

    @pytest.mark.parametrize("convert", [False, True])
    def test_host_memory_is_read_when_each_replay_runs(self, late, convert):
        p, x = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda", dtype=torch.half if convert else None)
        graph = capture(lambda: x.copy_(p, non_blocking=True))
        p.fill_(1)
        graph.replay()
        assert codes(late) == []
        p.fill_(2)
        assert x.tolist() == [2] * 4 and codes(late) == ["MRV201"]

    def test_memory_read_in_place(self, late):
        p, x = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
        view = device_view(p)
        graph = capture(lambda: x.copy_(view + 1))
        graph.replay()
        p.fill_(2)
        assert x.tolist() == [3] * 4 and codes(late) == ["MRV202"]

    def test_scalars_are_baked(self, late):
        x, factor, zero_dim = torch.zeros(4, device="cuda"), [2.0], torch.tensor(3.0, pin_memory=True)
        graph = capture(lambda: x.add_(factor[0]).add_(zero_dim))
        factor[0] = 5.0
        zero_dim.fill_(7)
        graph.replay()
        assert x.tolist() == [5] * 4 and codes(late) == []

    def test_random_numbers_are_fresh_and_follow_the_seed(self, vd):
        x, out = torch.zeros(4, device="cuda"), []
        graph = capture(x.uniform_)
        for seed in (1, 1, None):
            if seed is not None:
                torch.cuda.manual_seed(seed)
            graph.replay()
            out.append(x.tolist())
        assert out[0] == out[1] != out[2]

    def test_two_launches_of_one_graph_are_serialised(self, vd):
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        graph = capture(lambda: x.add_(1))
        side.wait_stream(torch.cuda.current_stream())
        graph.replay()
        with torch.cuda.stream(side):
            graph.replay()
        torch.cuda.synchronize()
        assert x.tolist() == [2] * 4 and codes(vd) == []

    def test_two_graphs_are_not(self, vd):
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        first, second = capture(lambda: x.add_(1)), capture(lambda: x.add_(1))
        side.wait_stream(torch.cuda.current_stream())
        first.replay()
        with torch.cuda.stream(side):
            second.replay()
        assert codes(vd) == ["MRV204"]

    def test_a_replay_is_one_entry_of_the_launch_queue(self, late):
        x = torch.zeros(4, device="cuda")
        graph = capture(lambda: [x.add_(1) for _ in range(100)])
        torch.cuda.synchronize()
        before = late.runtime.engine.submitted
        for _ in range(1021):
            graph.replay()
        assert late.runtime.engine.oldest() == before
        graph.replay()
        assert late.runtime.engine.oldest() > before

    def test_a_replay_races_with_a_side_stream(self, vd):
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        graph = capture(lambda: x.add_(1))
        graph.replay()
        with torch.cuda.stream(side):
            x.mul_(2)
        assert "MRV204" in codes(vd)

    def test_needs_a_capture(self, late):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            torch.cuda.CUDAGraph().replay()

    def test_is_refused_inside_another_capture_which_goes_on(self, late):
        x = torch.zeros(4, device="cuda")
        inner = capture(lambda: x.add_(1))

        def body():
            with pytest.raises(RuntimeError, match="not permitted"):
                inner.replay()
            x.add_(2)

        graph = capture(body)
        graph.replay()
        assert x.tolist() == [2] * 4


class TestBranches:
    def test_joined(self, vd):
        x, z, side = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), torch.cuda.Stream()

        def body():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)
            z.add_(1)
            torch.cuda.current_stream().wait_stream(side)
            z.add_(x)

        graph = capture(body)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert x.tolist() == [3] * 4 and z.tolist() == [9] * 4 and codes(vd) == []

    def test_unordered_branches_race(self, vd):
        x, z, side = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), torch.cuda.Stream()

        def body():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)
            z.copy_(x)
            torch.cuda.current_stream().wait_stream(side)

        graph = capture(body)
        assert codes(vd) == []
        graph.replay()
        torch.cuda.synchronize()
        graph.replay()
        assert codes(vd) == ["MRV204"]

    def test_unjoined(self, vd):
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()

        def body():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)

        with pytest.raises(RuntimeError, match="unjoined work"):
            capture(body)
        assert codes(vd) == ["MRV503"]

    def test_joined_too_early(self, vd):
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()

        def body():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.stream(side):
                x.add_(1)

        with pytest.raises(RuntimeError, match="unjoined work"):
            capture(body)

    def test_a_stream_that_was_not_forked_is_not_captured(self, vd):
        x, y, side = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()

        def body():
            x.add_(1)
            with torch.cuda.stream(side):
                y.add_(1)

        graph = capture(body)
        graph.replay()
        torch.cuda.synchronize()
        assert x.tolist() == [1] * 4 and y.tolist() == [1] * 4


REFUSED_AND_SURVIVED = {
    "pageable upload": lambda x: x.copy_(torch.zeros(4), non_blocking=True),
    "blocking pageable upload": lambda x: x.copy_(torch.zeros(4)),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "element": lambda x: x.__setitem__(3, 2.0),
    "list index": lambda x: x[[1, 2]],
    "tensor": lambda x: torch.tensor([1.0], device="cuda"),
    "gapped pinned upload": lambda x: x[:2].copy_(torch.zeros(4, pin_memory=True)[::2], non_blocking=True),
}
REFUSED_AND_LOST = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "blocking pinned upload": lambda x: x.copy_(torch.zeros(4, pin_memory=True)),
    "device synchronize": lambda x: torch.cuda.synchronize(),
    "stream synchronize": lambda x: torch.cuda.Stream().synchronize(),
    "stream query": lambda x: torch.cuda.Stream().query(),
}
FINE = {
    "kernel": lambda x: x.add_(1),
    "pinned upload": lambda x: x.copy_(torch.zeros(4, pin_memory=True), non_blocking=True),
    "download": lambda x: x.to("cpu", non_blocking=True),
    "pinned allocation": lambda x: torch.empty(4, pin_memory=True),
    "is_pinned": lambda x: torch.empty(4).is_pinned(),
    "allocation": lambda x: torch.empty(1000, device="cuda"),
    "empty_cache": lambda x: torch.cuda.empty_cache(),
    "mem_get_info": lambda x: torch.cuda.mem_get_info(),
    "record_stream": lambda x: x.record_stream(torch.cuda.Stream()),
    "stream": lambda x: torch.cuda.Stream(),
    "random": lambda x: torch.randn(4, device="cuda"),
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "multinomial": lambda x: torch.multinomial(torch.ones(4, device="cuda"), 2),
    "matmul": lambda x: x @ x,
    "mask fill": lambda x: x.__setitem__(x > 0, 0),
    "unrecorded event": lambda x: torch.cuda.current_stream().wait_event(torch.cuda.Event()),
    "record": lambda x: torch.cuda.Event().record(),
}


class TestRefusals:
    @pytest.mark.parametrize("row", REFUSED_AND_SURVIVED)
    def test_capture_survives(self, vd, row):
        x = torch.zeros(4, device="cuda")

        def body():
            with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
                REFUSED_AND_SURVIVED[row](x)
            x.add_(1)

        graph = capture(body)
        graph.replay()
        assert codes(vd) == ["MRV502"]
        torch.cuda.synchronize()
        assert x.tolist() == [1] * 4

    @pytest.mark.parametrize("row", REFUSED_AND_LOST)
    def test_capture_is_lost(self, vd, row):
        x = torch.zeros(4, device="cuda")

        def body():
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                REFUSED_AND_LOST[row](x)
            with pytest.raises(RuntimeError, match="previous error during capture"):
                x.add_(1)

        with pytest.raises(RuntimeError, match="previous error during capture"):
            capture(body)
        assert codes(vd) == ["MRV502"]

    def test_wait_for_an_event_recorded_before(self, vd):
        event = torch.cuda.Event()
        event.record()

        def body():
            with pytest.raises(RuntimeError, match="not permitted"):
                event.wait()

        with pytest.raises(RuntimeError, match="previous error"):
            capture(body)

    @pytest.mark.parametrize("row", FINE)
    def test_fine(self, vd, row):
        x = torch.zeros(4, device="cuda")
        kept = []
        graph = capture(lambda: kept.append(FINE[row](x)))
        graph.replay()
        torch.cuda.synchronize()
        assert set(codes(vd)) <= {"MRV210"}

    def test_a_new_seed_is_refused_and_survived(self, vd):
        x = torch.zeros(4, device="cuda")

        def body():
            with pytest.raises(RuntimeError, match="set_current_seed"):
                torch.cuda.manual_seed(12345)
            x.add_(1)

        capture(body).replay()
        assert x.tolist() == [1] * 4

    def test_a_failed_capture_breaks_the_generator_until_the_next_success(self, vd):
        x = torch.zeros(4, device="cuda")
        with pytest.raises(RuntimeError):
            capture(lambda: x.sum().item())
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
                torch.randn(4, device="cuda")
            torch.cuda.manual_seed(1)
        capture(lambda: x.add_(1))
        assert torch.randn(4, device="cuda").isfinite().all().item()

    def test_only_one_capture_at_a_time(self, late):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="one capture is in progress"), torch.cuda.graph(graph):
            torch.cuda.CUDAGraph().capture_begin()

    @pytest.mark.parametrize(("mode", "fine"), [("global", False), ("thread_local", True), ("relaxed", True)])
    def test_another_thread(self, late, mode, fine):
        x = torch.ones(4, device="cuda")
        done, errors = torch.cuda.Event(), []
        done.record()

        def other():
            try:
                done.synchronize()
            except RuntimeError as error:
                errors.append(error)

        def body():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

        if fine:
            capture(body, capture_error_mode=mode)
        else:
            with pytest.raises(RuntimeError):
                capture(body, capture_error_mode=mode)
        assert (errors == []) is fine
        del x


class TestEvents:
    def test_an_event_recorded_in_a_capture_is_invalid_outside(self, vd):
        event, x = torch.cuda.Event(), torch.zeros(4, device="cuda")

        def body():
            x.add_(1)
            event.record()

        graph = capture(body)
        graph.replay()
        for call in (event.query, event.synchronize, event.wait):
            with pytest.raises(RuntimeError, match="invalid argument"):
                call()
        event.record()
        event.synchronize()
        assert event.query()

    def test_an_external_event_marks_each_replay(self, late):
        event, x = torch.cuda.Event(external=True), torch.zeros(4, device="cuda")

        def body():
            for _ in range(5):
                x.add_(1)
            event.record()

        graph = capture(body)
        for i in range(2):
            graph.replay()
            assert not event.query()
            event.synchronize()
            assert x.tolist() == [5 * (i + 1)] * 4
        assert codes(late) == []

    def test_an_external_wait_holds_each_replay(self, vd):
        event, x, side = torch.cuda.Event(external=True), torch.zeros(4, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()

        def body():
            event.wait()
            x.mul_(2)

        graph = capture(body)
        with torch.cuda.stream(side):
            x.add_(1)
            event.record()
        graph.replay()
        assert x.tolist() == [2] * 4 and codes(vd) == []


class TestMemory:
    def test_input_freed_after_the_capture(self, vd):
        x, out = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        graph = capture(functools.partial(out.copy_, x))
        del x
        graph.replay()
        graph.replay()
        assert codes(vd) == ["MRV501"]
        finding = vd.findings[0]
        assert finding.where and finding.other and finding.allocation

    def test_pinned_source_freed_after_the_capture(self, vd):
        p, x = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
        graph = capture(functools.partial(x.copy_, p, non_blocking=True))
        del p
        graph.replay()
        assert codes(vd) == ["MRV501"]

    def test_memory_of_the_capture_stays(self, vd):
        out = torch.zeros(4, device="cuda")

        def body():
            y = torch.ones(4, device="cuda")
            p = torch.ones(4, pin_memory=True)
            out.copy_(y)
            out.copy_(p, non_blocking=True)
            out.to("cpu", non_blocking=True)

        graph = capture(body)
        gc.collect()
        for _ in range(2):
            graph.replay()
        assert out.tolist() == [1] * 4 and codes(vd) == []

    def test_output_outlives_its_graph(self, vd):
        kept = []
        graph = capture(lambda: kept.append(torch.ones(4, device="cuda")))
        graph.replay()
        torch.cuda.synchronize()
        del graph
        torch.cuda.synchronize()
        assert kept[0].tolist() == [1] * 4 and codes(vd) == []

    @pytest.mark.parametrize("how", ["reset", "del"])
    def test_given_back_in_flight(self, vd, how):
        out, x = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
        graph = capture(lambda: out.copy_(x * 2 + 1))
        in_use = torch.cuda.memory_allocated()
        graph.replay()
        if how == "reset":
            graph.reset()
        del graph
        assert out.tolist() == [3] * 4 and codes(vd) == []
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() < in_use

    def test_entering_waits_for_the_device(self, vd):
        p, x = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
        x.copy_(p, non_blocking=True)
        capture(lambda: x.add_(1))
        p.fill_(1)
        assert codes(vd) == []

    def test_beginning_alone_does_not(self, vd):
        p, x, side = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda"), torch.cuda.Stream()
        x.copy_(p, non_blocking=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin()
            x.add_(1)
            graph.capture_end()
        p.fill_(1)
        assert codes(vd) == ["MRV201"]


def test_the_same_findings_in_every_schedule(schedule):
    with virtual_device(schedule) as device:
        p, x, side = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda"), torch.cuda.Stream()

        def body():
            x.copy_(p, non_blocking=True)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)
            x.mul_(2)
            torch.cuda.current_stream().wait_stream(side)

        graph = capture(body)
        graph.replay()
        p.fill_(1)
        assert codes(device) == ["MRV201", "MRV204"]


def device_view(tensor):
    interface = {"data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape), "typestr": "<f4", "version": 3}
    return torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=interface), device="cuda")
