"""The scheduler against a runner of plain Python that checks every step and owns rows, blocks and counters."""

import sys
from collections import deque
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from mrv2.refrunner.api import SamplingParams, StepOutput
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import RequestError
from mrv2.refrunner.scheduler import Scheduler
from mrv2.refrunner.step_check import StepChecker

VOCAB = 20
CONFIG = RunnerConfig(max_num_reqs=3, max_num_batched_tokens=8, max_model_len=24, block_size=4, num_kv_blocks=8)


def token_at(name, position):
    """The token that the model of this file puts at a position: any function of the two will do."""
    return (len(name) * 7 + int(name[1:]) * 5 + position * 3) % VOCAB


@dataclass
class Row:
    tokens: int
    computed: int
    blocks: list


class PlainRunner:
    """Executes steps as the contract says, and refuses what breaks it."""

    def __init__(self, config):
        self.config = config
        self.rows = {}
        self._checker = StepChecker(config, VOCAB)

    def execute(self, step):
        self._checker.check(
            step,
            {name: row.computed for name, row in self.rows.items()},
            {name: row.tokens for name, row in self.rows.items()},
            {name: (len(row.blocks),) for name, row in self.rows.items()},
            {block: {name} for name, row in self.rows.items() for block in row.blocks},
        )
        for name in (*step.finished, *step.preempted):
            del self.rows[name]
        for request in step.new:
            expected = [token_at(request.request_id, position) for position in range(len(request.token_ids))]
            assert list(request.token_ids)[request.prompt_len :] == expected[request.prompt_len :]
            self.rows[request.request_id] = Row(len(request.token_ids), 0, [])
        for name, (blocks,) in step.new_blocks.items():
            self.rows[name].blocks.extend(blocks)
        return self._draw(step)

    def _draw(self, step):
        drawn = {}
        for name, count in step.scheduled.items():
            row = self.rows[name]
            row.computed += count
            if row.computed == row.tokens:
                drawn[name] = (token_at(name, row.tokens),)
                row.tokens += 1
        return StepOutput(drawn, dict.fromkeys(drawn, (-0.5,)))


class Loop:
    """Scheduler and runner with any number of steps in flight."""

    def __init__(self, config=CONFIG):
        self.config = config
        self.scheduler = Scheduler(config)
        self.runner = PlainRunner(config)
        self.in_flight = deque()
        self.steps = []

    def add(self, name, prompt_len, max_tokens=4, stop=()):
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=tuple(stop))
        self.scheduler.add(name, [1] * prompt_len, params)

    def step(self):
        self.steps.append(self.scheduler.schedule())
        self.in_flight.append(self.runner.execute(self.steps[-1]))
        return self.steps[-1]

    def take(self):
        if self.in_flight:
            self.scheduler.update(self.in_flight.popleft())

    def drain(self, depth=2):
        """Run to the end of all work; every request advances, so the number of steps is bounded."""
        for _ in range(2000):
            if not self.scheduler.has_work and not self.in_flight:
                return
            if self.scheduler.has_work:
                self.step()
            if len(self.in_flight) >= depth or not self.scheduler.has_work:
                self.take()
        raise AssertionError("the scheduler does not come to an end")

    def output(self, name):
        return self.scheduler.requests[name].output_token_ids

    def reason(self, name):
        return self.scheduler.requests[name].finish_reason


def expected_output(config, name, prompt_len, max_tokens, stop=()):
    """What a request must generate when nobody aborts it, and why it ends."""
    tokens = []
    while len(tokens) < min(max_tokens, config.max_model_len - prompt_len):
        tokens.append(token_at(name, prompt_len + len(tokens)))
        if tokens[-1] in stop:
            return tuple(tokens), "stop"
    return tuple(tokens), "length"


