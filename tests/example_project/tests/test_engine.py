"""Tests of the tiny engine, which know nothing of mrv2."""

from tiny_engine import Runner


def test_sums():
    runner = Runner(rows=2, limit=10)
    for numbers in ([1, 2], [3, 4]):
        runner.step(numbers)
    assert runner.results() == ([4, 6], False)


def test_a_request_is_finished_at_its_limit():
    runner = Runner(rows=1, limit=10)
    runner.step([10])
    _, finished = runner.results()
    assert finished
