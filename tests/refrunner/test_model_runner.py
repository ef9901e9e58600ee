"""The runner on the tiny model: equal to the oracle, and blind to batch mates, rows, padding, poison and preemption."""

import math
import random
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.reference import ReferenceRunner
from mrv2.fuzz.workload import Driver, Trace, Workload, WorkloadRequest
from mrv2.refrunner.api import NewRequest, SamplingParams, Step, StepOutput
from mrv2.refrunner.block_check import BlockCheck
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError, StepError
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement

VOCAB = 256
# Those of make_runner in conftest.py.
CAPACITIES = {
    "max_num_reqs": 3,
    "max_num_batched_tokens": 16,
    "max_model_len": 48,
    "block_size": 4,
    "num_kv_blocks": 25,
}


@pytest.fixture(autouse=True)
def _compiled():
    """Kernels run compiled: the interpreter, whose bits test_runner_kernels.py compares, would take seconds a test."""
    with triton_cpu.enabled() as session:
        yield
    assert session.findings == []


@pytest.fixture(scope="session")
def judge(oracle) -> Callable[[Workload, Trace], None]:
    """Compares every token and logprob of a trace with the oracle's."""
    twins = Float32Twins(oracle.model)

    def compare(workload, trace):
        for request in workload.requests:
            result = trace.results[request.request_id]
            asked = NewRequest(request.request_id, request.prompt, len(request.prompt), request.sampling)
            scored = oracle.score(asked, result.token_ids)
            for token, bound, logprob in zip(scored, twins.bounds(asked, scored), result.logprobs, strict=True):
                assert bound.judgement is not Judgement.WRONG, (request.request_id, token)
                assert abs(logprob - token.logprob) <= bound.logprob_error, (request.request_id, token)

    return compare


def drive(runner, requests, steps_in_flight=2):
    """Run requests to their end, with the inputs and the invariants of every step checked."""
    workload = Workload(tuple(requests), CAPACITIES, VOCAB, steps_in_flight)
    trace = Driver(ReferenceRunner(runner, lambda field: None), workload, check_invariants=True).run()
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    assert not runner._states.row_of
    return workload, trace


def prompt(length, seed=0):
    return tuple(random.Random(seed).choices(range(VOCAB), k=length))


def request(name, length=6, temperature=0.0, seed=None, tokens=6, **fate):
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens)
    return WorkloadRequest(name, prompt(length, name), params, **fate)


@st.composite
def workloads(draw):
    requests = []
    for index in range(draw(st.integers(1, 5))):
        temperature = draw(st.sampled_from((0.0, 0.7, 1.5)))
        requests.append(
            request(
                f"r{index}",
                draw(st.integers(1, 24)),
                temperature,
                draw(st.integers(-(2**63), 2**64 - 1)) if temperature else None,
                draw(st.integers(1, 5)),
                arrival=draw(st.integers(0, 6)),
                preempt_after=tuple(draw(st.sets(st.integers(0, 3), max_size=2))),
                abort_after=draw(st.sampled_from((None, None, 1))),
            )
        )
    knobs = {"pad_to": draw(st.sampled_from((1, 5))), "poison": draw(st.booleans())}
    return requests, knobs, draw(st.integers(1, 3))


@given(workloads())
@settings(max_examples=12)
def test_small_workloads_equal_the_oracle(make_runner, judge, drawn):
    requests, knobs, steps_in_flight = drawn
    judge(*drive(make_runner(**knobs), requests, steps_in_flight))


def results(runner, requests, steps_in_flight=2):
    return drive(runner, requests, steps_in_flight)[1].results


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True), lambda names: list(names)[::-1]])
def test_the_order_of_the_batch_changes_no_token(make_runner, monkeypatch, order):
    plain = results(make_runner(), MIXED)
    runner = make_runner(poison=True)
    monkeypatch.setattr(runner._attention, "order", order)
    other = results(runner, MIXED)
    assert {name: result.token_ids for name, result in other.items()} == {
        name: result.token_ids for name, result in plain.items()
    }


@pytest.mark.parametrize(("attention", "order"), [("torch", ("b", "a", "c")), ("triton", ("a", "c", "b"))])
def test_a_backend_chooses_the_order_of_the_batch(make_runner, attention, order):
    runner = make_runner(attention=attention)
    runner.execute(Step(new=(NewRequest("a", (1, 2), 2),), scheduled={"a": 2}, new_blocks={"a": ((1,),)}))
    entering = (NewRequest("b", (3, 4, 5), 3), NewRequest("c", (6, 7), 2))
    tables = {"b": ((2,),), "c": ((3,),)}
    output = runner.execute(Step(new=entering, scheduled={"b": 3, "a": 1, "c": 2}, new_blocks=tables)).result()
    assert runner.batch.request_ids == order
    assert output.token_ids.keys() == {"a", "b", "c"}
    assert runner.invariants() == []


