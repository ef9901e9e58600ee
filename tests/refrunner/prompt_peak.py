"""How much device memory reports on a prompt take beside the step that computes it, and the bound that follows.

A chunk of C lanes has its logits in memory, in the model's type and, where that is another one, in float32; their
statistics by blocks of the vocabulary; the chunk's rows and tokens; and the reports, of which those of earlier chunks
may be there too, since the copy stream may not have read them yet. Nothing else depends on the reports, and only those
few bytes a token depend on the length of the prompt.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mrv2.refrunner.api import NewRequest, SamplingParams, Step, TokenLogprobs
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.sampling.blocks import block_of
from mrv2.refrunner.sampling_params import MAX_LOGPROB_IDS

LIKELIEST = 5
WORD = 4
#: A chunk has no more tensors than this.
TENSORS = 16


@dataclass(frozen=True)
class Prefill:
    """What computing a prompt took and told.

    Attributes:
        peak: bytes of device memory, at most, beside what the runner held before.
        reports: on the prompt's tokens.
    """

    peak: int
    reports: tuple[TokenLogprobs | None, ...]


def prefill(runner: ModelRunner, tokens: tuple[int, ...], prompt_logprobs: int | None) -> Prefill:
    """Compute a prompt, as many tokens a step as the runner takes; two steps are in flight."""
    config = runner.config
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = _in_use("current")
    handles = []
    for start in range(0, len(tokens), config.max_num_batched_tokens):
        stop = min(start + config.max_num_batched_tokens, len(tokens))
        handles.append(runner.execute(_step(config, tokens, start, stop, prompt_logprobs)))
        if len(handles) > 1:
            handles[-2].result()
    reports = handles[-1].result().prompt_logprobs.get("r", ())
    torch.cuda.synchronize()
    peak = _in_use("peak") - before
    runner.execute(Step(finished=("r",)))
    return Prefill(peak, reports)


def _in_use(when: str) -> int:
    """Bytes; on a GPU also those that are let go of and that the copy stream may still read."""
    return int(torch.cuda.memory_stats()[f"active_bytes.all.{when}"])


def _step(config: RunnerConfig, tokens: tuple[int, ...], start: int, stop: int, prompt_logprobs: int | None) -> Step:
    size = config.block_size
    blocks = tuple(range(1 - -start // size, 1 - -stop // size))
    sampling = SamplingParams(prompt_logprobs=prompt_logprobs, max_tokens=1)
    new = () if start else (NewRequest("r", tokens, len(tokens), sampling),)
    return Step(new=new, scheduled={"r": stop - start}, new_blocks={"r": (blocks,)} if blocks else {})


def bound(config: RunnerConfig, model: LlamaConfig, prompt_len: int, grain: int) -> int:
    """Bytes that the reports on a prompt may add to the peak of its prefill.

    Args:
        grain: the allocator gives out multiples of so many bytes.
    """
    chunk, vocab_size = config.prompt_logprobs_chunk, model.vocab_size
    size = config.torch_dtype.itemsize
    logits = chunk * vocab_size * (WORD if size == WORD else WORD + size)
    blocks = -(-vocab_size // block_of(torch.device(config.device), vocab_size))
    statistics = chunk * 2 * (blocks + 1) * WORD
    a_token = (2 + 2 * LIKELIEST) * WORD  # its row and id; found ids and values, not downloaded
    a_report = (LIKELIEST + 1 + MAX_LOGPROB_IDS + LIKELIEST + 1) * WORD  # ids, values, rank
    chunks = -(-prompt_len // chunk) + -(-prompt_len // config.max_num_batched_tokens)
    return logits + statistics + chunk * a_token + prompt_len * a_report + chunks * TENSORS * grain


def tokens_of(length: int, vocab_size: int) -> tuple[int, ...]:
    """A prompt."""
    return tuple(np.random.default_rng(length).integers(0, vocab_size, length).tolist())
