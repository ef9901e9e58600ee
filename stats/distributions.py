"""Audit rows: logits made so that a known defect shows in few draws.

Testing a sampler on random logits needs millions of draws for most defects and misses some altogether. A row that puts
its mass where the defect is needs a hundred times fewer: one head above a wide, flat tail for missing noise, half of
the mass in the last block for a lost block. An :class:`Event` names the tokens whose share tells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .errors import ArgumentError
from .strata import log_softmax

# Noise of 24 bits ends 16.6 nats up, of 31 bits at 21.5, of 33 bits at 22.9. The best gap for each lies 1.4 to 1.8 nats
# above its end; the others are there because a defect can change its sign between two gaps.
LADDER = (12.5, 16.0, 18.0, 20.0, 23.25, 25.0)
# By how much the tail must be wrong to show, per gap: 24-bit noise loses 0.8 % at 12.5, a quarter at 16, nearly all
# above; noise of 31 bits 97 % at 23.25, of 33 bits everything at 25.
LADDER_ERRORS = {12.5: 0.008, 16.0: 0.2, 18.0: 0.5, 20.0: 0.5, 23.25: 0.9, 25.0: 0.95}
BLOCK = 1024
RECORDED = Path(__file__).with_name("smollm2_logits.safetensors")
_NAMES_OF_RECORDED = ("even", "usual", "sure")


@dataclass(frozen=True, eq=False)
class Event:
    """Some tokens of a row, whose share of the draws is tested by itself.

    Attributes:
        name: what they are.
        tokens: bool [V].
        must_see: relative error of their share that must show.
        facts: numbers for a report, e.g. the gap of a tail.
    """

    name: str
    tokens: NDArray[np.bool_]
    must_see: float
    facts: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AuditRow:
    """Logits with what to look at.

    Attributes:
        name: unique among the rows of an audit.
        logits: float32 [V].
        temperature: above 0, representable in float32.
        events: tested by themselves.
        must_see: discrepancy that the grouped tests of the row must show; None where only its events tell something.
        must_see_trend: discrepancy that a trend over the ids must show.
    """

    name: str
    logits: NDArray[np.float32]
    temperature: float = 1.0
    events: tuple[Event, ...] = ()
    must_see: float | None = 0.02
    must_see_trend: float = 0.02

    @cached_property
    def log_probabilities(self) -> NDArray[np.float64]:
        """What the draws must follow, float64 [V], natural logarithm."""
        return log_softmax(self.logits, self.temperature)


def flat(vocab_size: int) -> AuditRow:
    """All tokens equally likely: equal scores, and what resolves them, show here.

    24-bit noise at V = 262,144 has a tie at the maximum in 0.8 % of the draws, a trend of discrepancy 0.0045.
    """
    return AuditRow("flat", np.zeros(vocab_size, np.float32), must_see_trend=0.0045)


def zipf(vocab_size: int, exponent: float = 1.1, temperature: float = 0.7) -> AuditRow:
    """Probabilities like those of words, rank to the power ``-exponent / temperature``, spread over the ids."""
    ranks = np.random.default_rng(0).permutation(vocab_size) + 1.0
    warmth = float(np.float32(temperature))
    return AuditRow("zipf", (-exponent * np.log(ranks)).astype(np.float32), warmth)


def cliff(vocab_size: int, gap: float, must_see: float | None = None) -> AuditRow:
    """One head, in the middle of the ids, and all other tokens ``gap`` nats below: only noise above the gap draws them.

    Args:
        vocab_size: V; the tail's mass is about ``(V - 1) * exp(-gap)``.
        gap: nats.
        must_see: relative error of the tail's mass; for the gaps of :data:`LADDER` it is known what defects do.
    """
    head = vocab_size // 2
    logits = np.full(vocab_size, -gap, np.float32)
    logits[head] = 0.0
    tail = np.ones(vocab_size, np.bool_)
    tail[head] = False
    error = LADDER_ERRORS.get(gap, 0.5) if must_see is None else must_see
    return AuditRow(f"cliff {gap:g}", logits, 1.0, (Event("tail", tail, error, {"gap": gap}),), None)


def ladder(vocab_size: int, gaps: Sequence[float] = LADDER) -> tuple[AuditRow, ...]:
    """Cliffs of several gaps: one gap alone can sit where a defect's error changes its sign."""
    return tuple(cliff(vocab_size, gap) for gap in gaps)


