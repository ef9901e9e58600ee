"""Grammars on the host: what is compiled, what a matcher allows, what a runner refuses."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mrv2.fuzz.grammars import STOP, VOCAB_SIZE, random_grammar, random_schema, schema_grammar
from mrv2.refrunner.api import Grammar, LogitsFault, NewRequest, SamplingParams, Step, StepOutput
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError, RequestError, RunnerError, StepError
from mrv2.refrunner.grammar import compiler as compiler_module
from mrv2.refrunner.grammar import library
from mrv2.refrunner.grammar.compiler import GrammarCompiler
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.tokenizer import ByteTokenizer
from mrv2.refrunner.models.vocabulary import Vocabulary
from mrv2.refrunner.oracle.grammar import GrammarOracle
from mrv2.refrunner.sampling.tables import mask_words
from mrv2.refrunner.scheduler import Scheduler

pytest.importorskip("llguidance")
BYTES = ByteTokenizer().vocabulary()
WORD = Grammar("regex", "ab|abc")


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(BYTES, VOCAB_SIZE)


def params(grammar=WORD, **settings):
    return SamplingParams(**{"stop_token_ids": (STOP,), "grammar": grammar, **settings})


def bits(words, size=VOCAB_SIZE):
    """Allowed tokens of a mask uint32 [W]."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:size]).tolist()


def masks(matcher, drafts=(), size=VOCAB_SIZE, gives_up=False):
    out = np.zeros((1 + len(drafts), mask_words(size)), dtype=np.uint32)
    assert (matcher.write_masks(drafts, out) is not None) == gives_up
    return [bits(row, 32 * mask_words(size)) for row in out]


# Compiling


@pytest.mark.parametrize(
    ("grammar", "first"),
    [
        (Grammar("json_schema", '{"type": "boolean"}'), "tf"),
        (Grammar("json_schema", '{"enum": ["x", 7]}'), '"7'),
        (Grammar("regex", "[a-c]d"), "abc"),
        (Grammar("ebnf", 'root ::= "x" | item\nitem ::= "(" root ")"'), "x("),
        (Grammar("ebnf", 'start: "x" | item\nitem: "(" start ")"'), "x("),
    ],
)
def test_each_kind_of_grammar_is_read(compiler, grammar, first):
    assert masks(compiler.compile(params(grammar))) == [sorted(map(ord, first))]


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", "{"),
        Grammar("json_schema", '{"type": "number", "minimum": 2, "maximum": 1}'),
        Grammar("json_schema", '{"type": "something"}'),
        Grammar("regex", "a["),
        Grammar("regex", r"[^\s\S]"),
        Grammar("ebnf", "root = x"),
        Grammar("ebnf", "root ::= missing"),
    ],
)
def test_what_cannot_be_read_or_satisfied_is_refused_with_the_reason(compiler, grammar):
    with pytest.raises(RequestError, match="llguidance says: ") as caught:
        compiler.compile(params(grammar))
    assert "\n" not in str(caught.value)
    assert f"Grammar({grammar.kind!r}, " in caught.value.subject


def test_an_unknown_kind_is_named():
    with pytest.raises(RequestError, match="not 'gbnf'") as caught:
        SamplingParams(grammar=Grammar("gbnf", "root ::= [a-z]+" * 9))
    assert "'ebnf'" in caught.value.remedy


def test_a_grammar_without_a_stop_token_is_refused(compiler):
    with pytest.raises(RequestError, match="a request with a grammar has a stop token"):
        compiler.compile(params(stop_token_ids=()))


def test_a_grammar_is_compiled_once_and_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(compiler_module, "MOST_COMPILED", 2)
    compiler = GrammarCompiler(BYTES, VOCAB_SIZE)
    read = []
    inner = compiler._read
    monkeypatch.setattr(compiler, "_read", lambda grammar: read.append(grammar.text) or inner(grammar))
    for text in ("a", "b", "a", "c", "a", "b"):
        compiler.compile(params(Grammar("regex", text)))
    assert read == ["a", "b", "c", "b"]


