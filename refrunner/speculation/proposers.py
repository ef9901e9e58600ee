"""Makes the proposer that a configuration asks for."""

from __future__ import annotations

from ..attention.backends import attention_backend
from ..attention.interface import AttentionBackend
from ..block_tables import BlockTables
from ..config import RunnerConfig
from ..device import Device
from ..errors import ConfigurationError
from ..kv_groups import KVGroups
from ..models.llama import LlamaModel
from ..models.weights import Checkpoint
from ..sampling.sampler import Sampler
from .draft_models import DraftModel, EagleHead, StandaloneDraft, check_draft, check_draft_kind
from .model_proposer import ModelProposer
from .proposer import NgramProposer, Proposer


def load_draft_model(config: RunnerConfig, target: LlamaModel, draft: Checkpoint | None) -> DraftModel | None:
    """The model that proposes, on the target's device; None if none is needed.

    Raises:
        ConfigurationError: there is none, or it does not fit the target.
    """
    needed = config.speculation in ("draft", "eagle")
    if needed != (draft is not None):
        raise ConfigurationError(
            f"RunnerConfig.speculation={config.speculation!r} {'without' if draft is None else 'with'} a draft model",
            "a draft model comes with speculation='draft' or 'eagle', and with nothing else",
            "those proposers compute drafts with it; the others would leave it unused, and its memory taken",
            "ModelRunner(draft=load_checkpoint(...)), LLM.from_model(draft_model=...) or mrv2 generate --draft-model; "
            "or another speculation"
            if needed
            else "speculation='draft' or 'eagle', or no draft model",
        )
    if draft is None:
        return None
    head = config.speculation == "eagle"
    windows = KVGroups.of_layers(target.config.layer_windows).windows
    check_draft(target.config, draft.config, windows, config.max_model_len, head=head)
    check_draft_kind(draft, head=head)
    kernels = config.attention == "triton"
    if head:
        return EagleHead(target, draft.config, draft.tensors, kernels=kernels)
    return StandaloneDraft(LlamaModel(draft.config, draft.tensors, target.device, target.dtype, kernels=kernels))


def make_proposer(
    config: RunnerConfig,
    device: Device,
    target: LlamaModel,
    model: DraftModel | None,
    tables: BlockTables,
    sampler: Sampler,
) -> Proposer | None:
    """The proposer of a runner, with a cache of its own if it needs one; None without speculation."""
    if model is not None:
        attention: AttentionBackend = attention_backend(config)(config, model.config, device)
        return ModelProposer(config, device, model, attention, tables, sampler, target.config.hidden_size)
    return NgramProposer(config) if config.speculation == "ngram" else None
