"""Batches for the sampler without a model: requests with any parameters, and logits with ties, holes and extremes."""

import importlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import strategies as st

from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.kernels.logits_processing import STORED
from mrv2.refrunner.request_states import RequestStates
from mrv2.refrunner.sampling.sampler import Sampler
from mrv2.refrunner.staging import PackedUpload, PinnedRing

ROWS, LENGTH = 5, 24
VOCABULARIES = (1, 2, 33, 70, 257)
STYLES = ("normal", "ties", "holes", "nan", "extreme", "flat")


@dataclass
class Bench:
    """A sampler, the state table beside it, and the batch of requests that live in them."""

    sampler: Sampler
    states: RequestStates
    requests: list[NewRequest]
    batch: SimpleNamespace

    def sample(self, logits):
        """Draw for the whole batch, of logits [N, V]."""
        return self.sampler.sample(logits, self.batch, self.states)

    def processed(self, logits):
        """Processed logits and thresholds of the whole batch; also of rows whose processed logits nobody stores."""
        stages = self.sampler._stages(self.batch)
        made = self.sampler._processed(logits, self.batch.rows, self.batch.sample_positions, self.states, stages)
        temperatures = torch.tensor([request.sampling.temperature or 1.0 for request in self.requests])
        values = logits / temperatures.to(logits.device)[:, None]
        for index, row in enumerate(self.batch.host_rows):
            if self.sampler.tables.stages[row] & STORED.value:
                values[index] = made.logits[index]
        return replace(made, logits=values)


def make_bench(requests, vocab_size, before=(), device="cpu", package="mrv2.refrunner", rows=ROWS, **settings):
    """Add requests, after others that have come and gone, and bring them to the device."""

    def part(module, name):
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    config = part("config", "RunnerConfig")(
        max_num_reqs=rows, max_model_len=LENGTH, max_num_batched_tokens=256, device=device, **settings
    )
    device = part("device", "Device")(device)
    states = part("request_states", "RequestStates")(config, device, vocab_size)
    sampler = part("sampling.sampler", "Sampler")(config, device, vocab_size)
    for former in before:
        sampler.add(states.add(former), former)
        flush(states, sampler, device)
        sampler.remove(states.remove(former.request_id))
    taken = []
    for request in requests:
        taken.append(states.add(request))
        sampler.add(taken[-1], request)
    flush(states, sampler, device)
    lengths = [len(request.token_ids) for request in requests]
    batch = SimpleNamespace(
        num_requests=len(taken),
        host_rows=np.array(taken, dtype=np.int32),
        rows=torch.tensor(taken, dtype=torch.int32, device=device.torch_device),
        host_logit_bounds=np.arange(len(taken) + 1, dtype=np.int32),
        logit_rows=torch.tensor(taken, dtype=torch.int32, device=device.torch_device),
        logit_bounds=None,
        logit_offsets=None,
        sample_positions=torch.tensor(lengths, dtype=torch.int32, device=device.torch_device),
        query_start_loc=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device.torch_device),
    )
    return Bench(sampler, states, list(requests), batch)


def flush(states, sampler, device):
    upload = PackedUpload()
    states.pack(upload)
    sampler.pack(upload)
    upload.send(PinnedRing(device))
    states.apply(upload)
    sampler.apply(upload, states)


def make_logits(style, count, vocab_size, seed):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, vocab_size)) * 4
    if style == "ties":
        logits = np.round(logits / 2)
    elif style == "holes":
        logits[random.random(logits.shape) < 0.4] = -np.inf
    elif style == "nan":
        logits[random.random(logits.shape) < 0.2] = np.nan
    elif style == "extreme":
        logits = np.exp(random.uniform(-20, 20, logits.shape)) * random.choice((-1, 1), logits.shape)
    elif style == "flat":
        logits[:] = 0.5
    return torch.from_numpy(logits.astype(np.float32))


def params(vocab_size):
    """Any parameters for a vocabulary, most of them neutral most of the time."""
    token = st.integers(0, vocab_size - 1)
    ids = st.lists(token, min_size=1, max_size=4, unique=True).map(tuple)
    word = st.lists(token, min_size=1, max_size=3).map(tuple)

    def often(neutral, *others):
        return st.one_of(st.just(neutral), *others)

    return st.builds(
        SamplingParams,
        temperature=st.sampled_from((0.0, 0.3, 1.0, 2.5)),
        seed=st.integers(0, 2**64 - 1),
        stop_token_ids=often((), ids),
        top_k=often(0, st.integers(1, vocab_size + 2)),
        top_p=often(1.0, st.sampled_from((1e-30, 0.1, 0.5, 0.9, 0.999))),
        min_p=often(0.0, st.sampled_from((1e-30, 0.01, 0.2, 1.0))),
        repetition_penalty=often(1.0, st.sampled_from((0.01, 0.7, 1.3, 100.0))),
        frequency_penalty=often(0.0, st.sampled_from((-1.5, 0.1, 0.7))),
        presence_penalty=often(0.0, st.sampled_from((-0.9, 0.3, 2.0))),
        min_tokens=st.integers(0, 8),
        logit_bias=often(
            (), st.dictionaries(token, st.sampled_from((-1e6, -2.5, 0.1, 3.0)), max_size=5).map(lambda d: (*d.items(),))
        ),
        allowed_token_ids=often(None, st.lists(token, min_size=1, max_size=40).map(tuple)),
        bad_words=often((), st.lists(word, max_size=4).map(tuple)),
    )


@st.composite
def batches(draw, sampling=params):
    """Requests of a batch, and logits for them."""
    vocab_size = draw(st.sampled_from(VOCABULARIES))
    requests = []
    for index in range(draw(st.integers(1, 4))):
        tokens = tuple(draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=LENGTH - 1)))
        prompt_len = draw(st.integers(1, len(tokens)))
        requests.append(NewRequest(f"r{index}", tokens, prompt_len, draw(sampling(vocab_size))))
    return requests, make_logits(draw(st.sampled_from(STYLES)), len(requests), vocab_size, draw(st.integers(0, 99)))
