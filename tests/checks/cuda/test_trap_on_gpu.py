"""The trap on a real GPU: all that waits there, and nothing else; and what it costs."""

import io
import json
import statistics
import threading
import time
import warnings

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.cuda import sync_warnings
from mrv2.checks.cuda.calibrate import calibrate
from mrv2.checks.cuda.device import CudaDevice
from mrv2.checks.cuda.sync_trap import cuda_sync_trap
from mrv2.checks.hot_path import allow_sync, hot_path
from mrv2.checks.semantics import LAUNCH_QUEUE_ENTRIES
from mrv2.ci.gpu.trap_costs import SHAPE, measure

pytestmark = pytest.mark.gpu

CYCLES = 100_000_000  # some 50 ms


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, offsets < n) + 1, offsets < n)


def record(record_property, figures):
    record_property("sync_trap", json.dumps(figures))


def test_the_trap_reports_what_waits_here_and_nothing_else(record_property):
    measured = calibrate()
    rows = [[one.name, one.waits, one.warns, list(one.codes), one.host_ms] for one in measured]
    wrong = [one.name for one in measured if not one.trapped]
    other = [one.name for one in measured if not one.as_in_table]
    record(
        record_property,
        {
            "columns": ["operation", "waits", "torch warns", "codes of the trap", "host ms"],
            "rows": rows,
            "waiting": sum(one.waits for one in measured),
            "waiting and reported": sum(one.waits and bool(one.codes) for one in measured),
            "reported and not waiting": sum(not one.waits and bool(one.codes) for one in measured),
            "torch warns": sum(one.warns for one in measured),
            "not as in the table": other,
        },
    )
    assert wrong == [] and other == []


def trapped(call, prepare=lambda: None):
    """The findings of a call in a hot path, made behind a parked kernel."""
    with cuda_sync_trap() as trap:
        prepared = prepare()
        torch.cuda.synchronize()
        torch.cuda._sleep(CYCLES)
        with hot_path("decode"):
            call() if prepared is None else call(prepared)
        torch.cuda.synchronize()
    return trap.findings


def codes(findings):
    return [finding.code for finding in findings]


def x():
    return torch.ones(8, device="cuda")


def test_operators_called_through_torch_ops(capfd):
    (finding,) = trapped(torch.ops.aten.nonzero, x)
    assert (finding.code, finding.evidence["operation"]) == ("MRV105", "aten::nonzero")
    assert "test_trap_on_gpu.py" in finding.where[0].file
    assert codes(trapped(lambda v: torch.ops.aten._local_scalar_dense(v[0]), x)) == ["MRV101"]
    assert "synchronizing" not in capfd.readouterr().err


def test_afterwards_torch_warns_as_before(capfd):
    v = x()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trapped(lambda: None)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            v[0].item()
            torch.ops.aten.nonzero(v)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert [str(one.message)[:13] for one in caught] == [sync_warnings.MESSAGE[:13]]
    assert sync_warnings.MESSAGE in capfd.readouterr().err
    assert not hasattr(torch.Tensor.item, "__wrapped__") and CudaDevice().get_sync_mode() == 0


def test_another_threads_waits_are_its_own():
    def elsewhere():
        thread = threading.Thread(target=x()[0].item)
        thread.start()
        thread.join()

    def itself():
        def work():
            with hot_path("of the thread"):
                x().tolist()
                torch.ops.aten.nonzero(x())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert trapped(elsewhere) == []
    assert sorted(codes(trapped(itself))) == ["MRV101", "MRV105"]


def test_allowances_count():
    def call(v):
        with allow_sync("MRV101", "the finish check", budget=1):
            v[0].item()
            v[1].item()

    assert codes(trapped(call, x)) == ["MRV121"]


def test_ignored_warnings_are_heard():
    def call(v):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            v.tolist()
            torch.unique(v)

    assert codes(trapped(call, x)) == ["MRV101", "MRV105"]


@pytest.mark.parametrize("kind", [torch.cuda.Event, torch.Event])
def test_events_that_are_known_to_be_over(kind):
    def waits():
        event = kind()
        event.record()
        event.synchronize()
        event.synchronize()

    def knows():
        first, second = kind(), kind()
        first.record()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        second.record(side)
        with allow_sync("MRV104", "the result of the step before"):
            second.synchronize()
        first.synchronize()
        kind().synchronize()

    assert [finding.evidence["times"] for finding in trapped(waits)] == [1]
    assert trapped(knows) == []


def test_copies_by_the_measured_rules():
    page, pin = torch.zeros(4, 8), torch.zeros(4, 8, pin_memory=True)
    wide = torch.zeros(1024, 1024, pin_memory=True)
    down = torch.zeros(4, 8, device="cuda")
    for call, code in (
        (lambda: page.copy_(down, non_blocking=True), "MRV103"),
        (lambda: pin[:, 0].copy_(down[:, 0], non_blocking=True), "MRV103"),
        (lambda: pin.copy_(down, non_blocking=True), None),
        (lambda: pin[1].copy_(down[1], non_blocking=True), None),
        (lambda: torch._foreach_copy_([page], [down], non_blocking=True), "MRV103"),
        (lambda: wide[:, :1000].to("cuda", non_blocking=True), "MRV102"),
        (lambda: wide.to("cuda", non_blocking=True), None),
        (lambda: down.copy_(page, non_blocking=True), None),
        (lambda: down.copy_(page), "MRV102"),
        (lambda: down.new_tensor([1.0]), "MRV102"),
        (lambda: torch.from_numpy(np.ones(3)).to("cuda"), "MRV102"),
        (lambda: torch.save(down, io.BytesIO()), "MRV101"),
    ):
        call()
        assert codes(trapped(call)) == ([] if code is None else [code])


