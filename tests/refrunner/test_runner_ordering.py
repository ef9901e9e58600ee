"""The order between host and device, on the virtual device: what each fence of the runner is for.

Each test runs the runner as it is, which has no race, and a copy of it in which one line is missing, which has. The
faults that a plain workload shows are in ``fuzz/mutants/ordering.py``; here are those that need a caller of its own.
"""

import gc
import threading

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.mutants import Mutation, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import NewRequest, Step

SCHEDULES = ("late", "early", "random:0", "starve:0", "starve:1")
CONFIG = {
    "model": "tiny",
    "device": "cuda",
    "max_num_reqs": 2,
    "max_num_batched_tokens": 8,
    "max_model_len": 16,
    "block_size": 4,
    "num_kv_blocks": 9,
}
ENTER = Step(new=(NewRequest("a", (1, 2, 3), 3),), scheduled={"a": 3}, new_blocks={"a": ((1, 2),)})
NEXT = Step(scheduled={"a": 1})

NOT_ON_THE_MAIN_STREAM = Mutation(
    "not_on_the_main_stream",
    "model_runner.py",
    "with self._device.on_main_stream(), poisoned,",
    "with poisoned,",
    "a step runs on whatever stream is current in the calling thread",
)
INVARIANTS_DO_NOT_WAIT = Mutation(
    "invariants_do_not_wait",
    "model_runner.py",
    '        """Check the bookkeeping against the device; synchronises."""\n        self._device.synchronize()\n',
    '        """Check the bookkeeping against the device; synchronises."""\n',
    "invariants() reads tables that the device has not written yet",
)
SOURCES_NOT_RECORDED = Mutation(
    "sources_not_recorded",
    "device.py",
    "            source.record_stream(self.copy_stream)\n",
    "            pass\n",
    "the memory of dropped results is given to later steps while the copy stream reads it",
)


def found(call, schedule, target):
    """Codes of what a caller finds with a runner of the target; None if what it read was wrong.

    The runner is made on a stream of its own, and the caller is on the default one.
    """
    with virtual_device(schedule) as device:
        with torch.cuda.stream(torch.cuda.Stream()):
            runner = target.build(CONFIG)._runner
        right = call(runner)
        runner.close()
    return {finding.code for finding in device.findings} if right else None


def step_from_another_stream(runner):
    with torch.cuda.stream(runner._device.main_stream):
        runner.execute(ENTER)
    return len(runner.execute(NEXT).result().token_ids["a"]) == 1


def step_from_another_thread(runner):
    """The stream that is current in one thread is not current in another."""
    handles = []
    thread = threading.Thread(target=lambda: handles.append(runner.execute(NEXT)))
    with torch.cuda.stream(runner._device.main_stream):
        runner.execute(ENTER)
        thread.start()
        thread.join()
    return len(handles[0].result().token_ids["a"]) == 1


def invariants_beside_a_step(runner):
    """The tables are read on the stream of the caller, which knows nothing of the step."""
    runner.execute(ENTER)
    return runner.invariants() == []


def dropped_handles(runner):
    """Nobody asks for these results, so nothing but the allocator keeps their memory from later steps."""
    runner.execute(ENTER)
    for _ in range(3):
        runner.execute(NEXT)
    gc.collect()
    return True


CALLS = {
    step_from_another_stream: (NOT_ON_THE_MAIN_STREAM, "MRV204"),
    step_from_another_thread: (NOT_ON_THE_MAIN_STREAM, "MRV204"),
    invariants_beside_a_step: (INVARIANTS_DO_NOT_WAIT, "MRV204"),
    dropped_handles: (SOURCES_NOT_RECORDED, "MRV205"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_the_runner_has_no_race(call, schedule):
    assert found(call, schedule, ReferenceTarget()) == set()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_missing_line_is_a_race_in_every_schedule(call):
    mutation, code = CALLS[call]
    with mutant(mutation) as target:  # one twin for all schedules, since each is imported anew
        codes_of = {schedule: found(call, schedule, target) for schedule in SCHEDULES}
    # Late, the values read are wrong; early they are right by luck, and only the race tells.
    for schedule, codes in codes_of.items():
        assert codes is None or code in codes, schedule


def test_results_that_were_dropped_disturb_no_later_one():
    with virtual_device("starve:1"):
        runner = ReferenceTarget().build(CONFIG)._runner
        dropped_handles(runner)
        last = runner.execute(NEXT).result().token_ids
    on_cpu = ReferenceTarget().build({**CONFIG, "device": "cpu"})._runner
    dropped_handles(on_cpu)
    assert on_cpu.execute(NEXT).result().token_ids == last
