"""The 96 measured calls under the trap for real CUDA: one rule table, the same findings as on the virtual device."""

import itertools

import pytest

from mrv2.checks.hot_path import hot_path
from mrv2.checks.sync.probes import FREE, WAITING, make_bench
from mrv2.checks.sync.virtual import sync_trap
from mrv2.checks.sync.waits import WaitKind

#: Of the calls that were seen to wait on an H200, those of a kind of which torch otherwise warns, and here does not.
SILENT = {"pagebig_nb": WaitKind.UPLOAD, "copy_ page<-gpu nb": WaitKind.DOWNLOAD_INTO}
PROBES = {**WAITING, **FREE}
WARNED = [name for name in PROBES if name not in SILENT]


def make(names):
    """Each in a hot path of its own name."""
    for name in names:
        bench = make_bench()
        with hot_path(name):
            PROBES[name](bench)


def by_probe(findings):
    """What is said of each probe; where each was called is the same line."""
    told = {}
    for finding in findings:
        said = (finding.code, finding.verdict, finding.title, finding.remedy, dict(finding.evidence))
        told.setdefault(finding.evidence["hot path"], []).append((*said, [site.function for site in finding.where]))
    return told


def trapped(open_trap, names, **device):
    with open_trap(**device) as trap:
        make(names)
    return by_probe(trap.findings)


@pytest.fixture(scope="module")
def expected():
    with sync_trap() as trap:
        make([*WARNED, *SILENT])  # what an emptied cache held depends on what was called before
    return by_probe(trap.watch.findings)


def test_what_waits_is_the_same_finding_and_what_does_not_is_none(open_trap, expected):
    assert trapped(open_trap, WARNED) == {name: said for name, said in expected.items() if name not in SILENT}
    assert set(expected) == set(WAITING)


@pytest.mark.parametrize("name", SILENT)
def test_what_torch_does_not_warn_of_is_found_by_the_rules(open_trap, expected, name):
    assert trapped(open_trap, [name], silent=[SILENT[name]]) == {name: expected[name]}


def test_without_warnings_only_what_the_rules_say_is_found(open_trap):
    """A negative control: it is the warnings that the rest comes from."""
    names = ("item", "nonzero", "copy_ gpu<-pin", "empty_cache", "cuda.synchronize")
    found = trapped(open_trap, names, silent=list(WaitKind))
    assert set(found) == {"empty_cache", "cuda.synchronize"}


def test_a_copy_that_takes_long_met_full_staging_and_a_launch_a_full_queue(open_trap):
    with open_trap() as trap:
        bench = make_bench()
        trap._device.times = itertools.count(0, 20_000_000)
        with hot_path("busy"):
            bench.x.copy_(bench.page, non_blocking=True)
            bench.x.copy_(bench.pin, non_blocking=True)
            bench.pin.to("cuda", non_blocking=True)
    assert [(finding.code, finding.verdict.value) for finding in trap.findings] == [
        ("MRV102", "suspect"),
        ("MRV108", "suspect"),
    ]
