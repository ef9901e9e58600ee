"""What grammars cost on this GPU: tokens a second with a JSON schema and without, and the time of masks.

Usage: python -m mrv2.ci.gpu.grammars FILE [--tiny]     FILE gets the figures as JSON; --tiny: a small model

The model has the shape of SmolLM2-135M and made-up weights, the vocabulary is bytes and made-up words. The schema is an
array of strings that never has to end, and every request draws as many tokens as the others, at temperature 1: so all
runs do the same work but for the masks. Their time has two parts: what the host spends on filling them, and what the
upload of a step's masks takes on the device.
"""

from __future__ import annotations

import contextlib
import json
import random
import string
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mrv2.ci.command.kernels import compiled_kernels
from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.grammar.compiler import GrammarCompiler
from mrv2.refrunner.grammar.masks import TokenMasks
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import TINY_CONFIG, random_tensors
from mrv2.refrunner.models.vocabulary import Vocabulary
from mrv2.refrunner.sampling.tables import mask_words

SHAPE = LlamaConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rope_theta=1e5,
    rms_norm_eps=1e-5,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
)
SCHEMA = Grammar("json_schema", '{"type": "array", "items": {"type": "string"}, "minItems": 1000}')
STOP = 0
REQUESTS, NEW_TOKENS, PROMPT = 32, 128, 32
WARM_TOKENS = 8
UPLOADS = 50
#: Vocabularies whose masks are uploaded: that of the model, and a large one.
WIDTHS = (49_152, 151_936)


@dataclass(frozen=True)
class Figures:
    """One run.

    Attributes:
        requests: in one batch.
        constrained: how many of them have the schema.
        speculation: who proposes drafts; ``"none"`` for no drafts.
        graph_mode: of the runner.
        steps_in_flight: of the engine.
        tokens: generated.
        accepted: share of the drafts that were verified; None without drafts.
        seconds: from the first step to the last token on the host; kernels were loaded before.
        masks: made.
        fill_seconds: what the host spent on filling them; it is part of ``seconds``.
    """

    requests: int
    constrained: int
    speculation: str
    graph_mode: str
    steps_in_flight: int
    tokens: int
    accepted: float | None
    seconds: float
    masks: int
    fill_seconds: float

    def as_json(self) -> dict[str, Any]:
        """All fields, tokens a second, and microseconds for a mask."""
        fill = 1e6 * self.fill_seconds / self.masks if self.masks else None
        return {**asdict(self), "tokens_per_second": self.tokens / self.seconds, "fill_microseconds_per_mask": fill}


@dataclass
class _Filling:
    """A matcher that adds up what its masks take; many share one clock."""

    inner: Any
    clock: _Clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write_masks(self, tokens: Any, masks: Any) -> Any:
        """See ``Matcher.write_masks``."""
        begin = time.perf_counter()
        error = self.inner.write_masks(tokens, masks)
        self.clock.seconds += time.perf_counter() - begin
        self.clock.masks += len(masks)
        return error


class _Clock(GrammarCompiler):
    """A compiler whose matchers are timed.

    Attributes:
        seconds: that filling took.
        masks: filled.
    """

    seconds, masks = 0.0, 0

    def compile(self, sampling: SamplingParams) -> Any:
        """See ``GrammarCompiler.compile``."""
        matcher = super().compile(sampling)
        return None if matcher is None else _Filling(matcher, self)


def vocabulary(size: int) -> Vocabulary:
    """Bytes, then made-up words; always the same ones."""
    draw, letters = random.Random(0), string.ascii_letters + " .,"
    words = {"".join(draw.choices(letters, k=draw.randint(2, 9))).encode() for _ in range(3 * size)}
    tokens = [*(bytes([byte]) for byte in range(256)), *sorted(words)][:size]
    return Vocabulary(tuple(tokens), (), lambda text: list(text.encode()))


def generate(runner: ModelRunner, constrained: int, turn: str, new_tokens: int, requests: int) -> tuple[Engine, float]:
    """An engine that has generated so many tokens for each request, and the seconds that it took."""
    engine = Engine(runner, runner.config)
    for index in range(requests):
        grammar = SCHEMA if index < constrained else None
        stop = (STOP,) if grammar else ()
        sampling = SamplingParams(1.0, index, new_tokens, stop_token_ids=stop, grammar=grammar)
        engine.add(f"{turn}-{index}", [1 + (7 * index + place) % 200 for place in range(PROMPT)], sampling)
    start = time.perf_counter()
    engine.drain()
    return engine, time.perf_counter() - start


