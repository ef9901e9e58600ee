"""What a grammar is to a caller: a kind and a text."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RequestError, shown

KINDS = ("json_schema", "regex", "ebnf")


@dataclass(frozen=True)
class Grammar:
    """The texts that a request may generate.

    A stop token may be drawn where the text so far is complete, and nowhere else; so a request that ends with
    ``finish_reason`` ``"stop"`` has generated a text of the grammar.

    Attributes:
        kind: ``"json_schema"``, a JSON schema; ``"regex"``, a regular expression that matches the whole text, in the
            syntax of Rust's regex; or ``"ebnf"``, a context-free grammar in GBNF (rules ``name ::= ...``, the first
            one called ``root``) or Lark's syntax (rules ``name: ...``, the first one called ``start``).
        text: the schema as JSON text, the expression, or the grammar.
    """

    kind: str
    text: str


def grammar_fault(grammar: object) -> tuple[str, str] | None:
    """What is wrong with the form of a grammar, and what to write instead; its text is read by the compiler."""
    kind, text = getattr(grammar, "kind", None), getattr(grammar, "text", None)
    if not isinstance(kind, str) or not isinstance(text, str):
        return "it must be a Grammar, two texts", "Grammar('json_schema', '{\"type\": \"object\"}'), or None"
    if kind not in KINDS:
        known = ", ".join(map(repr, KINDS))
        return f"its kind must be one of {known}, not {shown(kind)}", "Grammar('ebnf', ...) for GBNF and Lark, say"
    return None


def shown_grammar(grammar: Grammar) -> str:
    """A grammar as an error message shows it: the kind whole, the text short."""
    return f"Grammar({grammar.kind!r}, {shown(grammar.text)})"


def dead_end(request_id: str) -> RequestError:
    """The error of a request that ended because nothing could be drawn under its grammar."""
    return RequestError(
        f"request {request_id!r}",
        "after its output so far its grammar, together with its other parameters, allows no token of the vocabulary",
        "every further token would break the grammar, and a draw from nothing is always token 0",
        "a grammar whose texts have an end and can be written with this vocabulary, and no stop tokens, min_tokens, "
        "bad_words or allowed_token_ids that contradict it",
    )
