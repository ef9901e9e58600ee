"""The facade: all prompts or none, seeds, stop tokens, streams, and what a broken call leaves behind."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.errors import ConfigurationError, RequestError
from mrv2.refrunner.llm import LLM, default_config
from mrv2.refrunner.models.tokenizer import load_tokenizer

from .llm_calls import CONFIG, PROMPTS, is_idle, tokens


@pytest.fixture(autouse=True)
def _compiled():
    """Kernels run compiled: the interpreter would take seconds a test."""
    with triton_cpu.enabled() as session:
        yield
    assert session.findings == []


@pytest.fixture
def llm(checkpoint):
    return LLM(checkpoint, CONFIG, load_tokenizer(checkpoint))


def test_more_prompts_than_rows(llm):
    together = llm.generate(PROMPTS, SamplingParams(max_tokens=5))
    assert is_idle(llm)
    assert [len(completion.token_ids) for completion in together] == [5] * 5
    assert [len(completion.logprobs) for completion in together] == [5] * 5
    alone = [llm.generate([prompt], SamplingParams(max_tokens=5))[0] for prompt in PROMPTS]
    assert tokens(together) == tokens(alone)
    assert is_idle(llm)


def test_tokens_are_the_oracles(llm, oracle):
    for prompt, completion in zip(PROMPTS, llm.generate(PROMPTS, SamplingParams(max_tokens=3)), strict=True):
        known = list(prompt)
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            row = oracle.model.logits(known)[-1].log_softmax(-1)
            assert (token, logprob) == (int(row.argmax()), pytest.approx(float(row[token]), abs=1e-4))
            known.append(token)


def test_no_prompts_no_completions(llm):
    assert llm.generate([]) == []
    assert is_idle(llm)


def test_prompt_i_uses_seed_plus_i(llm):
    params = SamplingParams(temperature=1.0, seed=2**64 - 1, max_tokens=4)
    first, second = llm.generate([[5, 6], [5, 6]], params)
    assert (first.seed, second.seed) == (2**64 - 1, 0)
    assert first.token_ids != second.token_ids
    again = llm.generate([[5, 6]], replace(params, seed=0))
    assert tokens(again) == [second.token_ids]


def test_a_negative_seed_is_its_64_bits(llm):
    params = SamplingParams(temperature=1.0, seed=-3, max_tokens=4)
    (completion,) = llm.generate([[5, 6]], params)
    assert completion.seed == 2**64 - 3
    assert tokens(llm.generate([[5, 6]], replace(params, seed=2**64 - 3))) == [completion.token_ids]


def test_a_drawn_seed_is_reported_and_repeats_the_draw(llm):
    params = SamplingParams(temperature=1.0, max_tokens=4)
    first, second = llm.generate([[5, 6], [5, 6]], params)
    assert first.seed != second.seed
    assert tokens(llm.generate([[5, 6]], replace(params, seed=second.seed))) == [second.token_ids]


def test_greedy_needs_no_seed(llm):
    (completion,) = llm.generate([[5, 6]])
    assert completion.seed is None


@pytest.mark.parametrize("position", [0, 2])
def test_stop_tokens_end_the_output_and_belong_to_it(llm, position, checkpoint):
    (free,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    stop = free.token_ids[position]
    (stopped,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=6, stop_token_ids=(stop,)))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")
    assert len(stopped.logprobs) == len(stopped.token_ids)
    assert stopped.text == load_tokenizer(checkpoint).decode(list(stopped.token_ids[:-1]))
    assert is_idle(llm)


def test_the_models_own_stop_tokens_hold_by_default(checkpoint):
    llm = LLM(checkpoint, CONFIG)
    (free,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    stop = free.token_ids[2]
    ending = replace(checkpoint, config=replace(checkpoint.config, eos_token_ids=(stop,)))
    (stopped,) = LLM(ending, CONFIG).generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    # Stop tokens of the request replace the model's.
    never = next(token for token in range(256) if token not in free.token_ids)
    (other,) = LLM(ending, CONFIG).generate([[5, 6, 7]], SamplingParams(max_tokens=6, stop_token_ids=(never,)))
    assert other.token_ids == free.token_ids


def test_the_context_ends_a_completion(llm):
    (completion,) = llm.generate([[1] * 45], SamplingParams(max_tokens=100))
    assert (len(completion.token_ids), completion.finish_reason) == (3, "length")


def test_text_goes_in_and_comes_out(llm, checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    (from_text,) = llm.generate(["abc"], SamplingParams(max_tokens=4))
    (from_ids,) = llm.generate([tokenizer.encode("abc")], SamplingParams(max_tokens=4))
    assert from_text == from_ids
    assert from_text.text == tokenizer.decode(list(from_text.token_ids))


@pytest.mark.parametrize("prompt", [np.array([5, 6, 7]), torch.tensor([5, 6, 7]), (5, 6, 7), range(5, 8)])
def test_token_ids_of_any_whole_type(llm, prompt):
    (completion,) = llm.generate([prompt], SamplingParams(max_tokens=2))
    assert completion == llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2))[0]
    assert all(type(token) is int for token in completion.token_ids)


BAD_PROMPTS = {
    "empty": ([], "an empty prompt"),
    "empty text": ("", "an empty prompt"),
    "id too large": ([5, 256], "prompt token id 256"),
    "negative id": ([-1], "prompt token id -1"),
    "fraction": ([1.5], "prompt token id"),
    "words": (["a"], "prompt token id"),
    "not a sequence": (7, "prompt token id 7"),
    "none": (None, "prompt token id"),
    "too long": ([1] * 48, "48 prompt tokens"),
}


BAD_PROMPTS |= {
    "set": ({5, 6}, "prompt token id"),
    "bytes": (b"ab", "prompt token id b'ab'"),
    "dict": ({5: 6}, "prompt token id"),
    "truth": ([True, False], "prompt token id"),
    "huge id": ([10**10_000], "prompt token id <int that cannot be shown"),
    "half a surrogate pair": ("a\udc80b", r"prompt 'a\\udc80b': .*character 1 is half a surrogate pair"),
}


@pytest.mark.parametrize("place", [0, 2, 5])
@pytest.mark.parametrize("case", BAD_PROMPTS)
def test_one_bad_prompt_refuses_all(llm, case, place):
    prompt, words = BAD_PROMPTS[case]
    prompts = [*PROMPTS[:place], prompt, *PROMPTS[place:]]
    with pytest.raises(RequestError, match=words) as caught:
        llm.generate(prompts)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(llm)
    assert llm._engine._runner.batch is None


def test_a_refused_call_leaves_the_next_one_alone(llm):
    expected = llm.generate(PROMPTS, SamplingParams(max_tokens=3))
    with pytest.raises(RequestError):
        llm.generate([*PROMPTS, []])
    assert llm.generate(PROMPTS, SamplingParams(max_tokens=3)) == expected


def test_a_bare_text_is_no_list_of_prompts(llm):
    with pytest.raises(RequestError, match="each of its characters would become a prompt"):
        llm.generate("abc")


@pytest.mark.parametrize("prompts", [None, 5, b"abc", {"abc"}, {"abc": 1}], ids=str)
def test_what_is_no_list_of_prompts(llm, prompts):
    with pytest.raises(RequestError, match="prompts is a sequence of prompts") as caught:
        llm.generate(prompts)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(llm)


def test_each_prompt_may_have_parameters_of_its_own(llm):
    of_each = [
        SamplingParams(max_tokens=2),
        SamplingParams(temperature=0.9, seed=-3, max_tokens=4),
        SamplingParams(temperature=0.9, seed=-3, max_tokens=4, stop_token_ids=(255,)),
        SamplingParams(temperature=0.9, max_tokens=3),
    ]
    prompts = [[5, 6], [5, 6], [5, 6], [5, 6]]
    together = llm.generate(prompts, of_each)
    assert [len(completion.token_ids) for completion in together] == [2, 4, 4, 3]
    # Seeds are used as they are given: none is shifted by its place.
    assert [completion.seed for completion in together[:3]] == [None, 2**64 - 3, 2**64 - 3]
    assert together[1].token_ids == together[2].token_ids
    alone = [llm.generate([prompt], params)[0] for prompt, params in zip(prompts[:3], of_each[:3], strict=True)]
    assert tokens(together[:3]) == tokens(alone)
    assert llm.generate(prompts, tuple(of_each))[:3] == together[:3]
    assert llm.generate([], []) == []


BAD_SAMPLING = {
    "dict": {"temperature": 0.5},
    "text": "greedy",
    "number": 0.5,
    "too few": [SamplingParams()],
    "too many": [SamplingParams()] * 3,
    "none inside": [SamplingParams(), None],
    "dicts inside": [{"temperature": 0.5}] * 2,
    "empty": [],
}


@pytest.mark.parametrize("case", BAD_SAMPLING)
def test_parameters_of_another_kind_or_number_are_refused(llm, case):
    with pytest.raises(RequestError, match="for 2 prompts") as caught:
        llm.generate([[5], [6]], BAD_SAMPLING[case])
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(llm)


@pytest.mark.parametrize("each", [False, True])
def test_a_stop_token_that_the_model_cannot_draw_is_refused(llm, each):
    params = SamplingParams(stop_token_ids=(5, 256))
    with pytest.raises(RequestError, match=r"stop_token_ids=\(5, 256\)"):
        llm.generate([[5]], [params] if each else params)
    assert is_idle(llm)
    llm.generate([[5]], SamplingParams(stop_token_ids=(255,), max_tokens=1))


BAD_ADDITIONS = {
    "id beyond the vocabulary": (("a", [256], SamplingParams()), "token id 256"),
    "fraction": (("a", [1.5], SamplingParams()), "1.5"),
    "text": (("a", "abc", SamplingParams()), "prompt='abc'"),
    "bytes": (("a", b"abc", SamplingParams()), "prompt=b'abc'"),
    "name": ((5, [1], SamplingParams()), "request_id=5"),
    "no parameters": (("a", [1], None), "sampling=None"),
    "priority": (("a", [1], SamplingParams(), "high"), "priority='high'"),
    "draw without a seed": (("a", [1], SamplingParams(temperature=0.5)), "it has no seed"),
    "stop token": (("a", [1], SamplingParams(stop_token_ids=(256,))), "token id 256"),
    "grammar": (("a", [1], SamplingParams(grammar=Grammar("regex", "a+"))), "made without grammars"),
}


@pytest.mark.parametrize("case", BAD_ADDITIONS)
def test_what_the_runner_would_refuse_never_reaches_the_others(llm, case):
    arguments, words = BAD_ADDITIONS[case]
    stream = llm.stream([[5, 6, 7]], SamplingParams(max_tokens=3))
    with pytest.raises(RequestError, match=words) as caught:
        llm._engine.add(*arguments)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert len(list(stream)) == 3
    assert is_idle(llm)


def test_a_minimum_that_no_sequence_reaches(llm):
    (free,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    patient = SamplingParams(max_tokens=2**40, min_tokens=2**40, stop_token_ids=free.token_ids[:1])
    (completion,) = llm.generate([[5, 6, 7]], patient)
    assert (len(completion.token_ids), completion.finish_reason) == (45, "length")
    assert free.token_ids[0] not in completion.token_ids


@pytest.mark.parametrize("index", [-1, 2, "0"])
def test_no_prompt_of_that_index(llm, index):
    with llm.stream([[5], [6]]) as stream, pytest.raises(RequestError, match="2 prompts") as caught:
        stream.abort(index)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(llm)


def test_text_needs_a_tokenizer(checkpoint):
    llm = LLM(checkpoint, CONFIG)
    with pytest.raises(RequestError, match="no tokenizer"):
        llm.generate([[5], "abc"])
    assert is_idle(llm)
    (completion,) = llm.generate([[5]], SamplingParams(max_tokens=2))
    assert (completion.text, len(completion.token_ids)) == ("", 2)


def test_a_pool_too_small_for_one_request(checkpoint):
    llm = LLM(checkpoint, replace(CONFIG, num_kv_blocks=4))
    with pytest.raises(RequestError, match="needs 4 KV blocks and the pool has 3"):
        llm.generate([[1, 2], [1] * 10], SamplingParams(max_tokens=4))
    assert is_idle(llm)


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("error", [Interrupted, RuntimeError])
def test_a_call_that_broke_off_was_the_last(llm, monkeypatch, error):
    def fail(step):
        raise error("now")

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine._runner, "execute", fail)
        with pytest.raises(error, match="now"):
            llm.generate([[5, 6]])
    with pytest.raises(RequestError, match=f"engine after {error.__name__}"):
        llm.generate([[5, 6]])


def test_an_engine_closes_itself(checkpoint, monkeypatch):
    closed = []
    with LLM(checkpoint, CONFIG) as llm:
        monkeypatch.setattr(llm._engine._runner, "close", lambda: closed.append(True))
    assert closed == [True]
    with pytest.raises(ZeroDivisionError), llm:
        raise ZeroDivisionError
    assert closed == [True] * 2


def test_a_closed_engine_says_so(checkpoint):
    llm = LLM(checkpoint, CONFIG)
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="engine after close") as caught:
        llm.generate([[5]])
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))


def test_a_runner_longer_than_the_context_is_refused(checkpoint):
    with pytest.raises(ConfigurationError, match="max_model_len=2049"):
        LLM(checkpoint, replace(CONFIG, max_model_len=2049))


def test_the_default_capacities_hold_two_full_sequences(checkpoint):
    config = default_config(checkpoint)
    assert config.max_model_len == 2048
    assert config.num_kv_blocks - 1 == 2 * config.max_blocks_per_request
    long = replace(checkpoint, config=replace(checkpoint.config, max_position_embeddings=100_000))
    assert default_config(long).max_model_len == 4096


def test_from_model_loads_model_and_tokenizer():
    with LLM.from_model("tiny") as llm:
        (completion,) = llm.generate(["The capital"], SamplingParams(max_tokens=3))
    assert len(completion.token_ids) == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"config": CONFIG, "max_model_len": 7}, "max_model_len=7"),
        ({"config": CONFIG, "speculation": "ngram", "poison": True}, "speculation='ngram', poison=True"),
        ({"max_model_length": 7}, "max_model_length=7"),
    ],
)
def test_settings_that_nobody_would_read(given, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        LLM.from_model("tiny", **given)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_more_steps_are_in_flight_than_asked_for(checkpoint, monkeypatch, depth):
    llm = LLM(checkpoint, replace(CONFIG, steps_in_flight=depth))
    engine, seen = llm._engine, []
    execute = engine._runner.execute

    def counted(step):
        seen.append(len(engine._in_flight) + 1)
        return execute(step)

    monkeypatch.setattr(engine._runner, "execute", counted)
    llm.generate(PROMPTS, SamplingParams(max_tokens=8))
    assert max(seen) == depth


def test_the_same_calls_make_the_same_steps(checkpoint):
    """Whatever the device does meanwhile: on the virtual device, late, early and at random."""
    runs = []
    for schedule in ("late", "early", "random:3"):
        with virtual_device(schedule) as device:
            llm = LLM(checkpoint, replace(CONFIG, device="cuda"))
            engine, steps = llm._engine, []
            execute = engine._runner.execute
            engine._runner.execute = lambda step, steps=steps, execute=execute: steps.append(step) or execute(step)
            done = llm.generate(PROMPTS[:3], SamplingParams(temperature=0.8, seed=1, max_tokens=4))
            llm.close()
        assert not device.findings
        runs.append((steps, tokens(done)))
    assert runs[0] == runs[1] == runs[2]


def test_priorities_decide_who_is_served_first(checkpoint):
    llm = LLM(checkpoint, replace(CONFIG, max_num_reqs=1, scheduling="priority"))
    deltas = list(llm.stream([[5, 6], [7, 8], [9]], SamplingParams(max_tokens=3), priorities=[2, 0, 1]))
    assert list(dict.fromkeys(delta.index for delta in deltas)) == [1, 2, 0]
    assert is_idle(llm)


@pytest.mark.parametrize("priorities", [[1], [1, 2, 3], [1.5, 2], "12", 7, [True, 1]])
def test_priorities_of_another_kind_or_number_are_refused(checkpoint, priorities):
    llm = LLM(checkpoint, replace(CONFIG, scheduling="priority"))
    with pytest.raises(RequestError, match="for 2 prompts") as caught:
        llm.generate([[5], [6]], priorities=priorities)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(llm)


def test_priorities_that_nothing_heeds_are_refused(llm):
    with pytest.raises(RequestError, match="scheduling='priority' only"):
        llm.generate([[5]], priorities=[1])
    assert len(llm.generate([[5]], SamplingParams(max_tokens=1))) == 1
