"""How the tokens of one request are chosen, checked where it is written and not where it would go wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from .errors import RequestError, shown
from .grammar.spec import Grammar, grammar_fault

SEED_RANGE = (-(2**63), 2**64)
# Everything is computed in float32, whose largest number is 3.4e38. A logit below 1e6 with the largest
# bias, the largest penalties over a million repetitions and the smallest temperature stays just below it.
TEMPERATURE_RANGE = (1e-30, 1e30)
REPETITION_RANGE = (0.01, 100.0)
ADDITIVE_PENALTY = 100.0
LARGEST_BIAS = 1e6
# Below this, a probability could round to 0 in float32, and the filter would leave no token at all.
SMALLEST_PROBABILITY = 1e-30
# Columns of the device tables; a row holds one request.
MAX_BIASES = 1024
MAX_STOPS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
MAX_LOGPROBS = 1024
MAX_LOGPROB_IDS = 128
FULL_VOCABULARY = -1

_IDS = "a tuple of token ids, whole numbers from 0"


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    The order is fixed, since the stages do not commute: grammar, allowed ids, bias, minimum of tokens, penalties, bad
    words, temperature, min-p, top-k, top-p, draw. Each stage sees the logits that the stages before it left.

    Attributes:
        temperature: 0 picks the most likely token (lowest id on a tie); above 0 the logits are divided by it
            and a token is drawn by Gumbel-max.
        seed: 64-bit seed of the request's noise; ``None`` lets the engine draw one. Only its value modulo
            2**64 counts. The draw of a token is a function of (seed, position, token id, purpose) alone.
        max_tokens: how many tokens to generate at most.
        stop_token_ids: generation ends when one of these is generated (it is part of the output).
        top_k: keep the k largest logits, and all that equal the k-th; 0 keeps all.
        top_p: keep each token for which the tokens of larger logits together have a probability below ``top_p``; so
            equal logits stay or go together. 1 keeps all.
        min_p: keep the tokens at least this many times as likely as the likeliest; 0 keeps all.
        repetition_penalty: logits of tokens in prompt or output are divided by it if positive, else multiplied.
        frequency_penalty: subtracted from a logit once for each occurrence in the output.
        presence_penalty: subtracted from a logit if the token occurs in the output.
        min_tokens: the stop tokens are forbidden until so many tokens are generated.
        logit_bias: pairs of a token id and what is added to its logit.
        allowed_token_ids: all other tokens are forbidden; None allows all.
        bad_words: sequences of token ids that must not appear; the last token of one is forbidden wherever prompt and
            output end with the tokens before it.
        logprobs: how many of the likeliest tokens to report with each drawn one; -1 is the whole vocabulary, None
            reports the drawn one's log-probability alone.
        logprob_token_ids: tokens that are reported beside them, whatever their rank.
        prompt_logprobs: how many to report with each token of the prompt, likewise; None reports none.
        grammar: what the generated text must be, see :class:`Grammar`; applied before everything else, also to the
            logits that are reported as the model's own. None allows every text.

    Raises:
        RequestError: a value is of the wrong type, negative, not finite, or out of range.
    """

    temperature: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        self._check_temperature()
        self._check_seed()
        self._check_lengths()
        self._check_filters()
        self._check_penalties()
        self._check_token_lists()
        self._check_bad_words()
        self._check_logprobs()
        self._check_grammar()

    def outside(self, vocab_size: int) -> tuple[str, int] | None:
        """A token id that a vocabulary of this size lacks, with the attribute that names it; None if there is none."""
        return next((named for named in self._named_tokens() if named[1] >= vocab_size), None)

    def _named_tokens(self) -> Iterator[tuple[str, int]]:
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            yield from ((name, token) for token in getattr(self, name) or ())
        yield from (("logit_bias", token) for token, _ in self.logit_bias)
        yield from (("bad_words", token) for word in self.bad_words for token in word)

    def _refuse(self, name: str, rule: str, reason: str, remedy: str) -> NoReturn:
        raise RequestError(f"SamplingParams.{name}={shown(getattr(self, name))}", rule, reason, remedy)

    def _check_temperature(self) -> None:
        low, high = TEMPERATURE_RANGE
        # An int may be too large for a float, so it is compared and not converted; NaN fails every comparison.
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            self._refuse(
                "temperature",
                "temperature must be a finite number, 0 or above",
                "logits are divided by it, and NaN or a negative value would silently invert or erase the distribution",
                "temperature=0 for greedy decoding, or a positive number such as 0.7",
            )
        if self.temperature and not low <= self.temperature <= high:
            self._refuse(
                "temperature",
                f"a temperature above 0 must lie between {low} and {high}",
                "the device divides in float32; the quotients would overflow, tie, and give the lowest token id",
                "temperature=0 for greedy decoding, or a positive number such as 0.7",
            )

    def _check_seed(self) -> None:
        if self.seed is not None and not (_is_int(self.seed) and SEED_RANGE[0] <= self.seed < SEED_RANGE[1]):
            self._refuse(
                "seed",
                "seed must be a whole number of 64 bits",
                "further bits would be dropped, and two different seeds would give the same tokens",
                "a seed between -2**63 and 2**64 - 1, or None",
            )

    def _check_lengths(self) -> None:
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            self._refuse(
                "max_tokens",
                "max_tokens must be a whole number of at least 1",
                "a request that generates nothing never finishes",
                "max_tokens=1 or more",
            )
        if not _is_int(self.min_tokens) or not 0 <= self.min_tokens <= self.max_tokens:
            self._refuse(
                "min_tokens",
                f"min_tokens must be a whole number from 0 to max_tokens={shown(self.max_tokens)}",
                "generation ends at max_tokens whatever stops it, so a larger minimum is never reached",
                "min_tokens=0, or a larger max_tokens",
            )

    def _check_filters(self) -> None:
        if not _is_int(self.top_k) or not 0 <= self.top_k < 2**31:
            self._refuse(
                "top_k",
                "top_k must be a whole number from 0, of 31 bits",
                "it counts the tokens that are kept",
                "top_k=0 to keep all tokens, or a number such as 50",
            )
        for name, neutral in (("top_p", 1.0), ("min_p", 0.0)):
            value = getattr(self, name)
            probability = _is_number(value) and SMALLEST_PROBABILITY <= value <= 1
            if not probability and not (name == "min_p" and _is_number(value) and value == 0):
                self._refuse(
                    name,
                    f"{name} must be a probability, at least {SMALLEST_PROBABILITY} and at most 1",
                    "a smaller one rounds to 0 in float32, a larger one is reached by no set of tokens",
                    f"{name}={neutral}, which keeps all tokens, or a number such as 0.9",
                )

    def _check_penalties(self) -> None:
        low, high = REPETITION_RANGE
        if not _is_number(self.repetition_penalty) or not low <= self.repetition_penalty <= high:
            self._refuse(
                "repetition_penalty",
                f"repetition_penalty must be a number between {low} and {high}",
                "logits are multiplied and divided by it in float32, and may not overflow",
                "repetition_penalty=1, which changes nothing, or a number such as 1.1",
            )
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if not _is_number(value) or not -ADDITIVE_PENALTY <= value <= ADDITIVE_PENALTY:
                self._refuse(
                    name,
                    f"{name} must be a number between {-ADDITIVE_PENALTY} and {ADDITIVE_PENALTY}",
                    "its multiple is subtracted from logits in float32, and NaN or an overflow would erase them",
                    f"{name}=0, which changes nothing, or a number such as 0.5",
                )

    def _check_token_lists(self) -> None:
        self._check_ids("stop_token_ids", MAX_STOPS, "() for the model's own")
        self._check_ids("logprob_token_ids", MAX_LOGPROB_IDS, "()")
        if self.allowed_token_ids is not None:
            self._check_ids("allowed_token_ids", None, "None to allow all")
            if not self.allowed_token_ids:
                self._refuse(
                    "allowed_token_ids",
                    "at least one token must be allowed",
                    "with none there is nothing to draw",
                    "the ids that are allowed, or None to allow all",
                )
        pairs = self.logit_bias
        well_formed = isinstance(pairs, tuple) and all(
            isinstance(pair, tuple) and len(pair) == 2 and _is_token(pair[0]) and _is_bias(pair[1]) for pair in pairs
        )
        if not well_formed or len(pairs) > MAX_BIASES or len({token for token, _ in pairs}) < len(pairs):
            self._refuse(
                "logit_bias",
                f"logit_bias must be a tuple of at most {MAX_BIASES} pairs of a token id and a number between "
                f"{-LARGEST_BIAS} and {LARGEST_BIAS}, each id once",
                "a row of the device's table holds so many; the sum with a larger bias would overflow float32",
                "pairs such as ((5, -100.0),), or () for none",
            )

    def _check_ids(self, name: str, limit: int | None, default: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, tuple) or not all(_is_token(token) for token in value):
            self._refuse(
                name,
                f"{name} must be {_IDS}",
                "tokens are looked up in it, and an id that no token has never matches anything",
                f"a tuple such as (2,), or {default}",
            )
        if limit is not None and len(value) > limit:
            self._refuse(
                name,
                f"{name} holds at most {limit} ids",
                "a row of the device's table has so many columns",
                f"a shorter tuple, or {default}",
            )

    def _check_bad_words(self) -> None:
        words = self.bad_words
        well_formed = isinstance(words, tuple) and all(
            isinstance(word, tuple) and word and all(_is_token(token) for token in word) for word in words
        )
        if not well_formed or len(words) > MAX_BAD_WORDS or sum(map(len, words)) > MAX_BAD_WORD_TOKENS:
            self._refuse(
                "bad_words",
                f"bad_words must be a tuple of at most {MAX_BAD_WORDS} tuples of token ids, none empty, "
                f"{MAX_BAD_WORD_TOKENS} ids in all",
                "a row of the device's table holds so many, and a sequence of no tokens occurs everywhere",
                "tuples of ids such as ((5, 6), (7,)), or () for none",
            )

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not (_is_int(value) and FULL_VOCABULARY <= value <= MAX_LOGPROBS):
                self._refuse(
                    name,
                    f"{name} must be None, {FULL_VOCABULARY}, or a whole number from 0 to {MAX_LOGPROBS}",
                    "so many are picked out and sorted on the device",
                    f"{name}={FULL_VOCABULARY} for the whole vocabulary, or fewer",
                )

    def _check_grammar(self) -> None:
        fault = None if self.grammar is None else grammar_fault(self.grammar)
        if fault is not None:
            rule, remedy = fault
            self._refuse("grammar", rule, "the text is read by the kind's own rules, once for many requests", remedy)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_bias(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST_BIAS <= value <= LARGEST_BIAS