MIXED = (
    request("a", 20, preempt_after=(2,)),
    request("b", 3, 0.8, 5),
    request("c", 9, 1.2, -7, arrival=1, abort_after=3),
    request("d", 13, arrival=2, preempt_after=(1,)),
    request("e", 1, 0.8, 2**63, arrival=4),
)


@pytest.mark.parametrize("pad_to", [1, 7])
def test_poison_changes_no_bit(make_runner, pad_to):
    """Padding changes the shape of a product, hence its rounding; poison at equal padding changes nothing at all."""
    clean, poisoned = (results(make_runner(pad_to=pad_to, poison=poison), MIXED) for poison in (False, True))
    assert clean == poisoned


@pytest.mark.parametrize("pad_to", [2, 4, 7, 16])
def test_padding_changes_no_token(make_runner, pad_to):
    plain, padded = results(make_runner(), MIXED), results(make_runner(pad_to=pad_to), MIXED)
    assert plain.keys() == padded.keys()
    for name, result in plain.items():
        assert result.token_ids == padded[name].token_ids
        assert padded[name].logprobs == pytest.approx(result.logprobs, abs=1e-4)


@pytest.mark.parametrize("steps_in_flight", [1, 3])
def test_the_depth_of_the_pipeline_changes_no_token(make_runner, steps_in_flight):
    calm = [request("a", 20), request("b", 3, 0.8, 5), request("d", 13)]
    expected = results(make_runner(), calm)
    assert {name: result.token_ids for name, result in results(make_runner(), calm, steps_in_flight).items()} == {
        name: result.token_ids for name, result in expected.items()
    }


def test_a_draw_is_independent_of_mates_and_rows(make_runner):
    alone = results(make_runner(), [request("x", 7, 0.9, 123)])["x"]
    mates = [request("m", 11, 1.1, 123), request("n", 4)]
    crowded = results(make_runner(), [*mates, request("x", 7, 0.9, 123)])["x"]
    assert crowded.token_ids == alone.token_ids
    # The first row is taken, so that the request lives in another one.
    runner = make_runner()
    runner.execute(Step(new=(NewRequest("idle", (1,), 1),)))
    assert results_beside(runner, request("x", 7, 0.9, 123)) == alone.token_ids


def results_beside(runner, asked):
    """Tokens of one request, driven by hand beside whatever lives in the runner already."""
    tokens = list(asked.prompt)
    blocks = ((5, 6, 7, 8),)
    entering = NewRequest("x", asked.prompt, len(tokens), asked.sampling)
    handle = runner.execute(Step(new=(entering,), scheduled={"x": len(tokens)}, new_blocks={"x": blocks}))
    while True:
        tokens.extend(handle.result().token_ids["x"])
        if len(tokens) == len(asked.prompt) + asked.sampling.max_tokens:
            return tuple(tokens[len(asked.prompt) :])
        handle = runner.execute(Step(scheduled={"x": 1}))


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, None), (0.9, 77)])
def test_a_resumed_request_goes_on_as_if_nothing_had_happened(make_runner, temperature, seed):
    asked = {"length": 10, "temperature": temperature, "seed": seed, "tokens": 8}
    calm = results(make_runner(), [request("x", **asked)])["x"]
    # "y" arrives while "x" is out and takes its row.
    disturbed = [
        request("x", **asked, preempt_after=(1, 2, 5)),
        request("y", 3, arrival=4),
        request("z", 30, arrival=5),
    ]
    stirred = results(make_runner(poison=True), disturbed)["x"]
    assert stirred.token_ids == calm.token_ids
    assert stirred.logprobs == pytest.approx(calm.logprobs, abs=1e-4)


def test_result_may_be_taken_twice_and_late(make_runner):
    runner = make_runner()
    handle = runner.execute(Step(new=(NewRequest("a", prompt(5), 5),), scheduled={"a": 5}, new_blocks={"a": ((1, 2),)}))
    later = [runner.execute(Step(scheduled={"a": 1})) for _ in range(3)]
    first = handle.result()
    assert handle.result() is first
    assert [len(later.result().token_ids["a"]) for later in (handle, *later)] == [1] * 4
    assert handle.result() is first


def test_an_unfinished_prefill_draws_nothing(make_runner):
    runner = make_runner()
    entering = (NewRequest("a", prompt(12), 12), NewRequest("b", prompt(3), 3))
    first = Step(new=entering, scheduled={"a": 4}, new_blocks={"a": ((1,),)})
    second = Step(scheduled={"a": 5, "b": 3}, new_blocks={"a": ((2, 3),), "b": ((4,),)})
    assert runner.execute(first).result() == StepOutput({}, {})
    assert runner.execute(second).result().token_ids.keys() == {"b"}
    assert runner.execute(Step(scheduled={"b": 1, "a": 3})).result().token_ids.keys() == {"a", "b"}