def test_a_wait_in_a_capture():
    v = x()

    def capture():
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            graph.capture_begin()
            try:
                with pytest.raises(RuntimeError):
                    v[0].item()
            finally:
                with pytest.raises(RuntimeError):
                    graph.capture_end()

    findings = trapped(capture)
    # A capture that fails leaves the generator broken; the next one mends it.
    mended = torch.cuda.CUDAGraph()
    with torch.cuda.graph(mended):
        v.add_(1)
    assert codes(findings) == ["MRV502"]


def test_the_first_use_of_a_kernel(record_property):
    v = x()
    torch.cuda.synchronize()
    took = []

    def launch():
        begin = time.perf_counter()
        add_one[(1,)](v, 8, BLOCK=32)
        took.append((time.perf_counter() - begin) * 1e3)

    add_one.warmup(v, 8, BLOCK=32, grid=(1,))  # compiles, and does not load
    first, second = trapped(launch), trapped(launch)
    record(record_property, {"first launch, ms": took[0], "second launch, ms": took[1]})
    assert [(f.code, f.evidence["operation"]) for f in first] == [("MRV107", "the first launch of add_one")]
    assert second == []


def test_a_full_launch_queue():
    v = x()
    add_one[(1,)](v, 8, BLOCK=64)

    def launch(count):
        for _ in range(count):
            add_one[(1,)](v, 8, BLOCK=64)

    few, many = trapped(lambda: launch(900)), trapped(lambda: launch(LAUNCH_QUEUE_ENTRIES + 200))
    assert few == [] and codes(many) == ["MRV108"]


def seconds_of(call, count):
    """Seconds for each of so many calls, the stream idle before and after."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return took / count


def test_what_the_trap_costs(record_property):
    """Off: a hot path that nobody watches. On: what is added to each call, off and on by turns, medians.

    Reported beside the bars, not judged: a clock is no test.
    """
    v, w, pin = x(), x(), torch.zeros(1024, pin_memory=True)
    there, event = torch.zeros(1024, device="cuda"), torch.cuda.Event()
    host = torch.zeros(8)

    def plain():
        pass

    decorated = hot_path("nothing")(plain)
    off = statistics.median(seconds_of(decorated, 20_000) - seconds_of(plain, 20_000) for _ in range(7))
    calls = {
        "x.add_": lambda: v.add_(1),
        "x + y": lambda: v + w,
        "x[2:6]": lambda: v[2:6],
        "x[2:6] = 1": lambda: v.__setitem__(slice(2, 6), 1),
        "x.to(float16)": lambda: v.to(torch.float16),
        "upload from pinned, copy_": lambda: there.copy_(pin, non_blocking=True),
        "download to pinned, copy_": lambda: pin.copy_(there, non_blocking=True),
        "upload from pinned, to": lambda: pin.to("cuda", non_blocking=True),
        "upload from pageable, copy_": lambda: v.copy_(host, non_blocking=True),
        "Triton launch": lambda: add_one[(1,)](v, 8, BLOCK=64),
        "event.record": event.record,
        "event.query": event.query,
        "torch.empty": lambda: torch.empty(8, device="cuda"),
    }
    for call in calls.values():
        seconds_of(call, 50)
    off_us = {name: [] for name in calls}
    on_us = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            off_us[name].append(seconds_of(call, 300) * 1e6)
        with cuda_sync_trap() as trap, hot_path("timed"):
            for name, call in calls.items():
                on_us[name].append(seconds_of(call, 300) * 1e6)
        assert {finding.code for finding in trap.findings} <= {"MRV104"}  # seconds_of waits
    base = {name: statistics.median(values) for name, values in off_us.items()}
    added = {name: statistics.median(on_us[name]) - base[name] for name in calls}
    record(
        record_property,
        {
            "off, ns per call of a hot path": off * 1e9,
            "base, us": {name: round(value, 3) for name, value in base.items()},
            "added, us": {name: round(value, 3) for name, value in added.items()},
            "bars": {"off, ns": 50, "added, us": 1.5},
        },
    )


def test_what_the_trap_costs_a_decode_step(record_property):
    """Of a 0.6B shape, split by its parts; reported beside the bar of 3 %, and only the calls are judged."""
    figures = measure()
    record(record_property, {"model": "0.6B shape, bfloat16, random weights", "attention": "triton", **figures})
    calls = figures["calls of the trap in a step"]
    assert calls["CudaTrap._launches.<locals>.launches"] == 6 + 6 * SHAPE.num_layers
    assert calls["CudaTrap._indexing.<locals>.indexing"] < 60
