"""The sync trap on the virtual device: the 96 calls measured on an H200, in every schedule."""

import pytest
import torch

from mrv2.checks.findings import Verdict
from mrv2.checks.hot_path import hot_path
from mrv2.checks.sync.probes import FREE, WAITING, make_bench
from mrv2.checks.sync.virtual import sync_trap

SCHEDULES = ("late", "early", "random:0")
#: The waiting calls, by the code that they make in a hot path.
CODES = {
    "MRV101": ("item", "int()", "bool()", "float()", "if any", "tolist", "cpu", "to_cpu", "numpy_after_cpu",
               "slice_by_gpu_scalar", "select_by_gpu_scalar", "equal", "allclose", "repr", "pickle", "x.__contains__"),
    "MRV102": ("cpu_idx_on_gpu", "setitem_pyfloat", "setitem_cpu_tensor_scalar", "setitem_list", "tensor_list_dev",
               "tensor_scalar_dev", "as_tensor_np", "page.cuda()", "pagebig_nb", "pin.cuda()", "copy_ gpu<-pin"),
    "MRV103": ("copy_ page<-gpu nb",),
    "MRV104": ("cuda.synchronize", "accel.sync", "stream.synchronize", "event.synchronize"),
    "MRV105": ("nonzero", "where1", "masked_select", "boolidx", "boolidx_assign_tensor", "unique",
               "repeat_interleave_tensor", "bincount", "bincount_minlength", "one_hot"),
    "MRV106": ("empty_cache",),
    "MRV109": ("histc", "linalg.inv", "linalg.solve", "isin"),
}  # fmt: skip
#: Of copies: which way, and how many bytes.
UP, DOWN = "host to device", "device to host"
COPIES = {
    "tolist": (DOWN, 256), "cpu": (DOWN, 256), "to_cpu": (DOWN, 256), "numpy_after_cpu": (DOWN, 256),
    "repr": (DOWN, 256), "pickle": (DOWN, 256), "copy_ page<-gpu nb": (DOWN, 256),
    "cpu_idx_on_gpu": (UP, 16), "setitem_pyfloat": (UP, 4), "setitem_cpu_tensor_scalar": (UP, 4),
    "setitem_list": (UP, 20), "tensor_list_dev": (UP, 8), "tensor_scalar_dev": (UP, 4), "as_tensor_np": (UP, 256),
    "page.cuda()": (UP, 256), "pagebig_nb": (UP, 16 << 20), "pin.cuda()": (UP, 256), "copy_ gpu<-pin": (UP, 256),
}  # fmt: skip
#: A part of the remedy that only fits this kind of call.
REMEDIES = {
    "item": "behind the event", "bool()": "torch.where", "repr": "log shape", "pickle": "save", "equal": "isclose",
    "slice_by_gpu_scalar": "index", "cpu_idx_on_gpu": "an index that is on the device",
    "setitem_pyfloat": "index_fill_",
    "tensor_list_dev": "pinned ring", "copy_ page<-gpu nb": "pin_memory=True", "cuda.synchronize": "event",
    "stream.synchronize": "wait_stream", "event.synchronize": "wait_event", "nonzero": "nonzero_static",
    "boolidx": "torch.where", "unique": "sort", "repeat_interleave_tensor": "output_size", "bincount": "scatter_add_",
    "one_hot": "num_classes", "empty_cache": "warm-up", "histc": "bucketize", "linalg.inv": "inv_ex",
    "linalg.solve": "solve_ex", "isin": "searchsorted",
}  # fmt: skip


def found(call, schedule):
    with sync_trap(schedule=schedule) as trap:
        bench = make_bench()
        with hot_path("the probe"):
            call(bench)
    assert trap.device.findings == []
    return trap.watch.findings


def test_every_waiting_call_has_its_code():
    assert sorted(name for names in CODES.values() for name in names) == sorted(WAITING)
    assert set(COPIES) <= set(WAITING) and set(REMEDIES) <= set(WAITING)
    assert (len(WAITING), len(FREE)) == (47, 49)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("code", "name"), [(code, name) for code, names in CODES.items() for name in names])
def test_a_call_that_waits_is_one_finding(code, name, schedule):
    (finding,) = found(WAITING[name], schedule)
    assert (finding.code, finding.verdict) == (code, Verdict.VIOLATION)
    assert finding.where[0].file.endswith("test_probes.py") and finding.where[0].function == "found"
    evidence = finding.evidence
    assert evidence["times"] == 1 and evidence["hot path"] == "the probe"
    way = evidence.get("direction")
    assert (way and (way, evidence["bytes"])) == COPIES.get(name)
    assert REMEDIES.get(name, " ") in finding.remedy


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", FREE)
def test_a_call_that_does_not_wait_is_none(name, schedule):
    assert found(FREE[name], schedule) == []


@pytest.mark.slow
def test_inference_mode_changes_nothing():
    codes = {name: code for code, names in CODES.items() for name in names}
    for name, call in {**WAITING, **FREE}.items():
        with torch.inference_mode():
            findings = found(call, "late")
        assert [finding.code for finding in findings] == ([codes[name]] if name in codes else []), name
