"""Faults planted in speculation, each of which must show: the negative control of the tests beside this one."""

import os

import pytest

from mrv2.fuzz.mutants import mutant
from mrv2.fuzz.mutants.speculation import ACCOUNTING, PROPOSALS

from .speculation_cases import differences, on_cpu, plain_results, workload
from .test_speculation import accepted_of_the_target_itself

# Each mutant compiles the kernels of a package of its own; the suite shows one of either kind.
ALL = bool(os.environ.get("MRV2_SPECULATION_MUTANTS"))
SETTINGS = {"speculation": "ngram", "num_drafts": 3, "attention": "triton", "poison": True}
WINDOWED = {"num_kv_blocks": 60}


def shows(target):
    """Whether a workload's tokens, log-probabilities or bookkeeping are not what they should be."""
    if not _is_right(target, 0, "tiny") or not _is_right(target, 4, "tiny"):
        return True
    return not _is_right(target, 2, "tiny-sliding", **WINDOWED)


def _is_right(target, seed, model, **shape):
    plain = plain_results(seed, model, **shape)
    try:
        return not differences(on_cpu(workload(seed, **shape), target, model=model, **SETTINGS), plain)
    except AssertionError:  # a crash, or a broken invariant
        return False


@pytest.mark.skipif(not ALL, reason="MRV2_SPECULATION_MUTANTS=1 runs it")
def test_without_a_fault_nothing_shows():
    assert not shows(None)


@pytest.mark.parametrize("fault", ACCOUNTING if ALL else ACCOUNTING[3:4], ids=lambda fault: fault.name)
def test_a_planted_fault_shows(fault):
    with mutant(fault) as target:
        assert shows(target)


@pytest.mark.skipif(not ALL, reason="MRV2_SPECULATION_MUTANTS=1 runs it")
@pytest.mark.parametrize("fault", PROPOSALS, ids=lambda fault: fault.name)
def test_a_fault_of_the_proposals_shows_in_what_is_accepted(fault):
    with mutant(fault) as target:
        try:
            accepted, drafts = accepted_of_the_target_itself(2, 4, target)
        except AssertionError:  # an access outside a table
            return
        assert accepted < drafts
