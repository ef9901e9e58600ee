"""A runner may end in any way while steps are in flight, and what kernels read in place outlives the last of them.

Pinned memory goes with its last reference, and the runner holds that reference. So each way to end is tried with each
way to read, and a twin in which the host allocator is not told of the readers must be found.
"""

import gc
import itertools

import pytest

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.mutants import Mutation, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import NewRequest, Step

CONFIG = {
    "model": "tiny",
    "device": "cuda",
    "attention": "triton",
    "max_num_reqs": 1,
    "max_num_batched_tokens": 8,
    "max_model_len": 16,
    "block_size": 4,
    "num_kv_blocks": 9,
}
WAYS = [
    {"prompt_tokens": prompts, "staged_writes": writes, "graph_mode": graphs}
    for prompts, writes, graphs in itertools.product(
        ("staged", "uva"), ("copied", "in_place"), ("eager", "piecewise", "full")
    )
]
IN_PLACE = [way for way in WAYS if way["prompt_tokens"] == "uva" or way["staged_writes"] == "in_place"]
ALLOCATOR_NOT_TOLD = Mutation(
    "allocator_not_told",
    "device.py",
    "        torch.empty_like(spare, device=self.torch_device).copy_(spare, non_blocking=True)\n",
    "",
    "the host allocator does not know the stream whose kernels read its memory in place",
)
BUFFER_NOT_RECORDED = Mutation(
    "buffer_not_recorded",
    "graphs/captured.py",
    "            beside.record_stream(current)\n",
    "            pass\n",
    "the allocator does not know that replays use the buffer between the pieces of a graph",
)


@pytest.fixture(autouse=True)
def _compiled():
    with triton_cpu.enabled():
        yield


class BreaksOff(Exception):
    """Something fails in the middle of a step."""


def dropped(runner):
    """Nobody closes it, and nobody asks for a result."""
    enqueue_steps(runner)


def dropped_with_results_to_come(runner):
    """The handles live longer than the runner."""
    handles = enqueue_steps(runner)
    del runner
    gc.collect()
    return [handle.result().token_ids for handle in handles]


def closed(runner):
    """Closed, which waits, and dropped."""
    enqueue_steps(runner)
    runner.close()


def broken_off(runner):
    """A step breaks off behind the kernels that read in place: at the forward pass."""
    enqueue_steps(runner)

    def breaks(*_):
        raise BreaksOff

    runner._forward = breaks
    with pytest.raises(BreaksOff):
        enqueue_steps(runner, 3)


ENDS = [dropped, dropped_with_results_to_come, closed, broken_off]


def enqueue_steps(runner, first=0):
    """Three steps, in each of which the only row gets a new owner; returns the handles."""
    handles = []
    for index in range(first, first + 3):
        name, leaving = f"r{index}", (f"r{index - 1}",) if index else ()
        new = (NewRequest(name, tuple(range(10 * index, 10 * index + 5)), 5),)
        blocks = {name: ((1 + 2 * (index % 3), 2 + 2 * (index % 3)),)}
        handles.append(runner.execute(Step(leaving, new=new, scheduled={name: 5}, new_blocks=blocks)))
    return handles


def found(end, target, way, schedule="late"):
    """Codes of what the device saw until all work was over, long after the runner."""
    with virtual_device(schedule) as device:
        end(target.build({**CONFIG, **way})._runner)
        gc.collect()
    return {finding.code for finding in device.findings}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
def test_whichever_way_a_runner_ends_its_readers_are_not_robbed(way, end):
    assert found(end, ReferenceTarget(), way) == set()


@pytest.mark.parametrize("schedule", ["early", "random:0", "starve:1"])
@pytest.mark.parametrize("way", IN_PLACE[-1:], ids=lambda way: "-".join(way.values()))
def test_in_other_schedules_too(way, schedule):
    assert found(dropped, ReferenceTarget(), way, schedule) == set()


def test_an_allocator_that_was_not_told_gives_away_what_is_read():
    with mutant(ALLOCATOR_NOT_TOLD) as target:
        for end, way in itertools.product((dropped, dropped_with_results_to_come, broken_off), IN_PLACE):
            assert "MRV206" in found(end, target, way), (end.__name__, way)
        assert found(closed, target, IN_PLACE[-1]) == set()


def test_an_allocator_that_was_not_told_gives_away_what_replays_write():
    with mutant(BUFFER_NOT_RECORDED) as target:
        for way in WAYS:
            assert found(dropped, target, way) == ({"MRV205"} if way["graph_mode"] == "piecewise" else set())


def test_results_of_a_dropped_runner_are_right():
    with virtual_device("late"):
        late = dropped_with_results_to_come(ReferenceTarget().build({**CONFIG, **IN_PLACE[-1]})._runner)
    assert late == dropped_with_results_to_come(ReferenceTarget().build({**CONFIG, "device": "cpu"})._runner)


def test_a_runner_whose_making_fails_takes_nothing_from_the_trial_batch(monkeypatch):
    from mrv2.refrunner import model_runner

    def breaks(*_):
        raise BreaksOff

    monkeypatch.setattr(model_runner.Sampler, "warm_up", breaks)
    with virtual_device("late") as device:
        with pytest.raises(BreaksOff):
            ReferenceTarget().build({**CONFIG, **IN_PLACE[-1]})
        gc.collect()
    assert not device.findings
