"""The smallest engine around the runner: text in, text out, scheduling one step ahead of the device."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from .api import Handle, Runner, SamplingParams, whole_number
from .config import RunnerConfig
from .errors import RequestError, shown
from .model_runner import ModelRunner
from .models.checkpoint import Checkpoint, load_checkpoint
from .models.tokenizer import Tokenizer, load_tokenizer
from .scheduler import Scheduler, TrackedRequest

STEPS_IN_FLIGHT = 2
DEFAULT_MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class Completion:
    """What one request generated.

    Attributes:
        text: the generated tokens as text; empty if the engine has no tokenizer.
        token_ids: generated tokens, a final stop token included.
        logprobs: natural log-probability of each under the model's own distribution.
        finish_reason: ``"stop"`` or ``"length"``.
        seed: seed of the request's noise, also when the engine drew it; None for greedy requests without one.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    seed: int | None


class Engine:
    """Runs requests to their end on one runner.

    Example::

        with Engine.from_model("smollm2") as engine:
            print(engine.generate(["The capital of France is"])[0].text)
    """

    def __init__(self, checkpoint: Checkpoint, config: RunnerConfig, tokenizer: Tokenizer | None = None) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._tokenizer = tokenizer
        self._runner: Runner = ModelRunner(config, checkpoint.config, checkpoint.tensors)
        self._scheduler = Scheduler(config)
        self._in_flight: deque[Handle] = deque()
        self._num_requests = 0
        self._failure: str | None = None
        self._closed = False

    @classmethod
    def from_model(
        cls, reference: str, config: RunnerConfig | None = None, *, max_model_len: int | None = None
    ) -> Engine:
        """Load a model and its tokenizer.

        Args:
            reference: ``"smollm2"``, ``"tiny"``, a Hugging Face folder, or a GGUF file.
            config: capacities; by default one that fits the model, on the CPU.
            max_model_len: longest sequence in tokens, if ``config`` is left out; by default the model's context, 4096
                at most.

        Raises:
            RunnerError: the model cannot be loaded, or does not fit the configuration.
        """
        checkpoint = load_checkpoint(reference)
        return cls(checkpoint, config or default_config(checkpoint, max_model_len), load_tokenizer(checkpoint))

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Generate one completion per prompt, all in one continuous batch.

        Args:
            prompts: texts, or lists of token ids.
            sampling: parameters of every request, or a sequence with those of each; greedy by default. One that all
                share gives prompt i its seed + i, so that equal prompts differ; those of a sequence are used as given.

        Raises:
            RequestError: a prompt or its parameters cannot be served (none was started), the engine is closed, or an
                earlier call broke off.
        """
        self._check_usable()
        encoded = [self._encode(prompt) for prompt in _listed(prompts)]
        names = self._add_all(encoded, self._sampling_of_each(sampling, len(encoded)))
        try:
            while self._scheduler.has_work or self._in_flight:
                self._advance()
        except BaseException as error:
            self._failure = type(error).__name__
            raise
        return [self._completion(self._scheduler.requests.pop(name)) for name in names]

    def close(self) -> None:
        """Release the runner; idempotent."""
        self._closed = True
        self._runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _advance(self) -> None:
        """Enqueue one step, and take the oldest output once enough steps are in flight."""
        has_work = self._scheduler.has_work
        if has_work:
            self._in_flight.append(self._runner.execute(self._scheduler.schedule()))
        if len(self._in_flight) >= STEPS_IN_FLIGHT or not has_work:
            self._scheduler.update(self._in_flight.popleft().result())

    def _check_usable(self) -> None:
        if self._closed:
            raise RequestError(
                "engine after close()",
                "a closed engine generates nothing",
                "its runner is released",
                "generate() inside the with block, or a new Engine",
            )
        if self._failure is not None:
            raise RequestError(
                f"engine after {self._failure}",
                "a call that broke off in the middle of a step was its last",
                "scheduler and runner may disagree on what is in flight, so tokens could go to the wrong request",
                "a new Engine",
            )

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return self._check_token_ids(prompt)
        if self._tokenizer is None:
            raise RequestError(
                f"prompt {prompt[:20]!r}",
                "this engine has no tokenizer, so it takes token ids only",
                "text has no meaning to a model without its own vocabulary",
                "a list of token ids, or Engine.from_model(), which loads the tokenizer",
            )
        _require_utf8(prompt)
        return self._tokenizer.encode(prompt)

    def _sampling_of_each(self, sampling: object, count: int) -> list[SamplingParams]:
        """Parameters of each prompt, with what the engine fills in."""
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

    def _add_all(self, prompts: list[list[int]], sampling: list[SamplingParams]) -> list[str]:
        """Queue every prompt, or none."""
        names: list[str] = []
        try:
            for prompt, params in zip(prompts, sampling, strict=True):
                name = f"request-{self._num_requests + len(names)}"
                self._scheduler.add(name, prompt, params)
                names.append(name)
        except RequestError:
            for name in names:
                self._scheduler.abort(name)
                del self._scheduler.requests[name]
            raise
        self._num_requests += len(names)
        return names

    def _complete(self, params: SamplingParams) -> SamplingParams:
        """Fill in the model's stop tokens, and a seed where one is needed."""
        vocab_size = self._checkpoint.config.vocab_size
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
        stops = params.stop_token_ids or tuple(self._checkpoint.config.eos_token_ids)
        return replace(params, seed=seed, stop_token_ids=stops)

    def _check_token_ids(self, prompt: Sequence[int]) -> list[int]:
        vocab_size = self._checkpoint.config.vocab_size
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

    def _completion(self, request: TrackedRequest) -> Completion:
        tokens = request.output_token_ids
        stopped = request.finish_reason == "stop"
        shown = tokens[:-1] if stopped else tokens
        text = "" if self._tokenizer is None else self._tokenizer.decode(list(shown))
        return Completion(
            text, tokens, tuple(request.logprobs), request.finish_reason or "length", request.sampling.seed
        )


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


def default_config(checkpoint: Checkpoint, max_model_len: int | None = None) -> RunnerConfig:
    """Capacities for a handful of requests on the CPU.

    Args:
        checkpoint: the model.
        max_model_len: longest sequence in tokens; by default the model's context, 4096 at most.
    """
    if max_model_len is None:
        max_model_len = min(checkpoint.config.max_position_embeddings, DEFAULT_MAX_MODEL_LEN)
    base = RunnerConfig(max_model_len=max_model_len)
    return replace(base, num_kv_blocks=1 + 2 * base.max_blocks_per_request)
