"""Storages on the device: each use is ordered on the stream and judged, or refused before any harm."""

import copy
import io
import multiprocessing.reduction
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from mrv2.checks.virtual import StaleObjectError, UnsupportedOperationError, VirtualDeviceError, virtual_device

from .conftest import codes

DEVICE = torch.device("cuda:0")

# Torch says it once a process, and names whoever called; the programs here use the old storages on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")


def late_values():
    """Values that a pending kernel has yet to write: whoever looks past the stream sees something else."""
    return torch.arange(4, dtype=torch.uint8, device="cuda").add_(1)


def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


READS = {
    "tolist": lambda storage: storage.tolist(),
    "list": list,
    "bytes": lambda storage: list(bytes(storage)),
    "index": lambda storage: [storage[i] for i in range(4)],
    "slice": lambda storage: [*storage[:2], *storage[2:].tolist()],
    "cpu": lambda storage: storage.cpu().tolist(),
    "to": lambda storage: storage.to(device="cpu").tolist(),
    "clone": lambda storage: storage.clone().tolist(),
    "copy": lambda storage: copy.copy(storage).tolist(),
    "deepcopy": lambda storage: copy.deepcopy(storage).tolist(),
    "copy to the host": lambda storage: torch.UntypedStorage(4).copy_(storage).tolist(),
    "copy to the device": lambda storage: torch.UntypedStorage(4, device="cuda").copy_(storage).tolist(),
    "cuda": lambda storage: storage.cuda().tolist(),
    "short": lambda storage: storage.short().tolist(),
    "save": lambda storage: torch.load(saved(storage), weights_only=False).tolist(),
    "repr": lambda storage: [int(line) for line in repr(storage).splitlines()[:-1]],
    "typed": lambda storage: torch.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True).tolist(),
    "typed cpu": lambda storage: storage.byte().cpu().tolist(),
    "set_": lambda storage: torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage).tolist(),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_a_storage_waits_for_its_writer(vd, read):
    assert read(late_values().untyped_storage()) == [1, 2, 3, 4]
    assert codes(vd) == []


WRITES = {
    "fill_": (lambda storage: storage.fill_(7), [7, 7, 7, 7]),
    "item": (lambda storage: storage.__setitem__(1, 9), [1, 9, 3, 4]),
    "slice": (lambda storage: storage.__setitem__(slice(0, 2), 9), [9, 9, 3, 4]),
    "part": (lambda storage: storage[2:].fill_(0), [1, 2, 0, 0]),
    "copy_": (lambda storage: storage.copy_(torch.ones(4, dtype=torch.uint8).untyped_storage()), [1, 1, 1, 1]),
    "own size": (lambda storage: storage.resize_(4), [1, 2, 3, 4]),
    "share": (lambda storage: storage.share_memory_(), [1, 2, 3, 4]),
}


@pytest.mark.parametrize(("write", "expected"), WRITES.values(), ids=WRITES.keys())
def test_writing_a_storage_comes_after_what_is_pending(vd, write, expected):
    x = late_values()
    write(x.untyped_storage())
    assert x.tolist() == expected and codes(vd) == []


