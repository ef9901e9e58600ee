"""A request as its scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .api import LogitsFault, SamplingParams, StepOutput, TokenLogprobs
from .kv_cache_manager import RequestBlocks


@dataclass(eq=False, slots=True)
class TrackedRequest:
    """A request as the scheduler sees it; equal to itself alone, or a search among hundreds would compare their fields.

    Attributes:
        request_id: its name.
        prompt_len: tokens of the prompt.
        longest: tokens, those of the prompt included, at which it is complete if nothing ends it before.
        sampling: its parameters.
        token_ids: prompt and the tokens that have arrived.
        turn: its place in the order of service, smaller first: priority, then arrival.
        blocks: KV blocks held.
        logprobs: one per arrived token.
        top_logprobs: one per arrived token, if the parameters ask for them.
        prompt_logprobs: one per token of the prompt, likewise; None until the first token has arrived.
        faults: by index of the token drawn from faulty logits.
        num_computed: tokens computed by all steps scheduled so far, as if every draft were accepted.
        in_flight: tokens of scheduled draws that have not arrived and were not dropped, likewise.
        unverified: drafts among them.
        num_certain_told: ``num_certain`` as the runner knows it, which gives up blocks by it; outcomes that arrived
            since the last step are not in it.
        prefill_len: tokens with which it got its row; nobody has proposed drafts before they are computed.
        lives: how often it has lost its row; what was scheduled in an earlier life is dropped when it arrives.
        is_running: whether it has a row.
        was_preempted: whether it has lost its row before.
        num_told: leading tokens whose values the runner has.
        proposed: drafts behind ``token_ids``, with a grammar; those of other requests are known to the device alone.
        finish_reason: once it is over, ``"stop"``, ``"length"``, ``"abort"``, or ``"error"`` if its grammar left
            nothing to draw.
    """

    request_id: str
    prompt_len: int
    longest: int
    sampling: SamplingParams
    token_ids: list[int]
    turn: tuple[int, int]
    blocks: RequestBlocks
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    faults: dict[int, LogitsFault] = field(default_factory=dict)
    num_computed: int = 0
    in_flight: int = 0
    unverified: int = 0
    num_certain_told: int = 0
    prefill_len: int = 0
    lives: int = 0
    is_running: bool = False
    was_preempted: bool = False
    num_told: int = 0
    proposed: tuple[int, ...] = ()
    finish_reason: str | None = None

    @property
    def num_certain(self) -> int:
        """Tokens that are computed whatever becomes of the drafts."""
        return self.num_computed - self.unverified

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """Generated tokens that have arrived."""
        return tuple(self.token_ids[self.prompt_len :])

    def take(self, output: StepOutput) -> bool:
        """Add what a step has drawn for this request, up to a stop token.

        Returns:
            False if its grammar left nothing to draw from: what was drawn then is no token of its text.
        """
        name, tokens = self.request_id, output.token_ids[self.request_id]
        count, faults = len(tokens), output.faults.get(name, ())
        if self.sampling.stop_token_ids:
            stops = (index for index, token in enumerate(tokens) if token in self.sampling.stop_token_ids)
            count = next(stops, count - 1) + 1
        stuck = False
        if faults and self.sampling.grammar is not None:
            ends = next((fault.index for fault in faults if fault.exhausted), count)
            stuck, count = ends < count, min(ends, count)
        first = len(self.token_ids) - self.prompt_len
        self.faults.update((first + fault.index, fault) for fault in faults if fault.index < count)
        self.token_ids.extend(tokens[:count])
        self.logprobs.extend(output.logprobs[name][:count])
        if output.top_logprobs:
            self.top_logprobs.extend(output.top_logprobs.get(name, ())[:count])
        if output.prompt_logprobs:
            self.prompt_logprobs = output.prompt_logprobs.get(name, self.prompt_logprobs)
        return not stuck
