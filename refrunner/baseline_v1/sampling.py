"""The sampler of the other runner, with parameters that are laid out by the batch and sent anew whenever it changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..config import RunnerConfig
from ..device import Device
from ..kernels import logits_processing as kernels
from ..memory import padded
from ..sampling.prompt_logprobs import PromptLogprobs
from ..sampling.sampler import SamplerStages
from ..sampling.tables import ParameterTables, table_shapes
from ..sampling_params import SamplingParams
from .mirrored import MirroredTables
from .persistent_batch import CachedRequest, PersistentBatch

#: Tables that every request has an entry in, and those that only some stage reads.
ALWAYS = ("sampling numbers", "sampling reals", "seeds")
BY_STAGE = {
    kernels.ALLOWED.value: ("allowed token ids",),
    kernels.BIAS.value: ("biased tokens", "biases"),
    kernels.MIN_TOKENS.value: ("stop token ids",),
    kernels.BAD_WORDS.value: ("bad words",),
}

#: Columns of a history come in such steps. Triton compiles a kernel anew for a stride, or an address, of another
#: divisibility by 16, and loading it would wait for the whole device.
HISTORY_WIDTH = 16


@dataclass(frozen=True)
class History:
    """The known tokens of the batch as the sampler reads them; see :class:`~..request_states.SequenceState`.

    Attributes:
        num_computed: int32 [N].
        total_len: int32 [N].
        num_drafts: int32 [N], zero: there are no drafts.
        token_ids: int32 [N, longest, padded]; stale behind each request's own.
    """

    num_computed: Tensor
    total_len: Tensor
    num_drafts: Tensor
    token_ids: Tensor

    @classmethod
    def empty(cls, device: Device) -> History:
        """Of a batch in which nobody's is read."""
        nobody = torch.zeros(1, HISTORY_WIDTH, dtype=torch.int32, device=device.torch_device)
        return cls(nobody[0], nobody[0], nobody[0], nobody)


class BatchSampler(SamplerStages):
    """The sampler whose parameters have the rows of the batch; a :class:`~.persistent_batch.RowKeeper`."""

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        self._mirrored = MirroredTables(device, table_shapes(config, vocab_size), config.max_num_reqs)
        super().__init__(config, device, vocab_size, ParameterTables(config, vocab_size, self._mirrored))

    def fill(self, row: int, cached: CachedRequest) -> None:
        """Write the parameters of a request that has got this row."""
        self._sampling[row] = cached.request.sampling
        self.tables.add(row, cached.request)

    def clear(self, row: int, cached: CachedRequest) -> None:
        """Forget a row whose request leaves."""
        del self._sampling[row]

    def move(self, source: int, target: int) -> None:
        """Move a request's parameters to another row."""
        self._mirrored.move(source, target)
        for flags in (self.tables.stages, self.tables.reports):
            flags[target] = flags[source]
        self._sampling[target] = self._sampling.pop(source)

    def exchange(self, first: int, second: int) -> None:
        """Let the parameters of two requests trade places."""
        self._mirrored.exchange(first, second)
        for flags in (self.tables.stages, self.tables.reports):
            flags[[first, second]] = flags[[second, first]]
        sampling = self._sampling
        sampling[first], sampling[second] = sampling[second], sampling[first]

    def upload(self, count: int) -> None:
        """Enqueue the parameters of the first ``count`` rows: whole rows, of each table that one of them needs."""
        stages = self._stages_of(count)
        needed = [name for stage, names in BY_STAGE.items() if stages & stage for name in names]
        fixed = any(self._sampling[row].logprob_token_ids for row in range(count))
        self._mirrored.upload([*ALWAYS, *needed, *(["logprob token ids"] if fixed else [])], count)

    def count_history(self, rows: Tensor, history: History, longest: int) -> None:
        """Enqueue the counts that penalties need, all of them from the start, if a row has any.

        Args:
            rows: int32 [N], 0, 1, ...
            history: of the batch.
            longest: known tokens of a request, at most.
        """
        if self._stages_of(len(rows)) & kernels.PENALTIES.value:
            self._penalties.count(rows, len(rows), longest, self.tables, history)

    def _stages_of(self, count: int) -> int:
        return int(np.bitwise_or.reduce(self.tables.stages[:count], initial=0))


class BatchPromptLogprobs(PromptLogprobs):
    """Reports on prompts by the rows of the batch; a :class:`~.persistent_batch.RowKeeper`."""

    def fill(self, row: int, cached: CachedRequest) -> None:
        """Begin a report if the request wants one, or go on with what it has."""
        if cached.report is not None:
            self._reports[row] = cached.report
        elif not cached.was_in_batch:
            self.add(row, cached.request)

    def clear(self, row: int, cached: CachedRequest) -> None:
        """Keep what there is of a report for the time in which the request is out of the batch."""
        cached.report = self._reports.pop(row, None)

    def move(self, source: int, target: int) -> None:
        """Move a report to another row."""
        if source in self._reports:
            self._reports[target] = self._reports.pop(source)

    def exchange(self, first: int, second: int) -> None:
        """Let two reports trade places."""
        kept = {row: self._reports.pop(row) for row in (first, second) if row in self._reports}
        self._reports.update({first + second - row: report for row, report in kept.items()})

    @property
    def is_busy(self) -> bool:
        """Whether a prompt of the batch is being reported on."""
        return bool(self._reports)


def reads_history(sampling: SamplingParams) -> bool:
    """Whether draws depend on the tokens before, which the host then has to know: for penalties and bad words."""
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    return penalties != (1.0, 0.0, 0.0) or bool(sampling.bad_words)


def history_of(batch: PersistentBatch, lengths: list[int], rows: Tensor, device: Device) -> History:
    """Enqueue the upload of all known tokens of the batch, from fresh pinned memory, as a padded matrix.

    Args:
        batch: its rows.
        lengths: known tokens of each.
        rows: int32 [N], for the tensors that nobody reads.
        device: of the runner.
    """
    count, longest = len(lengths), max(lengths)
    width = padded(longest, HISTORY_WIDTH)
    pinned = device.pinned_empty(count * (width + 1), torch.int32)
    values = pinned.numpy()
    values[: count * width].reshape(count, width)[:, :longest] = batch.token_ids[:count, :longest]
    values[count * width :] = lengths
    sent = torch.empty(len(pinned), dtype=torch.int32, device=device.torch_device)
    sent.copy_(pinned, non_blocking=True)
    return History(rows, sent[count * width :], rows, sent[: count * width].view(count, width))