class AnyOrder(RuleBasedStateMachine):
    """Requests are added, aborted and preempted at any time, with any number of steps in flight."""

    names = Bundle("names")

    def __init__(self):
        super().__init__()
        self.loop = Loop()
        self.asked = {}

    @rule(
        target=names,
        prompt_len=st.integers(1, 23),
        max_tokens=st.integers(1, 30),
        stop=st.lists(st.integers(0, VOCAB - 1), max_size=2),
    )
    def add(self, prompt_len, max_tokens, stop):
        name = f"r{len(self.asked)}"
        self.loop.add(name, prompt_len, max_tokens, stop)
        self.asked[name] = (prompt_len, max_tokens, stop)
        return name

    @rule(name=names)
    def abort(self, name):
        self.loop.scheduler.abort(name)

    @rule(name=names)
    def preempt(self, name):
        running = name in self.loop.runner.rows and self.loop.reason(name) is None
        before = self.loop.scheduler.num_preemptions
        preempted = self.loop.scheduler.preempt(name)
        assert self.loop.scheduler.num_preemptions == before + preempted
        # A row that was taken from it is given back in the next step only.
        assert running or not preempted

    @rule()
    def step(self):
        self.loop.step()

    @rule()
    def take(self):
        self.loop.take()

    @invariant()
    def outputs_so_far_are_right(self):
        for name, (prompt_len, max_tokens, stop) in self.asked.items():
            expected, reason = expected_output(CONFIG, name, prompt_len, max_tokens, stop)
            output = self.loop.output(name)
            assert output == expected[: len(output)]
            assert len(self.loop.scheduler.requests[name].logprobs) == len(output)
            if self.loop.reason(name) in ("stop", "length"):
                assert (output, self.loop.reason(name)) == (expected, reason)

    def teardown(self):
        self.loop.drain()
        self.outputs_so_far_are_right()
        assert all(self.loop.reason(name) for name in self.asked)
        assert self.loop.runner.rows == {}
        assert self.loop.scheduler._blocks.pool.num_free == self.loop.scheduler._blocks.pool.capacity
        assert all(request.in_flight == 0 for request in self.loop.scheduler.requests.values())


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_more_requests_than_rows_blocks_and_budget(depth):
    loop = Loop()
    for index in range(9):
        loop.add(f"r{index}", 3 + 2 * index, 5)
    loop.drain(depth)
    for index in range(9):
        name = f"r{index}"
        assert (loop.output(name), loop.reason(name)) == expected_output(CONFIG, name, 3 + 2 * index, 5)
    assert loop.scheduler.num_preemptions > 0
    # A stop could come with any token, but the number of draws is known, so none is wasted.
    draws = sum(len(loop.output(f"r{index}")) for index in range(9))
    assert sum(sum(step.scheduled.values()) for step in loop.steps) >= draws


def test_budget_is_filled_oldest_first_and_prompts_are_cut():
    loop = Loop()
    loop.add("r0", 11, 3)
    loop.add("r1", 6, 3)
    assert dict(loop.step().scheduled) == {"r0": 8}
    assert dict(loop.step().scheduled) == {"r0": 3, "r1": 5}
    assert dict(loop.step().scheduled) == {"r0": 1, "r1": 1}
    assert dict(loop.step().scheduled) == {"r0": 1, "r1": 1}


def test_no_step_is_wasted_behind_the_last_draw():
    loop = Loop()
    loop.add("r0", 2, 2)
    assert [dict(loop.step().scheduled) for _ in range(4)] == [{"r0": 2}, {"r0": 1}, {}, {}]
    loop.drain()
    assert loop.reason("r0") == "length"


def test_the_youngest_gives_way_and_comes_back_first():
    loop = Loop()
    for index, length in enumerate((7, 7, 7, 4)):
        loop.add(f"r{index}", length, 12)
    while not loop.scheduler.num_preemptions:
        loop.step()
        loop.take()
    assert loop.steps[-1].preempted == ("r2",)
    loop.drain()
    new = [request.request_id for step in loop.steps for request in step.new]
    assert [name for name in new if name in ("r2", "r3")][:3] == ["r2", "r2", "r3"]


PRIORITY = replace(CONFIG, scheduling="priority", num_kv_blocks=20)


@pytest.mark.parametrize(("config", "order"), [(PRIORITY, ["r1", "r2", "r0"]), (CONFIG, ["r0", "r1", "r2"])])
def test_the_smaller_priority_is_served_first(config, order):
    loop = Loop(replace(config, max_num_reqs=1))
    for index, priority in enumerate((5, -1, 0)):
        loop.scheduler.add(f"r{index}", [1] * 4, SamplingParams(max_tokens=2), priority)
    loop.drain()
    assert [request.request_id for step in loop.steps for request in step.new] == order
    for index in range(3):
        assert loop.output(f"r{index}") == expected_output(CONFIG, f"r{index}", 4, 2)[0]


