"""Which implementation of attention a configuration names; another one is added here and to ``ATTENTION_BACKENDS``."""

from __future__ import annotations

from ..config import RunnerConfig
from .torch_reference import TorchReferenceAttention
from .triton_paged import TritonPagedAttention


def attention_backend(config: RunnerConfig) -> type[TritonPagedAttention | TorchReferenceAttention]:
    """The implementation that the configuration names."""
    return TritonPagedAttention if config.attention == "triton" else TorchReferenceAttention
