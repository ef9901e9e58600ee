"""The sampler: parameters of every live request in tables of its own, and one token a request and step out of them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..api import NewRequest
from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..request_states import RequestStates
from ..staging import PackedUpload
from .gumbel import Sampled, sample
from .tables import SamplingTables

# What a step's draws are; see there.
SamplerOutput = Sampled


class Sampler:
    """Everything between the logits of a step and its tokens; all of it is enqueued on the main stream.

    Within a step: ``add`` and ``remove`` on the host, then ``pack``, ``apply`` after the upload, ``sample`` after the
    forward pass, and ``post_update`` before the state table advances.
    """

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        self._poison = config.poison
        self._tables = SamplingTables(config, device)

    def add(self, row: int, request: NewRequest) -> None:
        """Stage the parameters of a request that has got this row, new or resumed."""
        self._tables.add(row, request.sampling)

    def remove(self, row: int) -> None:
        """Forget a row whose request leaves; work already enqueued may still read it."""
        if self._poison:
            self._tables.poison(row)

    def pack(self, upload: PackedUpload) -> None:
        """Add what was staged to the step's upload."""
        self._tables.pack(upload)

    def apply(self, upload: PackedUpload, states: RequestStates) -> None:
        """Bring the tables up to date; the state table is so already."""
        self._tables.apply(upload)

    def sample(self, logits: Tensor, batch: InputBatch, states: RequestStates) -> SamplerOutput:
        """Draw one token per request.

        Args:
            logits: float32 [N, V], those of each request's last lane; not modified.
            batch: the step's inputs.
            states: the state table as it was before the step.
        """
        return sample(logits, batch.rows, batch.sample_positions, self._tables.temperature, self._tables.seeds)

    def warm_up(self, logits: Tensor) -> SamplerOutput:
        """Launch every kernel of the sampler once, for rows of nobody; no row's state changes.

        Args:
            logits: float32 [n, V].
        """
        self._tables.warm_up()
        nobody = torch.zeros(logits.shape[0], dtype=torch.int32, device=logits.device)
        return sample(logits, nobody, nobody, self._tables.temperature, self._tables.seeds)