def test_the_least_urgent_gives_way():
    loop = Loop(replace(CONFIG, scheduling="priority"))
    for index, priority in enumerate((1, 0, 1)):
        loop.scheduler.add(f"r{index}", [1] * 7, SamplingParams(max_tokens=12), priority)
    while not loop.scheduler.num_preemptions:
        loop.step()
        loop.take()
    assert loop.steps[-1].preempted == ("r2",)
    loop.drain()
    assert all(loop.reason(f"r{index}") == "length" for index in range(3))


def test_who_was_preempted_returns_only_when_the_others_may_still_grow():
    """Without that rule the two would take the last block from each other, once a token."""
    loop = Loop(replace(CONFIG, num_kv_blocks=8, max_num_reqs=2))
    for index in range(2):
        loop.add(f"r{index}", 12, 12)
    loop.drain()
    assert 0 < loop.scheduler.num_preemptions <= 2
    for index in range(2):
        assert loop.output(f"r{index}") == expected_output(CONFIG, f"r{index}", 12, 12)[0]


def test_who_is_preempted_may_not_return_in_the_same_step():
    loop = Loop()
    loop.add("r0", 4, 5)
    loop.step()
    loop.take()
    assert loop.scheduler.preempt("r0")
    step = loop.step()
    assert (step.preempted, step.new) == (("r0",), ())
    (request,) = loop.step().new
    assert (request.prompt_len, len(request.token_ids)) == (4, 5)


def test_outputs_in_flight_of_a_preempted_request_are_dropped_and_drawn_again():
    """It is resumed with what had arrived, at once; the old outputs arrive in its new life, and before its own."""
    loop = Loop()
    loop.add("r0", 4, 5)
    for _ in range(3):
        loop.step()
    loop.take()
    assert loop.scheduler.preempt("r0")
    assert loop.step().new == ()  # not in the step that says it has left
    assert len(loop.step().new[0].token_ids) == 5
    loop.take()
    loop.take()
    assert loop.output("r0") == expected_output(CONFIG, "r0", 4, 1)[0]
    loop.drain()
    assert (loop.output("r0"), loop.reason("r0")) == expected_output(CONFIG, "r0", 4, 5)


def test_last_tokens_that_are_in_flight_at_a_preemption_are_drawn_again():
    loop = Loop()
    loop.add("r0", 3, 2)
    loop.step()
    loop.step()
    assert loop.scheduler.preempt("r0")
    loop.drain()
    assert (loop.output("r0"), loop.reason("r0")) == expected_output(CONFIG, "r0", 3, 2)
    assert sum(len(step.new) for step in loop.steps) == 2
    assert loop.runner.rows == {}


def test_a_stop_token_that_is_in_flight_at_a_preemption_is_drawn_again():
    loop = Loop()
    loop.add("r1", 3, 9, stop=[token_at("r1", 3)])
    loop.step()
    loop.step()
    assert loop.scheduler.preempt("r1")
    loop.take()
    assert (loop.output("r1"), loop.reason("r1")) == ((), None)
    loop.drain()
    assert (len(loop.output("r1")), loop.reason("r1")) == (1, "stop")


def test_draws_behind_a_stop_token_are_dropped():
    loop = Loop()
    loop.add("r1", 3, 9, stop=[token_at("r1", 4)])
    for _ in range(4):
        loop.step()
    loop.drain()
    assert loop.output("r1") == (token_at("r1", 3), token_at("r1", 4))
    assert loop.reason("r1") == "stop"


@pytest.mark.parametrize("moment", ["waiting", "prefill", "in flight", "preempted", "preempted in flight", "finished"])
def test_abort_at_any_moment(moment):
    loop = Loop()
    loop.add("r0", 12, 3)
    loop.add("r1", 2, 3)
    steps = {"waiting": 0, "prefill": 1, "in flight": 2, "preempted": 1, "preempted in flight": 2, "finished": 0}
    for _ in range(steps[moment]):
        loop.step()
    if moment.startswith("preempted"):
        assert loop.scheduler.preempt("r0")
    if moment == "finished":
        loop.drain()
    loop.scheduler.abort("r0")
    loop.scheduler.abort("r0")
    assert loop.reason("r0") == ("length" if moment == "finished" else "abort")
    loop.drain()
    assert loop.output("r0") == (() if moment != "finished" else expected_output(CONFIG, "r0", 12, 3)[0])
    assert loop.output("r1") == expected_output(CONFIG, "r1", 2, 3)[0]
    assert loop.runner.rows == {}
    assert loop.scheduler._blocks.pool.num_free == loop.scheduler._blocks.pool.capacity


