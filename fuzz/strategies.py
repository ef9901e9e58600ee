"""What the fuzzer draws: settings, requests and schedules, each of few choices, so that long scripts fit and shrink.

Hypothesis gives a case 8,192 units of choice. A prompt is therefore a text and a length, not a list of tokens; what is
seldom asked for is drawn sparsely; and of a schedule only the deviations from its base are drawn. Values shrink to the
first of each list: the plain CPU, greedy decoding, no feature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from mrv2.checks.findings import JSON
from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.fuzz.grammars import STOP, schema_grammar
from mrv2.fuzz.targets.protocols import Knob
from mrv2.refrunner.api import Grammar, SamplingParams

from .script import Arrive
from .script_driver import smallest_pool

Drawn = TypeVar("Drawn")
#: Longest sequences: one that blocks of all sizes end at, and one that none does.
MAX_MODEL_LENS = (48, 37)
LONGEST_PROMPT, LONGEST_OUTPUT = 40, 12
#: Of so many cases one has longer sequences: kernels go through what is long in turns of 64 to 256, and of the turns
#: behind the first one short sequences say nothing.
ONE_LONG_IN = 8
LONG_MODEL_LEN, LONG_STEPS, LONG_PROMPT = 304, (300, 40), 290
#: Texts that prompts are the beginnings of, so that some share a prefix and some do not.
TEXTS = 3
#: Of so many knobs one is turned: with fifteen of them three in a case, and most settings go together in twos.
ONE_KNOB_IN = 5
#: Of so many cases one leaves a knob alone that is to be turned often.
ONE_DEFAULT_IN = 3
#: Of so many requests one may draw these tokens alone, with logits far below zero and near each other: whatever else
#: changes a logit then decides which of them it is. A penalty or bad words, where any may be drawn, come with them.
ONE_PAIR_IN = 8
PAIR: Mapping[str, Any] = {"allowed_token_ids": (1, 7), "logit_bias": ((1, -8.0), (7, -8.0))}
#: Bad words of these two, which come up; no place forbids both tokens. With them come two longer ones, since kernels
#: look for them in turns of 32 tokens, which several steps may have computed: the request's whole prompt and one of the
#: two, and the same but for the prompt's last token, which forbids nothing.
RUNS, LONG_WORD = ((1, 1, 1), (7, 7, 7), (7, 1, 7)), 36
DEVIATIONS = 6
#: A step of a small runner has about 40 moments; a later one than the run has does nothing.
LAST_MOMENT = 1500
STREAMS = 3
BASES = ("late", "early", "starve:0", "starve:1", "starve:2")
NUMBERED_BASES = ("random", "pct")
#: The knob that a target must have, and that is turned, where requests carry grammars.
GRAMMARS = "grammars"
#: Some end soon, some go on, some repeat themselves, which is what n-gram drafts foretell.
GRAMMAR_CHOICES = (
    Grammar("regex", "[ab]{5}"), Grammar("regex", "x|y{5}z?"), Grammar("regex", "(north ){2,5}"),
    Grammar("regex", "[é€]{2,4}"),  # bytes up to 226: bits of the first and of the last word of a mask
    Grammar("ebnf", 'root ::= "(" item ")"\nitem ::= [a-z] | "[" [0-9] "]"'),
    schema_grammar({"type": "array", "items": {"enum": [True, False]}}),
)  # fmt: skip
#: What takes away none of the last tokens that a grammar has left.
BESIDE_GRAMMARS = (
    "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias",
    "logprobs", "logprob_token_ids", "prompt_logprobs",
)  # fmt: skip

#: Parameters that are left out of all requests of a case together.
GROUPS = (
    ("temperature",), ("top_k", "top_p", "min_p"), ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    ("logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "min_tokens"),
    ("logprobs", "logprob_token_ids", "prompt_logprobs"), ("continues",),
)  # fmt: skip


def settings_of(
    knobs: Mapping[str, Knob], groups: int = 1, every: Mapping[str, Knob] | None = None
) -> SearchStrategy[dict[str, JSON]]:
    """Capacities, small enough to be felt, and some knobs that are not as they are by default.

    Args:
        knobs: of the target, those that may be turned.
        every: all of the target's, if those are not all.
        groups: KV groups of the model.
    """
    short, long = _capacities(MAX_MODEL_LENS, (16, 6, 40)), _capacities((LONG_MODEL_LEN,), LONG_STEPS)
    capacities = weighted(*[short] * (ONE_LONG_IN - 1), long)
    return st.builds(functools.partial(_settings, groups), capacities, st.sampled_from((8, 0, 2)), turned(knobs, every))


def _capacities(max_model_lens: Sequence[int], most_tokens: Sequence[int]) -> SearchStrategy[dict[str, JSON]]:
    return st.fixed_dictionaries(
        {
            "max_num_reqs": st.sampled_from((3, 1, 2, 5)),
            "max_num_batched_tokens": st.sampled_from(most_tokens),
            "block_size": st.sampled_from((8, 4, 16)),
            "max_model_len": st.sampled_from(max_model_lens),
        }
    )


def turned(knobs: Mapping[str, Knob], every: Mapping[str, Knob] | None = None) -> SearchStrategy[dict[str, JSON]]:
    """A few knobs, each with a value that is not its default; ``every`` as above."""
    # Not a list of knobs: those that are drawn first would be the same few.
    each = {name: _value(knob) for name, knob in sorted(knobs.items()) if len(knob.values) > 1}
    return st.fixed_dictionaries(each).map(functools.partial(_meaningful, every or knobs))


def _meaningful(knobs: Mapping[str, Knob], drawn: Mapping[str, JSON]) -> dict[str, JSON]:
    """What is not as by default, and means anything beside the rest."""
    defaults = {name: knob.values[0] for name, knob in knobs.items()}
    whole = {**defaults, **drawn}
    return {name: value for name, value in drawn.items() if value != defaults[name] and knobs[name].fits(whole)}


def _value(knob: Knob) -> SearchStrategy[JSON]:
    """Of a knob: all values but the default are as likely as each other."""
    default, *others = knob.values
    if knob.often:
        return st.sampled_from((*[default] * len(others), *others * (ONE_DEFAULT_IN - 1)))
    return st.sampled_from((*[default] * (ONE_KNOB_IN - 1) * len(others), *others))


def _settings(groups: int, capacities: dict[str, JSON], spare: int, knobs: dict[str, JSON]) -> dict[str, JSON]:
    return {**capacities, "num_kv_blocks": smallest_pool(capacities, groups) + spare, **knobs}


def schedules() -> SearchStrategy[Schedule | None]:
    """None, for the plain CPU, or a base with a few deviations."""
    numbered = st.builds("{}:{}".format, st.sampled_from(NUMBERED_BASES), st.integers(0, 99))
    bases = st.one_of(st.sampled_from(BASES), numbered)
    virtual = st.builds(Schedule, bases, deviations=st.lists(decisions(), max_size=DEVIATIONS).map(_sorted))
    return weighted(st.none(), virtual, virtual)


def weighted(*strategies: SearchStrategy[Drawn]) -> SearchStrategy[Drawn]:
    """One of them, each as often as it is named; ``one_of`` drops what it has already."""
    return st.sampled_from(strategies).flatmap(lambda strategy: strategy)


def _sorted(deviations: Sequence[Decision]) -> tuple[Decision, ...]:
    return tuple(sorted(deviations, key=lambda decision: decision.moment))


def decisions() -> SearchStrategy[Decision]:
    """At some moment a stream runs its next operation, or all that it can, or the host goes on."""
    moments = st.integers(0, LAST_MOMENT)
    runs = st.builds(Decision, moments, st.integers(0, STREAMS - 1), st.booleans())
    return st.one_of(runs, st.builds(Decision, moments, st.none()))


@functools.cache
def _text(vocab_size: int, number: int) -> tuple[int, ...]:
    random = np.random.default_rng((vocab_size, number))
    return tuple(int(token) for token in random.integers(0, vocab_size, LONG_PROMPT))


def _all(name: str) -> bool:
    return True


def arrivals(
    vocab_size: int, allowed: Callable[[str], bool] = _all, grammars: bool = False, longest: int = LONGEST_PROMPT
) -> SearchStrategy[Arrive]:
    """A request: the beginning of one of a few texts, and what it asks for.

    Args:
        vocab_size: token ids are below it.
        allowed: whether a parameter, or that a request continues another one, may be drawn.
        grammars: whether some requests carry one.
        longest: tokens of a prompt.
    """

    def build(
        text: int, length: int, sampling: SamplingParams, priority: int, continues: int | None, updates: bool
    ) -> Arrive:
        in_runs = sampling.bad_words == RUNS
        prompt = _text(vocab_size, text)[: max(length, min(longest, LONG_WORD) * in_runs)]
        if in_runs and prompt[-1] not in PAIR["allowed_token_ids"]:
            sampling = replace(sampling, bad_words=(*RUNS, (*prompt, 1), (*prompt[:-1], 1, 7)))
        return Arrive(prompt, sampling, priority, continues, updates and continues is not None)

    continued = st.sampled_from((*[None] * 8, 0, 1, 2, 3)) if allowed("continues") else st.none()
    updates = st.sampled_from((False, True)) if allowed("updates") else st.just(False)
    lengths = st.one_of(st.integers(1, 6), st.integers(1, longest))
    plain = sampling_params(vocab_size, allowed)
    sampling = weighted(plain, plain, plain, under_grammars(vocab_size, allowed)) if grammars else plain
    return st.builds(build, st.integers(0, TEXTS - 1), lengths, sampling, st.integers(0, 2), continued, updates)


def sampling_params(vocab_size: int, allowed: Callable[[str], bool] = _all) -> SearchStrategy[SamplingParams]:
    """Parameters of a request, never so many constraints that no token is left.

    Tokens are kept apart by their residues modulo 6: those that end a request are even, bad words are multiples of
    three, and among the allowed ones there are always some of residue 1.
    """
    noise = _noise() if allowed("temperature") else st.just({})
    return st.builds(_params, st.integers(1, LONGEST_OUTPUT), noise, _rare(vocab_size, allowed))


def under_grammars(vocab_size: int, allowed: Callable[[str], bool] = _all) -> SearchStrategy[SamplingParams]:
    """Parameters of a request with a grammar, which always leave a token that it allows."""
    noise = _noise() if allowed("temperature") else st.just({})
    rare = _rare(vocab_size, lambda name: name in BESIDE_GRAMMARS and allowed(name))
    ends = st.sampled_from(GRAMMAR_CHOICES).map(lambda grammar: {"grammar": grammar, "stop_token_ids": (STOP,)})
    return st.builds(
        lambda count, noise, rare, ends: _params(count, noise, {**rare, **ends}),
        st.integers(1, LONGEST_OUTPUT),
        noise,
        rare,
        ends,
    )


def _noise() -> SearchStrategy[dict[str, Any]]:
    """Greedy, or a temperature with a seed."""
    seeded = st.fixed_dictionaries(
        {"temperature": st.sampled_from((0.8, 0.4, 1.5)), "seed": st.sampled_from((0, 1, 2**32 + 1, 2**64 - 1))}
    )
    return st.one_of(st.just({}), seeded)


def _rare(vocab_size: int, allowed: Callable[[str], bool]) -> SearchStrategy[dict[str, Any]]:
    """A few of the further parameters."""
    choices = [(name, value) for name, values in _values(vocab_size).items() if allowed(name) for value in values]
    if not choices:
        return st.just({})
    few = st.lists(st.sampled_from(choices), max_size=4, unique_by=lambda choice: choice[0]).map(dict)
    if not all(map(allowed, PAIR)):
        return few
    penalties = [(name, value) for name, value in choices if name.endswith("_penalty")]
    deciding: list[dict[str, Any]] = [{**PAIR, name: value} for name, value in penalties] or [dict(PAIR)]
    if allowed("bad_words"):
        deciding += [{**PAIR, "bad_words": RUNS}] * max(1, len(penalties) // 2)
    none: dict[str, Any] = {}
    pairs = st.sampled_from((*[none] * (ONE_PAIR_IN - 1) * len(deciding), *deciding))
    return st.builds(lambda rare, pair: {**rare, **pair}, few, pairs)


def _values(vocab_size: int) -> dict[str, Sequence[Any]]:
    """Each further parameter with the values worth trying."""
    even, thirds = tuple(range(0, vocab_size, 2)), tuple(range(0, vocab_size, 3))
    return {
        "top_k": (5, 1, 50),
        "top_p": (0.9, 0.3),
        "min_p": (0.02, 0.2),
        "repetition_penalty": (1.3, 0.7, 3.0),
        "frequency_penalty": (0.7, -0.5),
        "presence_penalty": (1.1, -0.9),
        "logit_bias": (((1, 4.0),), ((1, -8.0), (7, 3.0))),
        "allowed_token_ids": (tuple(range(1, vocab_size, 6)), (1, 2, 3, 4, 5, 7)),
        "bad_words": (tuple((token,) for token in thirds[:60]), tuple((token, token) for token in thirds[:60])),
        "stop_token_ids": (even[::2], even[1::3]),
        "min_tokens": (2, 5),
        "logprobs": (3, 0, -1, 12, 70),
        "logprob_token_ids": ((5, 2),),
        "prompt_logprobs": (2, 0, -1, 70),
    }


def _params(max_tokens: int, noise: dict[str, Any], rare: dict[str, Any]) -> SamplingParams:
    least = min(rare.get("min_tokens", 0), max_tokens)
    return SamplingParams(**{**rare, **noise, "max_tokens": max_tokens, "min_tokens": least})
