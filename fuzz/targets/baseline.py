"""The runner of the older design as a target, beside the reference runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrv2.checks.hot_path import Allowance

from .protocols import Feature, Knob
from .reference import ReferenceRunner, ReferenceTarget

#: Knobs of the reference runner whose other values this runner refuses.
_NOT_HERE = ("prompt_tokens", "staged_writes", "speculation", "num_drafts", "verification", "grammars")


class BaselineTarget(ReferenceTarget):
    """Builds runners of the older design from one package, the real one or a mutated copy of it."""

    name = "baseline_v1"
    features = frozenset(Feature) - {Feature.GRAMMARS}
    knobs: Mapping[str, Knob] = {name: knob for name, knob in ReferenceTarget.knobs.items() if name not in _NOT_HERE}
    producers = dict.fromkeys(ReferenceTarget.producers, "baseline_v1.step_inputs:StepInputs.build")

    @property
    def hot_paths(self) -> tuple[str, ...]:
        """Executing a step."""
        return (f"{self._package}.baseline_v1.runner:BaselineRunner.execute",)

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """The barrier, which is what the design cannot do without."""
        return (
            Allowance(
                "MRV104",
                "inputs are written to pinned memory that the step before may still read",
                f"{self._package}.baseline_v1.barrier:Barrier.wait",
                "baseline_v1",
            ),
        )

    def _runner(self, config: Any, checkpoint: Any, draft: Any) -> Any:
        runner = self._module("baseline_v1.runner").BaselineRunner
        return runner(config, checkpoint.config, checkpoint.tensors)

    def _adapter(self, runner: Any) -> BaselineRunner:
        return BaselineRunner(runner, self._site)


class BaselineRunner(ReferenceRunner):
    """Adapter of one ``BaselineRunner``."""

    def _poisoned_rows(self) -> int:
        rows, filler = self._runner.rows, self._poison_token()
        return sum(bool((tokens == filler).all()) for tokens in rows.token_ids[len(rows.names) :])
