"""What the trap for real CUDA says of waits, threads, events and captures, and what it leaves behind."""

import threading
import warnings

import pytest
import torch
import triton

from mrv2.checks.cuda.copies import PinnedAddresses, bytes_of, download_cause, upload_cause
from mrv2.checks.cuda.sync_trap import cuda_sync_trap
from mrv2.checks.cuda.table import CALLS
from mrv2.checks.errors import CheckError
from mrv2.checks.hot_path import HotPathError, allow_sync, hot_path
from mrv2.checks.semantics import PAGEABLE_STAGING_LIMIT
from mrv2.checks.sync.settings import Settings
from mrv2.checks.sync.waits import Cause, WaitKind
from mrv2.ci.gpu.trap_survey import survey, truth_of

#: Classes whose methods are wrapped, and modules.
OWNERS = {call.owner for call in CALLS} | {torch.cuda.Event, torch.cuda.Stream, torch.accelerator, torch.cuda.memory}


def codes(findings):
    return [finding.code for finding in findings]


def x():
    return torch.ones(8, device="cuda")


def test_where_nobody_is_in_a_hot_path_nothing_is_said(open_trap):
    with open_trap() as trap:
        x().tolist()
        torch.cuda.synchronize()
    assert trap.findings == []


def test_nothing_is_left_behind(open_trap):
    before = {owner: dict(vars(owner)) for owner in OWNERS}
    with open_trap() as trap, hot_path("decode"):
        assert torch.Tensor.item is not before[torch.Tensor].get("item", torch._C.TensorBase.item)
        x().tolist()
    assert codes(trap.findings) == ["MRV101"]
    assert {owner: dict(vars(owner)) for owner in OWNERS} == before


def test_an_error_inside_leaves_nothing_behind_either(open_trap):
    before = {owner: dict(vars(owner)) for owner in OWNERS}
    with pytest.raises(ZeroDivisionError), open_trap(), hot_path("decode"):
        x()[0] = 1 / 0
    assert {owner: dict(vars(owner)) for owner in OWNERS} == before


def test_only_one_may_be_open(open_trap):
    with open_trap() as trap, pytest.raises(HotPathError, match="second watch"), cuda_sync_trap(device=trap._device):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_refused():
    with pytest.raises(CheckError, match="there must be a CUDA device"), cuda_sync_trap():
        pass


def test_regions_nest_and_the_inner_one_is_named(open_trap):
    with open_trap() as trap, hot_path("outer"):
        x().tolist()
        with hot_path("inner"):
            x()[0].item()
        torch.cuda.synchronize()
    assert [finding.evidence["hot path"] for finding in trap.findings] == ["outer", "inner", "outer"]


