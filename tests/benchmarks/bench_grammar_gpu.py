"""What a grammar costs a batch on a GPU: tokens per second without, with half and with all requests under a grammar.

    python tests/benchmarks/bench_grammar_gpu.py                # on "cuda"; a shape like SmolLM2-135M, random weights
    python tests/benchmarks/bench_grammar_gpu.py --tiny         # a dry run on the CPU

The grammar is an array of strings that never has to end; every request draws the same number of tokens, at temperature
1. "Own pace" is what the first request gets, tokens per second, and the last one, which is without a grammar where half
of them are. Also shown is what the host spends on the masks of one step. Of three runs the first is not counted.
"""

import random
import statistics
import string
import sys
import time

import torch

from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.grammar.compiler import GrammarCompiler
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import TINY_CONFIG
from mrv2.refrunner.models.vocabulary import Vocabulary
from mrv2.refrunner.models.weights import expected_tensors

TINY = "--tiny" in sys.argv
DEVICE, RUNS = ("cpu", 1) if TINY else ("cuda", 3)
REQUESTS, TOKENS, PROMPT = (4, 6, 4) if TINY else (32, 128, 32)
SHAPE = LlamaConfig(
    vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
    rope_theta=1e5, rms_norm_eps=1e-5, max_position_embeddings=2048, tie_word_embeddings=True,
)  # fmt: skip
SCHEMA = Grammar("json_schema", '{"type": "array", "items": {"type": "string"}, "minItems": 1000}')
STOP = 0


def vocabulary(size):
    """Bytes, then random words."""
    draw = random.Random(0)
    words = {
        "".join(draw.choices(string.ascii_letters + " .,", k=draw.randint(2, 9))).encode() for _ in range(3 * size)
    }
    tokens = [*(bytes([byte]) for byte in range(256)), *sorted(words)][:size]
    return Vocabulary(tuple(tokens), (), lambda text: list(text.encode()))


def build(grammars, depth):
    model = TINY_CONFIG if TINY else SHAPE
    generator = torch.Generator(DEVICE).manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator, device=DEVICE) * 0.02 for name, shape in expected_tensors(model)
    }
    length = PROMPT + TOKENS + 1
    config = RunnerConfig(
        device=DEVICE, attention="triton", graph_mode="eager" if TINY else "full", max_num_reqs=REQUESTS,
        max_num_batched_tokens=REQUESTS * PROMPT, max_model_len=length, num_kv_blocks=REQUESTS * (2 + length // 16),
        steps_in_flight=depth, grammars=grammars, dtype="float32" if TINY else "bfloat16",
    )  # fmt: skip
    compiler = GrammarCompiler(vocabulary(model.vocab_size), model.vocab_size) if grammars else None
    return ModelRunner(config, model, weights, compiler), config


def run(runner, config, constrained):
    """Seconds until all requests have ended, and until the first with and the last without a grammar has."""
    engine, ends = Engine(runner, config), {}
    for index in range(REQUESTS):
        grammar = SCHEMA if index < constrained else None
        params = SamplingParams(1.0, index, TOKENS, stop_token_ids=(STOP,) if grammar else (), grammar=grammar)
        engine.add(f"r{index}", [1 + (7 * index + place) % 200 for place in range(PROMPT)], params)
    begin = time.perf_counter()
    while engine.has_work:
        engine.advance()
        for name, request in engine.requests.items():
            if request.finish_reason and name not in ends:
                ends[name] = time.perf_counter() - begin
    assert all(len(request.output_token_ids) == TOKENS for request in engine.requests.values())
    return ends


class Watched:
    """Adds up what a method takes."""

    def __init__(self, owner, name):
        self.spent, self.calls = 0.0, 0
        inner = getattr(owner, name)

        def timed(*args, **kwargs):
            begin = time.perf_counter()
            result = inner(*args, **kwargs)
            self.spent, self.calls = self.spent + time.perf_counter() - begin, self.calls + 1
            return result

        setattr(owner, name, timed)


def row(depth, constrained):
    runner, config = build(constrained > 0, depth)
    masks = Watched(runner._grammar, "upload")
    runs = [run(runner, config, constrained) for _ in range(RUNS)]
    total = statistics.median(REQUESTS * TOKENS / max(ends.values()) for ends in runs[-2:])
    last = runs[-1]
    own = [TOKENS / last[f"r{index}"] for index in (0, REQUESTS - 1)]
    runner.close()
    return (
        f"{depth} in flight, {constrained:3} of {REQUESTS} with a grammar: {total:9.0f} tokens/s; own pace "
        f"{own[0]:7.1f} (first request) {own[1]:7.1f} (last); masks {1e6 * masks.spent / masks.calls:7.0f} us a step"
    )


def main():
    print(torch.__version__, torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU")
    for depth in (1, 2):
        for constrained in (0, REQUESTS // 2, REQUESTS):
            print(row(depth, constrained), flush=True)


if __name__ == "__main__":
    main()
