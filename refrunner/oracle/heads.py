"""An EAGLE-style head as its formulas, and what its cache holds in the course of a run.

A token enters the head as its embedding joined with the state before it (Li et al. 2024, "EAGLE"). Which state that was
follows from no sequence: the target's for what a step computed for good, the head's own for a draft, none before the
first token that a request computes. Keys of accepted drafts stay as they were, and others may share them. So a run is
followed step by step, slot by slot, with the rule of ``speculation/README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..api import Step
from ..errors import StepError
from .llama import LlamaOracle, LlamaShape, checked_weight, weight_shapes
from .rounding import SAFETY, Float32Twins

#: Lanes of a request that decodes in the first pass behind a step: its two newest tokens.
DECODE_LANES = 2
_OUTPUT, _EMBEDDING, _FUSE, _BIAS = "lm_head.weight", "model.embed_tokens.weight", "fc.weight", "fc.bias"
#: What a head may do without.
_OPTIONAL = (_BIAS, "model.layers.0.input_layernorm.weight", "model.norm.weight")


@dataclass(frozen=True)
class Context:
    """What a head has kept of n tokens: keys, with their rotation, and values, [layers, n, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor

    def and_more(self, other: Context) -> Context:
        """With those of the tokens behind."""
        return Context(torch.cat((self.keys, other.keys), dim=1), torch.cat((self.values, other.values), dim=1))


class HeadOracle(LlamaOracle):
    """A head with all that it computes with; see ``LlamaOracle`` for what its layers do.

    Args:
        config: of its layers.
        tensors: of the head, with ``fc.weight`` [H, 2 H]; ``fc.bias``, the norm before the first layer and the one
            behind the last may be missing; embedding and output projection may not, see :meth:`of`.
        dtype: of every weight and operation.

    Raises:
        CheckpointError: a weight is missing or has another shape.
    """

    def __init__(self, config: LlamaShape, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> None:
        self.config, self.dtype = config, dtype
        width = config.hidden_size
        shapes = {**weight_shapes(config), _OUTPUT: (config.vocab_size, width)}
        shapes |= {_FUSE: (width, 2 * width), _BIAS: (width,)}
        self.weights = {
            name: checked_weight(name, shape, tensors).detach().to(dtype)
            for name, shape in shapes.items()
            if name in tensors or name not in _OPTIONAL
        }

    @classmethod
    def of(cls, target: LlamaOracle, config: LlamaShape, tensors: Mapping[str, Tensor]) -> HeadOracle:
        """A head that takes from the target what it has not: embedding and output projection."""
        output = target.weights.get(_OUTPUT, target.weights[_EMBEDDING])
        return cls(config, {_EMBEDDING: target.weights[_EMBEDDING], _OUTPUT: output, **tensors}, target.dtype)

    @torch.no_grad()
    def extend(self, context: Context, token_ids: Sequence[int], before: Tensor) -> tuple[Context, Tensor]:
        """Compute tokens behind others.

        Args:
            context: of all tokens before.
            token_ids: m of them.
            before: [m, H], the state before each.

        Returns:
            what is kept of them, and their states [m, H].
        """
        start, end = context.keys.shape[1], context.keys.shape[1] + len(token_ids)
        angles, hidden_keys = self.angles(self.positions(end))[start:], self.mask(end)[start:]
        stream = self._linear("fc", torch.cat((self.embed(token_ids), before), dim=1))
        stream = stream + self.weights[_BIAS] if _BIAS in self.weights else stream
        keys, values = [], []
        for index in range(self.config.num_layers):
            prefix = f"model.layers.{index}"
            normed = self._norm(f"{prefix}.input_layernorm", stream)
            query = self.rotate(self._heads(f"{prefix}.self_attn.q_proj", normed), angles)
            keys.append(self.rotate(self._heads(f"{prefix}.self_attn.k_proj", normed), angles))
            values.append(self._heads(f"{prefix}.self_attn.v_proj", normed))
            key, value = torch.cat((context.keys[index], keys[-1])), torch.cat((context.values[index], values[-1]))
            stream = stream + self._linear(f"{prefix}.self_attn.o_proj", self.mix(query, key, value, hidden_keys))
            stream = stream + self._mlp(prefix, self._norm(f"{prefix}.post_attention_layernorm", stream))
        return Context(torch.stack(keys), torch.stack(values)), self._norm("model.norm", stream)

    def expected(self, state: Tensor) -> Tensor:
        """Logits [V] of the token that follows a state [H]."""
        return self._linear("lm_head", state)

    def empty(self) -> Context:
        """What is kept of no token."""
        nothing = torch.zeros(
            self.config.num_layers, 0, self.config.num_kv_heads, self.config.head_dim, dtype=self.dtype
        )
        return Context(nothing, nothing)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return super()._norm(name, x) if f"{name}.weight" in self.weights else x


@dataclass(frozen=True)
class Run:
    """What a runner was told, and what came of it.

    Attributes:
        steps: in the order of their execution.
        emitted: tokens that a step gave a request, by number of the step and name; none where nobody took them, because
            the request had left before they arrived.
        block_size: tokens of a KV block.
    """

    steps: Sequence[Step]
    emitted: Mapping[tuple[int, str], tuple[int, ...]]
    block_size: int


@dataclass(frozen=True)
class Moment:
    """Where the drafts of a request begin: what is kept of its tokens, and the head's state [H] of the newest."""

    context: Context
    state: Tensor


@dataclass
class _Life:
    """A request between its entry and its leaving.

    Attributes:
        tokens: that the device knows.
        computed: how many of them the target has computed.
        hidden: [L, H], the target's states of its whole sequence, later tokens included.
        prefill_len: tokens with which it entered.
        blocks: of the target's first KV group.
        entered: whether a step has computed any of it.
        state: [H], the head's of the newest token, if it draws.
        over: nobody took what a step gave it, so nobody knows its tokens, nor shares their keys, from there on.
    """

    tokens: list[int]
    computed: int
    hidden: Tensor
    prefill_len: int
    blocks: list[int] = field(default_factory=list)
    entered: bool = False
    state: Tensor | None = None
    over: bool = False


class HeadRun:
    """Follows a run, and keeps where the drafts of each step begin.

    Args:
        target: the model that verifies.
        head: on its states; in the same dtype, with its hidden columns in the same order.
        run: all of it.

    Attributes:
        moments: by request, and by how many tokens it had when its drafts were verified.
    """

    def __init__(self, target: LlamaOracle, head: HeadOracle, run: Run) -> None:
        self._target, self._head, self._run = target, head, run
        self._blocks: dict[int, Context] = {}
        self._lives: dict[str, _Life] = {}
        self._hidden: dict[str, Tensor] = {}
        self.moments: dict[tuple[str, int], Moment] = {}
        for number, step in enumerate(run.steps):
            self._follow(number, step)

    def _follow(self, number: int, step: Step) -> None:
        for name in (*step.finished, *step.preempted):
            self._lives.pop(name, None)
        for request in step.new:
            tokens = list(request.token_ids)
            hidden = self._states(request.request_id, tokens)
            self._lives[request.request_id] = _Life(tokens, request.num_computed_tokens, hidden, len(tokens))
        for name, groups in step.new_blocks.items():
            self._lives[name].blocks.extend(groups[0])
        copied = {target: self._block(source) for source, target in step.block_copies}
        self._blocks |= {target: Context(block.keys.clone(), block.values.clone()) for target, block in copied.items()}
        for name, count in step.scheduled.items():
            if not self._lives[name].over:
                self._compute(number, name, count, step.drafts.get(name, 0))

    def _states(self, name: str, tokens: Sequence[int]) -> Tensor:
        """The target's states of all tokens that a request ever gets; one that comes back brings some of them."""
        if name not in self._hidden:
            of_steps = sorted(key for key in self._run.emitted if key[1] == name)
            behind = [token for key in of_steps for token in self._run.emitted[key]]
            self._hidden[name] = self._target.forward([*tokens, *behind]).hidden[-1]
        return self._hidden[name]

    def _compute(self, number: int, name: str, count: int, drafts: int) -> None:
        """The tokens of a request in a step, and the first pass of the head behind it."""
        life = self._lives[name]
        draws, decodes = life.computed + count - drafts == len(life.tokens), life.computed >= life.prefill_len
        emitted = self._run.emitted.get((number, name), ()) if draws else ()
        if draws and not emitted:
            life.over = True
            if decodes:
                return  # the one known token that it computes has its keys already
        if drafts and life.state is not None:
            self._keep_accepted(name, life, emitted[:-1])
        first, accepted = life.computed, max(len(emitted) - 1, 0)
        life.tokens += emitted
        life.computed += count - drafts + accepted
        end = len(life.tokens) if draws else life.computed
        lanes = DECODE_LANES if decodes else count + len(emitted)
        known = [life.hidden[place - 1] if place > first or life.entered else None for place in range(end - lanes, end)]
        none = torch.zeros(self._target.config.hidden_size, dtype=self._target.dtype)
        before = torch.stack([none if state is None else state for state in known])
        context = self._context(life, end - lanes)
        kept, states = self._head.extend(context, life.tokens[end - lanes : end], before)
        self._write(life, end - lanes, kept)
        life.state, life.entered = states[-1] if draws else None, True

    def _keep_accepted(self, name: str, life: _Life, accepted: Sequence[int]) -> None:
        """Keys of drafts that the next pass does not compute again: all that were accepted but the last."""
        assert life.state is not None, "the caller looked"
        moment = Moment(self._context(life, len(life.tokens)), life.state)
        self.moments[name, len(life.tokens)] = moment
        if len(accepted) > 1:
            drafted, _ = drafts_behind(self._head, moment, accepted[:-1])
            self._write(life, len(life.tokens), drafted)

    def _block(self, block: int) -> Context:
        """Of all slots of a block; what nobody has written is no number."""
        if block not in self._blocks:
            config, size = self._head.config, self._run.block_size
            shape = (config.num_layers, size, config.num_kv_heads, config.head_dim)
            keys, values = (torch.full(shape, torch.nan, dtype=self._head.dtype) for _ in range(2))
            self._blocks[block] = Context(keys, values)
        return self._blocks[block]

    def _context(self, life: _Life, length: int) -> Context:
        """Of the first so many tokens, as the slots hold it now."""
        held = [self._block(block) for block in life.blocks[: -(-length // self._run.block_size)]]
        if not held:
            return self._head.empty()
        keys, values = (torch.cat([getattr(block, part) for block in held], dim=1) for part in ("keys", "values"))
        _check_written(keys[:, :length], life)
        return Context(keys[:, :length], values[:, :length])

    def _write(self, life: _Life, start: int, kept: Context) -> None:
        """Put what is kept of tokens from a position on into their slots; one without a block keeps nothing."""
        size = self._run.block_size
        for lane in range(kept.keys.shape[1]):
            place, slot = divmod(start + lane, size)
            if place < len(life.blocks):
                block = self._block(life.blocks[place])
                block.keys[:, slot], block.values[:, slot] = kept.keys[:, lane], kept.values[:, lane]


def _check_written(keys: Tensor, life: _Life) -> None:
    """Refuse to go on from what nobody has computed: no number is near to all of them, and would excuse what came."""
    missing = keys.isnan().flatten(2).any(dim=2).any(dim=0).nonzero().flatten().tolist()
    if missing:
        raise StepError(
            f"position {missing[0]} of a request that entered with {life.prefill_len} tokens",
            "its block holds no keys that a step has computed",
            "what a head expects follows from them",
            "Step.new whose num_computed_tokens are those of earlier steps, and a trace with all steps",
        )


def drafts_behind(head: HeadOracle, moment: Moment, drafts: Sequence[int]) -> tuple[Context, Tensor]:
    """What is kept of drafts, each computed with the head's state before it, and the state [H] of the last token."""
    kept, state = head.empty(), moment.state
    for token in drafts:
        more, states = head.extend(moment.context.and_more(kept), [token], state[None])
        kept, state = kept.and_more(more), states[-1]
    return kept, state


class HeadDrafts:
    """What the drafts of a run were drawn from; see ``speculation.Drafts``.

    Args:
        target: the model that verifies, with its float32 twins.
        head: on its states, likewise.
        run: all of it.
    """

    def __init__(self, target: Float32Twins, head: Float32Twins, run: Run) -> None:
        self._target, self._head, self._run = target, head, run

    def logits(self, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
        """See ``speculation.Drafts``."""
        return _logits(*self._exact, request_id, tokens, drafts)

    def bound(self, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> float:
        """See ``speculation.Drafts``; the whole run is followed in float32."""
        errors = [
            (_logits(*twin, request_id, tokens, drafts[:offset]) - self.logits(request_id, tokens, drafts[:offset]))
            for twin in self._in_float32
            for offset in range(len(drafts))
        ]
        return SAFETY * max((float(error.abs().max()) for error in errors), default=0.0)

    @cached_property
    def _exact(self) -> tuple[HeadOracle, HeadRun]:
        return _followed(self._target.model, self._head.model, self._run)

    @cached_property
    def _in_float32(self) -> list[tuple[HeadOracle, HeadRun]]:
        """Once as they are, and once with the hidden columns of both models in another order."""
        pairs = zip(self._target.twins, self._head.twins, strict=True)
        return [_followed(target, head, self._run) for target, head in pairs]


def _followed(target: LlamaOracle, head: LlamaOracle, run: Run) -> tuple[HeadOracle, HeadRun]:
    assert isinstance(head, HeadOracle), "twins are of their model's class"
    return head, HeadRun(target, head, run)


def _logits(head: HeadOracle, run: HeadRun, request_id: str, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
    _, state = drafts_behind(head, run.moments[request_id, len(tokens)], drafts)
    return head.expected(state)