def half_head(vocab_size: int, temperature: float = 0.7) -> AuditRow:
    """A head with half of the mass above a flat tail with the other half: the row that tells temperatures best.

    The tail's share moves by ``log(V - 1) / 2`` times the temperature's relative error, and no row has a larger factor.
    0.7 differs from its bfloat16 neighbour by 1.1e-3.
    """
    warmth = float(np.float32(temperature))
    gap = math.log(vocab_size - 1)
    logits = np.full(vocab_size, -gap * warmth, np.float32)
    logits[vocab_size // 3] = 0.0
    tail = logits < 0
    error = 1.1e-3 * gap / 2
    return AuditRow("half head", logits, warmth, (Event("tail", tail, error, {"temperature_factor": gap / 2}),), None)


def last_block(vocab_size: int, block: int = BLOCK) -> AuditRow:
    """Half of the mass in the last block, partial unless ``block`` divides V, and a quarter of that in the last id.

    A block that is lost, masked a token too early, or read twice changes its share by a factor.
    """
    start = (vocab_size - 1) // block * block if vocab_size > block else vocab_size // 2
    probabilities = np.full(vocab_size, 0.5 / start)
    probabilities[start:] = 0.375 / max(1, vocab_size - 1 - start)
    probabilities[-1] = 0.125 if vocab_size - 1 > start else 0.5
    block_event = Event("last block", np.arange(vocab_size) >= start, 0.05, {"first_id": start})
    last_event = Event("last id", np.arange(vocab_size) == vocab_size - 1, 0.1)
    logits = np.log(probabilities / probabilities.sum()).astype(np.float32)
    return AuditRow("last block", logits, 1.0, (block_event, last_event), None)


def two_level(vocab_size: int, block: int = BLOCK) -> AuditRow:
    """Logits that alternate between neighbours and between blocks: finds ids that are swapped or shifted by one."""
    ids = np.arange(vocab_size)
    odd_id, odd_block = ids % 2 == 1, ids // block % 2 == 1
    events = [Event("odd ids", odd_id, 0.02)]
    if odd_block.any():
        events.append(Event("odd blocks", odd_block, 0.02))
    return AuditRow("two level", (-1.0 * odd_id - 0.5 * odd_block).astype(np.float32), 1.0, tuple(events), None)


def offset(vocab_size: int, power: int = 6) -> AuditRow:
    """The Zipf row plus ``2**power``: softmax does not change, a sum in too few bits does."""
    row = zipf(vocab_size, temperature=1.0)
    return AuditRow(f"offset 2^{power}", (row.logits + np.float32(2.0**power)).astype(np.float32), 1.0)


def recorded(vocab_size: int | None = None) -> tuple[AuditRow, ...]:
    """Three rows of SmolLM2-135M-Instruct, rounded to bfloat16 as engines store them: even, usual and sure of itself.

    Args:
        vocab_size: the first so many ids only; all 49,152 if left out. Ids beyond the recorded ones get -inf.

    Raises:
        ArgumentError: ``vocab_size`` is below 2.
    """
    if vocab_size is not None and vocab_size < 2:
        raise ArgumentError(f"vocab_size={vocab_size}", "at least 2 tokens", "one token is no choice", "a larger one")
    logits = _read_bfloat16(RECORDED)
    size = logits.shape[1] if vocab_size is None else vocab_size
    rows = np.full((len(logits), size), -np.inf, np.float32)
    rows[:, : logits.shape[1]] = logits[:, :size]
    pairs = zip(_NAMES_OF_RECORDED, rows, strict=True)
    return tuple(AuditRow(f"model, {name} row", row) for name, row in pairs)


def _read_bfloat16(path: Path) -> NDArray[np.float32]:
    """The tensor ``logits`` of a safetensors file (a JSON header behind its length in 8 bytes, then the data)."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entry = json.loads(content[8:start])["logits"]
    first, end = entry["data_offsets"]
    bits = np.frombuffer(content[start + first : start + end], "<u2").reshape(entry["shape"])
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
