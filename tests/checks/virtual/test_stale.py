"""What a program keeps when its device is gone: refused by name, here and on the next device; torch is itself again."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

from mrv2.checks.virtual import StaleObjectError, VirtualDeviceError, virtual_device


class Kept:
    """One of everything, of a device that is gone."""

    def __init__(self) -> None:
        with virtual_device("late"):
            self.stream, self.generic = torch.cuda.Stream(), torch.Stream(device="cuda")
            self.event, self.fresh = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
            self.event.record()
            self.generator, self.default = torch.Generator(device="cuda"), torch.cuda.default_generators[0]
            self.tensor, self.module = torch.ones(4, device="cuda"), torch.nn.Linear(2, 2).cuda()
            self.storage = self.tensor.untyped_storage()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.tensor.add_(1)


TENSORS = {
    "add": lambda k: k.tensor + 1, "cpu": lambda k: k.tensor.cpu(), "cuda": lambda k: k.tensor.cuda(),
    "tolist": lambda k: k.tensor.tolist(), "item": lambda k: k.tensor.sum().item(), "index": lambda k: k.tensor[0],
    "data": lambda k: k.tensor.data, "storage": lambda k: k.tensor.untyped_storage(),
    "dlpack": lambda k: torch.from_dlpack(k.tensor), "interface": lambda k: k.tensor.__cuda_array_interface__,
    "pickle": lambda k: pickle.dumps(k.tensor), "deepcopy": lambda k: copy.deepcopy(k.tensor),
    "share": lambda k: k.tensor.share_memory_(), "to the host": lambda k: torch.ones(4).copy_(k.tensor),
    "with the host": lambda k: torch.ones(4) + k.tensor, "cat": lambda k: torch.cat([torch.ones(4), k.tensor]),
    "detach": lambda k: k.tensor.detach(), "write": lambda k: k.tensor.__setitem__(0, 1),
    "parameter": lambda k: k.module.weight * 2, "module": lambda k: k.module.cpu(),
    "read storage": lambda k: k.storage.tolist(), "write storage": lambda k: k.storage.fill_(0),
    "replay": lambda k: k.graph.replay(), "capture": lambda k: k.graph.capture_begin(),
    "end": lambda k: k.graph.capture_end(), "pool": lambda k: k.graph.pool(),
    "seed": lambda k: k.generator.manual_seed(1), "state": lambda k: k.generator.get_state(),
    "offset": lambda k: k.default.get_offset(), "device of": lambda k: k.generator.device,
}  # fmt: skip


@pytest.mark.parametrize("use", TENSORS.values(), ids=TENSORS.keys())
def test_an_object_of_a_device_that_is_gone_is_refused(use):
    kept = Kept()
    with pytest.raises(StaleObjectError, match="virtual_device block"):
        use(kept)
    with virtual_device("late") as device:
        with pytest.raises(StaleObjectError, match="virtual_device block"):
            use(kept)
        assert torch.ones(2, device="cuda").tolist() == [1, 1] and device.findings == []


STREAMS = {
    "enter": lambda k: k.stream.__enter__(), "enter generic": lambda k: k.generic.__enter__(),
    "set": lambda k: torch.cuda.set_stream(k.stream), "synchronize": lambda k: k.stream.synchronize(),
    "query": lambda k: k.stream.query(), "wait": lambda k: k.stream.wait_stream(k.stream),
    "record": lambda k: k.event.record(), "event": lambda k: k.event.synchronize(),
    "query event": lambda k: k.event.query(), "fresh event": lambda k: k.fresh.synchronize(),
    "time": lambda k: k.event.elapsed_time(k.event), "wait event": lambda k: k.stream.wait_event(k.event),
    "number": lambda k: k.stream.cuda_stream,
}  # fmt: skip


@pytest.mark.parametrize("use", STREAMS.values(), ids=STREAMS.keys())
def test_streams_and_events_are_refused_where_there_is_no_device(use):
    kept = Kept()
    with pytest.raises(VirtualDeviceError, match="inside a virtual_device block"):
        use(kept)


DRAWS = {
    "rand": lambda g: torch.rand(3, generator=g), "exponential": lambda g: torch.ones(3).exponential_(generator=g),
    "permutation": lambda g: torch.randperm(3, generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (2,), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(3), 1, generator=g),
    "split": lambda g: torch.utils.data.random_split([1, 2, 3], [1, 2], generator=g),
    "initialise": lambda g: torch.nn.init.normal_(torch.ones(2), generator=g),
}  # fmt: skip


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_generator_that_is_gone_draws_nothing(draw):
    kept = Kept()
    for generator in (kept.generator, kept.default):
        with pytest.raises(TypeError, match="GeneratorOfClosedDevice"):
            draw(generator)
        with virtual_device("late"), pytest.raises(TypeError, match="GeneratorOfClosedDevice"):
            draw(generator)
    draw(torch.Generator())
    with virtual_device("late"):
        draw(torch.Generator())
        assert torch.rand(2, device="cuda", generator=torch.Generator(device="cuda")).is_cuda


def test_metadata_can_still_be_read():
    kept = Kept()
    assert kept.tensor.shape == (4,) and kept.tensor.is_cuda and "gone" in repr(kept.tensor)
    assert repr(kept.stream) and repr(kept.event) and repr(kept.generator)
    kept.graph.reset()


def test_functions_imported_from_torch_while_a_device_is_open_serve_the_next():
    """A module of the program that is imported inside the block keeps what it found there."""
    program = (
        "import torch\n"
        "from mrv2.checks.virtual import virtual_device\n"
        "with virtual_device('late'):\n"
        "    from torch import from_dlpack, tensor\n"
        "    from torch.cuda import current_stream, is_available, manual_seed, memory_allocated, synchronize\n"
        "    from torch.cuda import Event, Stream, stream\n"
        "    assert is_available() and tensor([1], device='cuda').is_cuda\n"
        "assert not is_available() and tensor([1]).device.type == 'cpu' and from_dlpack(torch.ones(1)).item() == 1\n"
        "try:\n"
        "    synchronize()\n"
        "except AssertionError:\n"
        "    pass\n"
        "else:\n"
        "    raise SystemExit('torch itself must answer')\n"
        "with virtual_device('late') as device:\n"
        "    pinned, x = torch.zeros(4, pin_memory=True), tensor([1., 2., 3., 4.], device='cuda')\n"
        "    with stream(Stream()):\n"
        "        side = current_stream()\n"
        "        side.wait_stream(torch.cuda.default_stream())\n"
        "        pinned.copy_(x, non_blocking=True)\n"
        "    assert side.cuda_stream != current_stream().cuda_stream and memory_allocated() == 16\n"
        "    synchronize()\n"
        "    assert pinned.tolist() == [1, 2, 3, 4] and device.findings == []\n"
        "    manual_seed(3)\n"
        "    a = torch.rand(2, device='cuda')\n"
        "    manual_seed(3)\n"
        "    assert torch.equal(a, torch.rand(2, device='cuda'))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
