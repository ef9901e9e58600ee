"""Sampling parameters of the live requests: one row each, in the rows of the state table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..api import NewRequest
from ..config import RunnerConfig
from ..device import Device
from ..kernels import logits_processing as kernels
from ..sampling_params import (
    FULL_VOCABULARY,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_LOGPROB_IDS,
    MAX_STOPS,
    SamplingParams,
)
from ..staging import PackedUpload, Shapes, StagedTables, bytes_of

NUMBERS, REALS = kernels.NUMBERS.value, kernels.REALS.value
BAD_WORD_COLUMNS = 2 * MAX_BAD_WORDS + 1 + MAX_BAD_WORD_TOKENS
EVERY_STAGE = kernels.ALLOWED.value | kernels.BIAS.value | kernels.MIN_TOKENS.value | kernels.PENALTIES.value
EVERY_STAGE |= kernels.BAD_WORDS.value | kernels.FILTERS.value

# Of int32. No sequence is that long, so a minimum beyond it is never reached either.
LARGEST_LENGTH = 2**31 - 1
# Above 0, or it would read as greedy; so high that whoever draws with it gets almost any token.
POISON_TEMPERATURE = 1000.0
POISON_SEED = -1


class Table(Protocol):
    """A device table whose rows the host fills; ``staging.StagedWriteTensor`` is one."""

    gpu: Tensor

    def stage_write(self, row: int, start: int, values: Sequence[int] | Sequence[float]) -> None:
        """Plan ``gpu[row, start : start + len(values)] = values``, visible to work enqueued after the next flush."""
        ...


class Tables(Protocol):
    """Tables by their names."""

    def __getitem__(self, name: str) -> Table:
        """The table of a name."""
        ...


class ParameterTables:
    """What the sampler's kernels read of each row's parameters, whoever brings it to the device, and how.

    Kernels read them by row: ``numbers`` int32 [R, NUMBERS] and ``reals`` float32 [R, REALS], whose columns
    ``kernels.logits_processing`` names; ``seeds`` int64 [R]. Lists, of which a row's numbers say how much is valid:
    ``allowed`` int32 [R, W] (a bit mask), ``bias_tokens`` int32 and ``bias_values`` float32 [R, 1024], ``stops`` int32
    [R, 128], ``bad_words`` int32 [R, 1281], ``logprob_ids`` int32 [R, 128].

    Attributes:
        stages: int32 [R] on the host, the stages of each row.
        reports: bool [R] on the host, whether a row wants log-probabilities beyond that of its token.
    """

    def __init__(self, config: RunnerConfig, vocab_size: int, tables: Tables) -> None:
        self.numbers, self.reals = tables["sampling numbers"], tables["sampling reals"]
        self.allowed, self._seeds = tables["allowed token ids"], tables["seeds"]
        self.bias_tokens, self.bias_values = tables["biased tokens"], tables["biases"]
        self.stops, self.bad_words = tables["stop token ids"], tables["bad words"]
        self.logprob_ids = tables["logprob token ids"]
        numbers, reals, seeds = self.numbers.gpu, self.reals.gpu, self._seeds.gpu
        # Views that are made once: each would cost an operation in every step.
        self._number = functools.lru_cache(lambda column: numbers[:, column])
        self._temperature = functools.lru_cache(lambda: reals[:, kernels.TEMPERATURE.value])
        self._seed = functools.lru_cache(lambda: seeds[0])
        self._vocab_size = vocab_size
        self._always = EVERY_STAGE if config.force_sampler_stages else 0
        self._always |= kernels.REPORTED.value if config.logprobs_mode.startswith("processed") else 0
        self.stages: NDArray[np.int32] = np.zeros(config.max_num_reqs, dtype=np.int32)
        self.reports: NDArray[np.bool_] = np.zeros(config.max_num_reqs, dtype=np.bool_)

    @property
    def temperature(self) -> Tensor:
        """float32 [R], strided: a column of ``reals``."""
        return self._temperature()

    @property
    def seeds(self) -> Tensor:
        """int64 [R]."""
        return self._seed()

    def number(self, column: int) -> Tensor:
        """int32 [R], strided: a column of ``numbers``."""
        return self._number(column)

    def add(self, row: int, request: NewRequest) -> None:
        """Stage the parameters of a request that has got this row; nothing of the former owner survives."""
        sampling = request.sampling
        self.stages[row] = _with_filtered_only(stages_of(sampling) | self._always)
        self.reports[row] = sampling.logprobs is not None or bool(sampling.logprob_token_ids)
        self.numbers.stage_write(row, 0, self._numbers_of(request, int(self.stages[row])))
        self.reals.stage_write(row, 0, _reals_of(sampling))
        self._seeds.stage_write(0, row, [_as_int64(sampling.seed or 0)])
        if self.stages[row] & kernels.ALLOWED.value:
            self.allowed.stage_write(row, 0, _bit_mask(sampling.allowed_token_ids, self._vocab_size))
        biases = sorted(sampling.logit_bias)
        self.bias_tokens.stage_write(row, 0, [token for token, _ in biases])
        self.bias_values.stage_write(row, 0, [value for _, value in biases])
        self.stops.stage_write(row, 0, sorted(sampling.stop_token_ids))
        self.logprob_ids.stage_write(row, 0, sampling.logprob_token_ids)
        if sampling.bad_words:
            self._stage_bad_words(row, sampling)

    def _stage_bad_words(self, row: int, sampling: SamplingParams) -> None:
        words = sorted(sampling.bad_words, key=lambda word: word[-1])
        offsets = np.cumsum([0, *(len(word) - 1 for word in words)])
        self.bad_words.stage_write(row, 0, [word[-1] for word in words])
        self.bad_words.stage_write(row, MAX_BAD_WORDS, offsets.tolist())
        self.bad_words.stage_write(row, 2 * MAX_BAD_WORDS + 1, [token for word in words for token in word[:-1]])

    def _numbers_of(self, request: NewRequest, stages: int) -> list[int]:
        sampling = request.sampling
        return [
            stages,
            sampling.top_k or self._vocab_size,
            request.prompt_len,
            min(request.prompt_len + sampling.min_tokens, LARGEST_LENGTH),
            len(sampling.logit_bias),
            len(sampling.stop_token_ids),
            _wanted(sampling.logprobs, bool(sampling.logprob_token_ids)),
            _wanted(sampling.prompt_logprobs),
            len(sampling.bad_words),
            len(sampling.logprob_token_ids),
        ]

    def poison(self, row: int) -> None:
        """Stage values into a freed row that would change the output if anything read them."""
        self.stages[row] = 0
        self.numbers.stage_write(row, 0, [EVERY_STAGE] + [1] * (NUMBERS - 1))
        self.reals.stage_write(row, 0, [POISON_TEMPERATURE] * REALS)
        self._seeds.stage_write(0, row, [POISON_SEED])


class SamplingTables(ParameterTables):
    """Parameters in one memory, written on the main stream by staged writes when a request is added."""

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        self._tables = StagedTables(device, table_shapes(config, vocab_size))
        super().__init__(config, vocab_size, self._tables)

    def pack(self, upload: PackedUpload) -> None:
        """Add the staged writes to the step's upload."""
        self._tables.pack(upload)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter them on the device; one launch."""
        self._tables.apply(upload)

    def warm_up(self) -> None:
        """Load the kernel of ``apply``; nothing changes."""
        self._tables.warm_up()


def table_shapes(config: RunnerConfig, vocab_size: int) -> Shapes:
    """Rows, columns and type of each table of :class:`ParameterTables`."""
    rows = config.max_num_reqs
    return {
        "sampling numbers": (rows, NUMBERS, torch.int32),
        "sampling reals": (rows, REALS, torch.float32),
        "seeds": (1, rows, torch.int64),
        "allowed token ids": (rows, mask_words(vocab_size), torch.int32),
        "biased tokens": (rows, MAX_BIASES, torch.int32),
        "biases": (rows, MAX_BIASES, torch.float32),
        "stop token ids": (rows, MAX_STOPS, torch.int32),
        "bad words": (rows, BAD_WORD_COLUMNS, torch.int32),
        "logprob token ids": (rows, MAX_LOGPROB_IDS, torch.int32),
    }


def table_bytes(config: RunnerConfig, vocab_size: int) -> int:
    """Bytes of the tables of one sampler, those of the penalties and the constant thresholds included."""
    penalties = 4 * config.max_num_reqs * (mask_words(vocab_size) + vocab_size)
    thresholds = 4 * max(config.max_logits, config.prompt_logprobs_chunk)
    return bytes_of(table_shapes(config, vocab_size)) + penalties + thresholds


def mask_words(vocab_size: int) -> int:
    """Words of a bit mask with a bit for each token."""
    return -(-vocab_size // 32)


def stages_of(sampling: SamplingParams) -> int:
    """The stages that a request's parameters need."""
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    needs = {
        kernels.ALLOWED: sampling.allowed_token_ids is not None,
        kernels.BIAS: bool(sampling.logit_bias),
        kernels.MIN_TOKENS: bool(sampling.min_tokens and sampling.stop_token_ids),
        kernels.PENALTIES: penalties != (1, 0, 0),
        kernels.BAD_WORDS: bool(sampling.bad_words),
        kernels.MIN_P: sampling.min_p > 0,
        kernels.TOP_K: sampling.top_k > 0,
        kernels.TOP_P: sampling.top_p < 1,
    }
    return sum(int(stage.value) for stage, needed in needs.items() if needed)


