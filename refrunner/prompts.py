"""What a caller asks for, checked and made complete: prompts as token ids, sampling parameters of each."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from .api import SamplingParams, whole_number
from .errors import RequestError, shown
from .grammar.compiler import GrammarCompiler
from .models.config import LlamaConfig
from .models.tokenizer import Tokenizer


class PromptReader:
    """Reads prompts and parameters for one model."""

    def __init__(
        self,
        model: LlamaConfig,
        tokenizer: Tokenizer | None,
        scheduling: str = "fcfs",
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._model = model
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._scheduling = scheduling

    def prompts(self, prompts: object) -> list[list[int]]:
        """Token ids of every prompt.

        Raises:
            RequestError: this is no sequence of prompts, or one of them is no prompt for this model.
        """
        return [self._encode(prompt) for prompt in _listed(prompts)]

    def priorities_of_each(self, priorities: object, count: int) -> list[int]:
        """Priority of each of ``count`` prompts; 0 if none is given.

        Raises:
            RequestError: priorities of another number or kind, or the scheduler knows none.
        """
        if priorities is None:
            return [0] * count
        if self._scheduling != "priority":
            raise RequestError(
                f"priorities={shown(priorities)}",
                f"they count with RunnerConfig.scheduling='priority' only, and it is {self._scheduling!r}",
                "requests would be served in order of arrival, as if nobody had asked for another one",
                "scheduling='priority', or no priorities",
            )
        try:
            numbers = [whole_number(priority) for priority in _ordered(priorities)]
        except TypeError:
            numbers = []
        if len(numbers) != count:
            raise RequestError(
                f"priorities={shown(priorities)} for {count} prompts",
                "it is a sequence of whole numbers, as many as there are prompts",
                "the smaller one is served first, so each prompt needs one that can be compared",
                "a list such as [0, 1, 1]",
            )
        return numbers

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return self._check_token_ids(prompt)
        if self._tokenizer is None:
            raise RequestError(
                f"prompt {prompt[:20]!r}",
                "this engine has no tokenizer, so it takes token ids only",
                "text has no meaning to a model without its own vocabulary",
                "a list of token ids, or LLM.from_model(), which loads the tokenizer",
            )
        _require_utf8(prompt)
        return self._tokenizer.encode(prompt)

    def sampling_of_each(self, sampling: object, count: int) -> list[SamplingParams]:
        """Parameters of each of ``count`` prompts, with seeds and stop tokens filled in.

        Raises:
            RequestError: parameters of another number or kind, or out of this model's range.
        """
        if sampling is None or isinstance(sampling, SamplingParams):
            shared = sampling or SamplingParams()
            return [self._complete(_with_seed_of(shared, index)) for index in range(count)]
        known = isinstance(sampling, Sequence) and all(isinstance(params, SamplingParams) for params in sampling)
        if not known or len(sampling) != count:  # type: ignore[arg-type]
            raise RequestError(
                f"sampling={shown(sampling)} for {count} prompts",
                "it is a SamplingParams, or a sequence of as many as there are prompts",
                "a request whose parameters are guessed gives tokens that nobody asked for",
                "SamplingParams(temperature=0.7), or a list with one of them per prompt",
            )
        return [self._complete(params) for params in sampling]  # type: ignore[attr-defined]

    def _complete(self, params: SamplingParams) -> SamplingParams:
        """Fill in the model's stop tokens, and a seed where one is needed; a grammar is compiled."""
        vocab_size = self._model.vocab_size
        outside = params.outside(vocab_size)
        if outside is not None:
            raise RequestError(
                f"SamplingParams.{outside[0]}={shown(getattr(params, outside[0]))}",
                f"token ids of this model are whole numbers in 0..{vocab_size - 1}",
                "an id that the model cannot draw never stops, favours or forbids anything",
                "ids from this model's own tokenizer, or the attribute's default",
            )
        seed = params.seed
        if seed is not None:
            seed %= 2**64
        elif params.temperature > 0:
            seed = secrets.randbits(64)
        stops = params.stop_token_ids or tuple(self._model.eos_token_ids)
        complete = replace(params, seed=seed, stop_token_ids=stops)
        self._check_grammar(complete)
        return complete

    def _check_grammar(self, params: SamplingParams) -> None:
        """Compile the grammar now: in a step it would hold up everybody."""
        if params.grammar is None:
            return
        if self._grammars is None:
            raise RequestError(
                f"SamplingParams.grammar={shown(params.grammar)}",
                "this engine was made without grammars",
                "memory for masks is allocated at start, and a grammar that is ignored gives text that breaks it",
                "LLM.from_model(..., grammars=True), or grammar=None",
            )
        self._grammars.compile(params)

    def _check_token_ids(self, prompt: Sequence[int]) -> list[int]:
        vocab_size = self._model.vocab_size
        wrong: list[object] = []
        token_ids: list[int] = []
        try:
            token_ids = [whole_number(token) for token in _ordered(prompt)]
            wrong += [token for token in token_ids if not 0 <= token < vocab_size]
        except TypeError:
            wrong.append(prompt)
        if wrong:
            raise RequestError(
                f"prompt token id {shown(wrong[0])}",
                f"token ids are whole numbers in 0..{vocab_size - 1}",
                "the embedding has no such row",
                "a list of ids from this model's own tokenizer",
            )
        return token_ids


def _ordered(values: object) -> Iterable[Any]:
    """Values that come in an order of their own, and are not the letters of a text or the bytes of a buffer.

    Raises:
        TypeError: they are not.
    """
    if isinstance(values, str | bytes | bytearray | memoryview | Set | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{type(values).__name__} is no sequence")
    return values


def _listed(prompts: object) -> list[Any]:
    try:
        return list(_ordered(prompts))
    except TypeError as error:
        raise RequestError(
            f"prompts={shown(prompts)}",
            "prompts is a sequence of prompts",
            "completions come in its order; and a text is a sequence too, but each of its characters would become a "
            "prompt",
            "a list with the one text in it",
        ) from error


def _require_utf8(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"prompt {prompt[:20]!a}",
            f"it must be text that UTF-8 can hold, and character {error.start} is half a surrogate pair",
            "tokenizers read UTF-8; such a character usually stands for a byte that was no text",
            "the text decoded with the encoding that it was written in",
        ) from error


def _with_seed_of(shared: SamplingParams, index: int) -> SamplingParams:
    """Shared parameters with a seed of the prompt's own, if they have one."""
    return shared if shared.seed is None else replace(shared, seed=(shared.seed + index) % 2**64)
