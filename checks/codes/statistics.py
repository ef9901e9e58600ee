"""Codes MRV4xx, statistics: a distribution or a draw that differs from the one asked for."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV401",
        title="the sampler's distribution differs from the one asked for",
        soundness=Soundness.MAY,
        rule="over many seeds, tokens come with the probabilities softmax(logits / temperature)",
        why="a skewed sampler writes fluent text of a different model; no single output shows it",
        remedy="the evidence names the test, its p-value and its false-alarm rate; run again with another --seed: a "
        "real defect comes back, a chance alarm does not",
        example=Example(
            "noise = -torch.log(-torch.log(u16))         # 16 bits: the tail is cut off",
            "noise = -torch.log(-torch.log(u))           # enough bits for the rarest token that matters",
        ),
        stage="sampler distribution",
    ),
    CodeInfo(
        code="MRV402",
        title="a draw differs from its exact replay",
        soundness=Soundness.SOUND,
        rule="each draw is a pure function of (seed, position, token id, purpose)",
        why="a draw that depends on row, batch or padding changes when the neighbours do, and no run can be replayed",
        remedy="key the noise by the request's own seed and the token's position; never by row, lane or step",
        example=Example(
            "noise = philox(step_seed, row)",
            "noise = philox(request_seed, position, token_id)",
        ),
        stage="sampler distribution",
    ),
    CodeInfo(
        code="MRV403",
        title="a token lies outside the support or the vocabulary",
        soundness=Soundness.SOUND,
        rule="a token of probability zero is never drawn, and each token id is in [0, V)",
        why="an id beyond the vocabulary crashes the detokeniser or reads foreign memory in the embedding",
        remedy="mask padded vocabulary lanes with -inf before the argmax, and check the width of the last tile",
        example=Example(
            "logits = tl.load(ptr + offs, mask=offs < V, other=0.0)",
            "logits = tl.load(ptr + offs, mask=offs < V, other=float('-inf'))",
        ),
        stage="sampler distribution",
    ),
    CodeInfo(
        code="MRV404",
        title="a reported log-probability, rank or position is wrong",
        soundness=Soundness.SOUND,
        rule="a log-probability is the log-softmax of its own row's logits, within the error of float32 arithmetic",
        why="scores, rewards and perplexities are computed from it, and nobody sees that they belong to another token",
        remedy="compare with float64 on the same logits; where a known formula gives the values, the evidence names it",
        example=Example(
            "logprobs = torch.log_softmax(logits / temperature, dim=-1)   # asked for: before the temperature",
            "logprobs = torch.log_softmax(logits, dim=-1)",
        ),
        stage="sampler audit",
    ),
)
