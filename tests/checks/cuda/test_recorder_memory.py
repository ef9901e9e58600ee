"""Memory as the race recorder follows it, with tensors of the host in the part of the device's."""

import gc
import operator

import pytest
import torch

from mrv2.checks.cuda.backend import Cuda
from mrv2.checks.cuda.recorder import recording
from mrv2.checks.errors import CheckError


class HostAsDevice(Cuda):
    """Says that what is on the host is on the device."""

    is_on_device = staticmethod(operator.attrgetter("is_cpu"))

    def __init__(self, index=0):
        super().__init__(index)
        self.stream = 0

    def current_stream(self):
        return self.stream

    def stream_of_memory(self, address):
        return 0

    def is_pinned(self, tensor):
        return False


MODEL = torch.ones(8)


def made():
    """A result of an operator on the device."""
    return torch.ones_like(MODEL)


@pytest.fixture
def recorder():
    with recording(HostAsDevice(), parts=()) as opened:
        yield opened


def blocks(recorder):
    return list(recorder.runtime.memory.blocks)


def test_a_block_lives_as_long_as_a_view_of_it(recorder):
    whole = made()
    view = whole[2:]
    (block,) = blocks(recorder)
    assert (block.base, block.size, block.label) == (whole.data_ptr(), 32, "float32[8]")
    del whole
    assert blocks(recorder) == [block]
    del view
    assert blocks(recorder) == [] and block.freed


def test_a_cycle_is_dropped_when_it_is_collected(recorder):
    holder = [made()]
    holder.append(holder)
    del holder
    assert len(blocks(recorder)) == 1
    gc.collect()
    assert blocks(recorder) == []


def test_a_storage_that_grows_is_a_block_elsewhere(recorder):
    x = made()
    (before,) = blocks(recorder)
    x.resize_(1 << 20)
    x.fill_(1)
    (after,) = blocks(recorder)
    assert before.freed and after.size == 4 << 20 and after.base == x.data_ptr()


def test_what_was_there_before_belongs_to_the_stream_of_its_segment():
    x = torch.ones(4)
    with recording(HostAsDevice(), parts=()) as recorder:
        recorder.runtime.backend.stream = 7
        x.add_(1)
        y = x + 1
        by_size = {block.base: block.queue.name for block in blocks(recorder)}
    assert by_size == {x.data_ptr(): "default stream", y.data_ptr(): "stream 1"}


def test_operators_on_tensors_without_memory_pass(recorder):
    sparse = torch.eye(3).to_sparse()
    assert torch.equal((sparse + sparse).to_dense(), 2 * torch.eye(3))


def test_in_inference_mode_composite_operators_are_taken_apart(recorder):
    with torch.inference_mode():
        x = torch.ones(4, 4)
        y = x.to(torch.float64)
        z = x.t().reshape(16)
    assert len(blocks(recorder)) == 3
    assert y.dtype is torch.float64 and z.shape == (16,)


def test_gradients_are_as_without(recorder):
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.ones(2, 3))


def test_a_call_that_fails_is_told_and_holds_nothing_back(recorder):
    x, y = made(), torch.ones_like(MODEL[:3])
    x.add_(1)
    with pytest.raises(RuntimeError):
        x.add_(y)
    recorder.runtime.sink.flush()
    assert not recorder.runtime.sink._entries


def test_another_device_is_refused():
    class Elsewhere:
        def get_device(self):
            return 1

    with pytest.raises(CheckError, match="tensor on cuda:1"):
        Cuda(0).memory_of(Elsewhere())


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x, y: x.add_(1), 1),
        (lambda x, y: x.add_(y), 1),
        (lambda x, y: x.copy_(y), 1),
        (lambda x, y: x.view(2, 4), 0),
        (lambda x, y: x.is_pinned(), 0),
        (lambda x, y: x + y, 2),  # and the end of its result
        (lambda x, y: torch.mul(x, y, out=x), 1),
    ],
)
def test_a_call_writes_down_as_little_as_it_can(recorder, call, expected):
    """What an operator costs follows from this; what it takes is measured on a GPU."""
    x, y = made(), made()
    call(x, y)
    recorder.runtime.sink.flush()
    for _ in range(10):
        call(x, y)
    assert len(recorder.runtime.sink._entries) == 10 * expected


@pytest.mark.parametrize("each", [False, True], ids=["copy_", "_foreach_copy_"])
def test_sparse_tensors_are_copied_and_the_dense_ones_next_to_them_followed(recorder, each):
    source, dense = torch.eye(3).to_sparse(), made()
    target = (source * 2).coalesce()
    if each:
        torch._foreach_copy_([target, dense], [source, MODEL])
    else:
        target.copy_(source)
    assert target.to_dense().equal(torch.eye(3))
    assert dense.data_ptr() in {block.base for block in blocks(recorder)}
