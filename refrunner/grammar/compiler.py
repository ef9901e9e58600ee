"""Grammars compiled for one vocabulary, and the state of one request in its grammar. All of it is on the host."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..api import SamplingParams
from ..errors import RequestError
from ..models.vocabulary import Vocabulary
from ..sampling.tables import mask_words
from .library import library_grammar, library_tokenizer, load_library
from .spec import Grammar, shown_grammar

#: Compiled grammars that are kept; a request that asks for one of them again starts at once.
MOST_COMPILED = 64
_BITS = 32
#: What the library says by a name of its own.
_IN_WORDS = {"NoExtensionBias": "no token can be the first one of a text"}


class GrammarCompiler:
    """Reads grammars for one model. Compiling takes from under a millisecond to a second, so nobody does it in a step.

    Attributes:
        vocab_size: V, width of the model's logits.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Load the library and hand the vocabulary to it.

        Raises:
            ConfigurationError: the library is not installed.
        """
        self.vocab_size = vocab_size
        self._library = load_library()
        self._tokenizer = library_tokenizer(self._library, vocabulary, vocab_size)
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._turn = threading.Lock()

    def compile(self, sampling: SamplingParams) -> Matcher | None:
        """A matcher at the beginning of a request's grammar; None if it has none.

        Raises:
            RequestError: the grammar cannot be read, no text satisfies it, or the request has no stop token.
        """
        grammar = sampling.grammar
        if grammar is None:
            return None
        if not sampling.stop_token_ids:
            raise RequestError(
                f"SamplingParams.grammar={shown_grammar(grammar)} with stop_token_ids=()",
                "a request with a grammar has a stop token",
                "it is what may be drawn where the text is complete; without one, nothing may be drawn there",
                "stop_token_ids with the model's end of text, or with any token that is to mean it; with mrv2 generate "
                "a model that names its end of text, which 'tiny' does not",
            )
        return Matcher(self._template(grammar).deep_copy(), sampling.stop_token_ids, self.vocab_size)

    def _template(self, grammar: Grammar) -> Any:
        """The library's matcher of a grammar, which nobody moves on; compiled now, or when it was asked for before."""
        key = (grammar.kind, grammar.text)
        with self._turn:
            if key not in self._compiled:
                self._compiled[key] = self._read(grammar)
            self._compiled.move_to_end(key)
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
            return self._compiled[key]

    def _read(self, grammar: Grammar) -> Any:
        try:
            matcher = self._library.LLMatcher(
                self._tokenizer, library_grammar(self._library, grammar.kind, grammar.text), log_level=0
            )
        except ValueError as error:
            raise _unreadable(grammar, str(error)) from error
        if matcher.is_error():
            raise _unreadable(grammar, matcher.get_error())
        # Some grammars that no text satisfies are only found out by asking for the first token.
        words = np.zeros(mask_words(self.vocab_size + 1), dtype=np.int32)
        first = matcher.deep_copy()
        first.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if first.is_error() or not words.any():
            raise _unreadable(grammar, first.get_error() or "NoExtensionBias")
        return matcher


class Matcher:
    """Where one request is in its grammar: after every token that the host knows.

    A stop token ends the text and is no part of it. So it is allowed where the text is complete and nowhere else, even
    if it could be written as text, too; after one nothing is allowed.
    """

    def __init__(self, state: Any, stop_token_ids: Sequence[int], vocab_size: int) -> None:
        self._state = state
        self._stops, self._size = frozenset(stop_token_ids), vocab_size
        self._end = divmod(vocab_size, _BITS)
        self._words = np.zeros(mask_words(vocab_size + 1), dtype=np.uint32)
        self._stop_bits = np.zeros(mask_words(vocab_size), dtype=np.uint32)
        for token in self._stops:
            self._stop_bits[token // _BITS] |= np.uint32(1 << token % _BITS)
        self.num_tokens = 0

    def fitting(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first one on, continue the text; the state stays."""
        no_text = (place for place, token in enumerate(tokens) if token in self._stops or not 0 <= token < self._size)
        fitting: int = self._state.validate_tokens(list(tokens[: next(no_text, len(tokens))]))
        return fitting

    def advance(self, tokens: Sequence[int]) -> None:
        """Move on by tokens that fit.

        The library may give up on them all the same: it also reads on where the text has no choice, and a grammar
        whose texts have no end takes it to its limits there. Nothing is allowed from then on, and the request ends.
        """
        if tokens:
            consumed = self._state.consume_tokens(list(tokens))
            assert consumed or self._state.is_error(), "fitting() comes before advance()"
        self.num_tokens += len(tokens)

    def write_masks(self, drafts: Sequence[int], out: NDArray[np.uint32]) -> str | None:
        """Write which tokens may follow, and which may follow each draft; the state stays.

        A draft that does not fit is never accepted, and one that stops is the last token; what follows them is not
        asked for, and everything is allowed there. Drafts are walked through in a copy of the state: the library gives
        up for good, and behind a draft that is rejected that would be the end of a text that goes on.

        Args:
            drafts: k tokens that are assumed to follow.
            out: uint32 [1 + k, W], bit masks.

        Returns:
            why the library gave up, if it did; nothing is allowed then.
        """
        error = self._write_mask(self._state, out[0])
        fitting, ahead = self.fitting(drafts), self._state.deep_copy()
        for place in range(fitting):
            ahead.consume_token(drafts[place])
            error = self._write_mask(ahead, out[place + 1]) or error
        out[fitting + 1 :] = ~np.uint32(0)
        return error

    def _write_mask(self, state: Any, out: NDArray[np.uint32]) -> str | None:
        state.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if state.is_error():
            out[:] = 0  # the library would allow its end, and the text would look complete
            return _first_part(state.get_error())
        word, bit = self._end
        complete = int(self._words[word]) >> bit & 1
        out[:] = self._words[: len(out)] & ~self._stop_bits
        if complete:
            out |= self._stop_bits
        if word < len(out):
            out[word] &= np.uint32(2**bit - 1)  # ids from V on exist in no logits, but a mask says so itself
        return None


def _unreadable(grammar: Grammar, reason: str) -> RequestError:
    return RequestError(
        f"SamplingParams.grammar={shown_grammar(grammar)}",
        f"it must be a grammar that some text satisfies; llguidance says: {_first_part(reason)}",
        "tokens are drawn only where the grammar allows them, so one that cannot be read allows none",
        "a valid JSON schema, regular expression, GBNF or Lark grammar, without the keywords that the message names",
    )


def _first_part(reason: str) -> str:
    """What an error of the library says, in one line and without the state that it shows behind it."""
    said = " ".join(reason.partition("<state>")[0].split())[:200]
    return _IN_WORDS.get(said, said)
