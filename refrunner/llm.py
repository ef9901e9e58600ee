"""Text in, text out: a model, its tokenizer and an engine, as one object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any

from .api import LogitsFault, SamplingParams, TokenLogprobs
from .config import RunnerConfig
from .engine import Engine
from .errors import ConfigurationError, RequestError, shown
from .grammar.compiler import GrammarCompiler
from .grammar.spec import dead_end
from .kv_groups import KVGroups
from .model_runner import ModelRunner
from .models.checkpoint import Checkpoint, load_checkpoint
from .models.self_drafts import load_draft
from .models.tokenizer import Tokenizer, load_tokenizer
from .prompts import PromptReader
from .scheduler import SpeculationStats
from .tracked_request import TrackedRequest

DEFAULT_MAX_MODEL_LEN = 4096
# What a decoder writes for bytes that are no UTF-8, or not yet: the rest of a character may come with the next token.
INCOMPLETE = "\ufffd"
Prompts = Sequence[str] | Sequence[Sequence[int]]
Sampling = SamplingParams | Sequence[SamplingParams] | None


@dataclass(frozen=True)
class Completion:
    """What one request generated.

    Attributes:
        text: the generated tokens as text; empty if there is no tokenizer.
        token_ids: generated tokens, a final stop token included.
        logprobs: of each, natural logarithm, under the model's own distribution, or what
            ``RunnerConfig.logprobs_mode`` says.
        finish_reason: ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``.
        seed: seed of the request's noise, also when it was drawn here; None for greedy requests without one.
        top_logprobs: more on each token, if ``SamplingParams.logprobs`` or ``logprob_token_ids`` asks for it.
        prompt_logprobs: on each token of the prompt, None for the first; None without ``prompt_logprobs``.
        faults: by index of the token, where the model's logits were NaN, infinite, or left nothing to draw from.
        error: why it ended, with ``"error"``; nobody raises it.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    seed: int | None
    top_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    faults: Mapping[int, LogitsFault] = field(default_factory=dict)
    error: RequestError | None = None


