"""The runners that are compared, and whether each of them runs what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from mrv2.refrunner.baseline_v1.runner import BaselineRunner
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import CheckingRunner
from mrv2.refrunner.graphs.manager import GraphManager
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig


class Side(CheckingRunner, Protocol):
    """A runner that can be measured.

    Attributes:
        config: as it runs, which is as it was asked for.
        graphs: that it has captured.
    """

    config: RunnerConfig

    @property
    def graphs(self) -> GraphManager:
        """Captured graphs, and how often each was chosen."""
        ...


SIDES: Mapping[str, Callable[[RunnerConfig, LlamaConfig, Mapping[str, Tensor]], Side]] = {
    "v2": ModelRunner,
    "v1": BaselineRunner,
}


def fallbacks(name: str, side: Side, asked: RunnerConfig) -> list[str]:
    """Why this side does not run what was asked for, a line each; ask after it has run."""
    told = []
    if side.config != asked:
        told.append(f"{name} runs with other settings than were asked for")
    if asked.graph_mode != "eager" and not side.graphs.captured:
        told.append(f"{name} has captured no graph, and {asked.graph_mode} graphs were asked for")
    if side.graphs.eager_decodes:
        told.append(f"{name} ran {side.graphs.eager_decodes} decode steps eagerly, for want of a graph of their size")
    return told
