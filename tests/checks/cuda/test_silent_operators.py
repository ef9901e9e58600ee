"""Operators that wait below torch, which does not warn of them: as an H200 measured them, on both devices."""

import contextlib
import json
import os
from pathlib import Path

import pytest
import torch

from mrv2.checks.cuda.sync_trap import cuda_sync_trap
from mrv2.checks.hot_path import hot_path
from mrv2.checks.sync.virtual import sync_trap
from mrv2.checks.sync.waits import WaitKind
from mrv2.ci.gpu.operator_waits import measure, operators

_FILE = Path(__file__).parents[1] / "sync" / "operator_waits_h200.json"
WAITING = frozenset(json.loads(_FILE.read_text())["operators"]["waiting"])
#: Those of which the trap missed some when torch's warnings were all it had.
NAMES = frozenset({"linalg.ldl_factor_ex", "linalg.ldl_solve", "linalg.lu", "linalg.lu_factor_ex", "lu"})


def codes(open_trap, make_calls, **device):
    """Of each call the codes that it makes in a hot path; without those that raise, since a CPU cannot do all."""
    told, ran = {}, []
    with open_trap(**device) as trap:
        for name, call in make_calls():
            torch.cuda.synchronize()
            with contextlib.suppress(RuntimeError), hot_path(name):
                call()
                ran.append(name)
    for finding in getattr(trap, "watch", trap).findings:
        told.setdefault(finding.evidence["hot path"], []).append(finding.code)
    return {name: told.get(name, []) for name in ran}


def samples():
    return operators("cuda", NAMES)


@pytest.mark.filterwarnings("ignore:torch.lu is deprecated")
@pytest.mark.skipif(not os.environ.get("MRV2_OPERATORS"), reason="MRV2_OPERATORS=1 runs it: torch's own samples")
def test_both_traps_say_what_was_measured(open_trap):
    real = codes(open_trap, samples, silent=[WaitKind.INSIDE])
    assert real == codes(sync_trap, samples)
    assert {name: found == ["MRV109"] for name, found in real.items()} == {name: name in WAITING for name in real}
    assert {name.partition("#")[0] for name in real} == NAMES and len(WAITING & set(real)) > 20


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:torch.lu is deprecated")
def test_the_trap_says_what_is_measured_on_this_gpu(record_property):
    """Torch's own samples, made before the trap is opened; and distinct slices, of which torch does not warn."""
    x = torch.arange(6.0, device="cuda").view(3, 2)
    slices = {
        "unique": lambda: torch.unique(x, dim=0), "Tensor.unique": lambda: x.unique(dim=1),
        "unique_consecutive": lambda: torch.unique_consecutive(x, dim=0), "unique, empty": lambda: x[:0].unique(dim=0),
    }  # fmt: skip
    calls = [*samples(), *slices.items()]
    measured = {name: waits for name, waits in measure(iter(calls)).items() if isinstance(waits, bool)}
    told = codes(cuda_sync_trap, lambda: [(name, call) for name, call in calls if name in measured])
    record_property("silent operators", json.dumps(measured))
    assert {name: bool(found) for name, found in told.items()} == measured
    assert len(measured) > 20 and {True, False} == set(measured.values())


def test_distinct_slices_wait_though_torch_is_silent(open_trap):
    with open_trap(silent=[WaitKind.SHAPE]) as trap:
        x, host = torch.ones(3, 2, device="cuda"), torch.ones(3, 2)
        with hot_path("decode"):
            torch.unique(x, dim=0)
            x.unique(True, False, False, 1)
            torch.unique_consecutive(x, dim=0)
            x.unique_consecutive(False, False, 1)
            torch.unique(host, dim=0)
            torch.unique(x[:0], dim=0)
    names = [finding.evidence["operation"] for finding in trap.findings]
    assert names == ["torch.unique", "Tensor.unique", "torch.unique_consecutive", "Tensor.unique_consecutive"]
    assert {finding.code for finding in trap.findings} == {"MRV105"}


def few():
    """The same in short: each operator with a shape that waits and one that does not."""
    linalg = torch.linalg
    for name, shape in (("square", (3, 3)), ("wide", (2, 3)), ("tall, many", (2, 3, 2)), ("none", (0, 0))):
        given = torch.ones(shape, device="cuda")
        for function in (linalg.lu, linalg.lu_factor_ex, torch.lu):
            yield f"{function.__name__} {name}", lambda function=function, given=given: function(given)
        if shape[-1] == shape[-2]:
            pivots = torch.ones(shape[:1], dtype=torch.int32, device="cuda")
            yield f"ldl_factor_ex {name}", lambda given=given: linalg.ldl_factor_ex(given)
            yield f"ldl_solve {name}", lambda given=given, pivots=pivots: linalg.ldl_solve(given, pivots, given)


@pytest.mark.filterwarnings("ignore:torch.lu is deprecated")
def test_both_traps_say_the_same_of_shapes_that_wait_and_that_do_not(open_trap):
    real = codes(open_trap, few, silent=[WaitKind.INSIDE])
    assert real == codes(sync_trap, few)
    waiting = {name for name, found in real.items() if found == ["MRV109"]}
    decompositions = {name for name in real if "ldl" in name}
    assert waiting & decompositions == {"ldl_factor_ex square", "ldl_solve square"} and len(decompositions) == 4
    assert {name.partition(" ")[2] for name in waiting - decompositions} >= {"wide", "tall, many"}
    assert len(waiting) == 2 + 2 * 3 + sum("none" in name or "square" in name for name in waiting - decompositions)


def test_a_matrix_of_the_host_and_a_square_one_are_none(open_trap):
    with open_trap(silent=[WaitKind.INSIDE]) as trap:
        wide, square = torch.ones(2, 3, device="cuda"), torch.ones(3, 3, device="cuda")
        with hot_path("decode"):
            torch.linalg.lu_factor_ex(square)
            torch.linalg.lu(torch.ones(2, 3))
            torch.linalg.lu_factor_ex(wide)
            torch.linalg.lu(A=wide)
    names = [finding.evidence["operation"] for finding in trap.findings]
    assert names == ["torch.linalg.lu_factor_ex", "torch.linalg.lu"]
    assert all("square" in finding.remedy for finding in trap.findings)


@pytest.mark.parametrize("name", ["lu", "lu_factor_ex", "ldl_factor_ex", "ldl_solve"])
def test_they_are_put_back(open_trap, name):
    before = getattr(torch.linalg, name)
    with contextlib.suppress(ZeroDivisionError), open_trap():
        assert getattr(torch.linalg, name) is not before
        raise ZeroDivisionError
    assert getattr(torch.linalg, name) is before
