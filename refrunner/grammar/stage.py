"""Grammars in the runner: who is where in which grammar, and the masks of a step."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import compress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..api import NewRequest, Step
from ..async_output import AsyncOutput
from ..config import RunnerConfig
from ..device import Device
from ..errors import RequestError, StepError
from ..input_batch import InputBatch
from ..kernels.token_mask import list_drafts
from ..request_states import RequestStates
from ..sampling.blocks import power_of_two
from ..sampling.tables import mask_words
from .compiler import GrammarCompiler, Matcher
from .masks import TokenMasks

logger = logging.getLogger(__name__)


class GrammarStage:
    """The first stage of the sampler.

    Within a step: ``check`` before the first change; ``change``; ``upload`` once the forward pass is enqueued, so that
    the host makes masks while the device computes; ``apply`` on the logits.
    """

    def __init__(self, config: RunnerConfig, device: Device, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._words = mask_words(vocab_size)
        self._device, self._most_drafts = device, config.drafts
        self._masks = TokenMasks(device, config.max_logits, vocab_size)
        self._matchers: dict[str, Matcher] = {}
        self._prompt_len: dict[str, int] = {}
        self._entering: dict[str, Matcher] = {}

    def check(self, step: Step, computed: Mapping[str, int], total: Mapping[str, int]) -> None:
        """Raise if a request's grammar and its tokens do not fit together; compiles what is new.

        Args:
            step: checked otherwise.
            computed: tokens computed so far of every live request, rejected drafts of ``step.verified`` included.
            total: tokens drawn or given so far of every live request, likewise.

        Raises:
            StepError: names the request and the rule.
        """
        self._entering = {request.request_id: matcher for request in step.new if (matcher := self._enter(request))}
        entering = {request.request_id for request in step.new}
        staying = self._matchers.keys() - entering - {*step.finished, *step.preempted}
        for name, tokens in step.arrived.items():
            if name not in staying:
                raise _no_grammar(name)
            _require_fit(name, self._matchers[name], tokens)
        self._check_drafts(step)
        for name, count in step.scheduled.items():
            if name in staying and computed[name] + count >= total[name]:
                known = self._prompt_len[name] + self._matchers[name].num_tokens + len(step.arrived.get(name, ()))
                _require_known(name, known, total[name] - step.verified.get(name, (0, 0))[1])

    def check_request(self, request: NewRequest) -> None:
        """Raise if a request's grammar cannot be read, or does not allow what it has generated before.

        Raises:
            StepError: names the rule.
        """
        self._enter(request)

    def change(self, step: Step) -> None:
        """Take the requests that enter, forget those that leave, and move on by the tokens that have arrived."""
        for name in (*step.finished, *step.preempted, *(request.request_id for request in step.new)):
            self._matchers.pop(name, None)
            self._prompt_len.pop(name, None)
        self._matchers.update(self._entering)
        self._prompt_len.update({request.request_id: request.prompt_len for request in step.new})
        self._entering = {}
        for name, tokens in step.arrived.items():
            self._matchers[name].advance(tokens)

    def upload(self, batch: InputBatch, draws: NDArray[np.bool_], drafts: Mapping[str, Sequence[int]]) -> None:
        """Make the masks of a step and enqueue their upload.

        Args:
            batch: of the step; only what the host knows of it.
            draws: bool [N], requests whose draws count.
            drafts: tokens that requests with a grammar verify in this step.
        """
        firsts = zip(batch.request_ids, batch.host_logit_bounds.tolist(), strict=False)
        drawing = compress(firsts, draws)
        mine = [(name, row, drafts.get(name, ())) for name, row in drawing if name in self._matchers]
        places = [row + offset for _, row, tokens in mine for offset in range(1 + len(tokens))]
        masks = np.zeros((len(places), self._words), dtype=np.uint32)
        first = 0
        for name, _, tokens in mine:
            error = self._matchers[name].write_masks(tokens, masks[first : first + 1 + len(tokens)])
            first += 1 + len(tokens)
            if error:
                logger.warning("request %r: the grammar library gave up: %s", name, error)
        self._masks.upload(places, masks)

    def download_drafts(self, output: AsyncOutput, batch: InputBatch, states: RequestStates) -> None:
        """Let the output bring the proposals for requests with a grammar: the host makes masks for them.

        Args:
            output: of the step that has just been enqueued.
            batch: its inputs.
            states: the state table behind it.
        """
        mine = [index for index, name in enumerate(batch.request_ids) if name in self._matchers]
        if not mine:
            return
        drafts = self._list_drafts(batch.rows, states)
        output.add_drafts(self._device, {batch.request_ids[index]: index for index in mine}, drafts)

    def _list_drafts(self, rows: Tensor, states: RequestStates) -> Tensor:
        """Proposals by request: int32 [N, K]; -1 behind the last one."""
        most = self._most_drafts
        drafts = torch.empty(len(rows), most, dtype=torch.int32, device=rows.device)
        list_drafts[(len(rows),)](
            rows, states.total_len, states.num_drafts, states.token_ids, states.token_ids.stride(0), drafts, most,
            DRAFTS=power_of_two(most),
        )  # fmt: skip
        return drafts

    def apply(self, logits: Tensor) -> None:
        """Forbid tokens; see :meth:`TokenMasks.apply`."""
        self._masks.apply(logits)

    def warm_up(self, logits: Tensor, states: RequestStates) -> None:
        """Load the kernels; nothing changes."""
        self._masks.warm_up(logits)
        if self._most_drafts:
            self._list_drafts(torch.empty(0, dtype=torch.int32, device=logits.device), states)

    def _check_drafts(self, step: Step) -> None:
        for name in {*step.draft_tokens, *(self._matchers.keys() & step.drafts.keys())}:
            told = step.draft_tokens.get(name, ())
            if name not in self._matchers or len(told) != step.drafts.get(name, 0):
                raise StepError(
                    f"{step.drafts.get(name, 0)} drafts of request {name!r}, Step.draft_tokens[{name!r}]={told!r}",
                    "of a request with a grammar the runner is told each draft, and of others none",
                    "behind each draft stands a mask of its own, made on the host",
                    "the drafts of the request's last output, as many of them as are scheduled",
                )

    def _enter(self, request: NewRequest) -> Matcher | None:
        """A matcher behind everything that the request has generated before."""
        try:
            matcher = self._compiler.compile(request.sampling)
        except RequestError as error:
            subject = f"new request {request.request_id!r}, {error.subject}"
            raise StepError(subject, error.rule, error.reason, error.remedy) from error
        if matcher is not None:
            output = request.token_ids[request.prompt_len :]
            _require_fit(request.request_id, matcher, output)
            matcher.advance(output)
        return matcher


class NoGrammars:
    """Stands in the stage's place in a runner that was made without: refuses grammars, and does nothing."""

    def check(self, step: Step, computed: Mapping[str, int], total: Mapping[str, int]) -> None:
        """Raise if a request has a grammar.

        Raises:
            StepError: one has.
        """
        for request in step.new:
            self.check_request(request)
        for name in (*step.arrived, *step.draft_tokens):
            raise _no_grammar(name)

    def check_request(self, request: NewRequest) -> None:
        """Raise if the request has a grammar.

        Raises:
            StepError: it has.
        """
        if request.sampling.grammar is not None:
            raise StepError(
                f"new request {request.request_id!r} with a grammar",
                "this runner was made without grammars",
                "memory for masks is allocated at start, and a grammar that is ignored gives text that breaks it",
                "RunnerConfig(grammars=True), or SamplingParams(grammar=None)",
            )

    def change(self, step: Step) -> None:
        """Nothing to keep."""

    def upload(self, batch: InputBatch, draws: NDArray[np.bool_], drafts: Mapping[str, Sequence[int]]) -> None:
        """Nothing to send."""

    def download_drafts(self, output: AsyncOutput, batch: InputBatch, states: RequestStates) -> None:
        """Nobody to tell."""

    def apply(self, logits: Tensor) -> None:
        """Nothing is forbidden."""

    def warm_up(self, logits: Tensor, states: RequestStates) -> None:
        """Nothing to load."""


def _require_fit(name: str, matcher: Matcher, tokens: Sequence[int]) -> None:
    fitting = matcher.fitting(tokens)
    if fitting < len(tokens):
        raise StepError(
            f"token {tokens[fitting]} of request {name!r}, output token {matcher.num_tokens + fitting}",
            "it does not continue the text that the request's grammar allows, or the text has ended before it",
            "the mask of the next token follows from the tokens before it, and there is none after a wrong one",
            "the tokens that the runner drew for this request, in order; one that drew a stop token is finished",
        )


def _require_known(name: str, known: int, total: int) -> None:
    if known != total:
        raise StepError(
            f"a draw of request {name!r}, of whose {total} tokens the runner was told {known}",
            "a request with a grammar draws only when every token before is known on the host",
            "its mask is made there, from those tokens",
            "the tokens in Step.arrived, once the output that brings them was taken",
        )


def _no_grammar(name: str) -> StepError:
    return StepError(
        f"tokens of request {name!r} in Step.arrived or Step.draft_tokens",
        "only a live request with a grammar, that neither enters nor leaves in this step, is told its tokens",
        "others need none on the host, and one that enters brings its tokens itself",
        "no entry for it",
    )