@dataclass(frozen=True)
class Delta:
    """What has arrived of one request since its last delta.

    Attributes:
        index: of its prompt.
        text: that continues the text so far; all of them in a row are the completion's text. A character comes when
            all of its bytes have.
        token_ids: tokens, one or more; none if the request was aborted.
        logprobs: one per token.
        finish_reason: None while more is to come, then as in ``Completion``.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None


class LLM:
    """Generates text with the reference runner; for one thread.

    Example::

        with LLM.from_model("smollm2") as llm:
            print(llm.generate(["The capital of France is"])[0].text)
            for delta in llm.stream(["Water boils at"]):
                print(delta.text, end="")
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: RunnerConfig,
        tokenizer: Tokenizer | None = None,
        draft: Checkpoint | None = None,
    ) -> None:
        grammars = _grammar_compiler(checkpoint, tokenizer) if config.grammars else None
        runner = ModelRunner(config, checkpoint.config, checkpoint.tensors, grammars, draft)
        windows = KVGroups.of_layers(checkpoint.config.layer_windows).windows
        self._engine = Engine(runner, runner.config, windows)
        self._reader = PromptReader(checkpoint.config, tokenizer, config.scheduling, grammars)
        self._tokenizer = tokenizer
        self._num_requests = 0

    @classmethod
    def from_model(
        cls,
        reference: str,
        config: RunnerConfig | None = None,
        *,
        max_model_len: int | None = None,
        draft_model: str = "",
        **settings: Any,
    ) -> LLM:
        """Load a model and its tokenizer.

        Args:
            reference: ``"smollm2"``, ``"tiny"``, a Hugging Face folder, or a GGUF file.
            config: capacities; by default one that fits the model, on the CPU.
            max_model_len: longest sequence in tokens, if ``config`` is left out; by default the model's context, 4096
                at most.
            draft_model: what proposes drafts, with ``speculation`` ``"draft"`` or ``"eagle"``: a reference likewise, or
                the folder of a head, see ``models.eagle_head``; or ``"self:N"``, made of N layers of the model itself,
                see ``models.self_drafts``.
            settings: further fields of ``RunnerConfig``, likewise.

        Raises:
            RunnerError: the model cannot be loaded, or does not fit the configuration.
        """
        _require_one_source(config, max_model_len, settings)
        checkpoint = load_checkpoint(reference)
        config = config or default_config(checkpoint, max_model_len, **settings)
        draft = load_draft(draft_model, checkpoint, head=config.speculation == "eagle")
        return cls(checkpoint, config, load_tokenizer(checkpoint), draft)

    @property
    def speculation(self) -> SpeculationStats:
        """How drafts fared so far."""
        return self._engine.speculation

    def generate(
        self, prompts: Prompts, sampling: Sampling = None, *, priorities: Sequence[int] | None = None
    ) -> list[Completion]:
        """Generate one completion per prompt, all in one continuous batch.

        Args:
            prompts: texts, or lists of token ids.
            sampling: parameters of every request, or a sequence with those of each; greedy by default. One that all
                share gives prompt i its seed + i, so that equal prompts differ; those of a sequence are used as given.
            priorities: one per prompt, if ``RunnerConfig.scheduling`` is ``"priority"``: the smaller, the sooner it is
                served and the later preempted. All are equal by default.

        Raises:
            RequestError: a prompt or its parameters cannot be served (none was started), the engine is closed, or an
                earlier call broke off.
        """
        stream = self.stream(prompts, sampling, priorities=priorities)
        for _ in stream:
            pass
        return stream.completions()

    def stream(
        self, prompts: Prompts, sampling: Sampling = None, *, priorities: Sequence[int] | None = None
    ) -> TokenStream:
        """Start one request per prompt and return their tokens as they arrive.

        All are queued when this returns. Several streams may be open at once; they share the batch, whichever of them
        is read.

        Args:
            prompts: as for ``generate``.
            sampling: likewise.
            priorities: likewise.

        Raises:
            RequestError: as for ``generate``.
        """
        self._engine.require_usable()
        encoded = self._reader.prompts(prompts)
        each = self._reader.sampling_of_each(sampling, len(encoded))
        names = self._add_all(encoded, each, self._reader.priorities_of_each(priorities, len(encoded)))
        return TokenStream(self._engine, self._tokenizer, names)

    def close(self) -> None:
        """Release the runner; idempotent."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add_all(self, prompts: list[list[int]], sampling: list[SamplingParams], priorities: list[int]) -> list[str]:
        """Queue every prompt, or none."""
        names: list[str] = []
        try:
            for prompt, params, priority in zip(prompts, sampling, priorities, strict=True):
                name = f"request-{self._num_requests + len(names)}"
                self._engine.add(name, prompt, params, priority)
                names.append(name)
        except RequestError:
            for name in names:
                self._engine.forget(name)
            raise
        self._num_requests += len(names)
        return names


class TokenStream(Iterator[Delta]):
    """Tokens of some requests as they arrive; made by ``LLM.stream``.

    Reading it moves all requests of the engine on, those of other streams too. Whoever stops reading early calls
    ``close``, or leaves a ``with`` block: what is unfinished is aborted then.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None, names: Sequence[str]) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._requests = [engine.requests[name] for name in names]
        self._open = list(range(len(names)))
        self._token_count, self._text = [0] * len(names), [""] * len(names)
        self._arrived: list[Delta] = []

    def __next__(self) -> Delta:
        """The next tokens of whichever request has some.

        Raises:
            StopIteration: every request has ended.
            Exception: a step broke off; all that had arrived before was returned first.
        """
        while not self._arrived:
            if not self._open:
                self._settle()
                raise StopIteration
            self._arrived = self._collect()
            if not self._arrived:
                self._engine.advance()
        return self._arrived.pop(0)

    def abort(self, index: int) -> None:
        """End the request of a prompt now, with what has arrived; one that has ended is left alone.

        Raises:
            RequestError: there is no such prompt.
        """
        if index not in range(len(self._requests)):
            raise RequestError(
                f"abort({shown(index)})",
                f"it is the index of one of the stream's {len(self._requests)} prompts",
                "another prompt's request would end, or none",
                "Delta.index of a delta that this stream has returned",
            )
        self._engine.abort(self._requests[index].request_id)

    def close(self) -> None:
        """Abort what is unfinished; nothing further is returned. Idempotent."""
        for index in self._open:
            self.abort(index)
        self._arrived = []
        for index in list(self._open):
            self._end(index)
        self._settle()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def completions(self) -> list[Completion]:
        """What each request generated so far, in the order of the prompts; an unfinished one counts as aborted."""
        return [
            Completion(
                _text(self._tokenizer, request),
                request.output_token_ids,
                tuple(request.logprobs),
                request.finish_reason or "abort",
                request.sampling.seed,
                tuple(request.top_logprobs),
                request.prompt_logprobs,
                dict(request.faults),
                dead_end(request.request_id) if request.finish_reason == "error" else None,
            )
            for request in self._requests
        ]

    def _collect(self) -> list[Delta]:
        """News of each open request, if there is any."""
        news = []
        for index in list(self._open):
            request, known = self._requests[index], self._token_count[index]
            tokens = request.output_token_ids[known:]
            if tokens or request.finish_reason:
                news.append(self._delta(index, request, tokens))
            if request.finish_reason:
                self._end(index)
        return news

    def _delta(self, index: int, request: TrackedRequest, tokens: tuple[int, ...]) -> Delta:
        logprobs = tuple(request.logprobs[self._token_count[index] :])
        self._token_count[index] += len(tokens)
        text = _text(self._tokenizer, request)
        if request.finish_reason is None:
            text = text.rstrip(INCOMPLETE)
        new = text[len(self._text[index]) :]
        self._text[index] += new
        return Delta(index, new, tokens, logprobs, request.finish_reason)

    def _end(self, index: int) -> None:
        self._open.remove(index)
        self._engine.forget(self._requests[index].request_id)

    def _settle(self) -> None:
        """Once nobody waits for anything, tell the runner who has left, so that rows and blocks are free."""
        if not self._engine.requests and self._engine.is_usable:
            self._engine.drain()


