"""What an H200 said of some hundred calls, and of the samples that torch tests its operators with, beside the trap."""

import contextlib
import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from mrv2.checks.hot_path import hot_path
from mrv2.checks.sync.virtual import sync_trap
from mrv2.ci.gpu.operator_waits import operators

from .relatives import INSIDE
from .test_virtual_trap import Bench

MEASURED = json.loads(Path(__file__).with_name("operator_waits_h200.json").read_text())
#: C code builds these from numbers of the device, and no mode sees it.
MISSED = {"Tensor of device numbers", "LongTensor of device numbers"}
#: Refused on the virtual device, or in a torch without CUDA, or not as on a GPU.
ELSEWHERE = {"FloatTensor", "MemPool", "memory_snapshot"}


def told(calls):
    """Each call, with the codes that it makes in a hot path; those that raise are left out."""
    ran = []
    with sync_trap() as trap, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in calls:
            torch.cuda.synchronize()
            with contextlib.suppress(Exception):  # torch's own samples raise on devices that they are not for
                with hot_path(name):
                    call()
                ran.append(name)
    found = {name: [] for name in ran}
    for finding in trap.watch.findings:
        found.setdefault(finding.evidence["hot path"], []).append(finding.code)
    return {name: found[name] for name in ran}


def of_relatives():
    for name, call in INSIDE.items():
        bench = Bench()
        yield name, lambda call=call, bench=bench: call(bench)


def test_the_trap_tells_what_was_measured():
    found = told(of_relatives())
    expected = {name: waits for name, waits in MEASURED["relatives"].items() if name not in MISSED | ELSEWHERE}
    assert {name: bool(found[name]) for name in expected} == expected
    assert {name for name in MISSED if not found[name]} == MISSED
    assert sum(expected.values()) > 40


REMEDIES = {
    "histc, empty range": "a range that the host knows", "normal, deviations": "randn_like", "pinv": "hot path",
    "segment_reduce": "unsafe=True", "torch.cholesky": "cholesky_ex", "matrix_exp": "hot path", "lstsq": "qr",
    "inv_ex, checked": "check_errors=False", "lu_factor_ex, checked": "check_errors=False", "ldl_solve": "hot path",
    "where with a host number": "Python number", "ctc_loss": "hot path", "new, list": "pinned ring",
}  # fmt: skip


def test_each_has_a_remedy_of_its_own():
    with sync_trap() as trap:
        for name, call in of_relatives():
            if name in REMEDIES:
                with hot_path(name):
                    call()
    found = {finding.evidence["hot path"]: finding for finding in trap.watch.findings}
    assert {name for name, finding in found.items() if REMEDIES[name] not in finding.remedy} == set()
    assert found["torch.cholesky"].evidence["operation"] == "torch.cholesky" and set(found) >= {"pinv", "lstsq"}


def test_a_function_that_only_passes_a_call_on_is_not_what_was_called():
    with sync_trap() as trap, hot_path("decode"):
        torch.unique(torch.zeros(3, device="cuda"))
    assert [finding.evidence["operation"] for finding in trap.watch.findings] == ["torch.unique"]


@pytest.mark.skipif(not os.environ.get("MRV2_OPERATORS"), reason="MRV2_OPERATORS=1 runs it: some 3,400 samples")
def test_the_trap_tells_what_torch_s_own_samples_do():
    found = told(operators("cuda"))
    waiting = {name for name in MEASURED["operators"]["waiting"] if name in found}
    # Samples of histc have another order in other versions of torch.
    wrong = {name for name, codes in found.items() if bool(codes) != (name in waiting) and "histc" not in name}
    assert wrong == set() and len(waiting) > 200 and len(found) > 3000
