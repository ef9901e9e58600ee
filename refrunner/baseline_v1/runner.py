"""A runner of the older design, for comparison: one persistent batch, inputs made on the host, a barrier in each step.

The order within a step: 1. wait until the inputs of the step before are read, 2. take the tokens that have arrived,
3. take requests out of the batch and into it, close the holes, 4. fill the input arrays on the host, 5. upload all of
them, 6. forward, 7. sample, 8. enqueue the download of the result. Steps 4 to 8 only enqueue.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import chain, compress, filterfalse

import torch
from torch import Tensor

from ..api import Handle, InvariantViolation, NewRequest, Step
from ..async_output import AsyncOutput, EmptyOutput
from ..attention.backends import attention_backend
from ..attention.interface import AttentionBackend
from ..block_upkeep import BlockHolders, BlockUpkeep, places_of
from ..config import RunnerConfig
from ..device import Device
from ..fresh_memory import fresh_memory
from ..grammar.stage import NoGrammars
from ..graphs.candidates import BatchNeeds, Candidate
from ..graphs.manager import GraphManager
from ..input_batch import BatchShape, InputBatch
from ..invariants import check_padding
from ..kv_groups import KVGroups
from ..model_runner import check_context
from ..models.config import LlamaConfig
from ..models.llama import LlamaModel
from ..phases import Phase, phase
from ..sampling.prompt_logprobs import PromptReport
from ..sampling.sampler import SamplerOutput
from ..scheduled import Scheduled, gather
from ..staging import PackedUpload, PinnedRing
from ..startup import largest_shape
from ..step_check import StepChecker
from ..step_gate import StepGate
from .barrier import Barrier, Draws
from .persistent_batch import CachedRequest, PersistentBatch
from .sampling import BatchPromptLogprobs, BatchSampler, History, history_of, reads_history
from .settings import check_settings
from .step_inputs import StepInputs

logger = logging.getLogger(__name__)


class BaselineRunner:
    """Executes steps on one device, on the stream that is current when the runner is made.

    Attributes:
        config: capacities and switches.
        batch: inputs of the last step; None if that step built none.
        requests: what the host knows of each live request.
        rows: the persistent batch.
    """

    def __init__(self, config: RunnerConfig, model: LlamaConfig, tensors: Mapping[str, Tensor]) -> None:
        """Make a runner that is ready: everything is allocated, kernels are loaded, graphs captured.

        Args:
            config: settings; those of the other runner's own mechanisms are refused.
            model: the architecture.
            tensors: weights under their Hugging Face names.

        Raises:
            ConfigurationError: a setting is not for this runner, or sequences could become longer than the context.
        """
        check_settings(config)
        check_context(config, model)
        self.config = config
        self.batch: InputBatch | None = None
        self.requests: dict[str, CachedRequest] = {}
        # What the contract of a step is checked against; those of steps in flight are counted.
        self._computed: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._prefill_len: dict[str, int] = {}
        self._num_blocks: dict[str, list[int]] = {}
        # Live requests whose draws depend on the tokens before.
        self._with_history: set[str] = set()
        self._device = device = Device(config.device)
        self._windows = KVGroups.of_layers(model.layer_windows).windows
        self._has_windows = any(self._windows)
        self._checker = StepChecker(config, model.vocab_size, self._windows)
        self._grammar = NoGrammars()
        with device.on_main_stream():
            kernels = config.attention == "triton"
            self._model = LlamaModel(model, tensors, device.torch_device, config.torch_dtype, kernels=kernels)
            self._attention: AttentionBackend = attention_backend(config)(config, model, device)
            self._sampler = BatchSampler(config, device, model.vocab_size)
            self._prompt_logprobs = BatchPromptLogprobs(config, device, self._sampler)
            keepers = (self._sampler, self._prompt_logprobs)
            self.rows = PersistentBatch(config, device, model.vocab_size, len(self._windows), keepers)
            self._inputs = StepInputs(config, device, model.vocab_size, self.rows)
            self._no_history = History.empty(device)
            self._barrier = Barrier()
            self._holders = BlockHolders()
            self._upkeep, self._ring = BlockUpkeep(config, (self._attention,)), PinnedRing(device)
            self._graphs = GraphManager(config, self._model, self._attention, device)
            self._gate = StepGate()
            self._capture()
        logger.info("runner: baseline_v1 on %s, %s, %s", config.device, device.description, config.dtype)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Load every kernel, then record the graphs; no request's state changes."""
        if self._device.asynchronous:
            with fresh_memory(self.config.poison):
                self._run_padding(largest_shape(self.config))
                self._graphs.capture((self._inputs, self.rows), self._pad)

    def _run_padding(self, shape: BatchShape) -> None:
        batch = self._pad(shape)
        hidden = self._forward(batch, None)
        self._model.compute_logits(hidden[: self.config.prompt_logprobs_chunk])
        logits = self._model.compute_logits(hidden[: self.config.max_num_reqs])
        self._sampler.warm_up(logits, batch, self._no_history)
        self._upkeep.warm_up(batch.rows)

    def _pad(self, shape: BatchShape) -> InputBatch:
        """A batch of that shape without a request; nothing of it is in flight any more."""
        batch = self._inputs.build((), (), None, shape)
        self._device.synchronize()
        return batch

    @torch.inference_mode()
    def execute(self, step: Step) -> Handle:
        """Enqueue one step; see :class:`mrv2.refrunner.api.Runner`. Waits for the device, in :meth:`Barrier.wait`."""
        with self._gate.turn():
            self.batch = None
            with phase(Phase.STATE_UPDATE):
                step = self._checked(step)
            poisoned = fresh_memory(self.config.poison)
            with self._device.on_main_stream(), poisoned, self._gate.last_if_it_breaks_off():
                return self._enqueue(step)

    def check_request(self, request: NewRequest) -> NewRequest:
        """Whether some step could bring this request; see :meth:`ModelRunner.check_request`.

        Raises:
            StepError: what any step would be refused for that has it in ``Step.new``.
        """
        request = self._checker.check_request(request)
        self._grammar.check_request(request)
        return request

    def invariants(self) -> list[InvariantViolation]:
        """Check rows, block tables and padding; synchronises."""
        self._device.synchronize()
        found = [InvariantViolation("graph-address", detail) for detail in self._graphs.moved()]
        found += self.rows.violations(self.requests)
        return found + ([] if self.batch is None else list(check_padding(self.batch)))

    @property
    def graphs(self) -> GraphManager:
        """The captured forward passes."""
        return self._graphs

    def close(self) -> None:
        """Wait for outstanding work and refuse further steps; the memory goes with the last reference."""
        self._gate.close()
        self._device.synchronize()

    def _enqueue(self, step: Step) -> Handle:
        with phase(Phase.STATE_UPDATE):
            self._pass_barrier(step)
            self._update_states(step)
            scheduled = self._gather(step)
        with phase(Phase.STAGING):
            self._keep_up_blocks(step)
            if not step.scheduled:
                return EmptyOutput()
            decode_only = bool(scheduled.decodes.all())
            graph = self._graphs.find(BatchNeeds(scheduled.num_tokens, len(scheduled.rows), decode_only))
            self.batch = self._build(scheduled, graph)
            history = self._upload_sampling(self.batch)
            self._barrier.uploads_enqueued(self._device.record_event())
        with phase(Phase.FORWARD):
            hidden = self._forward(self.batch, graph)
            logits = self._model.compute_logits(self.batch.sampled_states(hidden))
        with phase(Phase.SAMPLER):
            sampled = self._sampler.sample(logits, self.batch, history)
            prompts = self._prompt_logprobs.advance(self.batch, hidden, self._model.compute_logits, history)
        with phase(Phase.DOWNLOAD):
            output = self._download(scheduled, self.batch, sampled, prompts)
        with phase(Phase.STATE_UPDATE):
            self._advance(scheduled)
        return output

    def _checked(self, step: Step) -> Step:
        step = self._checker.check(step, self._computed, self._total, self._num_blocks, self._holders.of_block)
        self._grammar.check(step, self._computed, self._total)
        return step

    def _pass_barrier(self, step: Step) -> None:
        """Wait, and write what has arrived behind the known tokens of requests that are still the same."""
        new = {request.request_id for request in step.new if reads_history(request.sampling)}
        whole_history = any(name in step.scheduled for name in new | self._with_history)
        for cached, token in self._barrier.wait(whole_history=whole_history):
            place = len(cached.token_ids)
            cached.token_ids.append(token)
            row = self.rows.row_of.get(cached.request.request_id)
            if row is not None and place < self.config.max_model_len and self._is_live(cached):
                self.rows.token_ids[row, place] = token

    def _is_live(self, cached: CachedRequest) -> bool:
        return self.requests.get(cached.request.request_id) is cached

    def _update_states(self, step: Step) -> None:
        """Bring the requests, and then the batch, up to what the step says; the batch is exactly who is scheduled."""
        rows = self.rows
        replaced = [request.request_id for request in step.new if request.request_id in self.requests]
        left = [self._remove(name) for name in dict.fromkeys((*step.finished, *step.preempted, *replaced))]
        for name in [*filterfalse(step.scheduled.__contains__, rows.row_of)]:
            rows.remove(name, self.requests[name])
        for request in step.new:
            self._enter(request)
        for name, groups in step.new_blocks.items():
            self._append(name, groups)
        self._upkeep.freed(block for block in chain(*left) if block not in self._holders.of_block)
        for name in [*filterfalse(rows.row_of.__contains__, step.scheduled)]:
            rows.add(name, self.requests[name])
        rows.condense()
        if step.scheduled:
            rows.reorder(self._attention.order({name: step.scheduled[name] for name in rows.names}))
        for name, row in rows.row_of.items():
            rows.num_computed[row] = self._computed[name]
        if self._has_windows:
            for name, row in rows.row_of.items():
                rows.hide_below_window(row, self.requests[name])

    def _enter(self, request: NewRequest) -> None:
        name, known = request.request_id, len(request.token_ids)
        self.requests[name] = CachedRequest.of(request, len(self._windows))
        self._computed[name], self._total[name], self._prefill_len[name] = request.num_computed_tokens, known, known
        self._num_blocks[name] = [0] * len(self._windows)
        if reads_history(request.sampling):
            self._with_history.add(name)

    def _gather(self, step: Step) -> Scheduled:
        """What is scheduled, by the rows of the batch."""
        rows = self.rows
        return gather(rows.names, step, rows.row_of, self._computed, self._total, self._prefill_len)

    def _remove(self, name: str) -> list[int]:
        """Forget a request; returns the blocks that nobody holds any more."""
        cached = self.requests.pop(name)
        del self._computed[name], self._total[name], self._prefill_len[name], self._num_blocks[name]
        self._with_history.discard(name)
        if name in self.rows.row_of:
            self.rows.remove(name, cached)
        return self._holders.remove(name, [block for block in chain(*cached.blocks) if block])

    def _append(self, name: str, groups: tuple[tuple[int, ...], ...]) -> None:
        cached, row = self.requests[name], self.rows.row_of.get(name)
        before = self._num_blocks[name]
        for group, (held, blocks) in enumerate(zip(cached.blocks, groups, strict=True)):
            if row is not None:
                self.rows.write_blocks(row, group, len(held), blocks)
            held.extend(blocks)
        self._num_blocks[name] = [len(held) for held in cached.blocks]
        self._holders.add(name, chain(*groups))
        if self._upkeep.fills_new:
            computed, size = self._computed[name], self.config.block_size
            self._upkeep.given(block for block, place in places_of(groups, before) if place * size >= computed)

    def _keep_up_blocks(self, step: Step) -> None:
        """Enqueue the copies and fills of whole blocks, which go the other runner's way: they are no input."""
        self._upkeep.copied(step.block_copies)
        upload = PackedUpload()
        self._upkeep.pack(upload)
        upload.send(self._ring)
        self._upkeep.apply(upload)

    def _build(self, scheduled: Scheduled, graph: Candidate | None) -> InputBatch:
        names = scheduled.request_ids
        unknown = [row for row, name in enumerate(names) if len(self.requests[name].token_ids) < self._total[name]]
        shape = graph.shape(len(names)) if graph else None
        return self._inputs.build(scheduled.counts, unknown, self._barrier.latest, shape)

    def _upload_sampling(self, batch: InputBatch) -> History:
        """Enqueue parameters if the batch has changed, and known tokens if a stage reads them."""
        count = batch.num_requests
        if self.rows.changed:
            self._sampler.upload(count)
            self.rows.changed = False
        if not self._prompt_logprobs.is_busy and self._with_history.isdisjoint(self.rows.row_of):
            return self._no_history
        lengths = [len(self.requests[name].token_ids) for name in self.rows.names]
        history = history_of(self.rows, lengths, batch.rows, self._device)
        self._sampler.count_history(batch.rows, history, max(lengths))
        return history

    def _forward(self, batch: InputBatch, graph: Candidate | None) -> Tensor:
        """Hidden states [padded T, hidden]."""
        self._attention.begin(batch)
        if graph is not None:
            return self._graphs.captured[graph].replay(self._attention.forward)
        return self._model.forward(batch.input_ids, batch.positions, self._attention.forward)

    def _download(
        self, scheduled: Scheduled, batch: InputBatch, sampled: SamplerOutput, prompts: tuple[PromptReport, ...]
    ) -> AsyncOutput | EmptyOutput:
        """Enqueue the download, and remember what was drawn for whom."""
        if not scheduled.draws.any():
            return EmptyOutput()
        output = AsyncOutput(self._device, batch, scheduled.draws, sampled, prompts)
        drawn = compress(enumerate(scheduled.request_ids), scheduled.draws)
        requests = {name: (self.requests[name], row) for row, name in drawn}
        self._barrier.drawn(Draws(output, sampled.token_ids, requests))
        return output

    def _advance(self, scheduled: Scheduled) -> None:
        """Count what was enqueued, and let go of blocks that have left a window."""
        self._computed.update(scheduled.computed_after())
        for name, drawn in scheduled.drawn():
            self._total[name] += drawn
        if self._has_windows:
            for name in scheduled.request_ids:
                below = self.requests[name].drop_below_window(
                    self._windows, self._computed[name], self.config.block_size
                )
                self._upkeep.freed(self._holders.remove(name, below))