def test_a_thread_is_in_the_hot_path_that_it_entered(open_trap):
    def work():
        x().tolist()
        with hot_path("of the thread"):
            x()[0].item()

    with open_trap() as trap, hot_path("decode"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [finding.evidence["hot path"] for finding in trap.findings] == ["of the thread"]


def test_allowances_count_and_unused_ones_are_told(open_trap):
    with open_trap() as trap, hot_path("decode"):
        with allow_sync("MRV101", "the finish check", budget=1):
            x()[0].item()
            x()[0].item()
        with allow_sync("MRV104", "never needed"):
            pass
    assert codes(trap.findings) == ["MRV121"] and codes(trap.watch.unused()) == ["MRV122"]


def step(value):
    return value.tolist()


def test_hot_paths_are_named_from_outside(open_trap):
    settings = Settings(hot_paths=(f"{__name__}:step",), warmup_calls=1)
    with open_trap(settings) as trap:
        step(x())
        assert trap.findings == []
        step(x())
    (finding,) = trap.findings
    assert finding.where[0].function == "step" and finding.evidence["bytes"] == 32
    trap.watch.require_entered()


def test_an_operator_that_is_in_no_table_is_named_by_the_source(open_trap):
    with open_trap() as trap, hot_path("decode"):
        torch.linalg.cholesky(torch.eye(4, device="cuda"))
        torch.full((2,), x()[0])
    first, second = trap.findings
    assert (first.code, first.evidence["operation"]) == ("MRV109", "torch.linalg.cholesky")
    assert (second.code, second.evidence["operation"]) == ("MRV101", "torch.full")
    assert {finding.where[0].function for finding in (first, second)} == {
        "test_an_operator_that_is_in_no_table_is_named_by_the_source"
    }


def test_one_call_that_waits_often_is_one(open_trap):
    with open_trap() as trap, hot_path("decode"):
        repr(x())
        torch.save([x(), x()], "/dev/null")
    assert [finding.evidence["times"] for finding in trap.findings] == [1, 1]


def test_events_that_the_host_knows_to_be_over(open_trap):
    with open_trap(schedule="early") as trap:
        value, side = x(), torch.cuda.Stream()
        slot, copied, polled, later = (torch.cuda.Event() for _ in range(4))
        slot.record()
        side.wait_stream(torch.cuda.current_stream())
        copied.record(side)
        polled.record()
        copied.synchronize()  # outside of the hot path
        with hot_path("safe"):
            slot.synchronize()
            assert polled.query()
            polled.synchronize()
            torch.cuda.Event().synchronize()
            value.add_(1)
            later.record()
        with hot_path("waits"):
            later.synchronize()
            later.synchronize()
    (finding,) = trap.findings
    assert (finding.code, finding.evidence["hot path"], finding.evidence["times"]) == ("MRV104", "waits", 1)


def test_a_value_that_was_read_says_that_its_stream_is_over(open_trap):
    with open_trap() as trap:
        event = torch.cuda.Event()
        event.record()
        x()[0].item()
        with hot_path("decode"):
            event.synchronize()
    assert trap.findings == []


def test_a_wait_in_a_capture_is_the_captures_finding(open_trap, monkeypatch):
    with open_trap() as trap, hot_path("decode"):
        monkeypatch.setattr(trap._device, "capturing", lambda: True)
        x()[0].item()
        torch.cuda.synchronize()
    assert [(finding.code, finding.evidence["call"]) for finding in trap.findings] == [
        ("MRV502", "Tensor.item"),
        ("MRV502", "torch.cuda.synchronize"),
    ]


def test_the_first_use_of_a_kernel(open_trap):
    told = triton.knobs.runtime.kernel_load_start_hook
    before = [*told.calls]
    with open_trap() as trap:
        told(None, None, "warm", None, "")  # as Triton does where it loads a kernel
        with hot_path("decode"):
            told(None, None, "rotary", None, "")
    assert told.calls == before
    (finding,) = trap.findings
    assert (finding.code, finding.evidence["operation"], finding.evidence["times"]) == (
        "MRV107",
        "the first launch of rotary",
        1,
    )
    assert "warm-up" in finding.remedy


def test_a_launch_that_takes_long_met_a_full_queue(warning_device):
    hooks = triton.knobs.runtime
    before = [*hooks.launch_enter_hook.calls], [*hooks.launch_exit_hook.calls]
    seconds = iter(range(10**9, 10**15, 10**9))

    def launch():  # as Triton does
        hooks.launch_enter_hook(None)
        hooks.launch_exit_hook(None)

    with warning_device() as device, cuda_sync_trap(device=device) as trap:
        device.now_ns = lambda: 1
        with hot_path("quick"):
            launch()
    assert trap.findings == []
    with warning_device() as device:
        device.now_ns = lambda: next(seconds)
        with cuda_sync_trap(device=device) as trap:
            launch()
            with hot_path("decode"):
                launch()
            launch()
    (finding,) = trap.findings
    assert (finding.code, finding.evidence["hot path"], finding.evidence["times"]) == ("MRV108", "decode", 1)
    assert ([*hooks.launch_enter_hook.calls], [*hooks.launch_exit_hook.calls]) == before


def test_a_program_that_ignores_warnings_is_trapped_nevertheless(open_trap):
    with open_trap() as trap, hot_path("decode"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x().tolist()
        torch.unique(x())
    assert codes(trap.findings) == ["MRV101", "MRV105"]


class NoDevice:
    """For a program on the host alone."""

    tensors, events, streams, now_ns = (torch.Tensor,), (), (), staticmethod(lambda: 0)
    set_sync_mode = staticmethod(lambda mode: None)
    get_sync_mode = host_frees = reserved = staticmethod(lambda: 0)
    current_stream = staticmethod(lambda: (0, 0))


def test_compiled_programs_keep_their_graph():
    def program(value):
        made = value.to(torch.float64)[1:3] + torch.tensor([1.0, 2.0]) + torch.as_tensor([1.0, 1.0])
        made[0] = 2.0
        return made.copy_(made + 1)

    with cuda_sync_trap(device=NoDevice()) as trap, hot_path("decode"):
        compiled = torch.compile(program, fullgraph=True, backend="eager")
        assert compiled(torch.ones(4)).tolist() == [3.0, 5.0]
    assert trap.findings == []


def test_the_survey_sees_what_is_missed_and_what_is_said_in_vain(open_trap):
    with open_trap() as trap:
        value = x()
        calls = {"list": value.tolist, "sum": value.sum, "equal": lambda: torch.equal(value, value), "none": None}
        truth = {"list": True, "sum": True, "equal": False, "none": True}
        found = survey(calls.items(), truth, trap)
    assert (found["calls"], found["waiting"], found["missed"]) == (3, 2, ["sum"])
    assert found["reported"] == {"list": ["MRV101 Tensor.tolist"]}
    assert found["reported, not waiting"] == {"equal": ["MRV101 torch.equal"]}
    short = {"operators": {"measured": 2, "waiting": ["b"]}, "relatives": {"a": True}}
    assert truth_of(short, "operators", ["a", "b"]) == {"a": False, "b": True}
    assert truth_of(short, "relatives", ["wait: a", "free: c"]) == {"wait: a": True, "free: c": None}


def test_memory_is_asked_once_whether_it_is_pinned_until_some_goes_back_to_the_driver(open_trap, monkeypatch):
    asked, stock = [], PinnedAddresses.holds
    monkeypatch.setattr(PinnedAddresses, "holds", lambda known, it: asked.append(it.data_ptr()) or stock(known, it))
    with open_trap() as trap:
        pinned, there = torch.zeros(8, pin_memory=True), torch.ones(8, device="cuda")
        pageable = torch.zeros(8)
        with hot_path("decode"):
            asked.clear()
            for _ in range(3):
                pinned.copy_(there, non_blocking=True)
                pinned.view(8).copy_(there, non_blocking=True)
            assert asked == [pinned.data_ptr()]
            torch.cuda.synchronize()
            torch.accelerator.empty_host_cache()
            pinned.copy_(there, non_blocking=True)
            assert asked == [pinned.data_ptr()] * 2
            pageable.copy_(there, non_blocking=True)
    assert [finding.code for finding in trap.findings] == ["MRV104", "MRV103"]


def sparse():
    return torch.eye(3).to_sparse()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cpu(),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: x.type(torch.float64),
        lambda x: x.type_as(x.double()),
        lambda x: x.clone().copy_(x, non_blocking=True),
    ],
    ids=["cpu", "to", "type", "type_as", "copy_"],
)
def test_sparse_tensors_which_have_neither_strides_nor_a_size_in_bytes_pass(open_trap, call):
    given = sparse()
    with open_trap() as trap, hot_path("decode"):
        result = call(given)
        torch.ones(8, device="cuda").tolist()
    assert result.is_sparse and result.to_dense().equal(torch.eye(3, dtype=result.dtype))
    assert codes(trap.findings) == ["MRV101"]


def test_of_sparse_tensors_the_warnings_are_told_and_no_rule_of_strides_is_asked():
    # Three indices of two dimensions, int64, and three values, float32.
    given, large = sparse(), torch.sparse_coo_tensor([[0]], torch.ones(1, 1 << 20), check_invariants=False)
    assert bytes_of(given) == 3 * 2 * 8 + 3 * 4
    assert upload_cause("to", given, given, 1, 0) == Cause(WaitKind.UPLOAD, "to", 60)
    assert download_cause("copy_", given, given, 1) == Cause(WaitKind.DOWNLOAD_INTO, "copy_", 60)
    assert bytes_of(large) > PAGEABLE_STAGING_LIMIT
    assert upload_cause("to", large, large, 0, 0) is None
    assert download_cause("copy_", large, large, 0) is None