def test_abort_and_preempt_of_unknown_requests_do_nothing():
    loop = Loop()
    loop.scheduler.abort("r7")
    assert not loop.scheduler.preempt("r7")
    assert not loop.scheduler.has_work


def test_a_waiting_request_cannot_be_preempted():
    loop = Loop()
    loop.add("r0", 3)
    assert not loop.scheduler.preempt("r0")
    loop.step()
    assert loop.scheduler.preempt("r0")
    assert not loop.scheduler.preempt("r0")


def test_an_id_may_be_used_again_once_its_request_is_forgotten():
    """The caller drops finished requests; draws of the former life that are still in flight go nowhere."""
    loop = Loop()
    loop.add("r0", 3, 9)
    for _ in range(3):
        loop.step()
    loop.scheduler.abort("r0")
    del loop.scheduler.requests["r0"]
    loop.add("r0", 3, 2)
    loop.drain()
    assert loop.output("r0") == expected_output(CONFIG, "r0", 3, 2)[0]


def test_the_longest_request_the_context_holds():
    loop = Loop()
    loop.add("r0", 20, 100)
    loop.drain()
    assert (loop.output("r0"), loop.reason("r0")) == expected_output(CONFIG, "r0", 20, 4)


def test_one_request_may_need_the_whole_pool():
    config = RunnerConfig(max_num_reqs=3, max_num_batched_tokens=8, max_model_len=24, block_size=4, num_kv_blocks=7)
    loop = Loop(config)
    for index in range(3):
        loop.add(f"r{index}", 10, 50)
    loop.drain()
    for index in range(3):
        assert (loop.output(f"r{index}"), loop.reason(f"r{index}")) == expected_output(config, f"r{index}", 10, 50)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "blocks", "words"),
    [
        (0, 4, 8, "an empty prompt"),
        (24, 4, 8, "24 prompt tokens"),
        (40, 4, 8, "40 prompt tokens"),
        (4, 20, 6, "needs 6 KV blocks and the pool has 5"),
        (4, 10**9, 6, "needs 6 KV blocks and the pool has 5"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(prompt_len, max_tokens, blocks, words):
    config = RunnerConfig(
        max_num_reqs=3, max_num_batched_tokens=8, max_model_len=24, block_size=4, num_kv_blocks=blocks
    )
    loop = Loop(config)
    with pytest.raises(RequestError, match=words) as caught:
        loop.add("r0", prompt_len, max_tokens)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert not loop.scheduler.has_work
    assert loop.scheduler.requests == {}


def test_an_id_in_use_is_refused():
    loop = Loop()
    loop.add("r0", 3)
    with pytest.raises(RequestError, match="used before"):
        loop.add("r0", 3)
    loop.drain()
    assert loop.output("r0") == expected_output(CONFIG, "r0", 3, 4)[0]


def python_calls_of_a_decode_step(batch):
    """How many functions run while the scheduler decides one step of a batch that decodes."""
    config = RunnerConfig(max_num_reqs=batch, max_num_batched_tokens=4 * batch, num_kv_blocks=4 * batch)
    scheduler, calls = Scheduler(config), []
    for index in range(batch):
        scheduler.add(f"r{index}", [1, 2, 3, 4], SamplingParams(max_tokens=8, temperature=0.0))
    scheduler.schedule()
    sys.setprofile(lambda frame, event, argument: calls.append(event) if event == "call" else None)
    try:
        step = scheduler.schedule()
    finally:
        sys.setprofile(None)
    assert len(step.scheduled) == batch
    return len(calls)


def test_a_step_costs_the_host_in_proportion_to_its_requests():
    small, large = python_calls_of_a_decode_step(16), python_calls_of_a_decode_step(128)
    assert large < 8.5 * small
