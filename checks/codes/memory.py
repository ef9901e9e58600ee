"""Codes MRV6xx, memory: a leak, a growing pool, a use after the memory was given back, or more than a bound."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV601",
        title="a region takes more device memory than its bound",
        soundness=Soundness.SOUND,
        rule="within a region the device holds at most as many bytes more than at its entry as the bound says",
        why="a temporary tensor of tokens times vocabulary needs more than all else in a step, and a large batch then "
        "runs out of memory, or shrinks the cache for everybody",
        remedy="work in chunks of rows, reuse a buffer (out=, in place), or free what is over before more is taken",
        example=Example(
            "logprobs = logits.float().log_softmax(-1).gather(-1, tokens)",
            "for rows in [slice(i, i + 256) for i in range(0, len(logits), 256)]:\n"
            "    logprobs[rows] = logits[rows].float().log_softmax(-1).gather(-1, tokens[rows])",
        ),
        stage="sync",
    ),
)