@pytest.mark.parametrize("use", [lambda s: s.fill_(0), lambda s: s.clone(), lambda s: s.cpu(), lambda s: s[0]])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_detector_sees_uses_of_a_storage(vd, use, ordered):
    side, x = torch.cuda.Stream(), torch.zeros(4, dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    if ordered:
        torch.cuda.current_stream().wait_stream(side)
    use(x.untyped_storage())
    assert codes(vd) == ([] if ordered else ["MRV204"])


REFUSED = {
    "grow": lambda x: x.untyped_storage().resize_(1 << 20),
    "shrink": lambda x: x.untyped_storage().resize_(0),
    "typed resize": lambda x: x.storage().resize_(100),
    "filename": lambda x: x.untyped_storage()._share_filename_cpu_(),
    "descriptor": lambda x: x.untyped_storage()._share_fd_cpu_(),
    "handle": lambda x: x.untyped_storage()._share_cuda_(),
    "reduction": torch.multiprocessing.reductions.reduce_tensor,
    "queue": multiprocessing.reduction.ForkingPickler.dumps,
    "queue of storages": lambda x: multiprocessing.reduction.ForkingPickler.dumps(x.untyped_storage()),
    "byteswap": lambda x: x.untyped_storage().byteswap(torch.int16),
    "beyond the end": lambda x: torch.empty(0, dtype=torch.uint8, device="cuda").set_(x.untyped_storage(), 2, (4,)),
    "unaligned": lambda x: torch.empty(0, dtype=torch.int16, device="cuda").set_(x.untyped_storage()[1:3]),
    "capsule": lambda x: torch.to_dlpack(x.detach()),
    "protocol": lambda x: x.__dlpack__(),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_what_would_do_harm_is_refused_in_four_parts(vd, use):
    x = late_values()
    with pytest.raises(VirtualDeviceError) as caught:
        use(x)
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
    assert x.tolist() == [1, 2, 3, 4] and codes(vd) == []


def test_sides_of_storages_do_not_mix(late):
    x, host = torch.ones(4, device="cuda"), torch.ones(4)
    with pytest.raises(RuntimeError, match="devices must match"):
        host.set_(x.untyped_storage())
    with pytest.raises(RuntimeError, match="devices must match"):
        x.set_(host.untyped_storage())
    with pytest.raises(RuntimeError, match="same device"):
        host.set_(x)
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        x.untyped_storage().pin_memory()
    assert x.tolist() == host.tolist() == [1] * 4


def test_what_a_storage_says_of_itself(late):
    x = torch.ones(3, 4, device="cuda")
    storage = x[1].untyped_storage()
    assert storage is x.untyped_storage() and isinstance(storage, torch.UntypedStorage)
    assert storage.device == DEVICE and storage.is_cuda and storage.get_device() == 0 and torch.is_storage(storage)
    assert storage.nbytes() == storage.size() == len(storage) == 48 and storage.data_ptr() == x.data_ptr()
    assert storage.is_shared() and x.is_shared() and not storage.is_pinned() and storage.element_size() == 1
    assert x.share_memory_() is x and x.storage().device == DEVICE and len(x.storage()) == 12
    assert x.storage_type() is torch.cuda.FloatStorage and x.storage()[0] == 1
    assert x.clone().untyped_storage()._cdata != storage._cdata


def test_a_tensor_over_a_storage_shares_it(vd):
    x = torch.arange(6.0, device="cuda")
    for part in (
        torch.empty(0, device="cuda").set_(x.untyped_storage(), 2, (2,), (1,)),
        torch.zeros(6, device="cuda").set_(x, 2, (2,), (1,)),
        torch.empty(0, device="cuda").set_(x.untyped_storage()[8:16]),
    ):
        x.add_(1)
        assert part.tolist() == x.tolist()[2:4]
    assert x.set_().numel() == 0 and part.sum().item() == 11 and codes(vd) == []


def test_a_storage_keeps_its_memory_alive(late):
    storage = torch.ones(4, device="cuda").untyped_storage()
    other = torch.full((4,), 7.0, device="cuda")
    assert torch.cuda.memory_allocated() == 32
    assert torch.empty(0, device="cuda").set_(storage).tolist() == [1] * 4 and other.tolist() == [7] * 4
    del storage
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 16


def test_sharing_memory_of_a_view_of_the_device_does_not_end_the_process():
    program = (
        "import torch\n"
        "from mrv2.checks.virtual import virtual_device\n"
        "with virtual_device('late') as device:\n"
        "    for _ in range(20):\n"
        "        x = torch.arange(1000., device='cuda').add_(1)\n"
        "        x[3:].share_memory_()\n"
        "        torch.nn.Linear(8, 8, device='cuda').share_memory()\n"
        "        assert x.sum().item() == 500500\n"
        "    assert device.findings == []\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# Files; torch itself cannot pickle an untyped storage


LOCATIONS = {
    "none": (None, True),
    "cuda": ("cuda", True),
    "device": (DEVICE, True),
    "cpu": ("cpu", False),
    "dict": ({"cuda:0": "cpu"}, False),
    "function": (lambda storage, location: storage, False),
    "function to the device": (lambda storage, location: storage.cuda(0), True),
}


@pytest.mark.parametrize(("location", "on_device"), LOCATIONS.values(), ids=LOCATIONS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float8_e4m3fn])
def test_saved_tensors_keep_their_device_and_their_sharing(late, location, on_device, dtype):
    x = torch.arange(6, device="cuda").to(dtype)
    whole, part = torch.load(saved([x, x.view(2, 3).t()[1:]]), map_location=location)
    assert whole.is_cuda == part.is_cuda == on_device
    assert torch.equal(whole.float().cpu(), x.float().cpu()) and part.stride() == (1, 3)
    whole.zero_()
    assert part.float().sum().item() == 0 and codes(late) == []


def test_a_file_of_the_host_is_loaded_to_the_device(late):
    stream = saved({"weight": torch.arange(3.0)})
    assert torch.load(stream, map_location="cuda")["weight"].tolist() == [0, 1, 2]
    stream.seek(0)
    assert torch.load(stream, map_location={"cpu": "cuda:0"})["weight"].is_cuda


def test_a_file_of_the_device_is_loaded_after_it(late):
    x = torch.nn.Parameter(late_values().float())
    x.note = "kept"
    again = pickle.loads(pickle.dumps(x))
    assert isinstance(again, torch.nn.Parameter) and again.is_cuda and again.requires_grad and again.note == "kept"
    plain = late_values()
    plain.note = [1]
    assert pickle.loads(pickle.dumps(plain)).note == [1]


def test_modules_and_their_states_go_through_files(late):
    module, other = torch.nn.Linear(3, 3).to("cuda"), torch.nn.Linear(3, 3, device="cuda")
    weight = other.weight
    other.load_state_dict(torch.load(saved(module.state_dict())))
    assert other.weight is weight and torch.equal(other.weight, module.weight)
    again = torch.load(saved(module), weights_only=False)
    assert isinstance(again.weight, torch.nn.Parameter) and torch.equal(again.weight, module.weight)
    host = torch.nn.Linear(3, 3)
    host.load_state_dict(module.state_dict())
    assert not host.weight.is_cuda and torch.equal(host.weight, module.weight.cpu())
    host.load_state_dict(module.state_dict(), assign=True)
    assert host.weight.is_cuda and isinstance(host.weight, torch.nn.Parameter) and codes(late) == []


# Other libraries


def test_dlpack_of_torch_is_an_alias(vd):
    x = torch.arange(3.0, device="cuda")
    for make in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
        alias = make(x)
        alias.add_(1)
        assert alias.is_cuda and alias.data_ptr() == x.data_ptr()
    assert x.tolist() == [2, 3, 4] and x.__dlpack_device__()[1] == 0
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert torch.from_dlpack(np.ones(2)).tolist() == [1, 1]


def test_numpy_is_refused_as_torch_refuses_it(late):
    x = torch.arange(3.0, device="cuda")
    for use in (np.asarray, np.array, np.from_dlpack, np.sum, lambda x: np.add(x, 1), lambda x: np.ones(3) * x):
        with pytest.raises(TypeError):
            use(x)
    with pytest.raises(TypeError):
        memoryview(x)
    described = x.__cuda_array_interface__
    assert described["data"][0] == x.data_ptr() and described["shape"] == (3,)


# Moving


def tied():
    module = torch.nn.ModuleDict({"a": torch.nn.Embedding(4, 3), "b": torch.nn.Linear(3, 4, bias=False)})
    module["b"].weight = module["a"].weight
    return module


@pytest.mark.parametrize("move", [lambda m: m.cuda(), lambda m: m.to("cuda"), lambda m: m.to("cuda", torch.half)])
def test_moving_a_module_keeps_its_parameters(vd, move):
    module = tied()
    weight = module["a"].weight
    weight.loader, expected = "kept", weight.detach().clone()
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    hooked = []
    weight.register_post_accumulate_grad_hook(lambda parameter: hooked.append(parameter.is_cuda))
    move(module)
    assert module["a"].weight is module["b"].weight is weight and len(list(module.parameters())) == 1
    assert weight.is_cuda and isinstance(weight, torch.nn.Parameter) and weight.requires_grad
    assert weight.loader == "kept" and torch.allclose(weight.cpu().float(), expected, atol=1e-2)
    module["b"](torch.ones(2, 3, device="cuda", dtype=weight.dtype)).sum().backward()
    optimiser.step()
    assert hooked == [True] and torch.allclose(weight.cpu().float(), expected - 2, atol=1e-2)
    module.cpu()
    assert module["a"].weight is module["b"].weight is weight and type(weight) is torch.nn.Parameter
    assert not weight.is_cuda and not weight.grad.is_cuda and weight.loader == "kept" and codes(vd) == []


def test_gradients_move_with_their_parameters(vd):
    module = torch.nn.Linear(3, 3)
    module(torch.ones(1, 3)).sum().backward()
    gradient = module.weight.grad
    module.cuda()
    assert module.weight.grad is gradient and gradient.is_cuda and gradient.sum().item() == 9
    module.cpu()
    assert not gradient.is_cuda and gradient.sum().item() == 9 and codes(vd) == []


def test_assigning_data_across_the_sides(vd):
    host, x = torch.zeros(3), torch.arange(4.0, device="cuda")
    host.data = x
    x.add_(1)
    assert host.is_cuda and host.tolist() == [1, 2, 3, 4]
    host.data = torch.ones(2)
    assert type(host) is torch.Tensor and host.tolist() == [1, 1] and x.tolist() == [1, 2, 3, 4]
    weight = torch.nn.Parameter(torch.ones(2))
    loss = (weight * 2).sum()
    for held in (weight, weight * 2):
        with pytest.raises(UnsupportedOperationError, match="autograd"):
            held.data = x
    assert loss.item() == 4 and codes(vd) == []


def test_a_moved_parameter_is_stale_after_its_device():
    module = tied()
    with virtual_device("late"):
        module.cuda()
    with pytest.raises(StaleObjectError):
        module["a"].weight + 1


def test_deep_copies_share_what_their_originals_share(vd):
    x = torch.arange(6.0, device="cuda")
    x.note = [1]
    whole, part, again = copy.deepcopy([x, x[2:], x])
    assert whole is again and whole.note == [1] and whole.note is not x.note
    whole.zero_()
    assert part.tolist() == [0] * 4 and x.tolist() == [0, 1, 2, 3, 4, 5]
    turned = copy.deepcopy(x.view(2, 3).t())
    assert turned.stride() == (1, 3) and turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    module = tied().cuda()
    twin = copy.deepcopy(module)
    assert twin["a"].weight is twin["b"].weight and isinstance(twin["a"].weight, torch.nn.Parameter)
    leaf = torch.ones(2, device="cuda", requires_grad=True)
    (leaf * 2).sum().backward()
    assert copy.deepcopy(leaf).grad.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(leaf * 2)
    assert codes(vd) == []


def test_torch_has_its_own_storages_again():
    before = torch.UntypedStorage.copy_, torch.TypedStorage._new_wrapped_storage, torch.is_storage
    with virtual_device("late"):
        old = torch.ones(4, device="cuda").untyped_storage()
    assert before == (torch.UntypedStorage.copy_, torch.TypedStorage._new_wrapped_storage, torch.is_storage)
    assert "__new__" not in vars(torch.UntypedStorage) and torch.UntypedStorage(3).fill_(1).tolist() == [1, 1, 1]
    for use in (
        old.tolist,
        old.clone,
        lambda: old[0],
        lambda: old.fill_(0),
        lambda: torch.UntypedStorage(16).copy_(old),
    ):
        with pytest.raises((StaleObjectError, RuntimeError)):
            use()
