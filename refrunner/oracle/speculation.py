"""Speculative decoding as formulas: what a step with drafts emits, for one request, in float64.

Given the same keys every decision has one answer. The draft at offset j of a step stands at position n + j, where n is
the number of known tokens, and its noise is that of (seed, position, token, purpose) with j beside the purpose. What
the target draws itself has the noise that it has without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..api import NewRequest
from .grammar import GrammarOracle
from .llama import LlamaOracle
from .noise import Purpose, gumbel, words
from .rounding import Float32Twins
from .sampling import filtered, process

Row = NDArray[np.float64]


class Drafts(Protocol):
    """What somebody's drafts are drawn from."""

    def logits(self, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
        """Logits [V] of the draft behind some tokens and drafts, in float64.

        Args:
            request_id: whose drafts they are.
            tokens: that were known when the first was drawn.
            drafts: before this one.
        """
        ...

    def bound(self, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> float:
        """How far float32 may rightly be from any of the logits that these drafts are drawn from."""
        ...


class ModelDrafts:
    """Those of a whole model, which knows the tokens alone; see :class:`Drafts`."""

    def __init__(self, model: LlamaOracle) -> None:
        self._model = model

    def logits(self, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
        """See :class:`Drafts`."""
        return self._model.logits([*tokens, *drafts])[-1]

    def bound(self, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> float:
        """See :class:`Drafts`."""
        return float(self._twins.measure([*tokens, *drafts]).logit_bounds[len(tokens) - 1 :].max())

    @cached_property
    def _twins(self) -> Float32Twins:
        return Float32Twins(self._model)


class SpeculativeOracle:
    """What a step with drafts that are draws emits, given all tokens before it; no state between calls.

    Args:
        target: the model.
        draft: what the drafts are drawn from.
        grammars: reads grammars; needed for requests that have one. Drafts know nothing of them.
    """

    def __init__(self, target: LlamaOracle, draft: Drafts, grammars: GrammarOracle | None = None) -> None:
        self._target = target
        self._draft = draft
        self._grammars = grammars

    def step(self, request: NewRequest, tokens: Sequence[int], num_drafts: int, *, in_blocks: bool) -> Emitted:
        """Draw the drafts one after another and verify them.

        Args:
            request: its parameters, a temperature above 0 and a seed among them, and its prompt.
            tokens: everything known, prompt and generated.
            num_drafts: k.
            in_blocks: as in :func:`verify`.
        """
        sampling, seed = request.sampling, request.sampling.seed
        assert seed is not None and sampling.temperature > 0, "drafts that are draws"
        temperature, known = float(np.float32(sampling.temperature)), len(tokens)
        drafts: list[int] = []
        proposed: list[Row] = []
        margins: list[float] = []
        for offset in range(num_drafts):
            logits = self._draft.logits(request.request_id, tokens, drafts).numpy().astype(np.float64)
            proposed.append(logits / temperature)
            scores = np.sort(proposed[-1] + gumbel(seed, known + offset, len(logits), Purpose.DRAFT, offset))
            margins.append(float(scores[-1] - scores[-2]))
            drafts.append(draw_draft(proposed[-1], seed, known + offset, offset))
        rows = self._target.logits([*tokens, *drafts])[known - 1 :].numpy().astype(np.float64)
        judged = [self._drawn_from(row, request, [*tokens, *drafts[:place]]) for place, row in enumerate(rows)]
        draft = np.array(proposed).reshape(-1, rows.shape[1])
        emitted = verify(np.array(judged), draft, drafts, seed, known, in_blocks=in_blocks)
        return replace(emitted, drafts=tuple(drafts), margin=min([*margins, emitted.margin]))

    def _drawn_from(self, logits: Row, request: NewRequest, tokens: Sequence[int]) -> Row:
        """What the target draws from behind these tokens, [V]."""
        if request.sampling.grammar is not None:
            assert self._grammars is not None, "a request with a grammar needs what reads it"
            logits = np.where(self._grammars.allowed(request, tokens), logits, -np.inf)
        return drawn_from(logits, request, tokens)


def drawn_from(logits: Row, request: NewRequest, tokens: Sequence[int]) -> Row:
    """Logits [V] through all stages of the sampler, minus infinity where a filter drops a token."""
    processed = process(logits, request, tokens)
    kept: Row = np.where(filtered(processed, request.sampling).surely, processed, -np.inf)
    return kept


@dataclass(frozen=True)
class Emitted:
    """What a step emits.

    Attributes:
        token_ids: accepted drafts, then one more token.
        margin: relative error of the probabilities p and q that may turn the closest decision around; no number if
            some of them are none. A computation with errors of about this size may rightly answer otherwise.
        drafts: that were drawn, if they were drawn here.
    """

    token_ids: tuple[int, ...]
    margin: float
    drafts: tuple[int, ...] = ()


def draw_draft(logits: Row, seed: int, position: int, offset: int) -> int:
    """The draft that is drawn from logits [V], temperature included, behind ``offset`` other drafts."""
    return int(np.argmax(logits + gumbel(seed, position, len(logits), Purpose.DRAFT, offset)))


def accept_equal(draws: Sequence[int], drafts: Sequence[int]) -> tuple[int, ...]:
    """Drafts that are no draws: the target's draws up to the first that is not its draft.

    Args:
        draws: k + 1 tokens, what the target draws after 0, 1, ..., k drafts.
        drafts: k tokens.
    """
    pairs = enumerate(zip(draws, drafts, strict=False))
    accepted = next((place for place, (drawn, draft) in pairs if drawn != draft), len(drafts))
    return tuple(draws[: accepted + 1])


def verify(target: Row, draft: Row, drafts: Sequence[int], seed: int, position: int, *, in_blocks: bool) -> Emitted:
    """Rejection sampling of k drafts.

    Args:
        target: [k + 1, V], logits of the target after 0, 1, ..., k drafts, through all stages, temperature and filters
            included.
        draft: [k, V], logits that the drafts were drawn from, temperature included.
        drafts: k tokens.
        seed: of the request.
        position: number of known tokens.
        in_blocks: verify the drafts together (Sun et al. 2024, algorithm 2), not one by one.
    """
    p, q = _softmax(target), _softmax(draft)
    ratios = _ratios(p, q, drafts)
    weights = _weights(ratios) if in_blocks else np.ones(len(drafts) + 1)
    rests = [np.maximum(weights[j] * p[j] - q[j], 0) for j in range(len(drafts))]
    chances, errors = _block_chances(weights, rests) if in_blocks else (ratios, np.maximum(ratios, 1))
    luck = [_uniform(seed, position + j, j) for j in range(len(drafts))]
    acceptable = [u < chance for u, chance in zip(luck, chances, strict=True)]
    margins = [abs(u - chance) / error for u, chance, error in zip(luck, chances, errors, strict=True)]
    if in_blocks:
        accepted = max((j + 1 for j, good in enumerate(acceptable) if good), default=0)
    else:
        accepted = next((j for j, good in enumerate(acceptable) if not good), len(drafts))
    with np.errstate(divide="ignore", invalid="ignore"):
        if accepted == len(drafts):
            scores = np.log(p[-1]) + gumbel(seed, position + accepted, p.shape[1], Purpose.TARGET)
            sensitivity = np.ones(p.shape[1])
        else:
            noise = gumbel(seed, position + accepted, p.shape[1], Purpose.RECOVER, accepted)
            scores = np.log(rests[accepted]) + noise
            # What is left where two numbers nearly cancel has their errors.
            sensitivity = (weights[accepted] * p[accepted] + q[accepted]) / rests[accepted]
        best = int(scores.argmax())
        others = np.arange(len(scores)) != best
        gaps = ((scores[best] - scores) / (sensitivity[best] + sensitivity))[others & (scores > -np.inf)]
    decisions = [*margins, *gaps]
    margin = np.nan if np.isnan(decisions).any() else min(decisions, default=np.inf)
    return Emitted((*drafts[:accepted], best), float(margin))


def _softmax(logits: Row) -> Row:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Row = weights / weights.sum(axis=-1, keepdims=True)
    return result


def _ratios(p: Row, q: Row, drafts: Sequence[int]) -> Row:
    """How much likelier each draft is for the target than for who drew it."""
    return np.array([p[j, token] / q[j, token] for j, token in enumerate(drafts)])


def _weights(ratios: Row) -> Row:
    """How much of the target's probability of the first j drafts is left: k + 1 numbers, 1 for j = 0."""
    weights = [1.0]
    for ratio in ratios:
        weights.append(min(weights[-1] * ratio, 1.0))
    return np.array(weights)


def _block_chances(weights: Row, rests: Sequence[Row]) -> tuple[Row, Row]:
    """Chance that the first j drafts are acceptable, for j = 1, ..., k.

    Returns:
        the chances, and by how much of a relative error of p and q each may be off.
    """
    chances, errors = [], []
    for weight, rest in zip(weights[1:-1], rests[1:], strict=True):
        mass, missing = float(rest.sum()), 1 - weight
        chances.append(1.0 if weight == 1 else mass / (mass + missing))
        errors.append(max(1.0, (2 * missing + mass * weight) / (mass + missing) ** 2) if mass + missing else np.inf)
    return np.array([*chances, *weights[1:][-1:]]), np.array([*errors, *[1.0] * len(weights[1:][-1:])])


def _uniform(seed: int, position: int, offset: int) -> float:
    """The high half of the word of token 0."""
    word = int(words(seed, position, np.zeros(1, dtype=np.int64), Purpose.ACCEPT, offset)[0])
    return ((word >> 32) + 0.5) / 2**32
