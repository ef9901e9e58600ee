"""The state table: one stable row per live request, for as long as it lives.

A row is taken when a request enters and given back when it finishes or is preempted; a preempted request returns
as a new one, in whatever row is free then. Nothing ever moves a row. The host keeps only who owns which row; the
values live on the device, because only the device knows them in time. A row's generation counts its owners: what is
known of a row is of use only together with it.

The tokens with which a request enters have one of two homes. Staged, they go to the token table on the device. In
place (``RunnerConfig.prompt_tokens`` ``"uva"``), they stay in pinned host memory and the gather kernel reads them over
the bus, once each; the table then holds the generated tokens only.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .api import NewRequest, SamplingParams
from .config import RunnerConfig
from .device import Device
from .prompt_rows import PromptRows
from .staging import PackedUpload, StagedTables

NUM_COMPUTED, TOTAL_LEN, LAST_SAMPLED, IN_PLACE, GENERATION, NUM_DRAFTS = range(6)
COUNTERS = NUM_DRAFTS + 1

# What a poisoned row holds. Small and in range, so that a stale read gives wrong tokens and not a crash.
POISON_COUNTER = 1


class SequenceState(Protocol):
    """What the sampler reads of each row's sequence, on the device; :class:`RequestStates` says what each holds."""

    @property
    def num_computed(self) -> Tensor:
        """int32 [R]."""
        ...

    @property
    def total_len(self) -> Tensor:
        """int32 [R]."""
        ...

    @property
    def num_drafts(self) -> Tensor:
        """int32 [R]."""
        ...

    @property
    def token_ids(self) -> Tensor:
        """int32 [R, L]."""
        ...


class RequestStates:
    """Rows of the live requests.

    Device tables, written on the main stream by staged writes (request added) and by ``post_update``:
    ``num_computed`` int32 [R], tokens whose keys and values are in the cache; ``total_len`` int32 [R], tokens known
    on the device; ``last_sampled`` int32 [R], the newest token; ``in_place`` int32 [R], leading tokens that are in
    ``prompts`` and not in the token table; ``device_generations`` int32 [R], equal to ``generations`` once the staged
    writes are applied; ``num_drafts`` int32 [R], drafts of the next tokens; ``token_ids`` int32 [R, L], the token
    table, where the drafts stand behind the known tokens.

    Attributes:
        free_rows: rows without an owner; the last one is given out next.
        row_of: row of each live request.
        generations: int32 [R] on the host, how many owners each row has had; the device has it too.
    """

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        rows = config.max_num_reqs
        self._poison_token = vocab_size - 1
        shapes = {"counters": (COUNTERS, rows, torch.int32), "token ids": (rows, config.max_model_len, torch.int32)}
        tables = StagedTables(device, shapes)
        self._counters, self._token_ids, self._tables = tables["counters"], tables["token ids"], tables
        (
            self.num_computed, self.total_len, self.last_sampled, self.in_place, self.device_generations,
            self.num_drafts,
        ) = self._counters.gpu.unbind()  # fmt: skip
        self._prompts = PromptRows(config, device) if config.prompt_tokens == "uva" else None
        self._in_place: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self.generations: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        # Last in, first out: a row is warm, and a stale row is re-read as soon as possible, where tests see it.
        self.free_rows = list(reversed(range(rows)))
        self.row_of: dict[str, int] = {}

    @property
    def token_ids(self) -> Tensor:
        """int32 [R, L]."""
        return self._token_ids.gpu

    @property
    def prompts(self) -> Tensor:
        """int32 [R, L], where ``in_place`` tokens are: pinned host memory, or the token table if there are none."""
        return self.token_ids if self._prompts is None else self._prompts.memory

    def add(self, request: NewRequest) -> int:
        """Give the request a row and stage its whole state; nothing of the former owner survives."""
        row = self.free_rows.pop()
        self.row_of[request.request_id] = row
        self.generations[row] += 1
        self._put_tokens(row, request)
        self._counters.stage_write(NUM_COMPUTED, row, [request.num_computed_tokens])
        self._counters.stage_write(TOTAL_LEN, row, [len(request.token_ids)])
        self._counters.stage_write(LAST_SAMPLED, row, [request.token_ids[-1]])
        self._counters.stage_write(IN_PLACE, row, [self._in_place[row]])
        self._counters.stage_write(GENERATION, row, [self.generations[row]])
        self._counters.stage_write(NUM_DRAFTS, row, [0])
        return row

    def _put_tokens(self, row: int, request: NewRequest) -> None:
        """Leave the known tokens in pinned memory, or stage them to the token table."""
        fit = self._prompts is not None and not _known_tokens_are_read_again(request.sampling)
        if fit and self._prompts is not None and self._prompts.put(row, request.token_ids):
            self._in_place[row] = len(request.token_ids)
        else:
            self._in_place[row] = 0
            self._token_ids.stage_write(row, 0, request.token_ids)

    def gathered(self, rows: NDArray[np.int32], computed: NDArray[np.int64]) -> None:
        """The kernel that reads the tokens of a batch from their homes has just been enqueued.

        Args:
            rows: int32 [N], of the batch.
            computed: int64 [N], tokens of each computed before this step, as the host counts them.
        """
        if self._prompts is None:
            return
        reading = rows[computed < self._in_place[rows]]
        if len(reading):
            self._prompts.read_now(reading.tolist())

    def newest_in_its_home(self, row: int) -> int | None:
        """The newest token of a row, from where a later step would look for it; waits for the device."""
        last = int(self.total_len[row]) - 1
        if not 0 <= last < self.token_ids.shape[1]:
            return None
        home = self.prompts if last < int(self.in_place[row]) else self.token_ids
        return int(home[row, last])

    def remove(self, request_id: str) -> int:
        """Give the row back; work already enqueued may still read it, work enqueued later may not."""
        row = self.row_of.pop(request_id)
        self.free_rows.append(row)
        return row

    def poison(self, row: int) -> None:
        """Stage values into a freed row that would change the output if anything read them."""
        self._token_ids.stage_write(row, 0, [self._poison_token] * self._token_ids.gpu.shape[1])
        self._counters.stage_write(NUM_COMPUTED, row, [POISON_COUNTER])
        self._counters.stage_write(TOTAL_LEN, row, [POISON_COUNTER])
        self._counters.stage_write(LAST_SAMPLED, row, [self._poison_token])
        self._counters.stage_write(IN_PLACE, row, [0])
        self._counters.stage_write(NUM_DRAFTS, row, [POISON_COUNTER])

    def pack(self, upload: PackedUpload) -> None:
        """Add the staged writes of all tables to the step's upload."""
        self._tables.pack(upload)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter them on the device; one launch."""
        self._tables.apply(upload)

    def warm_up(self) -> None:
        """Load the kernel of ``apply``; nothing changes."""
        self._tables.warm_up()


def _known_tokens_are_read_again(sampling: SamplingParams) -> bool:
    """Whether the sampler looks the tokens up: for penalties, bad words, and log-probabilities of the prompt.

    It finds them in the token table, and need not know of another home.
    """
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    return penalties != (1.0, 0.0, 0.0) or bool(sampling.bad_words) or sampling.prompt_logprobs is not None
