"""Drafts that are draws, in the runner: every step emits what the formulas say, with every stage of the sampler."""

import pytest

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.speculation import ModelDrafts, SpeculativeOracle

from .speculation_cases import CAPACITIES, VOCAB

STAGES = (
    {},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": -0.4},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.01},
    {"logit_bias": ((3, 4.0), (9, 2.0)), "bad_words": ((3, 9), (7,)), "frequency_penalty": 1.5},
    {"stop_token_ids": tuple(range(120)), "min_tokens": 9},
)


class Recorder:
    """Notes what each step scheduled and emitted for each request, but for what was in flight at a preemption."""

    def __init__(self, runner):
        self._runner = runner
        self.invariants, self.close = runner.invariants, runner.close
        self.emitted, self.preempted = {}, []

    def execute(self, step):
        handle, recorder = self._runner.execute(step), self
        self.preempted += step.preempted
        before = len(self.preempted)

        class Noted:
            def result(self):
                output = handle.result()
                dropped = recorder.preempted[before:]
                for name, tokens in {n: t for n, t in output.token_ids.items() if n not in dropped}.items():
                    recorder.emitted.setdefault(name, []).append((step.drafts.get(name, 0), tokens))
                return output

        return Noted()


@pytest.mark.parametrize(("verification", "num_drafts", "steps_in_flight"), [("token", 3, 2), ("block", 4, 1)])
def test_every_step_emits_what_the_formulas_say(verification, num_drafts, steps_in_flight):
    requests = [
        WorkloadRequest(
            f"r{index}",
            tuple(range(5 * index, 5 * index + 6)),
            SamplingParams(temperature=0.8, seed=1000 + index, max_tokens=16, **stages),
            index,
            preempt_after=(4,) if index == 1 else (),
        )
        for index, stages in enumerate(STAGES)
    ]
    settings = {"speculation": "draft", "verification": verification, "num_drafts": num_drafts}
    capacities = {**CAPACITIES, **settings, "attention": "triton", "num_kv_blocks": 40}
    with triton_cpu.enabled() as session:
        runner = ReferenceTarget().build({"model": "tiny", "draft_model": "tiny-draft", **capacities})
        recorder = Recorder(runner)
        driver = Driver(recorder, Workload(tuple(requests), capacities, VOCAB, steps_in_flight), check_invariants=True)
        trace = driver.run()
    assert (trace.crash, trace.broken, session.findings) == (None, [], [])
    models = (load_checkpoint(name) for name in ("tiny", "tiny-draft"))
    target, draft = (LlamaOracle(model.config, model.tensors) for model in models)
    oracle = SpeculativeOracle(target, ModelDrafts(draft))
    close = 0
    for request in requests:
        asked = NewRequest(request.request_id, request.prompt, len(request.prompt), request.sampling)
        tokens = list(request.prompt)
        for drafts, emitted in recorder.emitted[request.request_id]:
            wanted = oracle.step(asked, tokens, drafts, in_blocks=verification == "block")
            assert emitted == wanted.token_ids or wanted.margin < 1e-3, (request.request_id, len(tokens), emitted)
            close += emitted != wanted.token_ids
            tokens += emitted
    stats = driver._scheduler.speculation
    assert close <= 1 and 10 < stats.accepted < stats.drafts - 10, (close, stats)
