"""The 96 measured calls under the trap for real CUDA: one rule table, the same findings as on the virtual device."""

import pytest

from mrv2.checks.hot_path import hot_path
from mrv2.checks.sync.probes import FREE, WAITING, make_bench
from mrv2.checks.sync.virtual import sync_trap
from mrv2.checks.sync.waits import WaitKind

#: Of the calls that were seen to wait on an H200, those of which torch does not warn, by the kind that is silent.
SILENT = {"pagebig_nb": (WaitKind.UPLOAD,), "copy_ page<-gpu nb": (WaitKind.DOWNLOAD_INTO,)}


def told(findings):
    kept = ("operation", "direction", "bytes", "times")
    return [
        (f.code, f.verdict, f.title, f.remedy, f.where, {name: f.evidence.get(name) for name in kept}) for f in findings
    ]


def expected(call):
    with sync_trap() as trap:
        bench = make_bench()
        with hot_path("the probe"):
            call(bench)
    return told(trap.watch.findings)


def found(trapped, call, silent):
    with trapped(silent=silent) as trap:
        bench = make_bench()
        with hot_path("the probe"):
            call(bench)
        return told(trap.findings)


@pytest.mark.parametrize("name", WAITING)
def test_a_call_that_waits_is_the_same_finding(trapped, name):
    mine, theirs = found(trapped, WAITING[name], SILENT.get(name, ())), expected(WAITING[name])
    assert [one[0] for one in mine] == [one[0] for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one[1:4] == other[1:4]
        assert one[5] == other[5]
        assert [site.function.replace("found", "expected") for site in one[4]] == [site.function for site in other[4]]


@pytest.mark.parametrize("name", FREE)
def test_a_call_that_does_not_wait_is_none(trapped, name):
    assert found(trapped, FREE[name], ()) == []
