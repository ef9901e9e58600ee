"""The model runner: turns scheduler decisions into device work and never waits for the device.

The order within a step is the heart of the design and is the same on every device:

1. free the rows of finished and preempted requests, 2. give rows to new ones, 3. append KV blocks, 4. one packed
upload, 5. scatter staged writes, 6. gather the InputBatch, 7. forward, 8. sample, 9. enqueue the download of the
result, 10. advance the state on the device. The first three touch host memory only, the others only enqueue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import add

import numpy as np
import torch
from torch import Tensor

from .api import Handle, InvariantViolation, NewRequest, Step
from .async_output import AsyncOutput, EmptyOutput
from .attention.backends import attention_backend
from .attention.interface import AttentionBackend
from .block_upkeep import BlockHolders, BlockUpkeep, places_of
from .config import SMALLEST_POOL, RunnerConfig
from .device import Device
from .errors import ConfigurationError
from .fresh_memory import fresh_memory
from .grammar.compiler import GrammarCompiler
from .grammar.stage import GrammarStage, NoGrammars
from .graphs.candidates import BatchNeeds, Candidate
from .graphs.manager import GraphManager
from .input_batch import BatchLayout, BatchShape, InputBatch, InputBatchBuilder
from .invariants import HostCounts, check_invariants
from .kernels.input_prep import post_update
from .kernels.speculation import post_update_verified
from .kv_groups import KVGroups
from .memory import allocating
from .models.config import LlamaConfig
from .models.llama import LlamaModel
from .models.weights import Checkpoint
from .phases import Phase, phase
from .request_states import RequestStates
from .sampling.prompt_logprobs import PromptLogprobs, PromptReport
from .sampling.sampler import Sampler, SamplerOutput
from .scheduled import Scheduled, gather
from .speculation.proposers import load_draft_model, make_proposer
from .staging import PackedUpload, PinnedRing
from .startup import blocks_that_fit, largest_shape, log_start
from .step_check import StepChecker
from .step_gate import StepGate

#: Tokens of a decoding request that a draft model computes before its first draft, see ``Proposer.plan``.
DECODE_LANES = 2


class ModelRunner:
    """Executes steps on one device, on the stream that is current when the runner is made.

    Attributes:
        config: capacities and switches.
        batch: inputs of the last step; None if that step built none.
    """

    def __init__(
        self,
        config: RunnerConfig,
        model: LlamaConfig,
        tensors: Mapping[str, Tensor],
        grammars: GrammarCompiler | None = None,
        draft: Checkpoint | None = None,
    ) -> None:
        """Make a runner that is ready: phases init, profile and capture; ``execute`` is the fourth.

        Everything that a step needs is allocated, loaded and captured here; nothing is allocated per request later.

        Args:
            model: the architecture.
            tensors: weights under their Hugging Face names.
            grammars: reads the grammars of requests, with ``RunnerConfig.grammars``; for this model's vocabulary.
            draft: what proposes drafts, with ``RunnerConfig.speculation`` ``"draft"`` or ``"eagle"``.

        Raises:
            ConfigurationError: sequences could become longer than the model's context, or the memory is not there.
        """
        check_context(config, model)
        _check_grammars(config, model, grammars)
        self._compiler = grammars
        self._device = Device(config.device)
        with self._device.on_main_stream():
            kernels, place = config.attention == "triton", self._device.torch_device
            self._model = LlamaModel(model, tensors, place, config.torch_dtype, kernels=kernels)
            self._draft = load_draft_model(config, self._model, draft)
            if config.memory_fraction:
                self._allocate(replace(config, num_kv_blocks=SMALLEST_POOL), model)
                run = partial(self._run_padding, largest_shape(config))
                blocks = blocks_that_fit(self.config, model, self._device, run, self._draft_config)
                config = replace(config, num_kv_blocks=blocks)
            self._allocate(config, model)
            self._capture()
        log_start(config, model, self._device.description, tuple(self._graphs.captured))

    def _allocate(self, config: RunnerConfig, model: LlamaConfig) -> None:
        """Phase init: every table and buffer."""
        self.config = config
        self.batch: InputBatch | None = None
        windows = KVGroups.of_layers(model.layer_windows).windows
        self._has_windows = any(windows)
        self._checker = StepChecker(config, model.vocab_size, windows)
        with allocating(config, model, self._draft_config):
            self._states = RequestStates(config, self._device, model.vocab_size)
            self._sampler = Sampler(config, self._device, model.vocab_size)
            self._grammar = self._grammar_stage(config, model.vocab_size)
            self._prompt_logprobs = PromptLogprobs(config, self._device, self._sampler)
            self._builder = InputBatchBuilder(config, self._device, model.vocab_size, windows)
            self._attention: AttentionBackend = attention_backend(config)(config, model, self._device)
            tables = self._builder.block_tables
            self._proposer = make_proposer(config, self._device, self._model, self._draft, tables, self._sampler)
        self._graphs = GraphManager(config, self._model, self._attention, self._device)
        self._ring = PinnedRing(self._device, read_in_place=config.staged_writes == "in_place")
        # The host's own counts: upper bounds, as if every scheduled token counted.
        self._computed: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._prefill_len: dict[str, int] = {}
        self._num_blocks: dict[str, list[int]] = {}
        # Drafts among both that no output has confirmed or rejected yet; they count as accepted until then.
        self._unverified: dict[str, int] = {}
        self._holders = BlockHolders()
        self._upkeep = BlockUpkeep(config, (self._attention, *(self._proposer.caches if self._proposer else ())))
        self._gate = StepGate()

    @property
    def _draft_config(self) -> LlamaConfig | None:
        return self._draft.config if self._draft is not None else None

    def _grammar_stage(self, config: RunnerConfig, vocab_size: int) -> GrammarStage | NoGrammars:
        if self._compiler is None:
            return NoGrammars()
        return GrammarStage(config, self._device, self._compiler, vocab_size)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Phase capture: load every kernel, then record the graphs. Neither changes the state of a request.

        The first use of a kernel that is not loaded waits for the whole device. On the CPU nothing waits anyway. Nor
        does the host wait for the trial batch: nobody reads what it computes, and the main stream orders the rest.
        """
        if self._device.asynchronous:
            with fresh_memory(self.config.poison):
                self._run_padding(largest_shape(self.config))
                self._graphs.capture(self._builder, self._pad)
                if self._proposer is not None:
                    self._proposer.capture(self._pad(BatchShape(1, 1)), self._states)

    @torch.inference_mode()
    def _run_padding(self, shape: BatchShape) -> None:
        """A step of nobody: every kernel is launched, those that would change a request's state over no program."""
        batch = self._pad(shape)
        hidden = self._forward(batch, None)
        self._model.compute_logits(hidden[: self.config.prompt_logprobs_chunk])  # often more than those of all draws
        logits = self._model.compute_logits(hidden[: self.config.max_logits])
        self._grammar.warm_up(logits, self._states)
        sampled = self._sampler.warm_up(logits, batch, self._states)
        self._states.warm_up()
        self._builder.block_tables.warm_up()
        self._upkeep.warm_up(batch.rows)
        self._advance(batch, sampled)
        if self._proposer is not None:
            self._proposer.warm_up(batch, hidden, self._states)

    def _pad(self, shape: BatchShape) -> InputBatch:
        """A batch of that shape without a request: no lane has a slot, and every request the null block."""
        upload = PackedUpload()
        layout = self._builder.plan(gather((), Step(), {}, {}, {}, {}), upload, shape)
        upload.send_and_wait(self._device)
        return self._builder.build(layout, self._states, upload)

    @torch.inference_mode()
    def execute(self, step: Step) -> Handle:
        """Enqueue one step; see :class:`mrv2.refrunner.api.Runner`."""
        with self._gate.turn():
            self.batch = None
            with phase(Phase.STATE_UPDATE):
                step = self._checked(step)
            poisoned = fresh_memory(self.config.poison)
            with self._device.on_main_stream(), poisoned, self._gate.last_if_it_breaks_off():
                return self._enqueue(step)

    def check_request(self, request: NewRequest) -> NewRequest:
        """Whether some step could bring this request; nothing changes.

        Returns:
            the request in plain Python values.

        Raises:
            StepError: what any step would be refused for that has it in ``Step.new``.
        """
        request = self._checker.check_request(request)
        self._grammar.check_request(request)
        return request

    def invariants(self) -> list[InvariantViolation]:
        """Check the bookkeeping against the device; synchronises."""
        self._device.synchronize()
        moved = [InvariantViolation("graph-address", detail) for detail in self._moved()]
        tables = self._builder.block_tables
        counts = HostCounts(self._computed, self._total, self._unverified)
        return moved + check_invariants(self._states, tables, counts, self.batch)

    @property
    def graphs(self) -> GraphManager:
        """The captured forward passes."""
        return self._graphs

    def _moved(self) -> list[str]:
        return [*self._graphs.moved(), *(self._proposer.moved() if self._proposer is not None else ())]

    def close(self) -> None:
        """Wait for outstanding work and refuse further steps; the memory goes with the last reference."""
        self._gate.close()
        self._device.synchronize()

    def _enqueue(self, step: Step) -> Handle:
        with phase(Phase.STATE_UPDATE):
            self._change_requests(step)
            names = self._attention.order(step.scheduled)
            scheduled = gather(names, step, self._states.row_of, self._computed, self._total, self._prefill_len)
        with phase(Phase.STAGING):
            needs = BatchNeeds(scheduled.num_tokens, len(names), bool(scheduled.decodes.all()))
            graph = self._graphs.find(needs)
            upload, writes, layout = self._stage(scheduled, graph)
        with phase(Phase.INPUT_PREP):
            self._scatter(upload, writes)
            if layout is None:
                return EmptyOutput()
            self.batch = self._builder.build(layout, self._states, upload)
        with phase(Phase.FORWARD):
            hidden = self._forward(self.batch, graph)
        with phase(Phase.STAGING):
            self._grammar.upload(self.batch, scheduled.draws, step.draft_tokens)
        sampled = self._sample(self.batch, hidden)
        with phase(Phase.SAMPLER):
            prompts = self._prompt_logprobs.advance(self.batch, hidden, self._model.compute_logits, self._states)
        with phase(Phase.DOWNLOAD):
            output = self._download(scheduled, self.batch, sampled, prompts)
        with phase(Phase.STATE_UPDATE):
            self._post_update(scheduled, self.batch, sampled)
        if self._proposer is not None and sampled.num_emitted is not None:
            with phase(Phase.DRAFTING):
                self._proposer.propose(self.batch, sampled.num_emitted, hidden, self._states, upload)
            if isinstance(output, AsyncOutput):
                with phase(Phase.DOWNLOAD):
                    self._grammar.download_drafts(output, self.batch, self._states)
        return output

    def _stage(
        self, scheduled: Scheduled, graph: Candidate | None
    ) -> tuple[PackedUpload, PackedUpload, BatchLayout | None]:
        """Everything that the step needs of the host, on its way to the device.

        Returns:
            the upload; the staged writes of the tables, the same one unless kernels read them in place; the batch, None
            if the step schedules no token.
        """
        upload = PackedUpload()
        writes = PackedUpload(in_place=True) if self.config.staged_writes == "in_place" else upload
        self._states.pack(writes)
        self._sampler.pack(upload)
        self._builder.block_tables.pack(writes)
        self._upkeep.pack(upload)
        shape = graph.shape(len(scheduled.rows)) if graph else None
        layout = self._builder.plan(scheduled, upload, shape) if scheduled.request_ids else None
        if self._proposer is not None and layout is not None:
            lanes = np.where(scheduled.decodes, DECODE_LANES, scheduled.counts + scheduled.draws)
            self._proposer.plan(lanes.tolist(), scheduled.rows, upload)
        for part in dict.fromkeys((upload, writes)):
            part.send(self._ring)
        return upload, writes, layout

    def _scatter(self, upload: PackedUpload, writes: PackedUpload) -> None:
        """Bring what was staged to its tables."""
        self._states.apply(writes)
        self._builder.block_tables.apply(writes)
        writes.end()
        self._upkeep.apply(upload)
        self._sampler.apply(upload, self._states)

    def _checked(self, step: Step) -> Step:
        step = self._checker.check(
            step, self._computed, self._total, self._num_blocks, self._holders.of_block, self._unverified
        )
        self._grammar.check(step, self._computed, self._total)
        return step

    def _change_requests(self, step: Step) -> None:
        """Free the rows of requests that leave or are replaced, then give rows and blocks to those that come."""
        for request_id, (drafts, rejected) in step.verified.items():
            self._unverified[request_id] -= drafts
            self._computed[request_id] -= rejected
            self._total[request_id] -= rejected
            self._drop_below_window(request_id)
        replaced = [request.request_id for request in step.new if request.request_id in self._states.row_of]
        left = [self._remove(name) for name in dict.fromkeys((*step.finished, *step.preempted, *replaced))]
        self._grammar.change(step)
        for request in step.new:
            row = self._states.add(request)
            self._sampler.add(row, request)
            if self._proposer is not None:
                self._proposer.add(row)
            self._prompt_logprobs.add(row, request)
            self._computed[request.request_id] = request.num_computed_tokens
            self._total[request.request_id] = self._prefill_len[request.request_id] = len(request.token_ids)
            self._unverified[request.request_id] = 0
            self._num_blocks[request.request_id] = [0] * self._builder.block_tables.num_groups
        for request_id, groups in step.new_blocks.items():
            self._append(request_id, groups)
        self._upkeep.freed(block for block in chain(*left) if block not in self._holders.of_block)
        self._upkeep.copied(step.block_copies)

    def _remove(self, request_id: str) -> list[int]:
        """Forget a request; returns the blocks that nobody holds any more."""
        row = self._states.remove(request_id)
        self._sampler.remove(row)
        self._prompt_logprobs.remove(row)
        blocks = self._builder.block_tables.clear(row)
        del self._computed[request_id], self._total[request_id], self._prefill_len[request_id]
        del self._unverified[request_id], self._num_blocks[request_id]
        if self.config.poison:
            self._states.poison(row)
        return self._holders.remove(request_id, blocks)

    def _append(self, request_id: str, groups: tuple[tuple[int, ...], ...]) -> None:
        held = self._num_blocks[request_id]
        self._builder.block_tables.append(self._states.row_of[request_id], groups)
        self._num_blocks[request_id] = [*map(add, held, map(len, groups))]
        self._holders.add(request_id, chain(*groups))
        if self._upkeep.fills_new:
            # What holds a computed token, be it shared, copied or kept from before a replacement, stays as it is.
            computed, size = self._computed[request_id], self.config.block_size
            self._upkeep.given(block for block, place in places_of(groups, held) if place * size >= computed)

    def _forward(self, batch: InputBatch, graph: Candidate | None) -> Tensor:
        """Hidden states [padded T, hidden]."""
        self._attention.begin(batch)
        if graph is not None:
            return self._graphs.captured[graph].replay(self._attention.forward)
        return self._model.forward(batch.input_ids, batch.positions, self._attention.forward)

    def _sample(self, batch: InputBatch, hidden: Tensor) -> SamplerOutput:
        """Draw for each request from the logits of its last lane, and of those of its drafts."""
        with phase(Phase.FORWARD):
            logits = self._model.compute_logits(batch.sampled_states(hidden))
        with phase(Phase.SAMPLER):
            self._grammar.apply(logits)
            return self._sampler.sample(logits, batch, self._states)

    def _download(
        self,
        scheduled: Scheduled,
        batch: InputBatch,
        sampled: SamplerOutput,
        prompts: tuple[PromptReport, ...],
    ) -> AsyncOutput | EmptyOutput:
        """Enqueue the download; only draws of requests whose known tokens are all computed now count."""
        if not scheduled.draws.any():
            return EmptyOutput()
        return AsyncOutput(self._device, batch, scheduled.draws, sampled, prompts)

    def _post_update(self, scheduled: Scheduled, batch: InputBatch, sampled: SamplerOutput) -> None:
        """Advance the state on the device, and the host's own counts."""
        self._advance(batch, sampled)
        self._computed.update(scheduled.computed_after())
        for request_id, drawn in scheduled.drawn():
            self._total[request_id] += drawn
        for request_id, drafts in scheduled.drafted():
            self._unverified[request_id] += drafts
        if self._has_windows:
            for request_id in scheduled.request_ids:
                self._drop_below_window(request_id)

    def _advance(self, batch: InputBatch, sampled: SamplerOutput) -> None:
        """Enqueue the update of the rows in the batch by what was computed and drawn."""
        states = self._states
        self._sampler.post_update(batch, sampled, states)
        if sampled.num_emitted is not None:
            self._advance_verified(batch, sampled.num_emitted, sampled.token_ids)
            return
        post_update[(batch.num_requests,)](
            batch.rows, batch.query_start_loc, sampled.token_ids, states.num_computed, states.total_len,
            states.last_sampled, states.token_ids, states.token_ids.stride(0), self.config.max_model_len,
        )  # fmt: skip

    def _advance_verified(self, batch: InputBatch, num_emitted: Tensor, tokens: Tensor) -> None:
        """The same where requests get several tokens."""
        states = self._states
        post_update_verified[(batch.num_requests,)](
            batch.rows, batch.query_start_loc, batch.logit_bounds, tokens, num_emitted,
            states.num_computed, states.total_len, states.last_sampled, states.num_drafts,
            states.token_ids, states.token_ids.stride(0), self.config.max_model_len,
        )  # fmt: skip

    def _drop_below_window(self, request_id: str) -> None:
        """Let go of blocks that have left a sliding window; the scheduler may give them out in the next step.

        Only what is certainly computed counts: a rejected draft moves the window back.
        """
        row, certain = self._states.row_of[request_id], self._computed[request_id] - self._unverified[request_id]
        dropped = self._builder.block_tables.drop_below_window(row, certain)
        self._upkeep.freed(self._holders.remove(request_id, dropped))


def check_context(config: RunnerConfig, model: LlamaConfig) -> None:
    """Refuse sequences that could become longer than the model's context.

    Raises:
        ConfigurationError: they could.
    """
    context = model.max_position_embeddings
    if config.max_model_len > context:
        raise ConfigurationError(
            f"RunnerConfig.max_model_len={config.max_model_len}",
            f"the model was made for {context} positions",
            "beyond them its rotary angles were never trained, and it would answer nonsense without an error",
            f"max_model_len={context} or less",
        )


def _check_grammars(config: RunnerConfig, model: LlamaConfig, grammars: GrammarCompiler | None) -> None:
    compiled_for = None if grammars is None else grammars.vocab_size
    if compiled_for != (model.vocab_size if config.grammars else None):
        raise ConfigurationError(
            f"RunnerConfig.grammars={config.grammars!r} with a GrammarCompiler for "
            f"{'no vocabulary' if compiled_for is None else f'{compiled_for} tokens'}",
            f"with grammars a runner is given a compiler for the model's {model.vocab_size} tokens, without them none",
            "a mask has a bit for each of the model's logits, and one for another vocabulary would forbid other tokens",
            "GrammarCompiler(tokenizer.vocabulary(), model.vocab_size), or grammars=False and no compiler",
        )
