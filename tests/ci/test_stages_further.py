"""Stages "races" and "sync" meet drafts and grammars: what is planted there, and nowhere else, fails them."""

from types import SimpleNamespace

import pytest

from mrv2.checks import triton_cpu
from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages import races, sync
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.further import BOTH, CHANCES, GRAMMARS, NGRAMS, PROPOSERS, further_workloads, unexercised_further
from mrv2.fuzz.mutants import mutant
from mrv2.fuzz.mutants.further import FURTHER_EDGES, FURTHER_WAITS
from mrv2.fuzz.mutants.grammar import EDGES as MASK_EDGES
from mrv2.fuzz.programs import random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import run_target

pytest.importorskip("llguidance")

# The race that each missing edge is.
CODE_OF = {
    "mask_read_before_its_upload": "MRV204",
    "mask_overwritten_while_it_is_read": "MRV204",
    "mask_slot_free_before_its_upload": "MRV201",
    "drafts_read_before_they_arrive": "MRV203",
    "drafts_downloaded_before_they_are_listed": "MRV204",
    "proposals_on_a_stream_of_their_own": "MRV204",
}
# The upload for the trial batch waits for the device, behind whatever the runner's memory was made with. ``TokenMasks``
# on its own needs the edge, and ``test_grammar_in_runner.py`` shows it.
EQUIVALENT = {"mask_uploaded_before_its_memory_is_made"}
WAIT_OF = {
    "acceptance_read_in_the_step": "MRV101",
    "masks_wait_for_their_upload": "MRV104",
    "drafts_downloaded_at_once": "MRV101",
}


@pytest.fixture
def short(monkeypatch):
    """The quick workload is cut to a few steps, and of the others there is the one that has everything."""
    for stage in (races, sync):
        monkeypatch.setattr(stage, "quick_workload", lambda vocab, seed, _: random_workload(vocab, seed, 2))
        monkeypatch.setattr(stage, "further_workloads", lambda *asked: {BOTH: further_workloads(*asked)[BOTH]})
    monkeypatch.setattr(races, "unexercised", lambda *_: [])
    monkeypatch.setattr(races, "OTHERS", "early")
    monkeypatch.setattr(races, "find_uninitialised", lambda program: [])


def test_everything_planted_is_known():
    assert {fault.name for fault in (*MASK_EDGES, *FURTHER_EDGES)} == CODE_OF.keys() | EQUIVALENT
    assert {fault.name for fault in FURTHER_WAITS} == WAIT_OF.keys()


@pytest.mark.parametrize("fault", [*MASK_EDGES, *FURTHER_EDGES], ids=lambda fault: fault.name)
def test_a_missing_edge_fails_the_races(short, fault, progress):
    with triton_cpu.enabled(), mutant(fault) as target:
        result = races.Races().run(target, Budget(), progress)
    if fault.name in EQUIVALENT:
        assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
        return
    assert result.verdict is RunVerdict.FAIL
    assert CODE_OF[fault.name] in {finding.code for finding in result.findings}


@pytest.mark.parametrize("fault", FURTHER_WAITS, ids=lambda fault: fault.name)
def test_a_hidden_wait_fails_the_stage(short, fault, progress):
    with triton_cpu.enabled(), mutant(fault) as target:
        result = sync.Sync().run(target, Budget(), progress)
    assert result.verdict is RunVerdict.FAIL
    (finding,) = result.findings
    assert (finding.code, finding.evidence["schedules"]) == (WAIT_OF[fault.name], [f"late, {BOTH}"])


@pytest.mark.parametrize(
    ("features", "knobs", "names"),
    [
        (ReferenceTarget.features, ReferenceTarget.knobs, [*PROPOSERS, *CHANCES, GRAMMARS, BOTH]),
        (frozenset(), ReferenceTarget.knobs, [*PROPOSERS, *CHANCES, NGRAMS]),
        (ReferenceTarget.features, {}, [GRAMMARS]),
        (frozenset(), {}, []),
    ],
)
def test_a_target_gets_what_it_knows(features, knobs, names):
    target = SimpleNamespace(name="other", features=features, knobs=knobs, build=None)
    assert [*further_workloads(target, 256)] == names


def test_each_workload_has_drafts_of_both_kinds_and_texts_that_end():
    target = ReferenceTarget()
    for name, workload in further_workloads(target, 256).items():
        with triton_cpu.enabled():
            trace = run_target(target, {"model": "tiny"}, workload)
        assert unexercised_further(name, workload, trace) == []
        trace.drafts, trace.counts["resumed"], trace.results = (4, 4), 0, {}
        missing = unexercised_further(name, workload, trace)
        assert any("nobody came back" in text for text in missing)
        assert any("4 of 4 drafts" in text for text in missing) == ("speculation" in workload.capacities)
        assert sum("did not come to its end" in text for text in missing) == (2 if "grammars" in name else 0)
