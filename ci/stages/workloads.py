"""The workload of the quick profile: eight requests whose lives touch every part of a runner's state."""

from __future__ import annotations

import numpy as np

from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams

PROMPT_LENGTHS = (200, 3, 17, 50, 8, 33, 120, 64)
TEMPERATURES = (0.0, 0.7, 0.0, 1.0, 1.3, 0.0, 0.7, 0.0)
ARRIVALS = (0, 0, 1, 2, 4, 6, 9, 12)
# Five rows for eight requests, so that rows are used again; 48 tokens a step, so that long prompts come in chunks;
# and too few blocks for all, so that the pool runs dry, and a preempted request waits until another one ends and
# then resumes in a row that is not its old one. In its old row it would find its own stale state, and be right.
CAPACITIES = {
    "max_num_reqs": 5,
    "max_num_batched_tokens": 48,
    "max_model_len": 256,
    "block_size": 16,
    "num_kv_blocks": 20,
}


def quick_workload(vocab_size: int, seed: int, new_tokens: int) -> Workload:
    """Eight prompts of 3 to 200 random tokens, arriving over time; two are preempted (one twice), one is aborted.

    Args:
        vocab_size: token ids are drawn below it.
        seed: of prompts and noise.
        new_tokens: tokens to generate per request, at least 6.
    """
    random = np.random.default_rng(seed)
    requests = []
    for index, (length, temperature, arrival) in enumerate(zip(PROMPT_LENGTHS, TEMPERATURES, ARRIVALS, strict=True)):
        prompt = tuple(int(token) for token in random.integers(0, vocab_size, length))
        draw_seed = int(random.integers(0, 2**63)) if temperature > 0 else None
        requests.append(
            WorkloadRequest(
                request_id=f"r{index}",
                prompt=prompt,
                sampling=SamplingParams(temperature=temperature, seed=draw_seed, max_tokens=new_tokens),
                arrival=arrival,
                preempt_after={1: (2, 4), 2: (3,)}.get(index, ()),
                abort_after=4 if index == 5 else None,
            )
        )
    return Workload(tuple(requests), CAPACITIES, vocab_size)
