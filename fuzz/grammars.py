"""Workloads of requests with grammars: random JSON schemas, and requests without a grammar beside them.

The vocabulary is that of the tiny model, one token per byte. Every text of these schemas is short, so a random model
reaches its end.
"""

from __future__ import annotations

import json
import random
import string
from typing import Any

from mrv2.fuzz.programs import RunnerProgram
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import Grammar, SamplingParams

VOCAB_SIZE = 256
#: The byte that ends a text; no text of JSON holds it.
STOP = 0
#: Longest text of :func:`random_schema`, in bytes, with room to spare.
MOST_TOKENS = 160
CAPACITIES = {
    "max_num_reqs": 5,
    "max_num_batched_tokens": 24,
    "max_model_len": 192,
    "block_size": 8,
    "num_kv_blocks": 50,
    "grammars": True,
}
#: Further stages of the sampler, which see what the grammar has left; none of them forbids a token.
STAGES: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    {"top_k": 5, "top_p": 0.9}, {"min_p": 0.02, "logit_bias": ((34, 1.0), (125, 2.0))},
)  # fmt: skip


def random_schema(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """A JSON schema all of whose texts are short.

    Args:
        draw: everything is drawn from it.
        depth: how deep objects and arrays may be nested.
    """
    leaves = (_integer, _string, _choice, _constant)
    return draw.choice(leaves if depth == 0 else (*leaves, _array, _object, _object, _either))(draw, depth)


def schema_grammar(schema: dict[str, Any]) -> Grammar:
    """A schema as a grammar without blanks between the tokens of JSON: a random model would draw them for ever."""
    return Grammar("json_schema", json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}))


def random_grammar(draw: random.Random) -> Grammar:
    """Mostly a schema; sometimes an expression, a grammar of several rules, or a text that repeats itself.

    What repeats itself is what n-gram drafts foretell.
    """
    kind = draw.randrange(8)
    if kind == 0:
        return Grammar("regex", draw.choice(("(ab|c){1,6}", "[0-9]{2}-[a-f]{3}", "x|y{5}z?", "(north ){2,5}")))
    if kind == 1:
        return Grammar("ebnf", 'root ::= "(" item ")"\nitem ::= [a-z] | "[" [0-9] "]"')
    if kind == 2:
        return schema_grammar({"type": "array", "items": {"enum": ["north", "south"]}, "minItems": 2, "maxItems": 6})
    return schema_grammar(random_schema(draw))


def grammar_workload(seed: int, count: int, share: float = 0.75, **settings: int | str) -> Workload:
    """Overlapping requests, most of them with a grammar, some of them preempted or aborted.

    Args:
        seed: of everything.
        count: number of requests.
        share: of them that has a grammar.
        settings: further fields of the runner's configuration, such as ``speculation``.
    """
    draw = random.Random(seed)
    requests = tuple(_request(draw, index, draw.random() < share) for index in range(count))
    return Workload(requests, {**CAPACITIES, **settings}, VOCAB_SIZE, steps_in_flight=draw.choice((1, 2, 3)))


def in_turns() -> Workload:
    """Two requests with a grammar, each of which draws in every second step: every step has masks of its own."""
    params = SamplingParams(grammar=Grammar("regex", "[ab]{5}"), stop_token_ids=(STOP,), max_tokens=8)
    requests = tuple(WorkloadRequest(name, (1, 2), params, arrival=step) for step, name in enumerate("ab"))
    return Workload(requests, CAPACITIES, VOCAB_SIZE, steps_in_flight=2)


def runner_with_grammars() -> dict[str, object]:
    """A program for the virtual device: ``mrv2 fences mrv2.fuzz.grammars:runner_with_grammars``."""
    return RunnerProgram(ReferenceTarget(), in_turns())()


def _request(draw: random.Random, index: int, constrained: bool) -> WorkloadRequest:
    temperature, seed = draw.choice((0.0, 0.8, 1.5)), draw.getrandbits(64)
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        **random.Random(seed).choice(STAGES),
        max_tokens=MOST_TOKENS if constrained else draw.randint(1, 20),
        stop_token_ids=(STOP,) if constrained else (),
        grammar=random_grammar(draw) if constrained else None,
    )
    fate = draw.randrange(6)
    return WorkloadRequest(
        request_id=f"r{index}",
        prompt=tuple(draw.choices(range(VOCAB_SIZE), k=draw.randint(1, 24))),
        sampling=params,
        arrival=3 * index,
        preempt_after={0: (1, 6), 1: (draw.randint(1, 12),)}.get(fate, ()),
        abort_after=4 if fate == 2 else None,
    )


def _integer(draw: random.Random, depth: int) -> dict[str, Any]:
    low = draw.randint(-200, 200)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 300)}


def _string(draw: random.Random, depth: int) -> dict[str, Any]:
    if draw.random() < 0.5:
        return {"type": "string", "minLength": draw.randint(0, 1), "maxLength": draw.randint(1, 3)}
    return {"type": "string", "pattern": draw.choice(("^[a-z]{1,4}$", "^(north|south)$", "^[A-F0-9]{2}$"))}


def _choice(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": draw.sample(["a", "bc", 'q"t', "\u00e9", 1, -20, True, None], k=draw.randint(1, 4))}


def _constant(draw: random.Random, depth: int) -> dict[str, Any]:
    return draw.choice(({"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"const": 17}))


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randint(0, 1)
    return {
        "type": "array", "items": random_schema(draw, depth - 1), "minItems": least,
        "maxItems": least + draw.randint(0, 2),
    }  # fmt: skip


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(string.ascii_lowercase, k=draw.randint(1, 3))
    return {
        "type": "object", "properties": {name: random_schema(draw, depth - 1) for name in names},
        "required": names[: draw.randint(0, len(names))], "additionalProperties": False,
    }  # fmt: skip


def _either(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(draw, depth - 1) for _ in range(2)]}