def test_a_step_without_tokens_still_does_its_bookkeeping(make_runner):
    runner = make_runner()
    assert runner.execute(Step()).result() == StepOutput({}, {})
    asked = NewRequest("a", prompt(5), 5)
    assert runner.execute(Step(new=(asked,))).result() == StepOutput({}, {})
    assert runner.execute(Step(new_blocks={"a": ((3,),)})).result() == StepOutput({}, {})
    assert runner.execute(Step(new_blocks={"a": ((9,),)})).result() == StepOutput({}, {})
    assert runner.batch is None
    assert runner.invariants() == []
    drawn = runner.execute(Step(scheduled={"a": 5})).result()
    at_once = make_runner().execute(Step(new=(asked,), scheduled={"a": 5}, new_blocks={"a": ((1, 2),)})).result()
    assert drawn == at_once
    runner.execute(Step(finished=("a",))).result()
    assert (runner._states.row_of, runner._computed, runner._total) == ({}, {}, {})
    assert runner.invariants() == []


def test_the_batch_is_that_of_the_last_step(make_runner):
    runner = make_runner()
    runner.execute(Step(new=(NewRequest("a", prompt(5), 5),), scheduled={"a": 5}, new_blocks={"a": ((1, 2),)}))
    assert runner.batch.request_ids == ("a",)
    runner.execute(Step())
    assert runner.batch is None