def test_without_the_library_there_is_one_error(monkeypatch):
    monkeypatch.setattr(library, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(ConfigurationError, match=r"pip install 'mrv2\[grammar\]'"):
        GrammarCompiler(BYTES, VOCAB_SIZE)


# Masks


def test_the_stop_token_is_allowed_where_the_text_is_complete_and_nowhere_else(compiler):
    matcher = compiler.compile(params(Grammar("regex", r"a\x00?b"), stop_token_ids=(STOP, ord("c"))))
    assert masks(matcher) == [[ord("a")]]
    matcher.advance([ord("a")])
    assert masks(matcher) == [[ord("b")]]  # the byte 0 would be text here, but it stops
    matcher.advance([ord("b")])
    assert masks(matcher) == [[STOP, ord("c")]]
    assert matcher.fitting([STOP]) == 0


def test_two_matchers_of_one_grammar_do_not_disturb_each_other(compiler):
    first, second = compiler.compile(params()), compiler.compile(params())
    first.advance(list(b"ab"))
    assert masks(first) == [[STOP, ord("c")]]
    assert masks(second) == [[ord("a")]]


@pytest.mark.parametrize("size", [257, 287, 288, 289, 320])
def test_ids_without_a_token_are_closed(size):
    compiler = GrammarCompiler(BYTES, size)
    matcher = compiler.compile(params(Grammar("regex", "(?s:.)*"), stop_token_ids=(256,)))
    # Every byte that may begin a character of UTF-8, and the stop token.
    assert masks(matcher, size=size) == [[*range(0x80), *range(0xC2, 0xF5), 256]]


def test_special_tokens_are_closed():
    vocabulary = Vocabulary((*BYTES.tokens, b"a", b"<x>"), (257,), BYTES.encode)
    matcher = GrammarCompiler(vocabulary, 258).compile(params(Grammar("regex", "a|<x>")))
    assert masks(matcher, size=258) == [[ord("<"), ord("a"), 256]]


def test_masks_of_drafts_are_those_after_them_and_the_state_stays(compiler):
    grammar = Grammar("json_schema", '{"type": "array", "items": {"type": "integer"}, "maxItems": 3}')
    draw = random.Random(0)
    matcher, text = compiler.compile(params(grammar)), []
    for _ in range(12):
        (now,) = masks(matcher)
        drafts = list(text) and [draw.choice(now)]
        for _ in range(2):
            fresh = compiler.compile(params(grammar))
            drafts = drafts[: fresh.fitting([*text, *drafts]) - len(text)]
            fresh.advance([*text, *drafts])
            drafts.append(draw.choice(masks(fresh)[0]))
        found = masks(matcher, drafts)
        for place in range(len(drafts)):
            if STOP in drafts[:place]:
                break
            fresh = compiler.compile(params(grammar))
            fresh.advance([*text, *drafts[:place]])
            assert found[place] == masks(fresh)[0]
        assert masks(matcher) == [now]
        if now == [STOP]:
            break
        token = draw.choice([token for token in now if token != STOP])
        matcher.advance([token])
        text.append(token)
    assert len(text) > 3


def test_what_follows_a_draft_that_does_not_fit_is_not_asked_for(compiler):
    everything = list(range(VOCAB_SIZE))
    matcher = compiler.compile(params())
    assert masks(matcher, list(b"ax")) == [[ord("a")], [ord("b")], everything]
    assert masks(matcher, [ord("a"), ord("b"), STOP]) == [[ord("a")], [ord("b")], [STOP, ord("c")], everything]
    assert masks(matcher) == [[ord("a")]]


@pytest.mark.parametrize("seed", range(30))
def test_masks_are_the_oracles_and_those_of_trying_each_token(compiler, seed):
    draw = random.Random(seed)
    asked = NewRequest("a", (1, 2), 2, params(random_grammar(draw)))
    oracle = GrammarOracle(BYTES.tokens, BYTES.special, BYTES.encode, VOCAB_SIZE)
    matcher, tokens = compiler.compile(asked.sampling), list(asked.token_ids)
    for _ in range(12):
        (found,) = masks(matcher)
        assert found == np.flatnonzero(oracle.allowed(asked, tokens)).tolist()
        fitting = [token for token in range(VOCAB_SIZE) if matcher.fitting([token])]
        assert [token for token in found if token != STOP] == fitting
        if not fitting:
            break
        tokens.append(draw.choice(fitting))
        matcher.advance(tokens[-1:])
    assert found


def test_when_the_library_gives_up_nothing_is_allowed(compiler):
    matcher = compiler.compile(params())
    matcher._state.consume_token(ord("x"))  # nobody does that: it breaks the library's matcher for good
    out = np.ones((1, mask_words(VOCAB_SIZE)), dtype=np.uint32)
    assert "Parser Error" in matcher.write_masks((), out)
    assert not out.any()


def test_schemas_are_repeatable_and_of_many_kinds():
    schemas = [random_schema(random.Random(seed)) for seed in range(60)]
    assert schemas == [random_schema(random.Random(seed)) for seed in range(60)]
    kinds = {key for schema in schemas for key in (schema.get("type"), *schema)}
    assert {"object", "array", "integer", "string", "boolean", "enum", "const", "anyOf", "pattern"} <= kinds
    assert schema_grammar(schemas[0]).kind == "json_schema"


# Texts without an end: the library reads on where there is no choice, until it reaches a limit of its own

ENDLESS = {
    "rule": (Grammar("ebnf", 'root ::= "a" root'), b"a"),
    "part": (Grammar("ebnf", 'root ::= "c" | "a" tail\ntail ::= "b" tail'), b"ab"),
    "schema": (
        schema_grammar(
            {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object", "additionalProperties": False}
        ),
        b"{",
    ),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_nothing_is_allowed_behind_a_text_that_the_library_gives_up_on(compiler, case):
    grammar, text = ENDLESS[case]
    matcher = compiler.compile(params(grammar))
    for token in text:
        assert token in masks(matcher)[0] and matcher.fitting([token]) == 1
        matcher.advance([token])
    assert masks(matcher, gives_up=True) == [[]]


def test_a_draft_that_the_library_gives_up_on_costs_nothing_if_it_is_rejected(compiler):
    grammar = Grammar("ebnf", 'root ::= "a" (tail | "d")\ntail ::= "b" more\nmore ::= "b" more')
    matcher = compiler.compile(params(grammar))
    assert masks(matcher, list(b"abb"), gives_up=True) == [[ord("a")], [ord("b"), ord("d")], [ord("b")], []]
    matcher.advance(list(b"ad"))
    assert masks(matcher) == [[STOP]]


# The step


@pytest.fixture(scope="module")
def runner(checkpoint, compiler):
    config = RunnerConfig(
        max_num_reqs=3, max_num_batched_tokens=16, max_model_len=48, block_size=4, num_kv_blocks=25, grammars=True
    )
    return ModelRunner(config, checkpoint.config, checkpoint.tensors, compiler)


ENTER = Step(new=(NewRequest("a", (1, 2), 2, params()),), scheduled={"a": 2}, new_blocks={"a": ((1,),)})
LEAVE = Step(finished=("a",))
REFUSED = {
    "draws while its last token is unknown": (ENTER, Step(scheduled={"a": 1})),
    "is told too much": (ENTER, Step(scheduled={"a": 1}, arrived={"a": tuple(b"ab")})),
    "is told a token that its grammar forbids": (ENTER, Step(scheduled={"a": 1}, arrived={"a": (ord("x"),)})),
    "goes on after its end": (ENTER, Step(scheduled={"a": 1}, arrived={"a": (STOP,)})),
    "is told drafts that are not scheduled": (
        ENTER, Step(scheduled={"a": 1}, arrived={"a": (ord("a"),)}, draft_tokens={"a": (ord("b"),)}),
    ),
    "is told a token as it leaves": (ENTER, Step(finished=("a",), arrived={"a": (ord("a"),)})),
    "is told twice what it brings": (None, replace(ENTER, arrived={"a": (ord("a"),)})),
    "is not there": (None, Step(arrived={"b": (1,)})),
    "comes back with a broken text": (
        None, replace(ENTER, new=(NewRequest("a", (1, 2), 1, params()),)),
    ),
    "comes with a grammar that is none": (
        None, replace(ENTER, new=(NewRequest("a", (1, 2), 2, params(Grammar("regex", "[")),),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_step_that_does_not_fit_a_grammar_is_refused_and_changes_nothing(runner, case):
    before, refused = REFUSED[case]
    if before is not None:
        runner.execute(before)
    with pytest.raises(StepError, match=r"request '[ab]'"):
        runner.execute(refused)
    assert runner.invariants() == []
    if before is not None:
        runner.execute(Step(scheduled={"a": 1}, arrived={"a": (ord("a"),)}))
        runner.execute(LEAVE)
    assert runner._states.row_of == runner._grammar._matchers == runner._grammar._prompt_len == {}


def test_a_runner_without_grammars_refuses_them(make_runner):
    runner = make_runner()
    with pytest.raises(StepError, match="made without grammars"):
        runner.execute(ENTER)
    with pytest.raises(StepError, match=r"Step\.arrived"):
        runner.execute(Step(arrived={"a": (1,)}))


@pytest.mark.parametrize("given", [(True, None), (False, VOCAB_SIZE), (True, VOCAB_SIZE + 1)])
def test_a_runner_with_grammars_needs_a_compiler_for_its_vocabulary(checkpoint, given):
    wanted, size = given
    compiler = None if size is None else GrammarCompiler(BYTES, size)
    with pytest.raises(ConfigurationError, match="a compiler for the model's 256 tokens"):
        ModelRunner(RunnerConfig(grammars=wanted), checkpoint.config, checkpoint.tensors, compiler)


# The scheduler


def test_a_request_waits_for_its_own_tokens_and_others_do_not():
    scheduler = Scheduler(RunnerConfig(max_num_batched_tokens=16, grammars=True))
    scheduler.add("plain", [1], SamplingParams())
    scheduler.add("grammar", [1, 2], params(max_tokens=4))
    steps = [scheduler.schedule(), scheduler.schedule()]
    assert [dict(step.scheduled) for step in steps] == [{"plain": 1, "grammar": 2}, {"plain": 1}]
    scheduler.update(StepOutput({"plain": (5,), "grammar": (6,)}, {"plain": (0.0,), "grammar": (0.0,)}))
    third = scheduler.schedule()
    assert (dict(third.scheduled), dict(third.arrived)) == ({"plain": 1, "grammar": 1}, {"grammar": (6,)})


def drafting():
    """A scheduler with one request that has drawn its first token, and two proposals behind it."""
    scheduler = Scheduler(RunnerConfig(grammars=True, speculation="ngram", num_drafts=3))
    scheduler.add("a", [1, 2], params(Grammar("regex", "[a-z]*"), max_tokens=9))
    scheduler.schedule()
    scheduler.update(output((5,), drafts=(6, 7)))
    return scheduler


def output(drawn, drafts=(), **fields):
    return StepOutput({"a": drawn}, {"a": (0.0,) * len(drawn)}, drafts={"a": drafts}, **fields)


def test_the_drafts_that_an_output_has_shown_are_verified_next():
    scheduler = drafting()
    step = scheduler.schedule()
    assert (step.scheduled, step.drafts) == ({"a": 3}, {"a": 2})
    assert (step.arrived, step.draft_tokens) == ({"a": (5,)}, {"a": (6, 7)})
    assert scheduler.schedule().scheduled == {}  # as long as the outcome is unknown
    scheduler.update(output((6, 8)))
    scheduler.update(StepOutput({}, {}))
    step = scheduler.schedule()
    assert (step.scheduled, step.drafts, step.arrived) == ({"a": 1}, {}, {"a": (6, 8)})
    assert step.verified == {"a": (2, 1)}


def test_a_request_that_lost_its_row_has_lost_its_drafts():
    scheduler = drafting()
    scheduler.preempt("a")
    scheduler.schedule()  # tells the runner that it left
    step = scheduler.schedule()
    assert step.new[0].token_ids == (1, 2, 5) and step.draft_tokens == step.arrived == {}


def test_drafts_that_arrive_after_a_preemption_are_those_of_a_lost_row():
    scheduler = drafting()
    scheduler.schedule()
    scheduler.preempt("a")
    scheduler.schedule()
    resumed = scheduler.schedule()
    assert resumed.new[0].token_ids == (1, 2, 5)
    scheduler.update(output((6, 7, 8), drafts=(9, 9, 9)))
    scheduler.update(StepOutput({}, {}))
    scheduler.update(output((6,)))
    step = scheduler.schedule()
    assert (step.scheduled, step.draft_tokens, step.arrived) == ({"a": 1}, {}, {"a": (6,)})


def test_a_draw_from_nothing_behind_a_draft_ends_the_request_and_keeps_the_draft():
    scheduler = drafting()
    scheduler.schedule()
    scheduler.update(output((6, 0), faults={"a": (LogitsFault(0, None, True, index=1),)}))
    request = scheduler.requests["a"]
    assert (request.finish_reason, request.output_token_ids, request.faults) == ("error", (5, 6), {})


def test_errors_have_four_parts(compiler):
    with pytest.raises(RunnerError) as caught:
        compiler.compile(params(Grammar("regex", "[")))
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
