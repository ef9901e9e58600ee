"""The model runner: turns scheduler decisions into device work and never waits for the device.

The order within a step is the heart of the design and is the same on every device:

1. free the rows of finished and preempted requests, 2. give rows to new ones, 3. append KV blocks (host only so
far), 4. one packed upload, 5. scatter staged writes, 6. gather the InputBatch, 7. forward, 8. sample, 9. enqueue
the download of the result, 10. advance the state on the device. Steps 4 to 10 only enqueue.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from .api import Handle, InvariantViolation, Step
from .async_output import AsyncOutput, EmptyOutput
from .attention.interface import AttentionBackend
from .attention.torch_reference import TorchReferenceAttention
from .attention.triton_paged import TritonPagedAttention
from .config import RunnerConfig
from .device import Device
from .errors import ConfigurationError, StepError
from .input_batch import InputBatch, InputBatchBuilder
from .invariants import check_invariants
from .kernels.input_prep import post_update
from .kv_groups import KVGroups
from .memory import allocating
from .models.config import LlamaConfig
from .models.llama import LlamaModel
from .request_states import RequestStates
from .sampling.prompt_logprobs import PromptLogprobs, PromptReport
from .sampling.sampler import Sampler, SamplerOutput
from .staging import PackedUpload, PinnedRing
from .step_check import StepChecker


class ModelRunner:
    """Executes steps on one device, on the stream that is current when the runner is made.

    Attributes:
        config: capacities and switches.
        batch: inputs of the last step; None if that step built none.
    """

    def __init__(self, config: RunnerConfig, model: LlamaConfig, tensors: Mapping[str, Tensor]) -> None:
        """Allocate everything a step needs; nothing is allocated per request later.

        Args:
            model: the architecture.
            tensors: weights under their Hugging Face names.

        Raises:
            ConfigurationError: sequences could become longer than the model's context, or the memory is not there.
        """
        _check_context(config, model)
        self.config = config
        self.batch: InputBatch | None = None
        self._device = Device(config.device)
        kernels = config.attention == "triton"
        self._model = LlamaModel(model, tensors, self._device.torch_device, config.torch_dtype, kernels=kernels)
        windows = KVGroups.of_layers(model.layer_windows).windows
        self._checker = StepChecker(config, model.vocab_size, windows)
        with allocating(config, model):
            self._states = RequestStates(config, self._device, model.vocab_size)
            self._sampler = Sampler(config, self._device, model.vocab_size)
            self._prompt_logprobs = PromptLogprobs(config, self._device, self._sampler)
            self._builder = InputBatchBuilder(config, self._device, model.vocab_size, windows)
            backend = TritonPagedAttention if config.attention == "triton" else TorchReferenceAttention
            self._attention: AttentionBackend = backend(config, model, self._device)
        self._ring = PinnedRing(self._device)
        # The host's own count of computed tokens. It is right as long as every scheduled token counts.
        self._computed: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._owners: dict[int, str] = {}
        self._turn = threading.Lock()
        self._closed = False

    @torch.inference_mode()
    def execute(self, step: Step) -> Handle:
        """Enqueue one step; see :class:`mrv2.refrunner.api.Runner`."""
        if not self._turn.acquire(blocking=False):
            raise StepError(
                "execute() from a second thread",
                "one step at a time: another thread is inside execute()",
                "both would give out the same rows and pinned memory, and which step came first would be chance",
                "one thread that executes, or a lock of yours around it",
            )
        try:
            self._require_open()
            self.batch = None
            step = self._checked(step)
            with self._device.on_main_stream():
                return self._enqueue(step)
        finally:
            self._turn.release()

    def invariants(self) -> list[InvariantViolation]:
        """Check the bookkeeping against the device; synchronises."""
        self._device.synchronize()
        return check_invariants(self._states, self._builder.block_tables, self._computed, self._total, self.batch)

    def close(self) -> None:
        """Wait for outstanding work and refuse further steps; the memory goes with the last reference."""
        self._closed = True
        self._device.synchronize()

    def _require_open(self) -> None:
        if self._closed:
            raise StepError(
                "execute() after close()",
                "a closed runner takes no more steps",
                "its memory is given back, so a step would have nothing to work on",
                "a new ModelRunner; results of earlier steps can still be taken from their handles",
            )

    def _enqueue(self, step: Step) -> Handle:
        self._remove_requests(step)
        self._add_requests(step)
        upload = PackedUpload()
        self._states.pack(upload)
        self._sampler.pack(upload)
        self._builder.block_tables.pack(upload)
        layout = self._builder.plan(step, self._states, self._computed, upload) if step.scheduled else None
        upload.send(self._ring)
        self._states.apply(upload)
        self._builder.block_tables.apply(upload)
        self._sampler.apply(upload, self._states)
        if layout is None:
            return EmptyOutput()
        self.batch = self._builder.build(layout, self._states, upload)
        hidden = self._forward(self.batch)
        sampled = self._sample(self.batch, hidden)
        prompts = self._prompt_logprobs.advance(self.batch, hidden, self._model.compute_logits, self._states)
        output = self._download(step, self.batch, sampled, prompts)
        self._post_update(step, self.batch, sampled)
        return output

    def _checked(self, step: Step) -> Step:
        tables = self._builder.block_tables
        num_blocks = {name: tuple(tables.num_blocks[:, row].tolist()) for name, row in self._states.row_of.items()}
        return self._checker.check(step, self._computed, self._total, num_blocks, self._owners)

    def _remove_requests(self, step: Step) -> None:
        for request_id in (*step.finished, *step.preempted):
            row = self._states.remove(request_id)
            self._sampler.remove(row)
            self._prompt_logprobs.remove(row)
            blocks = self._builder.block_tables.clear(row)
            del self._computed[request_id], self._total[request_id]
            for block in blocks:
                del self._owners[block]
            if self.config.poison:
                self._states.poison(row)
                self._attention.poison_blocks(blocks)

    def _add_requests(self, step: Step) -> None:
        for request in step.new:
            row = self._states.add(request)
            self._sampler.add(row, request)
            self._prompt_logprobs.add(row, request)
            self._computed[request.request_id] = request.num_computed_tokens
            self._total[request.request_id] = len(request.token_ids)
        for request_id, groups in step.new_blocks.items():
            self._builder.block_tables.append(self._states.row_of[request_id], groups)
            self._owners.update(dict.fromkeys(chain(*groups), request_id))

    def _forward(self, batch: InputBatch) -> Tensor:
        """Hidden states [padded T, hidden]."""
        self._attention.begin(batch)
        return self._model.forward(batch.input_ids, batch.positions, self._attention.forward)

    def _sample(self, batch: InputBatch, hidden: Tensor) -> SamplerOutput:
        """Draw a token for each request from the logits of its last lane."""
        logits = self._model.compute_logits(hidden.index_select(0, batch.last_lanes))
        return self._sampler.sample(logits, batch, self._states)

    def _download(
        self, step: Step, batch: InputBatch, sampled: SamplerOutput, prompts: tuple[PromptReport, ...]
    ) -> AsyncOutput | EmptyOutput:
        """Enqueue the download; only draws of requests whose known tokens are all computed now count."""
        finished_prefill = frozenset(name for name in batch.request_ids if self._reaches_end(step, name))
        if not finished_prefill:
            return EmptyOutput()
        return AsyncOutput(self._device, batch.request_ids, finished_prefill, sampled, prompts)

    def _reaches_end(self, step: Step, request_id: str) -> bool:
        return self._computed[request_id] + step.scheduled[request_id] >= self._total[request_id]

    def _post_update(self, step: Step, batch: InputBatch, sampled: SamplerOutput) -> None:
        states = self._states
        self._sampler.post_update(batch, sampled, states)
        post_update[(batch.num_requests,)](
            batch.rows, batch.query_start_loc, sampled.token_ids, states.num_computed, states.total_len,
            states.last_sampled, states.token_ids, states.token_ids.stride(0), self.config.max_model_len,
        )  # fmt: skip
        for request_id, count in step.scheduled.items():
            self._total[request_id] += self._reaches_end(step, request_id)
            self._computed[request_id] += count


def _check_context(config: RunnerConfig, model: LlamaConfig) -> None:
    context = model.max_position_embeddings
    if config.max_model_len > context:
        raise ConfigurationError(
            f"RunnerConfig.max_model_len={config.max_model_len}",
            f"the model was made for {context} positions",
            "beyond them its rotary angles were never trained, and it would answer nonsense without an error",
            f"max_model_len={context} or less",
        )
