"""An engine that is not ours, in a package of its own in a folder of its own: found, made small, pasted, repeated."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from mrv2.ci.command.app import app
from mrv2.fuzz.campaign.findings import read_found_case

LONG = bool(os.environ.get("MRV2_LONG"))

#: Whole sequences, no cache, greedy. What it draws goes to the device and back through pinned memory: with one buffer
#: for all steps, a step in flight may read what the next one has written.
ENGINE = """
    import torch

    from mrv2.checks.errors import CheckError
    from mrv2.fuzz.targets.protocols import Feature
    from mrv2.refrunner.api import StepOutput
    from mrv2.refrunner.models.checkpoint import load_checkpoint
    from mrv2.refrunner.oracle.llama import LlamaOracle

    SLOTS = 8  # PLANT
    ROWS = 16


    class Engine:
        def __init__(self, config):
            checkpoint = load_checkpoint(config["model"])
            self.model = LlamaOracle(checkpoint.config, checkpoint.tensors, torch.float32)
            self.on_device = config.get("device") == "cuda"
            self.slots = torch.zeros(SLOTS, ROWS, dtype=torch.int32, pin_memory=self.on_device)
            self.steps, self.requests = 0, {}

        def execute(self, step):
            for name in (*step.finished, *step.preempted):
                self.requests.pop(name, None)
            for request in step.new:
                self.requests[request.request_id] = [list(request.token_ids), request.num_computed_tokens]
            names, tokens, logprobs = [], [], []
            for name, count in step.scheduled.items():
                entry = self.requests[name]
                entry[1] += count
                if entry[1] == len(entry[0]):
                    values = self.model.logits(entry[0])[-1].log_softmax(-1)
                    names.append(name)
                    tokens.append(int(values.argmax()))
                    logprobs.append(float(values[tokens[-1]]))
                    entry[0].append(tokens[-1])
            return Handle(self.shipped(tokens), names, logprobs)

        def shipped(self, tokens):
            slot = self.slots[self.steps % SLOTS]
            self.steps += 1
            slot[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            if not self.on_device:
                return slot.clone(), None
            there = torch.empty(ROWS, dtype=torch.int32, device="cuda")
            there.copy_(slot, non_blocking=True)
            back = torch.empty(ROWS, dtype=torch.int32, pin_memory=True)
            back.copy_(there, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            return back, done

        def invariants(self):
            return []

        def close(self):
            self.requests.clear()


    class Handle:
        def __init__(self, shipped, names, logprobs):
            self.shipped, self.names, self.logprobs = shipped, names, logprobs

        def result(self):
            tokens, done = self.shipped
            if done is not None:
                done.synchronize()
            return StepOutput(
                {name: (int(tokens[index]),) for index, name in enumerate(self.names)},
                {name: (value,) for name, value in zip(self.names, self.logprobs)},
            )


    class Toy:
        name = "toy"
        features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT, Feature.LOGPROBS})
        knobs = {}
        hot_paths = ("PACKAGE:Engine.execute",)

        def build(self, config):
            for name in ("block_size", "max_num_reqs"):
                if config[name] < 1:
                    raise CheckError(f"{name}={config[name]}", "at least 1", "nothing would fit", f"{name}=4")
            return Engine(config)
"""


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """The engine as it should be, and with one slot, which it needs eight of."""
    package = tmp_path / "toy_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    text = textwrap.dedent(ENGINE)
    (package / "right.py").write_text(text.replace("PACKAGE", "toy_engine.right"))
    (package / "wrong.py").write_text(text.replace("PACKAGE", "toy_engine.wrong").replace("SLOTS = 8", "SLOTS = 1"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_engine"]:
        del sys.modules[name]


def mrv2(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_foreign_engine_is_fit_to_be_fuzzed(engines):
    ran = mrv2("conform", "runner", "toy_engine.right:Toy")
    assert ran.exit_code == 0, ran.output
    assert "grammars" in ran.output and "no request has one" in ran.output


@pytest.mark.skipif(not LONG, reason="two campaigns, half a minute each: MRV2_LONG=1")
def test_a_fault_of_a_foreign_engine_is_found_made_small_pasted_and_repeated(engines):
    options = ["--cases", 30, "--features", "continues", "--json", engines / "report.json"]
    clean = mrv2("fuzz", "toy_engine.right:Toy", *options, "--db", engines / "right")
    assert clean.exit_code == 0, clean.output
    ran = mrv2("fuzz", "toy_engine.wrong:Toy", *options, "--db", engines / "wrong")
    assert ran.exit_code == 1, ran.output
    paths = sorted((engines / "wrong" / "findings").glob("*.json"))
    races = [path for path in paths if "MRV20" in read_found_case(path).signature]
    assert races
    for path in races:
        case = read_found_case(path)
        assert case.minimised and case.script.num_events <= 2 and case.script.num_deviations == 0
        again = mrv2("replay", path, "--twice")
        assert again.exit_code == 0 and "in the same way, byte for byte" in again.output, again.output
    code = json.loads(races[0].read_text())["test"]
    for engine, result in (("wrong", 1), ("right", 0)):
        (engines / "test_pasted.py").write_text(code.replace("toy_engine.wrong", f"toy_engine.{engine}"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pasted.py"]
        assert subprocess.run(command, cwd=engines, check=False, capture_output=True).returncode == result
