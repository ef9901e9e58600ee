"""What structured output costs on the host: compile a schema, make masks, roll back; llguidance, xgrammar beside it.

    python tests/benchmarks/bench_grammar.py                 # llguidance
    python tests/benchmarks/bench_grammar.py --xgrammar      # both; needs xgrammar, which is not among our packages

Two vocabularies: the 49,152 tokens of SmolLM2, and 151,936 made of them and of pairs of them, the size of many current
models. Texts are drawn at random from the masks themselves, so both libraries are asked about texts of every kind; the
figures are microseconds for one mask, median and 99th percentile, and the largest. Coverage is counted on a list of
keywords of JSON schema, each in a schema of its own: a keyword is refused, or accepted and then kept or broken by
random texts, which jsonschema judges.
"""

import json
import random
import sys
import time

import jsonschema
import numpy as np

from mrv2.fuzz.grammars import random_schema
from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.errors import RequestError
from mrv2.refrunner.grammar.compiler import GrammarCompiler
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.models.tokenizer import ByteTokenizer, load_tokenizer
from mrv2.refrunner.models.vocabulary import Vocabulary

LARGE = 151_936
TOKENS = 60
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(org|net)$"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        "home": {"type": "object", "properties": {"street": {"type": "string"}, "no": {"type": "integer"}},
                 "required": ["street", "no"], "additionalProperties": False},
    },
    "required": ["name", "age", "mail", "tags", "home"],
    "additionalProperties": False,
}  # fmt: skip
KEYWORDS = {
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    "not": {"not": {"type": "integer"}},
    "$ref": {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    "const": {"const": {"a": [1, None]}},
    "minimum": {"type": "integer", "minimum": 17},
    "number bounds": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 20},
    "multipleOf": {"type": "integer", "multipleOf": 7},
    "pattern": {"type": "string", "pattern": "^(a|b){2,9}$"},
    "minLength": {"type": "string", "minLength": 3, "maxLength": 9},
    "format": {"type": "string", "format": "date-time"},
    "uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    "minItems": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    "patternProperties": {"type": "object", "patternProperties": {"^x": {"type": "integer"}},
                          "additionalProperties": False},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    "minProperties": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    "dependentRequired": {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
    "if": {"if": {"type": "integer"}, "then": {"minimum": 3}},
}  # fmt: skip


def vocabularies():
    """Name, vocabulary and size of each."""
    small = load_tokenizer(load_checkpoint("smollm2")).vocabulary()
    draw = random.Random(0)
    known = set(small.tokens)
    extra = []
    while len(known) < LARGE:
        pair = b"".join(draw.choices(small.tokens[17:], k=2))
        if pair not in known:
            known.add(pair)
            extra.append(pair)
    tokens = (*small.tokens, *extra)
    return (
        ("SmolLM2", small, len(small.tokens)),
        ("large", Vocabulary(tokens[:LARGE], small.special, small.encode), LARGE),
    )


class LLGuidance:
    """As the runner uses it."""

    name = "llguidance"

    def __init__(self, vocabulary, size):
        self.compiler = GrammarCompiler(vocabulary, size)
        self.words = np.zeros((1, -(-size // 32)), dtype=np.uint32)
        self.size = size

    def compile(self, schema):
        self.compiler._compiled.clear()
        grammar = Grammar("json_schema", json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}))
        return self.compiler.compile(SamplingParams(grammar=grammar, stop_token_ids=(0,)))

    def mask(self, matcher):
        assert matcher.write_masks((), self.words) is None

    def allowed(self):
        return np.flatnonzero(np.unpackbits(self.words.view(np.uint8), bitorder="little")[: self.size])

    def advance(self, matcher, token):
        matcher.advance([token])

    def back(self, matcher, count):
        assert matcher._state.rollback(count)


class XGrammar:
    """With the settings that its documentation shows."""

    name = "xgrammar"

    def __init__(self, vocabulary, size):
        import xgrammar

        self.library = xgrammar
        tokens = [*vocabulary.tokens, *[b""] * (size - len(vocabulary.tokens))]
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[0])
        self.compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
        self.bitmask = xgrammar.allocate_token_bitmask(1, size)
        self.size = size

    def compile(self, schema):
        compiled = self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, strict_mode=False)
        return self.library.GrammarMatcher(compiled)

    def mask(self, matcher):
        if not matcher.fill_next_token_bitmask(self.bitmask):
            self.bitmask.fill_(-1)

    def allowed(self):
        return np.flatnonzero(np.unpackbits(self.bitmask.numpy().view(np.uint8), bitorder="little")[: self.size])

    def advance(self, matcher, token):
        assert matcher.accept_token(token)

    def back(self, matcher, count):
        matcher.rollback(count)


