"""The adapter in the room's README is complete: it verifies an engine with that interface."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mrv2.checks import triton_cpu
from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.runner_oracle import RunnerAgainstOracle
from mrv2.ci.stages.state import StateAndPoison
from mrv2.fuzz.targets.protocols import RunnerTarget
from mrv2.refrunner.api import NewRequest, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.tiny import tiny_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle

README = Path(__file__).resolve().parents[2] / "fuzz" / "README.md"


class Engine:
    """Somebody's engine: requests, blocks and forward passes, one call each."""

    stopped = 0

    def __init__(self, model, **capacities):
        checkpoint = tiny_checkpoint()
        assert model == "tiny"
        self._runner = ModelRunner(RunnerConfig(**capacities), checkpoint.config, checkpoint.tensors)

    def remove(self, names):
        self._runner.execute(Step(finished=tuple(names)))

    def add(self, name, token_ids, prompt_len, sampling):
        self._runner.execute(Step(new=(NewRequest(name, token_ids, prompt_len, sampling),)))

    def append_blocks(self, name, block_ids):
        self._runner.execute(Step(new_blocks={name: (block_ids,)}))

    def forward(self, scheduled):
        handle = self._runner.execute(Step(scheduled=scheduled))

        def wait():
            output = handle.result()
            return {name: (output.token_ids[name][0], output.logprobs[name][0]) for name in output.token_ids}

        return SimpleNamespace(wait=wait)

    def shutdown(self):
        Engine.stopped += 1


@pytest.fixture
def adapter(monkeypatch):
    (text,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    engine = ModuleType("my_engine")
    engine.Engine = Engine
    monkeypatch.setitem(sys.modules, "my_engine", engine)
    module = ModuleType("my_adapter")
    exec(compile(text, "my_adapter.py", "exec"), module.__dict__)
    return module


class Silent:
    def start(self, total):
        pass

    def advance(self, units=1):
        pass


@pytest.fixture
def _compiled():
    """Kernels run compiled, as they do under the command."""
    with triton_cpu.enabled():
        yield


@pytest.mark.usefixtures("_compiled")
def test_the_adapter_is_a_target_that_can_be_verified(adapter):
    target = adapter.MyTarget()
    assert isinstance(target, RunnerTarget)
    checkpoint = tiny_checkpoint()
    oracle = Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))
    stage = RunnerAgainstOracle("tiny", 256, oracle)
    result = stage.run(target, Budget(new_tokens=8), Silent())
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert Engine.stopped == 2
    missing = StateAndPoison("tiny", 256, oracle).run(target, Budget(new_tokens=8), Silent())
    assert missing.verdict is RunVerdict.INCONCLUSIVE
    assert "poison of dead memory" in missing.summary
