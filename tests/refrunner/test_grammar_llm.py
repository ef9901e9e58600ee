"""Grammars as a caller of the engine meets them: texts, errors before anything is queued, a request that is stuck."""

import pytest

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError, RequestError
from mrv2.refrunner.llm import LLM

pytest.importorskip("llguidance")
STOP = (0,)


@pytest.fixture(scope="module")
def llm():
    with triton_cpu.enabled(), LLM.from_model("tiny", grammars=True) as llm:
        yield llm


def word(text, **fields):
    return SamplingParams(**{"grammar": Grammar("regex", text), "stop_token_ids": STOP, **fields})


def test_a_text_is_one_of_its_grammar_and_others_are_what_they_were(llm):
    plain = llm.generate(["abc"], SamplingParams(max_tokens=5))[0]
    constrained, beside = llm.generate(["abc", "abc"], [word("(yes|no)!"), SamplingParams(max_tokens=5)])
    assert constrained.text in ("yes!", "no!")
    assert (constrained.finish_reason, constrained.error) == ("stop", None)
    assert beside.token_ids == plain.token_ids


def test_a_request_that_gets_stuck_says_why_and_nobody_else_does(llm):
    stuck, fine = llm.generate(["x", "x"], [word("ab", bad_words=((ord("b"),),)), word("ab")])
    assert (stuck.text, stuck.finish_reason) == ("a", "error")
    assert "request-" in stuck.error.subject and "allows no token" in stuck.error.rule
    assert (fine.text, fine.finish_reason, fine.error) == ("ab", "stop", None)


@pytest.mark.parametrize("params", [word("["), word("a", stop_token_ids=())])
def test_a_grammar_that_cannot_be_served_is_refused_before_anything_is_queued(llm, params):
    with pytest.raises(RequestError, match=r"SamplingParams\.grammar"):
        llm.generate(["a", "b"], [word("a"), params])
    assert llm.generate(["a"], word("a"))[0].text == "a"


def test_an_engine_without_grammars_refuses_them():
    with LLM.from_model("tiny") as plain, pytest.raises(RequestError, match="grammars=True"):
        plain.generate(["a"], word("a"))


def test_grammars_need_a_tokenizer(checkpoint):
    with pytest.raises(ConfigurationError, match="without a tokenizer"):
        LLM(checkpoint, RunnerConfig(grammars=True))


@pytest.mark.parametrize("settings", [{}, {"speculation": "ngram", "num_drafts": 3}], ids=["plain", "drafts"])
def test_a_text_without_an_end_ends_its_own_request_alone(settings):
    endless = SamplingParams(
        grammar=Grammar("ebnf", 'root ::= "a" | "b" tail\ntail ::= "ab" tail'),
        stop_token_ids=STOP,
        logit_bias=((ord("b"), 90.0),),
    )
    with triton_cpu.enabled(), LLM.from_model("tiny", max_model_len=64, grammars=True, **settings) as llm:
        broken, whole = llm.generate(["babab", "x"], [endless, word("[a-c]{3}")])
        assert llm.generate(["x"], word("[a-c]{3}"))[0].token_ids == whole.token_ids
    assert (broken.text, broken.finish_reason, whole.finish_reason) == ("ba", "error", "stop")
    assert "have an end" in broken.error.remedy
