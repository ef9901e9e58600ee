"""Which tokens a request's grammar allows: read anew, and walked through from the start, for every token.

A grammar is read by llguidance here, too: what it means is not ours to say twice. Everything around it is: what the
vocabulary is, where stop tokens are allowed, which tokens come before which draw, and where a mask is applied.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..api import NewRequest


class GrammarOracle:
    """Answers for the vocabulary of one model, without any state between calls.

    Args:
        tokens: bytes that each token of the tokenizer writes.
        special: tokens that stand for no text.
        encode: token ids of a text. A text that a grammar forces is written with these tokens and no others.
        vocab_size: number of logits, at least as many as there are tokens.
    """

    def __init__(
        self, tokens: Sequence[bytes], special: Sequence[int], encode: Callable[[str], list[int]], vocab_size: int
    ) -> None:
        self._library = importlib.import_module("llguidance")
        self._vocab_size = vocab_size
        self._tokenizer = self._library.LLTokenizer(self._library.TokenizerWrapper(_Source(tokens, special, encode)))
        self._end = len(tokens)

    def allowed(self, request: NewRequest, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """What the next token may be, bool [V].

        Args:
            request: its grammar, its stop tokens, and how much of ``tokens`` is its prompt.
            tokens: everything before the token to draw, prompt and generated.

        Returns:
            everything if what was generated breaks the grammar already: it was for the token that did to be judged.
        """
        sampling, output = request.sampling, list(tokens[request.prompt_len :])
        matcher = self._matcher(request)
        if not all(token not in sampling.stop_token_ids and matcher.consume_token(token) for token in output):
            return np.ones(self._vocab_size, dtype=bool)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little").astype(bool)
        allowed = np.zeros(self._vocab_size, dtype=bool)
        allowed[: self._end] = bits[: self._end]
        allowed[list(sampling.stop_token_ids)] = bits[self._end]
        return allowed

    def _matcher(self, request: NewRequest) -> Any:
        grammar = request.sampling.grammar
        assert grammar is not None
        return self._library.LLMatcher(
            self._tokenizer, self._library.grammar_from(grammar.kind, grammar.text), log_level=0
        )


class _Source:
    """The vocabulary under the names of the library; the token behind the last one is the end of the text."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], encode: Callable[[str], list[int]]) -> None:
        self.tokens = [*tokens, b"end"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [*special, len(tokens)]
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())