def timed(function, *args):
    begin = time.perf_counter()
    result = function(*args)
    return result, 1e6 * (time.perf_counter() - begin)


def walk(library, schema, seed):
    """Microseconds of each mask, advance and rollback of 4 tokens along a random text."""
    draw = random.Random(seed)
    matcher = library.compile(schema)
    masks, advances, backs, text = [], [], [], []
    for _ in range(TOKENS):
        masks.append(timed(library.mask, matcher)[1])
        allowed = [token for token in library.allowed().tolist() if token != 0]
        if not allowed:
            break
        text.append(draw.choice(allowed))
        advances.append(timed(library.advance, matcher, text[-1])[1])
        if len(text) % 8 == 0:
            backs.append(timed(library.back, matcher, 4)[1])
            for token in text[-4:]:
                library.advance(matcher, token)
    return masks, advances, backs


def shown(values):
    return f"{np.median(values):8.1f} {np.percentile(values, 99):9.1f} {max(values):10.1f}"


def random_text(library, schema, draw):
    """A text of up to 200 bytes that the library allows; None if it did not end by then. Token 0 ends it."""
    matcher, text = library.compile(schema), []
    for _ in range(200):
        library.mask(matcher)
        allowed = library.allowed().tolist()
        token = 0 if 0 in allowed and draw.random() < 0.7 else draw.choice([token for token in allowed if token] or [0])
        if token == 0:
            return bytes(text)
        text.append(token)
        library.advance(matcher, token)
    return None


def fate(library, schema):
    """Whether a keyword is refused, kept, or broken by one of 100 texts."""
    draw = random.Random(0)
    try:
        library.compile(schema)
    except (RequestError, RuntimeError):
        return "refused"
    for _ in range(100):
        text = random_text(library, schema, draw)
        if text is not None:
            try:
                jsonschema.validate(json.loads(text), schema)
            except (jsonschema.ValidationError, ValueError):
                return "broken"
    return "kept"


def coverage(library):
    """Keywords by their fate."""
    fates = {name: fate(library, schema) for name, schema in KEYWORDS.items()}
    return {word: [name for name in fates if fates[name] == word] for word in ("kept", "refused", "broken")}


def main():
    libraries = [LLGuidance, XGrammar] if "--xgrammar" in sys.argv else [LLGuidance]
    for title, vocabulary, size in vocabularies():
        for kind in libraries:
            library, setup = timed(kind, vocabulary, size)
            print(f"{title} ({size} tokens), {kind.name}: vocabulary {setup / 1e6:.2f} s")
            compiles = [timed(library.compile, PERSON)[1] for _ in range(3)]
            print(f"  compile, ms: {', '.join(f'{value / 1e3:.2f}' for value in compiles)}")
            schemas = [PERSON] * 6 + [random_schema(random.Random(seed)) for seed in range(30)]
            measured = [walk(library, schema, seed) for seed, schema in enumerate(schemas)]
            for name, index in (("mask", 0), ("advance", 1), ("roll back 4", 2)):
                print(f"  {name + ', us':16}{shown([value for each in measured for value in each[index]])}")
    for kind in libraries:
        for word, names in coverage(kind(ByteTokenizer().vocabulary(), 256)).items():
            print(f"{kind.name}, keywords {word}: {len(names)} of {len(KEYWORDS)}: {', '.join(names)}")


if __name__ == "__main__":
    main()