def _with_filtered_only(stages: int) -> int:
    """Stages of a row and, if it has a filter and nothing that makes a copy, the bit that says so."""
    only = stages & kernels.FILTERS.value and not stages & kernels.STORED.value
    return stages | (kernels.FILTERED_ONLY.value if only else 0)


def _reals_of(sampling: SamplingParams) -> list[float]:
    return [
        sampling.temperature,
        sampling.top_p,
        math.log(np.float32(sampling.min_p)) if sampling.min_p else -math.inf,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    ]


def _wanted(logprobs: int | None, anyway: bool = False) -> int:
    """1 + number of tokens to sort out, 0 for no report; the whole vocabulary is not sorted."""
    if logprobs is None:
        return int(anyway)
    return 1 if logprobs == FULL_VOCABULARY else 1 + logprobs


def _bit_mask(token_ids: tuple[int, ...] | None, vocab_size: int) -> list[int]:
    """W words of 32 bits; every bit is set if everything is allowed."""
    bits = np.zeros(32 * mask_words(vocab_size), dtype=np.uint8)
    bits[slice(None) if token_ids is None else list(token_ids)] = 1
    words: list[int] = np.packbits(bits, bitorder="little").view("<i4").tolist()
    return words


def _as_int64(seed: int) -> int:
    """The same 64 bits as a signed number."""
    return (seed + 2**63) % 2**64 - 2**63
