"""Streams of the facade: parts that make the whole, in time, and what is left when one is left early."""

from dataclasses import replace

import pytest

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.errors import RequestError
from mrv2.refrunner.llm import LLM
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


def joined(deltas, index):
    """Text, tokens, logprobs and end of one request's deltas."""
    own = [delta for delta in deltas if delta.index == index]
    tokens = tuple(token for delta in own for token in delta.token_ids)
    logprobs = tuple(logprob for delta in own for logprob in delta.logprobs)
    return "".join(delta.text for delta in own), tokens, logprobs, own[-1].finish_reason


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stream_is_the_completion_in_parts(checkpoint, depth):
    llm = LLM(checkpoint, replace(CONFIG, steps_in_flight=depth), load_tokenizer(checkpoint))
    sampling = SamplingParams(temperature=0.9, seed=4, max_tokens=6)
    whole = llm.generate(PROMPTS, sampling)
    deltas = list(llm.stream(PROMPTS, sampling))
    for index, completion in enumerate(whole):
        parts = (completion.text, completion.token_ids, completion.logprobs, completion.finish_reason)
        assert joined(deltas, index) == parts
    assert all(delta.token_ids and (delta.finish_reason is None) for delta in deltas if not delta.finish_reason)
    assert len(deltas) > 2 * len(PROMPTS)
    assert is_idle(llm)


def test_tokens_come_as_soon_as_they_have_arrived(llm):
    """The first delta comes while its request still runs, one step after the one that drew it was enqueued."""
    stream = llm.stream([[5, 6]], SamplingParams(max_tokens=8))
    first = next(stream)
    assert (first.index, len(first.token_ids), first.finish_reason) == (0, 1, None)
    assert len(llm._engine._in_flight) == 1
    stream.close()
    assert is_idle(llm)


def test_characters_of_several_tokens_come_whole(llm):
    """Random bytes are hardly ever UTF-8; what a delta holds never changes afterwards."""
    (completion,) = llm.generate([[7, 8]], SamplingParams(temperature=5.0, seed=2, max_tokens=40))
    deltas = list(llm.stream([[7, 8]], SamplingParams(temperature=5.0, seed=2, max_tokens=40)))
    assert "".join(delta.text for delta in deltas) == completion.text
    assert any(not delta.text for delta in deltas)


def test_streams_share_the_batch(llm):
    alone = llm.generate(PROMPTS[:2], SamplingParams(max_tokens=5))
    first, second = (llm.stream([prompt], SamplingParams(max_tokens=5)) for prompt in PROMPTS[:2])
    deltas = ([], [])
    for _ in range(5):
        deltas[0].append(next(first))
        deltas[1].append(next(second))
    assert [joined(part, 0)[1] for part in deltas] == tokens(alone)
    assert list(first) == list(second) == []
    assert is_idle(llm)


def test_one_request_of_a_stream_is_aborted_and_the_others_go_on(llm):
    whole = llm.generate(PROMPTS[:3], SamplingParams(max_tokens=6))
    stream, deltas = llm.stream(PROMPTS[:3], SamplingParams(max_tokens=6)), []
    for delta in stream:
        deltas.append(delta)
        if delta.index == 1 and delta.finish_reason is None:
            stream.abort(1)
    text, shown, _, reason = joined(deltas, 1)
    assert reason == "abort" and 1 <= len(shown) < 6 and whole[1].token_ids[: len(shown)] == shown
    assert whole[1].text.startswith(text)
    assert [joined(deltas, index)[1] for index in (0, 2)] == [whole[0].token_ids, whole[2].token_ids]
    assert [completion.finish_reason for completion in stream.completions()] == ["length", "abort", "length"]
    assert is_idle(llm)


def test_a_stream_that_is_left_aborts_what_is_unfinished(llm):
    with llm.stream(PROMPTS, SamplingParams(max_tokens=6)) as stream:
        next(stream)
    assert list(stream) == []
    assert {completion.finish_reason for completion in stream.completions()} == {"abort"}
    assert is_idle(llm)
    stream.close()
    assert len(llm.generate([[5]], SamplingParams(max_tokens=2))[0].token_ids) == 2


def test_what_had_arrived_is_returned_before_an_error(llm, monkeypatch):
    stream = llm.stream(PROMPTS[:2], SamplingParams(max_tokens=6))
    first = next(stream)

    def fail(step):
        raise ZeroDivisionError

    monkeypatch.setattr(llm._engine._runner, "execute", fail)
    second = next(stream)
    assert (first.index, second.index) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert [len(completion.token_ids) for completion in stream.completions()] == [1, 1]
    with pytest.raises(RequestError, match="engine after ZeroDivisionError"):
        llm.stream([[5]])
    stream.close()