def _grammar_compiler(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> GrammarCompiler:
    if tokenizer is None:
        raise ConfigurationError(
            "RunnerConfig.grammars=True without a tokenizer",
            "grammars need the bytes that each token writes",
            "a grammar is about text, and a mask is about tokens",
            "LLM.from_model(), which loads the tokenizer, or grammars=False",
        )
    return GrammarCompiler(tokenizer.vocabulary(), checkpoint.config.vocab_size)


def _require_one_source(config: RunnerConfig | None, max_model_len: int | None, settings: Mapping[str, Any]) -> None:
    """Refuse settings that nobody would read."""
    given = {**({} if max_model_len is None else {"max_model_len": max_model_len}), **settings}
    known = {field.name for field in fields(RunnerConfig)}
    unread = [name for name in given if config is not None or name not in known]
    if unread:
        raise ConfigurationError(
            f"LLM.from_model({', '.join(f'{name}={shown(given[name])}' for name in unread)})",
            "settings are fields of RunnerConfig, and come beside a config only inside it",
            "they would be ignored, and the runner would not be the one that was asked for",
            "config=RunnerConfig(...) alone, or its fields alone; they are " + ", ".join(sorted(known)),
        )


def _text(tokenizer: Tokenizer | None, request: TrackedRequest) -> str:
    """The output as text, without a stop token."""
    tokens = request.output_token_ids
    shown = tokens[:-1] if request.finish_reason == "stop" else tokens
    return "" if tokenizer is None else tokenizer.decode(list(shown))


def default_config(checkpoint: Checkpoint, max_model_len: int | None = None, **settings: Any) -> RunnerConfig:
    """Capacities for a handful of requests, on the CPU unless the settings say otherwise.

    Args:
        checkpoint: the model.
        max_model_len: longest sequence in tokens; by default the model's context, 4096 at most.
        settings: further fields of ``RunnerConfig``.
    """
    if max_model_len is None:
        max_model_len = min(checkpoint.config.max_position_embeddings, DEFAULT_MAX_MODEL_LEN)
    base = RunnerConfig(max_model_len=max_model_len, **settings)
    return replace(base, num_kv_blocks=1 + 2 * base.max_blocks_per_request)