def measure(
    model: LlamaConfig, tensors: dict[str, torch.Tensor], settings: dict[str, Any], constrained: int, new_tokens: int
) -> Figures:
    """One run; a short one before it, which is not measured, warms everything."""
    config = RunnerConfig(**settings)
    clock = _Clock(vocabulary(model.vocab_size), model.vocab_size)
    runner = ModelRunner(config, model, tensors, clock)
    generate(runner, constrained, "warm", WARM_TOKENS, config.max_num_reqs)
    clock.seconds, clock.masks = 0.0, 0
    engine, seconds = generate(runner, constrained, "measured", new_tokens, config.max_num_reqs)
    runner.close()
    tokens, stats = sum(len(request.output_token_ids) for request in engine.requests.values()), engine.speculation
    return Figures(
        config.max_num_reqs, constrained, config.speculation, config.graph_mode, config.steps_in_flight, tokens,
        stats.accepted / stats.drafts if stats.drafts else None, seconds, clock.masks, clock.seconds,
    )  # fmt: skip


def upload_times(device: str, vocab_size: int, most: int) -> list[dict[str, float]]:
    """Microseconds that the upload of a step's masks takes the host to enqueue, and until they are applied."""
    place = Device(device)
    with place.on_main_stream():
        masks, found = TokenMasks(place, most, vocab_size), []
        logits = torch.zeros(most, vocab_size, device=place.torch_device)
        for count in (1, most // 2, most):
            bits = np.full((count, mask_words(vocab_size)), 2**32 - 1, dtype=np.uint32)
            masks.upload(range(count), bits)
            masks.apply(logits)
            place.synchronize()

            def upload(count: int = count, bits: Any = bits) -> None:
                masks.upload(range(count), bits)
                masks.apply(logits)

            host, both = _timed(upload, place, device)
            found.append(
                {
                    "vocabulary": vocab_size,
                    "masks": count,
                    "bytes": bits.nbytes,
                    "host_us": host,
                    "until_applied_us": both,
                }
            )
    return found


def _timed(action: Callable[[], None], place: Device, device: str) -> tuple[float, float]:
    """Microseconds of a call on the host, and until its work is done on a device with nothing else to do."""
    enqueued = complete = 0.0
    for _ in range(UPLOADS):
        begin = time.perf_counter()
        action()
        enqueued += time.perf_counter() - begin
        if device == "cuda":
            place.synchronize()
        complete += time.perf_counter() - begin
    return 1e6 * enqueued / UPLOADS, 1e6 * complete / UPLOADS


def main(arguments: list[str]) -> int:
    """Measure and write; 1 if a run did not generate what it was asked for."""
    tiny, device = "--tiny" in arguments, "cuda" if torch.cuda.is_available() else "cpu"
    model, requests, new_tokens = (TINY_CONFIG, 4, 6) if tiny else (SHAPE, REQUESTS, NEW_TOKENS)
    tensors, length = random_tensors(model, 0), PROMPT + new_tokens + 1
    settings = {
        "device": device, "attention": "triton", "graph_mode": "full" if device == "cuda" else "eager",
        "max_num_reqs": requests, "max_num_batched_tokens": requests * PROMPT, "max_model_len": length,
        "num_kv_blocks": requests * (2 + length // 16), "grammars": True,
        "dtype": "bfloat16" if device == "cuda" else "float32",
    }  # fmt: skip
    drafts = {"speculation": "ngram", "num_drafts": 3}
    found: list[Figures] = []
    with contextlib.ExitStack() as scope:
        if device == "cpu":
            scope.enter_context(compiled_kernels())
        for more in ({"steps_in_flight": 1}, {"steps_in_flight": 2}, {"steps_in_flight": 2, **drafts}):
            for constrained in (0, requests // 2, requests):
                found.append(measure(model, tensors, {**settings, **more}, constrained, new_tokens))
                print(found[-1], flush=True)
        widths = (model.vocab_size,) if tiny else WIDTHS
        uploads = [figures for width in widths for figures in upload_times(device, width, requests)]
    report = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "model": "tiny" if tiny else "SmolLM2-135M shape, made-up weights",
        "dtype": settings["dtype"],
        "schema": SCHEMA.text,
        "runs": [figures.as_json() for figures in found],
        "uploads": uploads,
    }
    Path(arguments[0]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(figures.tokens != requests * new_tokens for figures in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
