"""The runner on a real GPU: equal to the oracle, no wait on the hot path, no race behind a busy stream."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.runner_oracle import RunnerAgainstOracle
from mrv2.ci.stages.state import StateAndPoison
from mrv2.ci.stages.workloads import quick_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.device import Device
from mrv2.refrunner.sampling.gumbel import sample
from mrv2.refrunner.staging import PackedUpload, PinnedRing, StagedWriteTensor

pytestmark = pytest.mark.gpu

VOCAB = 256
BUDGET = Budget(new_tokens=8)
# Long enough that everything a test enqueues behind it is enqueued before it ends.
BUSY_CYCLES = 1_000_000_000


class Silent:
    """Progress for nobody."""

    def start(self, total):
        pass

    def advance(self, units=1):
        pass


def cuda_target():
    inner = ReferenceTarget()
    return SimpleNamespace(
        name="refrunner on cuda",
        features=inner.features,
        knobs=inner.knobs,
        build=lambda config: inner.build({**config, "device": "cuda"}),
        sampler=inner.sampler,
    )


def test_the_quick_workload_equals_the_oracle(oracle):
    result = RunnerAgainstOracle("tiny", VOCAB, oracle).run(cuda_target(), BUDGET, Silent())
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())


def test_poison_changes_nothing(oracle):
    result = StateAndPoison("tiny", VOCAB, oracle).run(cuda_target(), BUDGET, Silent())
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())


@pytest.mark.parametrize("knobs", [{"pad_to": 8}, {"pad_to": 3, "poison": True}, {"device": "cpu"}])
def test_neither_padding_nor_the_device_changes_a_token(knobs):
    if knobs.get("device") == "cpu":
        pytest.importorskip("triton", minversion="3.7", reason="the interpreter of triton 3.6 breaks with numpy 2.4")
    workload = quick_workload(VOCAB, 2, 8)
    plain, other = (
        Driver(
            ReferenceTarget().build({"model": "tiny", "device": "cuda", **workload.capacities, **changed}), workload
        ).run()
        for changed in ({}, knobs)
    )
    assert plain.results.keys() == other.results.keys()
    for name, result in plain.results.items():
        assert other.results[name].token_ids == result.token_ids
        assert other.results[name].logprobs == pytest.approx(result.logprobs, abs=1e-3)


@pytest.mark.parametrize("vocab_size", [49152, 151936, 1027])
def test_draws_are_the_oracles(judge_draw, vocab_size):
    """Blocks of 1,024; the last vocabulary is no multiple of it, nor of four."""
    random = np.random.default_rng(vocab_size)
    params = [SamplingParams(temperature=t, seed=s) for t in (0.0, 0.3, 1.0, 1.7) for s in (5, -(2**63), 2**64 - 1)]
    logits = torch.from_numpy((random.normal(size=(len(params), vocab_size)) * 3).astype(np.float32))
    positions = [0, 1, 77, 2**31 - 1] * 3
    rows = random.permutation(32)[: len(params)].tolist()
    temperature, seeds = torch.full((32,), float("nan")), torch.full((32,), -1)
    for row, param in zip(rows, params, strict=True):
        temperature[row], seeds[row] = param.temperature, (param.seed + 2**63) % 2**64 - 2**63
    tables = (torch.tensor(rows, dtype=torch.int32), torch.tensor(positions, dtype=torch.int32), temperature, seeds)
    drawn = sample(logits.cuda(), *(table.cuda() for table in tables))
    tokens, logprobs = drawn.token_ids.tolist(), drawn.logprobs.tolist()
    checks = zip(logits, params, positions, tokens, logprobs, strict=True)
    # Nearly all are the oracle's own; a tie within rounding is a matter of one in many thousands.
    assert sum(judge_draw(*check) for check in checks) >= len(params) - 1


def test_logits_beyond_two_billion_elements():
    stride, vocab_size = 2**31 + 64, 64
    memory = torch.empty(stride + vocab_size, device="cuda")
    logits = memory.as_strided((2, vocab_size), (stride, 1))
    logits.copy_(torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(0)))
    rows, positions = torch.tensor([[0, 1], [3, 4]], dtype=torch.int32, device="cuda")
    parameters = (torch.tensor([0.0, 1.0], device="cuda"), torch.tensor([0, 8], device="cuda"))
    found, expected = (sample(table, rows, positions, *parameters) for table in (logits, logits.contiguous()))
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.logprobs, expected.logprobs)


def flush(table, ring):
    upload = PackedUpload()
    table.pack(upload)
    upload.send(ring)
    table.apply(upload)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_staged_writes_on_top_of_each_other(dtype):
    random = np.random.default_rng(0)
    device = Device("cuda")
    table, ring = StagedWriteTensor(8, 3000, dtype, device, "test table"), PinnedRing(device)
    expected = torch.zeros(8, 3000, dtype=dtype)
    for _ in range(10):
        for _ in range(20):
            row, start = int(random.integers(8)), int(random.integers(3000))
            values = random.integers(1, 1000, int(random.integers(1, 3001 - start))).tolist()
            table.stage_write(row, start, values)
            expected[row, start : start + len(values)] = torch.tensor(values, dtype=dtype)
        flush(table, ring)
    assert torch.equal(table.gpu.cpu(), expected)


def test_uploads_behind_a_busy_stream():
    """Each flush reuses host memory at once; on a stream that is busy, a slot rewritten too early would show."""
    device = Device("cuda")
    table, ring = StagedWriteTensor(40, 2000, torch.int32, device, "test table"), PinnedRing(device)
    flush(table, ring)
    table.stage_write(0, 0, [0])
    flush(table, ring)
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    for row in range(40):
        table.stage_write(row, 0, [row + 1] * 2000)
        flush(table, ring)
    assert table.gpu.cpu().tolist() == [[row + 1] * 2000 for row in range(40)]
    assert ring.depth == 40


def decoding(**settings):
    """A runner with two requests in their decode, and its handles so far."""
    runner = ReferenceTarget().build({"model": "tiny", "device": "cuda", "max_model_len": 512, **settings})._runner
    asked = [
        NewRequest("a", tuple(range(20)), 20),
        NewRequest("b", (7, 8, 9), 3, SamplingParams(temperature=0.8, seed=3)),
    ]
    tables = {"a": (tuple(range(1, 20)),), "b": (tuple(range(20, 40)),)}
    return runner, [runner.execute(Step(new=tuple(asked), scheduled={"a": 20, "b": 3}, new_blocks=tables))]


def decode(runner, handles, count):
    handles.extend(runner.execute(Step(scheduled={"a": 1, "b": 1})) for _ in range(count))
    return [handle.result().token_ids for handle in handles]


def test_a_busy_stream_changes_no_token():
    calm = decode(*decoding(), 12)
    runner, handles = decoding()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    assert decode(runner, handles, 12) == calm
    assert runner.invariants() == []


def test_the_stream_and_thread_of_the_caller_do_not_matter():
    calm = decode(*decoding(), 7)
    runner, handles = decoding()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    handles.append(runner.execute(Step(scheduled={"a": 1, "b": 1})))
    with torch.cuda.stream(torch.cuda.Stream()):
        handles.extend(runner.execute(Step(scheduled={"a": 1, "b": 1})) for _ in range(3))
    results = []
    worker = threading.Thread(target=lambda: results.extend(decode(runner, handles, 3)))
    worker.start()
    worker.join()
    assert results == calm


def test_outputs_survive_a_churn_of_the_allocator():
    """The drawn tokens are downloaded on another stream; their memory must not be handed out meanwhile."""
    calm = decode(*decoding(), 8)
    runner, handles = decoding()
    with torch.cuda.stream(runner._device.copy_stream):
        torch.cuda._sleep(BUSY_CYCLES)
    for _ in range(8):
        handles.append(runner.execute(Step(scheduled={"a": 1, "b": 1})))
        for _ in range(50):
            torch.full((2,), -7, dtype=torch.int32, device="cuda")
    assert [handle.result().token_ids for handle in handles] == calm


def test_the_second_gpu():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    calm = decode(*decoding(), 4)
    runner, handles = decoding(device="cuda:1")
    assert torch.cuda.current_device() == 0
    torch.cuda._sleep(BUSY_CYCLES)
    assert decode(runner, handles, 4) == calm
