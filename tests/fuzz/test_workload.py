"""The loop that drives a target: fates are carried out, and whatever a target does wrong becomes part of the trace."""

from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import Finding, Soundness, Verdict
from mrv2.fuzz.targets.protocols import InputSnapshot
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest, run_target
from mrv2.refrunner.api import SamplingParams, StepOutput
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.models.llama import LlamaModel

VOCAB = 50
CAPACITIES = {"max_num_reqs": 3, "max_num_batched_tokens": 8, "max_model_len": 32, "block_size": 4, "num_kv_blocks": 17}


class PlainRunner:
    """Draws token (position mod V) for everyone; the hooks are where a fault goes."""

    def __init__(self, **hooks):
        self.live = {}
        self.rows = {}
        self.steps = 0
        self.entered = 0
        self.last = None
        self.hooks = hooks

    def execute(self, step):
        self.last = None
        self._hook("before")
        for name in (*step.finished, *step.preempted):
            del self.live[name], self.rows[name]
        for request in step.new:
            self.live[request.request_id] = SimpleNamespace(tokens=list(request.token_ids), computed=0, blocks=[])
            self.rows[request.request_id] = self._next_row()
        for name, (blocks,) in step.new_blocks.items():
            self.live[name].blocks.extend(blocks)
        if step.scheduled:
            self.last = self._inputs(step)
        self._hook("middle")
        drawn = self._draw(step)
        self.steps += 1
        result = self.hooks.get("output", lambda output: output)
        output = StepOutput(drawn, dict.fromkeys(drawn, (-1.0,)))
        return SimpleNamespace(result=lambda: result(output))

    def _next_row(self):
        """Rows go round, so that a request that comes back finds itself in another one."""
        free = [row % 3 for row in range(self.entered, self.entered + 3) if row % 3 not in self.rows.values()]
        self.entered += 1
        return free[0]

    def _hook(self, name):
        self.hooks.get(name, lambda runner: None)(self)

    def _inputs(self, step):
        live = [self.live[name] for name in step.scheduled]
        spans = [(r, range(r.computed, r.computed + n)) for r, n in zip(live, step.scheduled.values(), strict=True)]
        counts = list(step.scheduled.values())
        return InputSnapshot(
            request_ids=tuple(step.scheduled),
            rows=tuple(self.rows[name] for name in step.scheduled),
            query_start_loc=tuple(sum(counts[:i]) for i in range(len(counts) + 1)),
            input_ids=tuple(r.tokens[p] for r, span in spans for p in span),
            positions=tuple(p for _, span in spans for p in span),
            slot_mapping=tuple(r.blocks[p // 4] * 4 + p % 4 for r, span in spans for p in span),
            seq_lens=tuple(span.stop for _, span in spans),
            block_tables=tuple(tuple(r.blocks[: -(-span.stop // 4)]) for r, span in spans),
        )

    def _draw(self, step):
        drawn = {}
        for name, count in step.scheduled.items():
            request = self.live[name]
            request.computed += count
            if request.computed == len(request.tokens):
                drawn[name] = (len(request.tokens) % VOCAB,)
                request.tokens.extend(drawn[name])
        return drawn

    def invariants(self):
        return self.hooks.get("invariants", lambda runner: [])(self)

    def close(self):
        pass


class ShowingRunner(PlainRunner):
    """The same with snapshots."""

    def snapshot(self):
        return self.hooks.get("snapshot", lambda snapshot: snapshot)(self.last)

    def producer(self, field):
        return None


def request(name, length=5, tokens=4, **fate):
    return WorkloadRequest(name, tuple(range(length)), SamplingParams(max_tokens=tokens), **fate)


def workload(*requests, steps_in_flight=2):
    return Workload(requests, CAPACITIES, VOCAB, steps_in_flight)


THREE = (request("a", 11), request("b", 3), request("c", 6, arrival=2))


def drive(runner, *requests, steps_in_flight=2, check_invariants=False):
    driver = Driver(runner, workload(*requests, steps_in_flight=steps_in_flight), check_invariants=check_invariants)
    return driver.run()


def is_clean(trace):
    return (trace.crash, trace.mismatch, trace.broken) == (None, None, [])


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
@pytest.mark.parametrize("kind", [PlainRunner, ShowingRunner])
def test_a_right_runner_has_a_clean_trace(kind, steps_in_flight):
    trace = drive(kind(), *THREE, steps_in_flight=steps_in_flight, check_invariants=True)
    assert is_clean(trace)
    results = {name: (result.token_ids, result.finish_reason) for name, result in trace.results.items()}
    assert results == {
        "a": ((11, 12, 13, 14), "length"),
        "b": ((3, 4, 5, 6), "length"),
        "c": ((6, 7, 8, 9), "length"),
    }
    assert all(result.logprobs == (-1.0,) * 4 for result in trace.results.values())


def test_requests_arrive_when_they_are_due():
    trace = drive(PlainRunner(), request("late", arrival=5), request("early"))
    entered = {new.request_id: index for index, step in enumerate(trace.steps) for new in step.new}
    assert entered == {"early": 0, "late": 5}


def test_time_passes_without_work():
    trace = drive(PlainRunner(), request("late", arrival=4))
    assert [bool(step.new) for step in trace.steps[:5]] == [False] * 4 + [True]


@pytest.mark.parametrize("kind", [PlainRunner, ShowingRunner])
def test_preemptions_at_the_counts_asked_for(kind):
    trace = drive(kind(), request("a", preempt_after=(0, 2)), request("b", 4, tokens=8))
    assert is_clean(trace)
    assert trace.counts["preempted"] == 2
    resumed = [new.token_ids for step in trace.steps for new in step.new if new.request_id == "a"]
    assert len(resumed) == 3
    assert len(resumed[-1]) >= 5 + 2
    assert trace.results["a"].token_ids == (5, 6, 7, 8)


def test_two_preemptions_at_one_count_are_one():
    trace = drive(PlainRunner(), request("a", preempt_after=(1, 1)))
    assert trace.counts["preempted"] == 1


def test_an_abort_ends_a_request_and_keeps_what_arrived():
    trace = drive(ShowingRunner(), request("a", tokens=9, abort_after=2), request("b"))
    assert is_clean(trace)
    assert trace.results["a"].finish_reason == "abort"
    assert trace.results["a"].token_ids[:2] == (5, 6)
    assert trace.counts["aborted"] == 1
    assert trace.results["b"].finish_reason == "length"


def test_a_long_prompt_is_counted_as_chunked():
    assert drive(PlainRunner(), request("a", 20)).counts["chunked"] == 1
    assert drive(PlainRunner(), request("a", 8)).counts["chunked"] == 0


def test_rows_are_followed():
    """ "a" has row 0 and comes back in row 2; "c" gets row 0 after it."""
    requests = (request("a", 4, 9, preempt_after=(2,)), request("b", 3, 20), request("c", 8, 6, arrival=9))
    shown = drive(ShowingRunner(), *requests)
    assert (shown.row_reuses, shown.row_moves) == (1, 1)
    hidden = drive(PlainRunner(), *requests)
    assert (hidden.row_reuses, hidden.row_moves) == (0, 0)


def fail_at(step):
    def fail(runner):
        if runner.steps == step:
            raise ValueError("out of paper")

    return fail


@pytest.mark.parametrize("kind", [PlainRunner, ShowingRunner])
@pytest.mark.parametrize("place", ["before", "middle"])
@pytest.mark.parametrize("step", [0, 3])
def test_a_crash_in_a_step(kind, place, step):
    trace = drive(kind(**{place: fail_at(step)}), *THREE)
    assert (trace.crash.error, trace.crash.step) == ("ValueError: out of paper", step)
    assert trace.crash.where[0].function.endswith("fail")
    assert len(trace.steps) == step + 1
    # The inputs of the step that crashed are right, or do not exist: no second, false accusation.
    assert trace.mismatch is None


@pytest.mark.parametrize("kind", [PlainRunner, ShowingRunner])
def test_a_crash_while_waiting_for_a_result(kind):
    def fail(output):
        raise RuntimeError("device lost")

    trace = drive(kind(output=fail), *THREE)
    assert (trace.crash.error, trace.mismatch) == ("RuntimeError: device lost", None)


def test_a_wrong_input_is_reported_beside_the_crash_it_caused():
    def spoil(runner):
        if runner.steps == 2:
            runner.last = replace(runner.last, positions=tuple(p + 1 for p in runner.last.positions))
            raise IndexError("beyond the table")

    trace = drive(ShowingRunner(middle=spoil), *THREE)
    assert trace.crash.step == 2
    step, mismatch = trace.mismatch
    assert (step, mismatch.field) == (2, "positions")


def test_the_stack_of_a_crash_names_modules():
    trace = drive(PlainRunner(before=fail_at(0)), *THREE)
    assert not any(site.file.startswith("/") for site in trace.crash.where)
    assert "mrv2/fuzz/workload.py" in {site.file for site in trace.crash.where}


def drop_one(output):
    names = list(output.token_ids)[1:]
    return StepOutput({name: output.token_ids[name] for name in names}, dict.fromkeys(names, (-1.0,)))


MALFORMED = {
    "one missing": (drop_one, "tokens for"),
    "one too many": (lambda o: StepOutput({**o.token_ids, "zz": (1,)}, {**o.logprobs, "zz": (-1.0,)}), "tokens for"),
    "no logprobs": (lambda o: StepOutput(o.token_ids, {}), "tokens for"),
    "two tokens": (lambda o: StepOutput(dict.fromkeys(o.token_ids, (1, 2)), o.logprobs), r"tokens \(1, 2\)"),
    "no token": (lambda o: StepOutput(dict.fromkeys(o.token_ids, ()), o.logprobs), r"tokens \(\)"),
    "NaN": (lambda o: StepOutput(o.token_ids, {n: (float("nan"),) for n in o.logprobs}), "expected one finite draw"),
    "infinite": (lambda o: StepOutput(o.token_ids, {n: (float("-inf"),) for n in o.logprobs}), "one finite draw"),
    "beyond the vocabulary": (lambda o: StepOutput(dict.fromkeys(o.token_ids, (VOCAB,)), o.logprobs), "token 50"),
    "negative": (lambda o: StepOutput(dict.fromkeys(o.token_ids, (-1,)), o.logprobs), "token -1"),
    "a fraction": (lambda o: StepOutput(dict.fromkeys(o.token_ids, (1.0,)), o.logprobs), "token 1.0"),
    "no output": (lambda o: None, "AttributeError"),
    "words": (lambda o: StepOutput(o.token_ids, dict.fromkeys(o.logprobs, ("x",))), "logprob 'x', expected one finite"),
    "a decimal": (lambda o: StepOutput(o.token_ids, dict.fromkeys(o.logprobs, (Decimal(-1),))), "logprob Decimal"),
    "a truth": (lambda o: StepOutput(o.token_ids, dict.fromkeys(o.logprobs, (True,))), "logprob True"),
    "too large": (lambda o: StepOutput(o.token_ids, dict.fromkeys(o.logprobs, (10**400,))), "OverflowError"),
    "a true token": (lambda o: StepOutput(dict.fromkeys(o.token_ids, (True,)), o.logprobs), "token True"),
    "a number's name": (lambda o: StepOutput({**o.token_ids, 3: (1,)}, {**o.logprobs, 3: (-1.0,)}), "tokens for"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_output_ends_the_run(case):
    spoil, words = MALFORMED[case]
    trace = drive(PlainRunner(output=lambda o: spoil(o) if o is None or o.token_ids else o), *THREE)
    assert trace.crash is not None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(trace.crash.error)
    assert all(0 <= token < VOCAB for result in trace.results.values() for token in result.token_ids)


def test_a_handle_without_a_result():
    runner = PlainRunner()
    runner.execute = lambda step: None
    assert "AttributeError" in drive(runner, *THREE).crash.error


def test_a_draw_where_none_is_due():
    """A runner that delivers the draw of an unfinished prefill."""

    def invent(output):
        return output if output.token_ids else StepOutput({"a": (1,)}, {"a": (-1.0,)})

    trace = drive(PlainRunner(output=invent), request("a", 20))
    assert trace.crash.error == "MalformedOutput: tokens for ['a'], expected for []"


def test_numbers_of_numpy_are_numbers():
    def spoil(output):
        return StepOutput(output.token_ids, {name: (np.float32(-1),) for name in output.logprobs})

    def show(snapshot):
        return replace(snapshot, positions=np.array(snapshot.positions), seq_lens=np.array(snapshot.seq_lens))

    trace = drive(ShowingRunner(output=spoil, snapshot=show), *THREE)
    assert is_clean(trace)
    assert {type(value) for result in trace.results.values() for value in result.logprobs} == {float}


JUNK = {
    "rows of lists": ({"rows": lambda s: tuple([row] for row in s.rows)}, "rows of a snapshot is ("),
    "tables of numbers": ({"block_tables": lambda s: tuple(0 for _ in s.rows)}, "block_tables of a snapshot"),
    "no positions": ({"positions": lambda s: None}, "positions of a snapshot is None"),
    "fractions": ({"slot_mapping": lambda s: tuple(map(float, s.slot_mapping))}, "expected whole numbers"),
    "padding": ({"padding_tokens": lambda s: "many"}, "padding_tokens of a snapshot"),
}


@pytest.mark.parametrize("case", JUNK)
def test_junk_in_a_snapshot_ends_the_run(case):
    changes, words = JUNK[case]
    spoil = lambda s: replace(s, **{name: change(s) for name, change in changes.items()})  # noqa: E731
    trace = drive(ShowingRunner(snapshot=spoil), *THREE)
    assert words in trace.crash.error
    assert trace.crash.error.startswith("MalformedOutput")


@pytest.mark.parametrize("field", ["rows", "seq_lens", "block_tables"])
def test_a_malformed_snapshot_ends_the_run(field):
    trace = drive(ShowingRunner(snapshot=lambda s: replace(s, **{field: getattr(s, field)[1:]})), *THREE)
    assert trace.crash.step == 0
    assert "one entry per request" in trace.crash.error


def test_a_snapshot_that_raises():
    def fail(snapshot):
        raise KeyError("no such row")

    trace = drive(ShowingRunner(snapshot=fail), *THREE)
    assert trace.crash.error == "KeyError: 'no such row'"


def test_the_first_wrong_input_is_kept():
    def spoil(snapshot):
        return replace(snapshot, positions=tuple(p + 1 for p in snapshot.positions))

    trace = drive(ShowingRunner(snapshot=spoil), *THREE)
    step, mismatch = trace.mismatch
    assert (step, mismatch.field, mismatch.request_id) == (0, "positions", "a")
    # The run goes on: outputs are judged too.
    assert {result.finish_reason for result in trace.results.values()} == {"length"}


@pytest.mark.parametrize(("answer", "words"), [("somewhere", "expected a Site"), (None, "ZeroDivisionError")])
def test_a_producer_that_fails_takes_nothing_from_the_wrong_input(answer, words):
    class Vague(ShowingRunner):
        def producer(self, field):
            return answer or 1 / 0

    spoil = lambda s: replace(s, positions=tuple(p + 1 for p in s.positions))  # noqa: E731
    trace = drive(Vague(snapshot=spoil), *THREE)
    assert trace.mismatch[1].field == "positions"
    assert trace.producer is None
    (fault,) = trace.faults
    assert words in fault.error


def broken(runner):
    title = f"broken at {runner.steps}"
    return [Finding("MRV306", Verdict.VIOLATION, Soundness.SOUND, title)] if runner.steps in (2, 4) else []


def test_broken_invariants_are_kept_with_their_steps():
    trace = drive(ShowingRunner(invariants=broken), *THREE, check_invariants=True)
    assert [(step, finding.title) for step, finding in trace.broken] == [(1, "broken at 2"), (3, "broken at 4")]
    assert drive(ShowingRunner(invariants=broken), *THREE).broken == []


def test_invariants_that_raise():
    trace = drive(PlainRunner(invariants=lambda runner: 1 / 0), *THREE, check_invariants=True)
    assert "ZeroDivisionError" in trace.crash.error


ODD = Finding("MRV306", Verdict.VIOLATION, Soundness.SOUND, "odd")


@pytest.mark.parametrize(
    "answer",
    [["bad"], [replace(ODD, code="MRV999")], [replace(ODD, evidence={"x": object()})], [replace(ODD, where=("here",))]],
)
def test_invariants_that_return_junk(answer):
    trace = drive(PlainRunner(invariants=lambda runner: answer), *THREE, check_invariants=True)
    assert trace.crash.error.startswith("MalformedOutput: invariants() returned")


def test_poison_is_counted_with_the_invariants():
    class Poisoned(PlainRunner):
        def poisoned(self):
            return {"freed rows": self.steps % 3}

    assert drive(Poisoned(), *THREE, check_invariants=True).poisoned == {"freed rows": 2}
    assert drive(Poisoned(), *THREE).poisoned == {}
    Poisoned.poisoned = lambda self: 7
    assert "poisoned() returned 7" in drive(Poisoned(), *THREE, check_invariants=True).crash.error


def target_of(build):
    return SimpleNamespace(build=build)


def test_a_target_is_built_with_the_capacities_and_closed():
    asked, closed = [], []

    def build(config):
        asked.append(config)
        runner = PlainRunner()
        runner.close = lambda: closed.append(runner)
        return runner

    trace = run_target(target_of(build), {"model": "m"}, workload(*THREE))
    assert asked == [{"model": "m", **CAPACITIES}]
    assert is_clean(trace)
    assert len(closed) == 1


@pytest.mark.parametrize(("build", "words"), [(lambda config: None, "no execute()"), (lambda config: 1 / 0, "Zero")])
def test_a_target_that_builds_nothing(build, words):
    trace = run_target(target_of(build), {}, workload(*THREE))
    assert words in trace.crash.error
    assert (trace.crash.step, trace.results) == (-1, {})


def test_a_refused_configuration_is_not_a_fault():
    def refuse(config):
        raise ConfigurationError("block_size=4", "it must be 16", "the kernel knows no other", "16")

    with pytest.raises(ConfigurationError):
        run_target(target_of(refuse), {}, workload(*THREE))


def test_a_runner_that_cannot_be_closed():
    def build(config):
        runner = PlainRunner()
        runner.close = lambda: 1 / 0
        return runner

    trace = run_target(target_of(build), {}, workload(*THREE))
    assert trace.crash is None
    assert [fault.error for fault in trace.faults] == ["ZeroDivisionError: division by zero"]
    assert {result.finish_reason for result in trace.results.values()} == {"length"}


def test_the_reference_runner_has_no_inputs_to_show_if_it_fails_early(monkeypatch):
    """The batch of the step before must not be taken for that of the step that failed."""
    calls, forward = [], LlamaModel.forward

    def fail(self, *args):
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("lost")
        return forward(self, *args)

    tiny = Workload((request("a", 20),), CAPACITIES, 256)
    runner = ReferenceTarget().build({"model": "tiny", **CAPACITIES})
    monkeypatch.setattr(LlamaModel, "forward", fail)
    trace = Driver(runner, tiny).run()
    assert (trace.crash.step, trace.mismatch) == (1, None)
    runner = ReferenceTarget().build({"model": "tiny", **CAPACITIES})
    monkeypatch.setattr(runner._runner._checker, "check", lambda *args: 1 / 0)
    trace = Driver(runner, tiny).run()
    assert (trace.crash.step, trace.mismatch) == (0, None)


def test_the_same_workload_gives_the_same_steps():
    first, second = (drive(ShowingRunner(), *THREE) for _ in range(2))
    assert first.steps == second.steps
    assert first.results == second.results


class TestContinuing:
    """A request that continues another one arrives when that has ended, with all its tokens before its own."""

    def test_its_prompt_starts_with_all_tokens_of_the_other(self):
        params = SamplingParams(max_tokens=3)
        requests = (
            WorkloadRequest("a", (1, 2, 3), params),
            WorkloadRequest("b", (4, 5), params, continues="a"),
        )
        trace = Driver(PlainRunner(), Workload(requests, CAPACITIES, VOCAB)).run()
        assert trace.crash is None
        (entered,) = (new for step in trace.steps for new in step.new if new.request_id == "b")
        assert entered.token_ids == (1, 2, 3, *trace.results["a"].token_ids, 4, 5)
        # In the very step that the other leaves in: a session that goes on.
        assert any("a" in step.finished and entered in step.new for step in trace.steps)

    def test_one_that_continues_nobody_is_refused(self):
        with pytest.raises(CheckError, match="it names a request that comes before this one"):
            Workload((WorkloadRequest("b", (1,), SamplingParams(), continues="a"),), {}, 256)
