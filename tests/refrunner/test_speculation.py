"""Speculation changes no token: n-gram drafts over fuzzed traces, on the CPU and on the virtual device."""

import os

import pytest

from .speculation_cases import differences, on_cpu, on_virtual_device, plain_results, workload

NGRAM = {"speculation": "ngram", "attention": "triton"}
MANY = bool(os.environ.get("MRV2_SPECULATION_TRACES"))
SEEDS = range(40 if MANY else 2)


@pytest.mark.parametrize("num_drafts", [1, 3, 7])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_tokens_are_those_without_speculation(seed, num_drafts):
    items = workload(seed, steps_in_flight=1 + seed % 3)
    driver = on_cpu(items, num_drafts=num_drafts, poison=True, pad_to=1 + 2 * (seed % 2), **NGRAM)
    assert not differences(driver, plain_results(seed))
    stats = driver._scheduler.speculation
    assert 0 < stats.accepted < stats.drafts, stats
    assert driver.trace.counts["resumed"] > 0 or seed > 1


@pytest.mark.parametrize("schedule", ["late", "random:1", "starve:0", "starve:1"])
def test_no_race_and_the_same_tokens_on_the_virtual_device(schedule):
    driver = on_virtual_device(workload(1, requests=4), schedule, num_drafts=3, **NGRAM)
    assert not differences(driver, plain_results(1, requests=4))
    assert driver._scheduler.speculation.accepted > 0


def test_the_reference_attention_reads_nothing_beyond_the_sequence():
    driver = on_cpu(workload(3, requests=4), num_drafts=3, poison=True, speculation="ngram", attention="torch")
    assert not differences(driver, plain_results(3, requests=4))
