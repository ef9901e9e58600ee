"""Relatives of the measured calls, what the trap says of a wait, and what it costs when nobody watches."""

import contextlib
import copy
import io
import math
import pickle
import threading

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.findings import Verdict
from mrv2.checks.hot_path import allow_sync, hot_path
from mrv2.checks.semantics import LAUNCH_QUEUE_ENTRIES, PAGEABLE_STAGING_LIMIT
from mrv2.checks.sync.called import name_of
from mrv2.checks.sync.rules import KINDS, rule_of
from mrv2.checks.sync.settings import settings_from
from mrv2.checks.sync.virtual import install, staging_taken, sync_trap
from mrv2.checks.sync.waits import Cause, WaitKind
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual import register_op, virtual_device

SCHEDULES = ("late", "early", "random:0")


def twin(x: torch.Tensor) -> torch.Tensor:
    return x * int(x.sum())


register_op("mrv2_trap::waits", twin, reads=("x",), writes=(), syncs=True)


class Doubled(torch.autograd.Function):
    """Reads values in its backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        low = gradient.min().item()
        return gradient * low * gradient.max().item()


class Bench:
    """x: [8] float32; i: [3] int64; mask: [8] bool; one: 0-dim; all on the device; p, big: pinned; host: pageable."""

    def __init__(self):
        self.x = torch.arange(8.0, device="cuda")
        self.i = torch.tensor([1, 5, 2]).cuda()
        self.one = self.i[0].clone()
        self.number = self.x[0].clone()
        self.mask = self.x > 2
        self.p = torch.zeros(8, 4).pin_memory()
        self.wide = torch.zeros(1024, 1024, pin_memory=True)
        self.square = torch.eye(4, device="cuda")
        self.event, self.stream = torch.cuda.Event(), torch.cuda.current_stream()


def put(target, index, value):
    target[index] = value


WAITS = {
    "format": ("MRV101", lambda b: f"{b.number:.1f}"),
    "str": ("MRV101", lambda b: str(b.x)),
    "range": ("MRV101", lambda b: range(b.one)),
    "math": ("MRV101", lambda b: math.sqrt(b.number)),
    "full of a device number": ("MRV101", lambda b: torch.full((2,), b.number)),
    "arange to a device number": ("MRV101", lambda b: torch.arange(b.one, device="cuda")),
    "alpha": ("MRV101", lambda b: torch.add(b.x, b.x, alpha=b.number)),
    "mask = device number": ("MRV101", lambda b: put(b.x, b.mask, b.number)),
    "masked_fill with a device number": ("MRV101", lambda b: b.x.masked_fill_(b.mask, b.number)),
    "index_fill with a device number": ("MRV101", lambda b: b.x.index_fill(0, b.i, b.number)),
    "linspace to a device number": ("MRV101", lambda b: torch.linspace(b.number, 3, 4, device="cuda")),
    "0-dim index": ("MRV101", lambda b: b.x[b.one]),
    "numpy, forced": ("MRV101", lambda b: b.x.numpy(force=True)),
    "type of the host": ("MRV101", lambda b: b.x.type("torch.FloatTensor")),
    "to another type of the host": ("MRV101", lambda b: b.x.to("cpu", torch.float64)),
    "pickle": ("MRV101", lambda b: pickle.dumps(b.x)),
    "bytes of the storage": ("MRV101", lambda b: b.x.untyped_storage().tolist()),
    "module to the host": ("MRV101", lambda b: torch.nn.Linear(2, 2, device="cuda").cpu()),
    "list of device numbers": ("MRV101", lambda b: torch.tensor([b.number, b.number])),
    "nested list on the device": ("MRV101", lambda b: torch.as_tensor([[1.0, b.number]], device="cuda")),
    "while": ("MRV101", lambda b: [1 for _ in range(2) if b.mask.all()]),
    "new_tensor": ("MRV102", lambda b: b.x.new_tensor([1.0])),
    "list index": ("MRV102", lambda b: b.x[[1, 2]]),
    "pinned index": ("MRV102", lambda b: b.x[torch.tensor([1, 2]).pin_memory()]),
    "device index = number": ("MRV102", lambda b: put(b.x, b.i, 1.0)),
    "slice = host tensor": ("MRV102", lambda b: put(b.x, slice(3), torch.zeros(3))),
    "slice = pinned tensor": ("MRV102", lambda b: put(b.x, slice(4), b.p[0])),
    "gapped upload beyond staging": ("MRV102", lambda b: b.wide[:, :1000].to("cuda", non_blocking=True)),
    "foreach upload": ("MRV102", lambda b: torch._foreach_copy_([b.x], [torch.zeros(8)])),
    "download to gaps": ("MRV103", lambda b: b.p[:, 0].copy_(b.x, non_blocking=True)),
    "download, transposed": ("MRV103", lambda b: b.p.t().copy_(b.x[:4, None].expand(4, 8), non_blocking=True)),
    "host slice = device tensor": ("MRV103", lambda b: put(b.p.view(-1), slice(8), b.x)),
    "foreach download": ("MRV103", lambda b: torch._foreach_copy_([torch.zeros(8)], [b.x], non_blocking=True)),
    "torch.Stream.synchronize": ("MRV104", lambda b: torch.accelerator.current_stream().synchronize()),
    "torch.Event.synchronize": ("MRV104", lambda b: (e := torch.Event(), e.record(), e.synchronize())),
    "graph": ("MRV104", lambda b: torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__()),
    "argwhere": ("MRV105", lambda b: torch.argwhere(b.mask)),
    "unique rows": ("MRV105", lambda b: torch.unique(b.square, dim=0)),
    "unique_consecutive": ("MRV105", lambda b: b.x.unique_consecutive()),
    "unique, all results": ("MRV105", lambda b: torch.unique(b.x, return_inverse=True, return_counts=True)),
    "nonzero, tuple": ("MRV105", lambda b: b.mask.nonzero(as_tuple=True)),
    "masked_select to out": ("MRV105", lambda b: torch.masked_select(b.x, b.mask, out=b.x.new_empty(5))),
    "mask beside a slice": ("MRV105", lambda b: b.square[b.square[0] > 0, :2]),
    "empty_host_cache": ("MRV106", lambda b: (setattr(b, "wide", None), torch.accelerator.empty_host_cache())),
    "accelerator.empty_cache": ("MRV106", lambda b: (setattr(b, "square", None), torch.accelerator.empty_cache())),
    "cholesky": ("MRV109", lambda b: torch.linalg.cholesky(b.square)),
    "eigh": ("MRV109", lambda b: torch.linalg.eigh(b.square)),
    "svd": ("MRV109", lambda b: torch.linalg.svd(b.square)),
    "inverse": ("MRV109", lambda b: b.square.inverse()),
    "operator of an extension": ("MRV109", lambda b: torch.ops.mrv2_trap.waits(b.x)),
}
FREE = {
    "mask = number": lambda b: put(b.x, b.mask, 0.0),
    "element = device number": lambda b: put(b.x, 3, b.number),
    "device index = device number": lambda b: put(b.x, b.i, b.number),
    "slice = number": lambda b: put(b.x, slice(3), 2.0),
    "index_fill_": lambda b: b.x.index_fill_(0, b.i, 1.0),
    "index_put_": lambda b: b.x.index_put_((b.i,), b.x[:3].clone()),
    "masked_fill with numbers": lambda b: (b.x.masked_fill(b.mask, 1.0), b.x.masked_fill(b.mask, torch.tensor(1.0))),
    "masked_scatter": lambda b: b.x.masked_scatter(b.mask, b.x),
    "nonzero_static": lambda b: torch.nonzero_static(b.x, size=4),
    "pinned list": lambda b: torch.tensor([1.0], pin_memory=True).to("cuda", non_blocking=True),
    "gapped upload": lambda b: b.p[:, 0].to("cuda", non_blocking=True),
    "the largest staged upload": lambda b: torch.zeros(PAGEABLE_STAGING_LIMIT // 4).to("cuda", non_blocking=True),
    "download": lambda b: b.square[:, 0].to("cpu", non_blocking=True),
    "download to a row": lambda b: b.p[0].copy_(b.x[:4], non_blocking=True),
    "foreach, pinned": lambda b: torch._foreach_copy_([b.p[0]], [b.x[:4]], non_blocking=True),
    "never recorded": lambda b: b.event.synchronize(),
    "wait_event": lambda b: (b.event.record(), torch.cuda.Stream().wait_event(b.event)),
    "record_stream": lambda b: b.x.record_stream(torch.cuda.Stream()),
    "is_pinned": lambda b: torch.ones(4).is_pinned(),
    "isin, few": lambda b: torch.isin(b.x, b.x[:3]),
    "inv_ex": lambda b: torch.linalg.inv_ex(b.square),
    "cholesky_ex": lambda b: torch.linalg.cholesky_ex(b.square),
    "attention": lambda b: torch.nn.functional.scaled_dot_product_attention(*(b.x.view(1, 1, 4, 2),) * 3),
    "deepcopy": lambda b: copy.deepcopy(b.x),
    "numpy of pinned memory": lambda b: b.p.numpy().sum(),
    "tolist of the host": lambda b: torch.ones(3).tolist(),
    "shape": lambda b: (b.x.shape, b.x.device, b.x.dtype, len(b.x), b.x.is_contiguous()),
    "clip_grad_norm_": lambda b: torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(b.x.clone())], 1.0),
}


def trapped(call, schedule="late"):
    with sync_trap(schedule=schedule) as trap:
        bench = Bench()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with hot_path("decode"):
            call(bench)
        if torch.cuda.is_current_stream_capturing():
            trap.device.runtime.captures.end()
    return trap.watch.findings


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", WAITS)
def test_relatives_that_wait(name, schedule):
    code, call = WAITS[name]
    findings = trapped(call, schedule)
    assert [(finding.code, finding.verdict) for finding in findings] == [(code, Verdict.VIOLATION)]
    assert "test_virtual_trap.py" in findings[0].where[0].file


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", FREE)
def test_relatives_that_do_not(name, schedule):
    assert trapped(FREE[name], schedule) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_call_that_waits_twice_is_one_finding_and_one_use_of_an_allowance(schedule, sink):
    def twice(b):
        with allow_sync("MRV101", "checks the weights", budget=1):
            b.square.cov(aweights=b.x[:4])
        b.square.cov(aweights=b.x[:4])
        torch.save([b.x, b.square], io.BytesIO())

    with virtual_device("late", sink=sink):
        b = Bench()
        before = len(sink.named("sync"))
        b.square.cov(aweights=b.x[:4])
        assert len(sink.named("sync")) > before + 1
    call, save = trapped(twice, schedule)
    assert (call.code, call.evidence["operation"], call.evidence["times"]) == ("MRV101", "Tensor.cov", 1)
    assert (save.code, save.evidence["operation"], save.evidence["times"]) == ("MRV101", "torch.save", 2)


def test_two_calls_on_one_line_are_two_findings_if_they_are_different_ones():
    findings = trapped(lambda b: (b.x.tolist(), b.x.cpu(), b.x.cpu()))
    assert [(finding.evidence["operation"], finding.evidence["times"]) for finding in findings] == [
        ("Tensor.tolist", 1),
        ("Tensor.cpu", 2),
    ]


def deep(b, levels):
    return deep(b, levels - 1) if levels else b.number.item()


def test_the_stack_goes_out_to_the_hot_path_and_no_further():
    (finding,) = trapped(lambda b: deep(b, 10))
    names = [site.function.rpartition(".")[2] for site in finding.where]
    assert names == ["deep"] * 11 + ["<lambda>", "trapped"]

    @hot_path("decorated")
    def decode(b):
        deep(b, 8)

    with sync_trap() as trap:
        decode(Bench())
    (finding,) = trap.watch.findings
    assert [site.function.rpartition(".")[2] for site in finding.where] == ["deep"] * 9 + ["decode"]


def test_a_hot_path_entered_through_an_exit_stack_is_where_the_stack_ends():
    with sync_trap() as trap, contextlib.ExitStack() as stack:
        bench = Bench()
        stack.enter_context(hot_path("decode"))
        deep(bench, 0)
    assert [site.function for site in trap.watch.findings[0].where][-1].startswith("test_a_hot_path_entered_through")


def test_uploads_over_the_staging_budget_may_wait():
    def upload(b):
        b.pieces = [torch.zeros(1 << 18).to("cuda", non_blocking=True) for _ in range(8)]

    (finding,) = trapped(upload, "late")
    assert (finding.code, finding.verdict, finding.evidence["bytes"]) == ("MRV102", Verdict.SUSPECT, 1 << 20)
    assert trapped(upload, "early") == []  # there the device keeps up


STAGED = {
    "a few pageable bytes": lambda b: b.x.copy_(torch.zeros(8), non_blocking=True),
    "to, of them": lambda b: torch.zeros(8).to("cuda", non_blocking=True),
    "a gapped pinned view": lambda b: b.p[:, :2].to("cuda", non_blocking=True),
}
NOT_STAGED = {
    "pinned memory": lambda b: b.p.to("cuda", non_blocking=True),
    "a slice of it": lambda b: b.x.copy_(b.p[0:2].view(8), non_blocking=True),
    "on the device": lambda b: b.x.copy_(b.number.expand(8), non_blocking=True),
    "download into pinned memory": lambda b: b.p[0].copy_(b.x[:4], non_blocking=True),
}


def trapped_where_staging_is_taken(call, schedule):
    with Watch(settings_from({})) as watch, virtual_device(schedule, hooks=(install(watch), staging_taken)) as device:
        bench = Bench()
        torch.cuda.synchronize()
        with hot_path("decode"):
            call(bench)
    assert not device.runtime.copies.staging_taken
    return [(finding.code, finding.verdict) for finding in watch.findings]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", STAGED)
def test_an_upload_that_needs_staging_may_wait_however_small(name, schedule):
    assert trapped_where_staging_is_taken(STAGED[name], schedule) == [("MRV102", Verdict.SUSPECT)]
    assert trapped(STAGED[name], schedule) == []  # nobody else is there, and it fits


@pytest.mark.parametrize("name", NOT_STAGED)
def test_what_needs_no_staging_does_not_wait_for_it(name):
    assert trapped_where_staging_is_taken(NOT_STAGED[name], "late") == []


def test_a_full_launch_queue_is_one_suspicion_whatever_line_meets_it():
    def launch(b):
        for _ in range(LAUNCH_QUEUE_ENTRIES):
            b.x.add_(1)
        b.x.mul_(2)
        b.x.sub_(1)

    (finding,) = trapped(launch, "late")
    assert (finding.code, finding.verdict, finding.evidence["times"]) == ("MRV108", Verdict.SUSPECT, 2)
    assert trapped(launch, "early") == []


def test_nothing_cached_is_nothing_to_wait_for():
    def often(b):
        torch.cuda.empty_cache()
        b.square = None
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()

    (finding,) = trapped(often)
    assert (finding.evidence["times"], finding.evidence["bytes"]) == (1, 64)


def test_an_event_that_the_host_knows_to_have_passed_is_not_waited_for():
    def poll(b):
        b.event.record()
        if b.event.query():
            b.event.synchronize()

    def again(b):
        b.event.record()
        b.event.synchronize()
        b.event.synchronize()

    assert trapped(poll, "early") == []
    for schedule in SCHEDULES:
        assert [finding.evidence["times"] for finding in trapped(again, schedule)] == [1]


def recorded(stream):
    event = torch.cuda.Event()
    event.record(stream)
    return event


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_event_before_what_the_host_has_waited_for_is_over(schedule):
    with sync_trap(schedule=schedule) as trap:
        b, side = Bench(), torch.cuda.Stream()
        forked, slot = recorded(side), recorded(b.stream)
        b.x.add_(1)
        side.wait_stream(b.stream)
        downloaded = recorded(side)
        later = recorded(b.stream)
        downloaded.synchronize()  # outside of the hot path
        with hot_path("safe"):
            slot.synchronize()
            forked.synchronize()
        with hot_path("late"):
            b.x.add_(1)
            later.synchronize()
    (finding,) = trap.watch.findings
    assert (finding.code, finding.evidence["hot path"], finding.evidence["times"]) == ("MRV104", "late", 1)


def test_a_wait_in_a_capture_is_the_captures_finding():
    graph = []
    with sync_trap() as trap:
        bench = Bench()
        graph.append(torch.cuda.CUDAGraph())
        torch.cuda.synchronize()
        graph[0].capture_begin()
        with hot_path("decode"), pytest.raises(RuntimeError, match="not permitted"):
            bench.x.sum().item()
        with pytest.raises(RuntimeError):
            graph[0].capture_end()
    assert trap.watch.findings == [] and [finding.code for finding in trap.device.findings] == ["MRV502"]


def test_a_call_that_calls_the_program_back_is_seen_where_that_waits():
    findings = trapped(lambda b: Doubled.apply(b.x.detach().requires_grad_()).sum().backward())
    assert [finding.code for finding in findings] == ["MRV101"] * 2
    assert {finding.where[0].function for finding in findings} == {"Doubled.backward"}
    assert len({finding.where[0].line for finding in findings}) == 2
    assert {finding.evidence["operation"] for finding in findings} == {KINDS[WaitKind.VALUE].says}


@pytest.mark.parametrize("inside", [True, False])
def test_a_thread_is_in_the_hot_path_if_it_entered_it(inside):
    def work(b):
        with hot_path("of the thread") if inside else contextlib.nullcontext():
            b.x.tolist()

    def start(b):
        thread = threading.Thread(target=work, args=(b,))
        thread.start()
        thread.join()

    assert [finding.evidence["hot path"] for finding in trapped(start)] == ["of the thread"] * inside


def test_hot_paths_and_allowances_of_the_settings_are_watched(tmp_path, monkeypatch):
    (tmp_path / "trapped_engine.py").write_text(
        "def step(x):\n    flag(x)\n    return x.tolist()\n\ndef flag(x):\n    return bool(x[0])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    allowed = {"site": "trapped_engine:flag", "code": "MRV101", "reason": "the finish check"}
    settings = settings_from({"hot_paths": ["trapped_engine:step"], "allow": [allowed]})
    with sync_trap(settings) as trap:
        import trapped_engine

        with trap.device.at_step(3):
            trapped_engine.step(torch.ones(3, device="cuda"))
    (finding,) = trap.watch.findings
    assert (finding.evidence["operation"], finding.step) == ("Tensor.tolist", 3)
    assert trap.watch.unused() == [] and trap.watch.entries == {"trapped_engine:step": 1}


def test_nobody_is_told_once_the_device_is_gone():
    with Watch() as watch:
        with virtual_device(hooks=(install(watch),)) as first:
            assert first.runtime.wait_guard is not None
        assert first.runtime.wait_guard is None
        with virtual_device(), hot_path("decode"):
            torch.ones(3, device="cuda").tolist()
    assert watch.findings == []


def test_every_kind_of_wait_has_a_rule_and_every_code_a_kind():
    assert set(KINDS) == set(WaitKind)
    assert {rule.code for rule in KINDS.values()} == {f"MRV10{number}" for number in range(1, 10)}
    assert all(rule.says and rule.instead for rule in KINDS.values())


def test_an_operator_that_nobody_thought_of_has_the_rule_of_its_kind():
    unknown = Cause(WaitKind.SHAPE, "aten.new_kind_of_unique")
    assert rule_of(unknown, "torch.new_kind_of_unique") is rule_of(unknown, None) is KINDS[WaitKind.SHAPE]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.Tensor.item, "Tensor.item"),
        (torch.Tensor.__contains__, "Tensor.__contains__"),
        (torch.allclose, "torch.allclose"),
        (torch.linalg.inv, "torch.linalg.inv"),
        (torch.nn.functional.one_hot, "torch.nn.functional.one_hot"),
        (torch.ops.aten.nonzero.default, "aten::nonzero"),
        (torch.ops.aten.nonzero, "aten::nonzero"),
        (torch.save, "torch.save"),
        (torch.testing.assert_close, "torch.testing.assert_close"),
        (torch.nn.functional.gumbel_softmax, "torch.nn.functional.gumbel_softmax"),
        (torch._jit_internal._overload, None),
        (None, None),
    ],
)
def test_names_are_those_of_the_manual(function, name):
    assert name_of(function) == name


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, offsets < n) + 1, offsets < n)


def test_the_first_launch_of_each_variant_that_a_gpu_would_load_is_a_suspicion():
    with sync_trap() as trap:
        x = torch.zeros(64, device="cuda")
        add_one[(0,)](x, 8, BLOCK=16)  # an empty launch loads it, too
        with hot_path("warm"):
            add_one[(1,)](x, 8, BLOCK=16)
            add_one[(1,)](x, 9, BLOCK=16)
        with hot_path("cold"):
            for launch in (
                lambda: add_one[(1,)](x, 16, BLOCK=16),  # a number that is divisible by 16
                lambda: add_one[(1,)](x, 1, BLOCK=16),  # the number 1
                lambda: add_one[(1,)](x[1:], 8, BLOCK=16),  # an address that is not
                lambda: add_one[(1,)](x.int(), 8, BLOCK=16),
                lambda: add_one[(1,)](x, 8, BLOCK=32),
                lambda: add_one[(1,)](x, 8, BLOCK=16, num_warps=8),
            ):
                launch()
                launch()
    assert [(finding.code, finding.verdict) for finding in trap.watch.findings] == [("MRV107", Verdict.SUSPECT)] * 6
    assert {finding.evidence["operation"] for finding in trap.watch.findings} == {"the first launch of add_one"}
    assert {(finding.evidence["hot path"], finding.evidence["times"]) for finding in trap.watch.findings} == {
        ("cold", 1)
    }
