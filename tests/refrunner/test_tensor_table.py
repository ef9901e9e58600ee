"""The table of tensors against what the virtual device observes: location, last writer, its stream; and the README."""

import weakref
from pathlib import Path

import pytest
import torch

from mrv2.checks.events import LaneKind
from mrv2.checks.happens_before import Recorder
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner import tensor_table
from mrv2.refrunner.api import Grammar, NewRequest, SamplingParams, Step
from mrv2.refrunner.tensor_table import (
    CONSTANT,
    COPY,
    DEVICE,
    HOST,
    MAIN,
    PINNED,
    TABLE,
    UPLOAD,
    as_markdown,
    entry_of,
)  # fmt: skip
from mrv2.refrunner.tensors import tensors_of

pytest.importorskip("llguidance")
CAPACITIES = {
    "max_num_reqs": 3,
    "max_num_batched_tokens": 16,
    "max_model_len": 32,
    "block_size": 8,
    "num_kv_blocks": 10,
}
SETTINGS = {
    "triton": {"attention": "triton"},
    "torch": {"attention": "torch"},
    "in place": {"attention": "triton", "prompt_tokens": "uva", "staged_writes": "in_place"},
    "full": {"attention": "triton", "graph_mode": "full", "graph_sizes": (1,)},
    "draft": {"attention": "triton", "speculation": "draft", "draft_model": "tiny-draft", "verification": "token"},
    "eagle": {
        "attention": "triton",
        "speculation": "eagle",
        "draft_model": "tiny-eagle",
        "graph_mode": "full",
        "graph_sizes": (4,),
    },
    "piecewise": {"attention": "triton", "graph_mode": "piecewise", "graph_sizes": (1,)},
    "grammars": {"attention": "torch", "grammars": True, "speculation": "ngram"},
}
EVERYTHING = SamplingParams(
    temperature=0.8, seed=3, repetition_penalty=1.1, allowed_token_ids=tuple(range(99)), logit_bias=((3, 0.5),),
    bad_words=((5, 6),), top_k=20, stop_token_ids=(9,), min_tokens=1, logprobs=2, prompt_logprobs=1,
    logprob_token_ids=(1, 2),
)  # fmt: skip


class LastWriters(Recorder):
    """Who wrote which bytes last, since they were allocated."""

    def __init__(self):
        super().__init__(lambda record: None)
        self._lanes, self._operations, self._writes = {}, {}, []
        self._streams = [COPY, UPLOAD]  # in the order in which a runner makes them

    def lane(self, kind, name):
        number = super().lane(kind, name)
        made_here = "refrunner/device.py" in name
        self._lanes[number] = HOST if kind is LaneKind.HOST else self._streams.pop(0) if made_here else MAIN
        return number

    def operation(self, lane, kind, name, stack, **rest):
        number = super().operation(lane, kind, name, stack, **rest)
        plain = name.removeprefix("graph: ").removeprefix("triton:").removeprefix("aten.")
        self._operations[number] = (self._lanes[lane], plain)
        return number

    def access(self, operation, ranges, *, write, **rest):
        if write:
            self._writes += [(low, high, operation) for low, high in ranges]
        super().access(operation, ranges, write=write, **rest)

    def allocate(self, lane, base, size, space, stack):
        self._writes.append((base, base + size, None))
        return super().allocate(lane, base, size, space, stack)

    def now(self):
        """A point between two writes."""
        return len(self._writes)

    def last(self, tensor):
        """Point, stream and name of the last write; None if there was none."""
        low = tensor.data_ptr()
        high = (
            low + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) * tensor.element_size()
        )
        high += tensor.element_size()
        for point in range(len(self._writes) - 1, -1, -1):
            begin, end, operation = self._writes[point]
            if begin < high and low < end:
                return None if operation is None else (point, *self._operations[operation])
        return None


def memory_of(tensor):
    return tensor.untyped_storage().data_ptr()


def observed(**settings):
    """(path, is on the device, is pinned, was written in a step, stream, writer) of every tensor after two steps."""
    writers, found = LastWriters(), []
    with virtual_device("early", sink=writers):
        runner = ReferenceTarget().build({"model": "tiny", "device": "cuda", **CAPACITIES, **settings})._runner
        start = writers.now()
        request = NewRequest("a", (1, 2, 3), 3, EVERYTHING)
        grammar = SamplingParams(grammar=Grammar("regex", "a+"), stop_token_ids=(0,))
        plain = NewRequest("b", (4, 5), 2, grammar if settings.get("grammars") else SamplingParams())
        tables = {"a": ((1,),), "b": ((2,),)}
        first = runner.execute(Step(new=(request, plain), scheduled={"a": 3, "b": 2}, new_blocks=tables))
        second = runner.execute(Step(finished=("b",), scheduled={"a": 1}))
        second.result()
        held = [pair for owner in (runner, first, second) for pair in tensors_of(owner)]
        known = {memory_of(tensor) for path, tensor in held if entry_of(path)}
        for path, tensor in held:
            if (entry_of(path) is None and memory_of(tensor) in known) or not tensor.numel():
                continue  # a view of another one, or no memory at all
            point, stream, name = writers.last(tensor) or (None, None, None)
            pinned = not tensor.is_cuda and tensor.is_pinned()
            found.append((path, tensor.is_cuda, pinned, point is not None and point >= start, stream, name))
        runner.close()
    return found


@pytest.fixture(scope="module")
def seen():
    return {name: observed(**settings) for name, settings in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_table_says_what_was_observed(seen, name):
    assert len(seen[name]) > 30
    for path, on_device, pinned, in_step, stream, writer in seen[name]:
        entry = entry_of(path)
        assert entry is not None, path
        assert (on_device, pinned) == (entry.location == DEVICE, entry.location == PINNED), path
        if entry.writers == (CONSTANT,):
            assert not in_step and stream == MAIN, (path, writer)
        elif in_step or "graphs.captured" not in path:
            # A graph that was not replayed has written nothing; everything else has its say in these two steps.
            assert stream == entry.stream, (path, writer)
            assert writer in entry.writers or any(" " in each for each in entry.writers), (path, writer)


def test_every_entry_was_observed_and_the_last_writer_is_the_last(seen):
    writers = {entry: set() for entry in TABLE}
    for rows in seen.values():
        for path, *_, in_step, _, writer in rows:
            if in_step:
                writers[entry_of(path)].add(writer)
    unseen = {entry.path for entry, names in writers.items() if not names and entry.writers != (CONSTANT,)}
    assert not unseen
    for entry, names in writers.items():
        assert entry.writers[-1] in names or " " in entry.writers[-1] or not names, (entry.path, names)


def test_a_tensor_that_the_table_does_not_know_is_missed():
    assert entry_of("ModelRunner._states._forgotten.gpu") is None
    assert entry_of("ModelRunner._states._counters.gpu") is TABLE[1]


def test_the_readme_shows_the_table():
    readme = Path(tensor_table.__file__).with_name("README.md").read_text(encoding="utf-8")
    assert as_markdown() in readme


def test_each_object_is_looked_into_once():
    class Loop:
        __module__ = tensor_table.__name__

        def __init__(self):
            self.own, self.tensor = self, torch.zeros(1)
            self.elsewhere = weakref.ref(self)

    assert [path for path, _ in tensors_of(Loop())] == ["Loop.tensor"]
