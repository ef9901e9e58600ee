"""The workloads of the stages: arranged anew for each seed, and whatever the seed, they exercise what they must."""

from collections import Counter

import pytest

from mrv2.ci.stages.workloads import (
    EDGE_BLOCK,
    EDGE_LANES,
    EDGE_POSITIONS,
    LEAST_CONTEXT,
    PROMPT_LENGTHS,
    SEEDS,
    TEMPERATURES,
    edges_workload,
    quick_workload,
    rehearse,
)

VOCAB = 256


def temperatures(workload):
    return [request.sampling.temperature for request in workload.requests]


@pytest.mark.parametrize("new_tokens", [6, 12])
def test_every_arrangement_exercises_everything(new_tokens):
    for seed in range(30):
        assert rehearse(quick_workload(VOCAB, seed, new_tokens)) == []


@pytest.mark.parametrize("context", [LEAST_CONTEXT, 79, 100, 255])
def test_a_short_context_shrinks_the_workload(context):
    for seed in range(5):
        workload = quick_workload(VOCAB, seed, 8, context)
        assert workload.capacities["max_model_len"] == context
        assert max(len(request.prompt) for request in workload.requests) < context
        assert rehearse(workload) == []


def test_a_long_context_does_not_stretch_it():
    assert quick_workload(VOCAB, 3, 8, 100_000) == quick_workload(VOCAB, 3, 8)


def test_a_rehearsal_says_what_is_missing():
    missing = rehearse(quick_workload(VOCAB, 0, 1))
    assert "aborted 0 of 1" in missing
    assert "no resume in another row" in missing


def test_the_quick_workload_is_the_one_promised():
    workload = quick_workload(VOCAB, 3, 8)
    assert Counter(len(request.prompt) for request in workload.requests) == Counter(PROMPT_LENGTHS)
    assert len({request.arrival for request in workload.requests}) > 3
    assert workload == quick_workload(VOCAB, 3, 8) != quick_workload(VOCAB, 4, 8)


def test_extreme_temperatures_and_seeds_are_always_among_them():
    for seed in range(10):
        workload = quick_workload(VOCAB, seed, 8)
        assert {0.0, *TEMPERATURES} < set(temperatures(workload))
        seeds = {request.sampling.seed for request in workload.requests}
        assert {None, *SEEDS} < seeds
        assert all(
            (request.sampling.seed is None) == (not request.sampling.temperature) for request in workload.requests
        )


def test_who_has_what_depends_on_the_seed():
    """Every request has had every length, has been greedy and not, and has been the one that is aborted."""
    workloads = [quick_workload(VOCAB, seed, 8) for seed in range(60)]
    for index in range(len(PROMPT_LENGTHS)):
        requests = [workload.requests[index] for workload in workloads]
        assert {len(request.prompt) for request in requests} == set(PROMPT_LENGTHS)
        assert {request.sampling.temperature > 0 for request in requests} == {True, False}
        assert any(request.abort_after for request in requests)
        assert any(request.preempt_after for request in requests)


def test_the_edges_are_the_ones_promised():
    for seed in range(20):
        workload = edges_workload(VOCAB, seed)
        capacities, first = workload.capacities, workload.requests[0]
        assert (capacities["block_size"], capacities["max_num_batched_tokens"]) == (EDGE_BLOCK, EDGE_LANES)
        assert capacities["max_model_len"] % EDGE_BLOCK
        assert EDGE_POSITIONS <= len(first.prompt) < capacities["max_model_len"] <= 2048
        # The longest one is stopped by the limit, not by its own wish.
        assert len(first.prompt) + first.sampling.max_tokens > capacities["max_model_len"]
        assert {request.sampling.seed for request in workload.requests} == {None, *SEEDS}
    assert edges_workload(VOCAB, 0) != edges_workload(VOCAB, 1)


def test_the_edges_fit_into_their_capacities():
    for seed in range(3):
        missing = rehearse(edges_workload(VOCAB, seed))
        assert not [what for what in missing if "generated nothing" in what]
