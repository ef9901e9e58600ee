"""The engine: all prompts or none, seeds, stop tokens, and what a broken call leaves behind."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine, default_config
from mrv2.refrunner.errors import ConfigurationError, RequestError
from mrv2.refrunner.models.tokenizer import load_tokenizer

CONFIG = RunnerConfig(max_num_reqs=3, max_num_batched_tokens=16, max_model_len=48, block_size=4, num_kv_blocks=25)
PROMPTS = [[5, 6, 7], [200], [9, 9, 9, 9, 9, 9], [1, 2], list(range(100, 120))]


@pytest.fixture
def engine(checkpoint):
    return Engine(checkpoint, CONFIG, load_tokenizer(checkpoint))


def tokens(completions):
    return [completion.token_ids for completion in completions]


def is_idle(engine):
    """Nothing of a request is left in scheduler, pool or runner."""
    scheduler, runner = engine._scheduler, engine._runner
    return (
        not scheduler.has_work
        and scheduler.requests == {}
        and not scheduler._pending_draws
        and not engine._in_flight
        and scheduler._pool.num_free == scheduler._pool.capacity
        and runner._states.row_of == {}
        and runner.invariants() == []
    )


def test_more_prompts_than_rows(engine):
    together = engine.generate(PROMPTS, SamplingParams(max_tokens=5))
    assert is_idle(engine)
    assert [len(completion.token_ids) for completion in together] == [5] * 5
    assert [len(completion.logprobs) for completion in together] == [5] * 5
    alone = [engine.generate([prompt], SamplingParams(max_tokens=5))[0] for prompt in PROMPTS]
    assert tokens(together) == tokens(alone)
    assert is_idle(engine)


def test_tokens_are_the_oracles(engine, oracle):
    for prompt, completion in zip(PROMPTS, engine.generate(PROMPTS, SamplingParams(max_tokens=3)), strict=True):
        known = list(prompt)
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            row = oracle.model.logits(known)[-1].log_softmax(-1)
            assert (token, logprob) == (int(row.argmax()), pytest.approx(float(row[token]), abs=1e-4))
            known.append(token)


def test_no_prompts_no_completions(engine):
    assert engine.generate([]) == []
    assert is_idle(engine)


def test_prompt_i_uses_seed_plus_i(engine):
    params = SamplingParams(temperature=1.0, seed=2**64 - 1, max_tokens=4)
    first, second = engine.generate([[5, 6], [5, 6]], params)
    assert (first.seed, second.seed) == (2**64 - 1, 0)
    assert first.token_ids != second.token_ids
    again = engine.generate([[5, 6]], replace(params, seed=0))
    assert tokens(again) == [second.token_ids]


def test_a_negative_seed_is_its_64_bits(engine):
    params = SamplingParams(temperature=1.0, seed=-3, max_tokens=4)
    (completion,) = engine.generate([[5, 6]], params)
    assert completion.seed == 2**64 - 3
    assert tokens(engine.generate([[5, 6]], replace(params, seed=2**64 - 3))) == [completion.token_ids]


def test_a_drawn_seed_is_reported_and_repeats_the_draw(engine):
    params = SamplingParams(temperature=1.0, max_tokens=4)
    first, second = engine.generate([[5, 6], [5, 6]], params)
    assert first.seed != second.seed
    assert tokens(engine.generate([[5, 6]], replace(params, seed=second.seed))) == [second.token_ids]


def test_greedy_needs_no_seed(engine):
    (completion,) = engine.generate([[5, 6]])
    assert completion.seed is None


@pytest.mark.parametrize("position", [0, 2])
def test_stop_tokens_end_the_output_and_belong_to_it(engine, position):
    (free,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    stop = free.token_ids[position]
    (stopped,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=6, stop_token_ids=(stop,)))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")
    assert len(stopped.logprobs) == len(stopped.token_ids)
    assert stopped.text == load_tokenizer(engine._checkpoint).decode(list(stopped.token_ids[:-1]))
    assert is_idle(engine)


def test_the_models_own_stop_tokens_hold_by_default(checkpoint):
    engine = Engine(checkpoint, CONFIG)
    (free,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    stop = free.token_ids[2]
    ending = replace(checkpoint, config=replace(checkpoint.config, eos_token_ids=(stop,)))
    (stopped,) = Engine(ending, CONFIG).generate([[5, 6, 7]], SamplingParams(max_tokens=6))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    # Stop tokens of the request replace the model's.
    never = next(token for token in range(256) if token not in free.token_ids)
    (other,) = Engine(ending, CONFIG).generate([[5, 6, 7]], SamplingParams(max_tokens=6, stop_token_ids=(never,)))
    assert other.token_ids == free.token_ids


def test_the_context_ends_a_completion(engine):
    (completion,) = engine.generate([[1] * 45], SamplingParams(max_tokens=100))
    assert (len(completion.token_ids), completion.finish_reason) == (3, "length")


def test_text_goes_in_and_comes_out(engine):
    tokenizer = load_tokenizer(engine._checkpoint)
    (from_text,) = engine.generate(["abc"], SamplingParams(max_tokens=4))
    (from_ids,) = engine.generate([tokenizer.encode("abc")], SamplingParams(max_tokens=4))
    assert from_text == from_ids
    assert from_text.text == tokenizer.decode(list(from_text.token_ids))


@pytest.mark.parametrize("prompt", [np.array([5, 6, 7]), torch.tensor([5, 6, 7]), (5, 6, 7), range(5, 8)])
def test_token_ids_of_any_whole_type(engine, prompt):
    (completion,) = engine.generate([prompt], SamplingParams(max_tokens=2))
    assert completion == engine.generate([[5, 6, 7]], SamplingParams(max_tokens=2))[0]
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
def test_one_bad_prompt_refuses_all(engine, case, place):
    prompt, words = BAD_PROMPTS[case]
    prompts = [*PROMPTS[:place], prompt, *PROMPTS[place:]]
    with pytest.raises(RequestError, match=words) as caught:
        engine.generate(prompts)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(engine)
    assert engine._runner.batch is None


def test_a_refused_call_leaves_the_next_one_alone(engine):
    expected = engine.generate(PROMPTS, SamplingParams(max_tokens=3))
    with pytest.raises(RequestError):
        engine.generate([*PROMPTS, []])
    assert engine.generate(PROMPTS, SamplingParams(max_tokens=3)) == expected


def test_a_bare_text_is_no_list_of_prompts(engine):
    with pytest.raises(RequestError, match="each of its characters would become a prompt"):
        engine.generate("abc")


@pytest.mark.parametrize("prompts", [None, 5, b"abc", {"abc"}, {"abc": 1}], ids=str)
def test_what_is_no_list_of_prompts(engine, prompts):
    with pytest.raises(RequestError, match="prompts is a sequence of prompts") as caught:
        engine.generate(prompts)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(engine)


def test_each_prompt_may_have_parameters_of_its_own(engine):
    of_each = [
        SamplingParams(max_tokens=2),
        SamplingParams(temperature=0.9, seed=-3, max_tokens=4),
        SamplingParams(temperature=0.9, seed=-3, max_tokens=4, stop_token_ids=(255,)),
        SamplingParams(temperature=0.9, max_tokens=3),
    ]
    prompts = [[5, 6], [5, 6], [5, 6], [5, 6]]
    together = engine.generate(prompts, of_each)
    assert [len(completion.token_ids) for completion in together] == [2, 4, 4, 3]
    # Seeds are used as they are given: none is shifted by its place.
    assert [completion.seed for completion in together[:3]] == [None, 2**64 - 3, 2**64 - 3]
    assert together[1].token_ids == together[2].token_ids
    alone = [engine.generate([prompt], params)[0] for prompt, params in zip(prompts[:3], of_each[:3], strict=True)]
    assert tokens(together[:3]) == tokens(alone)
    assert engine.generate(prompts, tuple(of_each))[:3] == together[:3]
    assert engine.generate([], []) == []


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
def test_parameters_of_another_kind_or_number_are_refused(engine, case):
    with pytest.raises(RequestError, match="for 2 prompts") as caught:
        engine.generate([[5], [6]], BAD_SAMPLING[case])
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert is_idle(engine)


@pytest.mark.parametrize("each", [False, True])
def test_a_stop_token_that_the_model_cannot_draw_is_refused(engine, each):
    params = SamplingParams(stop_token_ids=(5, 256))
    with pytest.raises(RequestError, match=r"stop_token_ids=\(5, 256\)"):
        engine.generate([[5]], [params] if each else params)
    assert is_idle(engine)
    engine.generate([[5]], SamplingParams(stop_token_ids=(255,), max_tokens=1))


def test_text_needs_a_tokenizer(checkpoint):
    engine = Engine(checkpoint, CONFIG)
    with pytest.raises(RequestError, match="no tokenizer"):
        engine.generate([[5], "abc"])
    assert is_idle(engine)
    (completion,) = engine.generate([[5]], SamplingParams(max_tokens=2))
    assert (completion.text, len(completion.token_ids)) == ("", 2)


def test_a_pool_too_small_for_one_request(checkpoint):
    engine = Engine(checkpoint, replace(CONFIG, num_kv_blocks=4))
    with pytest.raises(RequestError, match="needs 4 KV blocks and the pool has 3"):
        engine.generate([[1, 2], [1] * 10], SamplingParams(max_tokens=4))
    assert is_idle(engine)


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("error", [Interrupted, RuntimeError])
def test_a_call_that_broke_off_was_the_last(engine, monkeypatch, error):
    def fail(step):
        raise error("now")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "execute", fail)
        with pytest.raises(error, match="now"):
            engine.generate([[5, 6]])
    with pytest.raises(RequestError, match=f"engine after {error.__name__}"):
        engine.generate([[5, 6]])


def test_an_engine_closes_itself(checkpoint, monkeypatch):
    closed = []
    with Engine(checkpoint, CONFIG) as engine:
        monkeypatch.setattr(engine._runner, "close", lambda: closed.append(True))
    assert closed == [True]
    with pytest.raises(ZeroDivisionError), engine:
        raise ZeroDivisionError
    assert closed == [True] * 2


def test_a_closed_engine_says_so(checkpoint):
    engine = Engine(checkpoint, CONFIG)
    engine.close()
    engine.close()
    with pytest.raises(RequestError, match="engine after close") as caught:
        engine.generate([[5]])
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))


def test_a_runner_longer_than_the_context_is_refused(checkpoint):
    with pytest.raises(ConfigurationError, match="max_model_len=2049"):
        Engine(checkpoint, replace(CONFIG, max_model_len=2049))


def test_the_default_capacities_hold_two_full_sequences(checkpoint):
    config = default_config(checkpoint)
    assert config.max_model_len == 2048
    assert config.num_kv_blocks - 1 == 2 * config.max_blocks_per_request
    long = replace(checkpoint, config=replace(checkpoint.config, max_position_embeddings=100_000))
    assert default_config(long).max_model_len == 4096


def test_from_model_loads_model_and_tokenizer():
    with Engine.from_model("tiny") as engine:
        (completion,) = engine.generate(["The capital"], SamplingParams(max_tokens=3))
    assert len(completion.token_ids) == 3
