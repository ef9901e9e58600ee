"""Speculation of a whole runner, with draft model, head or n-grams, as a target of the sampler audit.

The audit compares draws with a law, so the law must be known: what the models expect may depend on the position, but
not on the tokens drawn. Their weights are made up, with all layers at work, but all tokens except the first of a prompt
have the same embedding. Hidden states then depend on the position alone, whatever was drawn, and each position has a
row of logits of its own. A draft model is the target with its output turned round: it likes least what the target likes
most.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import TINY_CONFIG, random_tensors
from mrv2.refrunner.models.weights import EMBEDDING, OUTPUT, Checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.stats.errors import ArgumentError
from mrv2.stats.speculative import SpeculationCase
from mrv2.stats.targets import SpeculativeDraws

#: Requests in one batch.
REQUESTS = 256
_BLOCK = 32
# No layer writes the first column of the residual stream, and only the first token's own logit reads it: far below all
# others, so that this token is never drawn.
_CONSTANT, _NEVER = 3.0, -200.0
_SHARE_OF_STATE = 0.3
#: Logits are made small, so that a fair share of reversed drafts is accepted; and attention sharp, so that neighbouring
#: positions differ; with this seed by 0.1 to 0.4.
_FLAT, _SHARP, _SEED = 0.35, 0.5, 4
_FUSE, _NORM = "fc.weight", "model.norm.weight"


class RunnerSpeculation:
    """A reference runner that speculates, as a :class:`mrv2.stats.targets.SpeculativeTarget` for one case.

    Every draw is a request of its own: a step with its prompt, which draws a token and proposes drafts, and a step that
    verifies them. All draws are at the same positions, and seeds tell them apart.

    Attributes:
        case: the rows of its models at those positions; the row of a draft that is no draw is certain.
        own_acceptance: drafts are no draws of one row: n-grams follow the token drawn before them, and blocks are
            accepted as a whole.

    Args:
        proposer: ``"draft"``, ``"eagle"`` or ``"ngram"``.
        verification: as in ``RunnerConfig``.
        vocab_size: V of the case; n-grams have none to find beyond 3.
        num_drafts: k.
        package: the runner's, or that of a mutated copy.
    """

    def __init__(
        self, proposer: str, verification: str, vocab_size: int, num_drafts: int, package: str = "mrv2.refrunner"
    ) -> None:
        self.name = f"refrunner with speculation={proposer!r}, verification={verification!r}"
        self.own_acceptance = proposer == "ngram" or verification == "block"
        self._vocab_size, self._drafts = vocab_size, num_drafts
        self._prompt = (vocab_size, 0, 1, 2, 0, 1, 2) if proposer == "ngram" else (vocab_size, 0)
        self._models = _Models(vocab_size)
        self._runner = self._build(proposer, verification, package)
        self._batches = 0
        self.case = self._made_case(proposer, verification)

    def speculate(
        self,
        target_logits: NDArray[np.float32],
        draft_logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> SpeculativeDraws:
        """See the protocol; rows and temperature are those of ``case``.

        Raises:
            ArgumentError: they are others.
        """
        case = self.case
        same = np.array_equal(target_logits, case.target_logits) and np.array_equal(draft_logits, case.draft_logits)
        if not same or (temperature != case.temperature).any():
            raise ArgumentError(
                f"other rows than those of {case.name!r}",
                "a runner draws from what its models expect",
                "its draws would be compared with a law that is not theirs",
                "RunnerSpeculation.case",
            )
        parts = [self._batch(seeds[start : start + REQUESTS]) for start in range(0, len(seeds), REQUESTS)]
        drafts, emitted = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return SpeculativeDraws(drafts, emitted)

    def _build(self, proposer: str, verification: str, package: str) -> Any:
        longest = len(self._prompt) + 1 + 2 * self._drafts
        config = importlib.import_module(f"{package}.config").RunnerConfig(
            max_num_reqs=REQUESTS,
            max_num_batched_tokens=REQUESTS * max(len(self._prompt), 1 + self._drafts),
            max_model_len=longest + 1,
            block_size=_BLOCK,
            num_kv_blocks=1 + REQUESTS,
            attention="triton",
            speculation=proposer,
            num_drafts=self._drafts,
            verification=verification,
        )
        draft = {"draft": self._models.draft, "eagle": self._models.head, "ngram": None}[proposer]
        make = importlib.import_module(f"{package}.model_runner").ModelRunner
        return make(config, self._models.config, self._models.target.tensors, draft=draft)

    def _made_case(self, proposer: str, verification: str) -> SpeculationCase:
        """Rows at the positions behind the first draw: the target's by its oracle, drafts' as the runner keeps them."""
        ids = [*self._prompt, *([0] * (self._drafts + 1))]
        target = LlamaOracle(self._models.config, self._models.target.tensors).logits(ids)
        rows = target[len(self._prompt) :, : self._vocab_size].numpy().astype(np.float32)
        return SpeculationCase(
            f"{proposer} with {verification}, V = {self._vocab_size}, k = {self._drafts}",
            rows,
            self._draft_rows(),
        )

    def _draft_rows(self) -> NDArray[np.float32]:
        """What the drafts of one request are drawn from: that drafts follow it is part of what the audit asks."""
        names = self._enter(np.zeros(1, dtype=np.uint64))
        kept: Tensor | None = self._runner._sampler.verifier.draft_logits
        if kept is not None:
            return kept[self._rows(names)[0], :, : self._vocab_size].numpy().copy()
        certain = np.full((self._drafts, self._vocab_size), -np.inf, np.float32)
        certain[np.arange(self._drafts), self._drafted(names)[0]] = 0.0
        return certain

    def _batch(self, seeds: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Drafts [N, k] and emitted tokens [N, k + 1] of at most ``REQUESTS`` draws."""
        names = self._enter(seeds)
        drafts = self._drafted(names)
        step = Step(scheduled=dict.fromkeys(names, 1 + self._drafts), drafts=dict.fromkeys(names, self._drafts))
        output = self._runner.execute(step).result()
        emitted = np.full((len(names), self._drafts + 1), -1, np.int64)
        for row, name in zip(emitted, names, strict=True):
            row[: len(output.token_ids[name])] = output.token_ids[name]
        return drafts, emitted

    def _enter(self, seeds: NDArray[np.uint64]) -> list[str]:
        """Names of new requests in the place of the batch before, with their first token drawn and drafts proposed."""
        left = tuple(self._runner._states.row_of)
        self._batches += 1
        named = {f"{self._batches}-{index}": int(seed) for index, seed in enumerate(seeds)}
        length, most = len(self._prompt), 2 + 2 * self._drafts
        step = Step(
            finished=left,
            new=tuple(
                NewRequest(name, self._prompt, length, SamplingParams(1.0, seed, most)) for name, seed in named.items()
            ),
            scheduled=dict.fromkeys(named, length),
            new_blocks={name: ((1 + index,),) for index, name in enumerate(named)},
        )
        self._runner.execute(step).result()
        return [*named]

    def _rows(self, names: Sequence[str]) -> list[int]:
        return [self._runner._states.row_of[name] for name in names]

    def _drafted(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Drafts [N, k] as they stand in the token table, behind the prompt and the first token."""
        first = len(self._prompt) + 1
        table: Tensor = self._runner._states.token_ids
        return table[self._rows(names), first : first + self._drafts].numpy().astype(np.int64)


@dataclass(frozen=True)
class _Models:
    """Models whose logits depend on the position alone.

    Attributes:
        vocab_size: tokens that are drawn; the one behind them begins a prompt.
    """

    vocab_size: int

    @property
    def config(self) -> LlamaConfig:
        """One shape for all."""
        return replace(
            TINY_CONFIG,
            vocab_size=self.vocab_size + 1,
            hidden_size=32,
            intermediate_size=48,
            num_heads=2,
            num_kv_heads=1,
        )

    @property
    def target(self) -> Checkpoint:
        """The model."""
        return self._checkpoint("target", dict(self._tensors()))

    @property
    def draft(self) -> Checkpoint:
        """The same with its output turned round."""
        tensors = dict(self._tensors())
        output = tensors[OUTPUT].clone()
        output[: self.vocab_size] *= -1
        return self._checkpoint("draft", {**tensors, OUTPUT: output})

    @property
    def head(self) -> Checkpoint:
        """A head with layers of the same kind, whose last norm turns its states round."""
        tensors = {name: tensor for name, tensor in self._tensors() if name not in (EMBEDDING, OUTPUT)}
        norm, identity = -tensors[_NORM], torch.eye(self.config.hidden_size)
        norm[0] *= -1
        return self._checkpoint(
            "head", {**tensors, _NORM: norm, _FUSE: torch.cat([identity, _SHARE_OF_STATE * identity], dim=1)}
        )

    def _checkpoint(self, name: str, tensors: Mapping[str, Tensor]) -> Checkpoint:
        return Checkpoint(name, None, "safetensors", self.config, MappingProxyType(dict(tensors)), name)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in random_tensors(self.config, _SEED).items():
            if name == EMBEDDING:
                tensor[: self.vocab_size] = tensor[0].clone()
                tensor[:, 0] = _CONSTANT
            elif name == OUTPUT:
                tensor *= _FLAT
                tensor[:, 0] = 0.0
                tensor[self.vocab_size] = 0.0
                tensor[self.vocab_size, 0] = _NEVER
            elif name.endswith((".q_proj.weight", ".k_proj.weight")):
                tensor *= _SHARP
            elif name.endswith((".o_proj.weight", ".down_proj.weight")):
                tensor[0] = 0.0
            yield name, tensor