def test_a_sequence_may_fill_its_row(make_runner):
    """The last token that fits is computed, and the draw behind it is delivered though no step can follow."""
    runner = make_runner()
    asked = NewRequest("a", prompt(47), 47, num_computed_tokens=0)
    blocks = {"a": (tuple(range(1, 13)),)}
    runner.execute(Step(new=(asked,), scheduled={"a": 16}, new_blocks=blocks))
    runner.execute(Step(scheduled={"a": 16}))
    drawn = [runner.execute(Step(scheduled={"a": count})).result().token_ids["a"] for count in (15, 1)]
    assert [len(tokens) for tokens in drawn] == [1, 1]
    assert runner.invariants() == []
    assert runner._states.token_ids[runner._states.row_of["a"], 47] == drawn[0][0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_single(make_runner, dtype):
    asked = (NewRequest("a", prompt(30), 30),)
    blocks = {"a": (tuple(range(1, 9)),)}
    steps = (Step(new=asked, scheduled={"a": 16}, new_blocks=blocks), Step(scheduled={"a": 14}))
    single, half = (
        [runner.execute(step).result() for step in steps][-1] for runner in (make_runner(), make_runner(dtype=dtype))
    )
    assert half.token_ids.keys() == single.token_ids.keys()
    assert half.logprobs["a"] == pytest.approx(single.logprobs["a"], abs=0.3)


def test_rows_and_blocks_may_change_hands_in_one_step(make_runner, judge):
    """Three requests leave and three come in the same step, in the same rows and blocks."""
    first = [request(name, 5, tokens=2) for name in "abc"]
    second = [request(name, 5, 0.8, 9, tokens=2, arrival=3) for name in "def"]
    judge(*drive(make_runner(poison=True), [*first, *second]))


def test_sequences_longer_than_the_models_context_are_refused(checkpoint):
    config = RunnerConfig(max_model_len=2049)
    with pytest.raises(ConfigurationError, match="made for 2048 positions"):
        ModelRunner(config, checkpoint.config, checkpoint.tensors)


def test_poison_reaches_every_dead_place(make_runner):
    runner = make_runner(poison=True, pad_to=8)
    cache = runner._attention.cache
    assert cache[:, :, 4:].isnan().all()
    step = Step(new=(NewRequest("a", prompt(5), 5),), scheduled={"a": 5}, new_blocks={"a": ((3, 7),)})
    runner.execute(step).result()
    assert runner.batch.input_ids[5:].eq(VOCAB - 1).all()
    assert runner.batch.positions[5:].eq(47).all()
    assert not cache[:, :, [12, 13, 14, 15, 28]].isnan().any()
    runner.execute(Step(finished=("a",)))
    assert cache[:, :, 4:].isnan().all()
    assert not cache[:, :, :4].isnan().any()


def broken_rules(runner):
    return {violation.rule for violation in runner.invariants()}


@pytest.fixture
def decoding(make_runner):
    """Two requests in their decode."""
    runner = make_runner()
    entering = (NewRequest("a", prompt(5), 5), NewRequest("b", prompt(3), 3))
    tables = {"a": ((1, 2),), "b": ((3,),)}
    runner.execute(Step(new=entering, scheduled={"a": 5, "b": 3}, new_blocks=tables))
    return runner


def test_invariants_hold_and_each_can_break(decoding):
    states, tables = decoding._states, decoding._builder.block_tables
    assert broken_rules(decoding) == set()
    row = states.row_of["a"]
    states.num_computed[row] += 1
    assert broken_rules(decoding) == {"counter"}
    states.num_computed[row] -= 1
    states.total_len[row] -= 1
    # The token before the newest one is not what the sampler drew.
    assert broken_rules(decoding) == {"counter", "newest-token"}
    states.total_len[row] += 1
    states.last_sampled[row] += 1
    assert broken_rules(decoding) == {"newest-token"}
    states.last_sampled[row] -= 1
    tables.device_table()[0, row, 1] = 9
    assert broken_rules(decoding) == {"block-table"}
    tables.device_table()[0, row, 1] = 2
    states.free_rows.append(row)
    assert broken_rules(decoding) == {"row-bijection"}
    states.free_rows.pop()
    assert broken_rules(decoding) == set()


def test_a_block_with_two_owners_breaks_an_invariant(decoding, monkeypatch):
    monkeypatch.setattr(BlockCheck, "_others", lambda *_: set())
    decoding.execute(Step(new_blocks={"b": ((2,),)}))
    (violation,) = decoding.invariants()
    assert (violation.rule, violation.request_id) == ("block-owner", "b")


def test_close_may_be_repeated(decoding):
    decoding.close()
    decoding.close()


def test_a_closed_runner_refuses_steps_and_still_answers(decoding):
    pending = decoding.execute(Step(scheduled={"a": 1}))
    decoding.close()
    with pytest.raises(StepError, match="after close") as caught:
        decoding.execute(Step(scheduled={"a": 1}))
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert len(pending.result().token_ids["a"]) == 1
    assert decoding.invariants() == []


def test_a_step_beside_a_step_is_refused(decoding, monkeypatch):
    """A second thread comes while the first is inside execute(); the first one's step is not disturbed."""
    outcome = []
    forward = decoding._model.forward

    def forward_beside_another_step(*arguments):
        batch = decoding.batch
        other = threading.Thread(target=lambda: outcome.append(attempt(decoding, Step(scheduled={"b": 1}))))
        other.start()
        other.join()
        assert decoding.batch is batch
        return forward(*arguments)

    monkeypatch.setattr(decoding._model, "forward", forward_beside_another_step)
    first = decoding.execute(Step(scheduled={"a": 1}))
    (error,) = outcome
    assert isinstance(error, StepError) and "one step at a time" in str(error)
    assert len(first.result().token_ids["a"]) == 1
    assert decoding.invariants() == []
    monkeypatch.undo()
    assert len(decoding.execute(Step(scheduled={"b": 1})).result().token_ids["b"]) == 1


def attempt(runner, step):
    try:
        return runner.execute(step)
    except StepError as error:
        return error


def test_a_step_that_failed_leaves_the_turn_to_the_next(decoding):
    for _ in range(2):
        with pytest.raises(StepError, match="not live"):
            decoding.execute(Step(finished=("x",)))
    assert decoding.execute(Step(finished=("a",))).result() == StepOutput({}, {})


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("error", [Interrupted, RuntimeError])
@pytest.mark.parametrize("place", ["_change_requests", "_forward", "_post_update"])
def test_a_step_that_broke_off_was_the_last(decoding, monkeypatch, error, place):
    def fail(*arguments):
        raise error("now")

    pending = decoding.execute(Step(scheduled={"a": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(decoding, place, fail)
        with pytest.raises(error, match="now"):
            decoding.execute(Step(scheduled={"b": 1}))
    with pytest.raises(StepError, match=f"after {error.__name__}") as caught:
        decoding.execute(Step(scheduled={"b": 1}))
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert len(pending.result().token_ids["a"]) == 1
    decoding.close()


def test_a_step_leaves_the_mode_of_the_thread_alone(decoding):
    decoding.execute(Step(scheduled={"a": 1}))
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_logprobs_are_those_of_the_raw_logits(make_runner, oracle):
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=1)
    asked = NewRequest("a", prompt(9), 9, params)
    step = Step(new=(asked,), scheduled={"a": 9}, new_blocks={"a": ((1, 2, 3),)})
    output = make_runner().execute(step).result()
    (token,), (logprob,) = output.token_ids["a"], output.logprobs["a"]
    logits = oracle.model.logits(asked.token_ids)[-1]
    assert logprob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
    assert not math.isclose(logprob, float((logits / 3.0).log_softmax(-1)[token]), abs_tol=1e-2)
