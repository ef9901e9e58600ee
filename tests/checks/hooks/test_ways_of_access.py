"""Every way of reading and of writing pinned memory that Python shows, and every way of looking at it without either.

Each row is one line of a program. ``host`` is a pinned tensor of sixteen floats, ``alias`` its numpy array, ``plain``
an ordinary array and ``pageable`` an ordinary tensor of that shape.
"""

import collections
import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.virtual import virtual_device

SIZE = 16
NAMES = {"np": np, "torch": torch, "io": io, "pickle": pickle, "copy": copy, "math": math, "collections": collections}

READS = """
plain[:2] = alias[:2]
plain[:] = host.numpy()
plain[:] = host.detach().numpy()
plain[:] = whole(host)
plain[:] = host
plain[0] = alias[0]
plain[np.arange(SIZE) < 2] = alias[:2]
plain[2:4][:] = alias[2:4]
np.zeros(256)[alias.view(np.uint8)[:2]]
plain += alias
plain @ alias
plain - alias
np.copyto(plain, alias)
np.copyto(plain, host)
np.put(plain, [0, 1], alias[:2])
np.place(plain, plain < 1, alias)
np.add.at(plain, [0, 1], alias[:2])
np.add(plain, host)
np.add(alias, 1, out=plain)
np.add.reduce(alias)
np.concatenate([alias, plain])
np.concatenate([host])
np.stack([alias])
np.stack([host])
np.isnan(alias)
np.isnan(host)
np.asarray(host).sum()
np.asarray(host, dtype=np.float64)
np.asarray(alias)[0]
np.array(host)
np.array(alias)
np.array([alias])
np.array([host])
np.array([host[0]])
np.float32(host)
np.float32(alias[0])
np.frombuffer(alias, dtype=np.float32).sum()
np.from_dlpack(host).sum()
np.ascontiguousarray(alias[::2])
np.einsum('i,i', alias, alias)
np.where(alias > 0, alias, 0)
np.unique(alias)
np.sort(alias)
np.lexsort([alias])
np.lexsort((alias,))
np.linalg.norm(alias)
np.fft.fft(alias)
np.array_equal(alias, plain)
np.testing.assert_array_equal(alias[:2], alias[:2])
np.random.default_rng(0).choice(alias)
np.frompyfunc(lambda x: x, 1, 1)(alias)
np.save(io.BytesIO(), alias)
np.save(io.BytesIO(), host)
np.savez(io.BytesIO(), alias=alias)
np.savetxt(io.StringIO(), alias)
np.array_repr(alias)
np.array2string(alias)
[float(x) for x in np.nditer(alias)]
[float(x) for x in np.nditer(host)]
list(np.nditer([plain, alias]))
np.nditer(alias)
list(np.ndenumerate(alias))
alias.tolist()
alias[2:4].tolist()
alias.tobytes()
alias.tofile('/dev/null')
alias.item(0)
alias.sum()
alias.T.sum()
alias.real.sum()
alias.copy()
alias.astype(np.int64)
alias.flat[3]
alias.view(np.int32)[0]
alias.reshape(4, 4)[1].sum()
alias[alias > -1]
alias[[0, 1]]
3.0 in alias
max(alias)
sorted(alias)
list(alias)
list(enumerate(alias))
dict(zip(range(SIZE), alias))
first, *rest = alias
math.fsum(alias)
[row.sum() for row in alias.reshape(1, SIZE)]
float(alias[0])
int(alias[:1].reshape(())) if alias[0] == alias[0] else 0
collections.Counter(alias.tolist())
bytes(alias)
bytearray(alias)
repr(alias)
str(alias)
f'{alias}'
'%s' % alias
print(alias, file=io.StringIO())
pickle.dumps(alias)
pickle.dumps(alias, protocol=5)
pickle.dumps(alias, protocol=5, buffer_callback=bytes)
copy.copy(alias)
copy.deepcopy(alias)
host.tolist()
host[0].item()
float(host[0])
1 if host[0] else 0
f'{host[0]:.1f}'
f'{host}'
repr(host)
str(host)
print(host, file=io.StringIO())
[float(x) for x in host]
sum(host)
3.0 in host
pickle.dumps(host)
pickle.dumps([host, host])
copy.deepcopy(host)
torch.save(host, io.BytesIO())
torch.save({'state': host}, io.BytesIO())
torch.save(host, io.BytesIO(), _use_new_zipfile_serialization=False)
torch.equal(host, host)
torch.allclose(host, host)
torch.cat([host])
torch.softmax(host, 0)
torch.tensor(alias)
torch.from_numpy(alias).sum()
torch.as_tensor(alias).sum()
torch.frombuffer(alias, dtype=torch.float32).sum()
torch.from_dlpack(host).sum()
host + 1
host == host
host.clone()
host.data.sum()
host.nonzero()
host.unique()
host.masked_select(host > -1)
host[host > -1]
host[torch.arange(SIZE) < 3]
pageable.copy_(host)
pageable[:] = host
pageable[:2] = torch.from_numpy(alias[:2])
pageable[torch.arange(2)] = host[:2]
torch.tensor(alias, device='cuda')
host.untyped_storage()[0]
host.untyped_storage().tolist()
""".strip().splitlines()

LOOKS = """
alias.shape, alias.strides, alias.dtype, alias.size, alias.nbytes, len(alias), alias.flags.c_contiguous
alias[2:4], alias[..., None], alias[::2], alias.T, alias.reshape(4, 4), alias.view(np.int32), alias.ravel()
alias.ctypes.data, alias.__array_interface__['data'], alias.base
np.may_share_memory(alias, plain), np.shares_memory(alias, plain), np.may_share_memory(alias[:2], plain)
np.may_share_memory(host, plain), np.shares_memory(host, host)
np.shape(alias), np.ndim(alias), np.size(alias), np.shape(host), np.ndim(host)
np.empty_like(alias), np.zeros_like(alias), np.empty_like(host), np.zeros_like(host)
np.result_type(alias, 1.0), np.result_type(host, 1.0), np.can_cast(alias.dtype, np.float64)
np.asarray(host), np.asarray(alias), np.asanyarray(host), np.frombuffer(alias, dtype=np.float32), np.from_dlpack(host)
np.split(alias, 2), np.expand_dims(alias, 0), np.broadcast_to(alias, (2, SIZE)), np.squeeze(alias), np.flip(alias)
host.shape, host.stride(), host.dtype, host.device, host.numel(), len(host), host.is_contiguous(), host.is_pinned()
host.data_ptr(), host.untyped_storage().data_ptr(), host.storage_offset(), host.element_size(), host.nbytes
host[2:4], host.view(4, 4), host.view(torch.int32), host.detach(), host.narrow(0, 1, 2), host.unbind(), host.split(4)
host.numpy(), host.detach().numpy(), host[2:4].numpy(), torch.from_numpy(alias), torch.as_tensor(alias)
torch.empty_like(host), torch.zeros_like(host), host.new_empty(3), host.new_zeros(3)
torch.frombuffer(alias, dtype=torch.float32), torch.from_dlpack(host)
kept = [alias[:2], host.numpy()]; kept[0] = None; kept[1] = alias[2:4]; kept[1] = None
kept = {}; kept[0] = alias[:2]; kept[0] = alias[2:4]; kept[len(alias[:3])] = alias[:2].shape; kept[0] = None
plain[0] = alias[:2].size; plain[0] = host.numpy().itemsize; plain[0] = len(alias[:3])
plain[0:2] = plain[2:4]; view = alias[:2]; view = None
isinstance(alias, np.ndarray), isinstance(np.nditer(plain), np.nditer), hash(host), id(alias), host is alias
""".strip().splitlines()

WRITES = """
alias[0] = 1.0
alias[2:4] = 1.0
alias[:2] = plain[:2]
alias[...] = pageable
alias[[0, 1]] = 1.0
alias[plain < 1] = 1.0
alias[2:4][:] = 1.0
alias += 1
alias[:2] += 1
alias.fill(1.0)
alias.sort()
alias.put([0, 1], 1.0)
alias.flat[3] = 1.0
alias.flat = 1.0
alias.partition(3)
alias.byteswap(inplace=True)
alias.view(np.int32)[0] = 1
alias.reshape(4, 4)[1] = 1.0
alias.real = 1.0
alias.view(np.complex64).imag = 1.0
alias.T[:] = 1.0
np.copyto(alias, 1.0)
np.copyto(alias, plain, where=plain < 1)
np.put(alias, [0], 1.0)
np.place(alias, plain < 1, [1.0])
np.putmask(alias, plain < 1, 1.0)
np.fill_diagonal(alias.reshape(4, 4), 1.0)
np.add(plain, 1, out=alias)
np.add.at(alias, [0, 1], 1)
np.sum(plain.reshape(1, SIZE), axis=0, out=alias)
np.concatenate([plain], out=alias)
np.take(plain, np.arange(SIZE), out=alias)
plain.cumsum(out=alias) if False else np.cumsum(plain, out=alias)
np.asarray(host)[0] = 1.0
np.frombuffer(alias, dtype=np.float32)[0] = 1.0
np.random.default_rng(0).shuffle(alias)
for x in np.nditer(alias, op_flags=['readwrite']): x[...] = 1.0
host.fill_(1.0)
host.zero_()
host.add_(1)
host[0] = 1.0
host[2:4] = 1.0
host[pageable < 1] = 1.0
host.copy_(pageable)
host.index_fill_(0, torch.arange(2), 1.0)
host.data.add_(1)
host.numpy()[0] = 1.0
torch.add(pageable, 1, out=host)
torch.from_numpy(alias).add_(1)
torch._foreach_add_([host], 1)
torch._foreach_copy_([host], [pageable])
""".strip().splitlines()


def line(row):
    """A function whose second line is the row."""
    names = {**NAMES, "SIZE": SIZE, "whole": lambda host: host.numpy()}
    exec(compile(f"def line(host, alias, plain, pageable):\n    {row}", "user_program.py", "exec"), names)
    return names["line"]


def run(row, begin, *, ordered, schedule="late"):
    """The findings of a program that begins something on the device, perhaps waits for it, and runs a row."""
    access = line(row)
    with virtual_device(schedule) as device:
        host = torch.ones(SIZE, pin_memory=True)
        alias, plain, pageable = host.numpy(), np.zeros(SIZE, np.float32), torch.zeros(SIZE)
        memory = begin(host)
        event = torch.cuda.Event()
        event.record()
        if ordered:
            event.synchronize()
        access(host, alias, plain, pageable)
        event.synchronize()
        torch.cuda.synchronize()
        del memory
    return device.findings


def download(host):
    source = torch.full((SIZE,), 3.0, device="cuda")
    host.copy_(source, non_blocking=True)


def upload(host):
    target = torch.empty(SIZE, device="cuda")
    target.copy_(host, non_blocking=True)
    return target


@triton.jit
def write_in_place(x_ptr, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.store(x_ptr + lane, lane * 3.0)


@triton.jit
def read_in_place(x_ptr, out_ptr, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane))


def kernel_that_writes(host):
    write_in_place[(1,)](host, SIZE=SIZE)


def kernel_that_reads(host):
    out = torch.empty(SIZE, device="cuda")
    read_in_place[(1,)](host, out, SIZE=SIZE)
    return out


def check(row, begin, code, schedule="late"):
    (finding,) = run(row, begin, ordered=False, schedule=schedule)
    assert finding.code == code
    assert (finding.where[0].file, finding.where[0].line) == ("user_program.py", 2)
    assert run(row, begin, ordered=True, schedule=schedule) == []


# Values of a raced line are whatever they are: NaN, or not a number of an index.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("schedule", ["late", "early"])
@pytest.mark.parametrize("row", READS)
def test_reading_what_a_download_may_not_have_filled(row, schedule):
    check(row, download, "MRV203", schedule)


@pytest.mark.parametrize("row", READS)
def test_reading_what_a_kernel_may_still_write_in_place(row):
    check(row, kernel_that_writes, "MRV202")


@pytest.mark.parametrize("row", READS)
def test_reading_beside_a_reader_is_no_race(row):
    assert run(row, upload, ordered=False) == []


@pytest.mark.parametrize("begin", [download, upload, kernel_that_writes, kernel_that_reads])
@pytest.mark.parametrize("row", LOOKS)
def test_looking_is_no_access(row, begin):
    assert run(row, begin, ordered=False) == []


@pytest.mark.parametrize("schedule", ["late", "early"])
@pytest.mark.parametrize("row", WRITES)
def test_writing_what_an_upload_may_not_have_read(row, schedule):
    check(row, upload, "MRV201", schedule)


@pytest.mark.parametrize("row", WRITES)
def test_writing_what_a_kernel_may_still_read_in_place(row):
    check(row, kernel_that_reads, "MRV202")


class TestAssignments:
    """Views that live for one statement, however often it runs and wherever they were made."""

    @staticmethod
    def findings(program):
        with virtual_device() as device:
            host = torch.ones(SIZE, pin_memory=True)
            alias = host.numpy()
            download(host)
            program(host, alias, np.zeros(SIZE, np.float32))
        return device.findings

    def test_each_time_of_a_loop_counts(self):
        def program(host, alias, plain):
            for number in range(30):
                plain[:] = host.numpy()
                plain[: number % 3 + 1] = alias[: number % 3 + 1]

        assert [finding.evidence["occurrences"] for finding in self.findings(program)] == [30, 30]

    def test_exact_bytes(self):
        def program(host, alias, plain):
            plain[2:4] = alias[6:8]

        (finding,) = self.findings(program)
        assert finding.evidence["offset"] == [24, 32]

    def test_through_a_helper_that_keeps_nothing(self):
        def program(host, alias, plain):
            def helper(n):
                return (lambda: alias[:n])()

            plain[:3] = helper(3)

        (finding,) = self.findings(program)
        assert finding.where[0].function.endswith("program")

    def test_a_view_with_a_name_is_not_seen(self):
        """What the page says is missed; should this fail one day, so much the better: change the page."""

        def program(host, alias, plain):
            plain[:] = alias

        assert self.findings(program) == []

    def test_a_ring_that_drops_old_views_reads_nothing(self):
        def program(host, alias, plain):
            ring, newest = [None, None], {}
            for number in range(20):
                ring[number % 2] = host.numpy()
                newest["view"] = alias[:number]
                newest[alias[:number].shape] = len(alias[:number])
            ring[0] = ring[1] = newest["view"] = None

        assert self.findings(program) == []


@pytest.mark.parametrize(
    "row", ["np.nditer(alias, op_flags=['readwrite'])", "np.nditer([plain, alias], [], [['readonly'], ['writeonly']])"]
)
def test_an_iterator_that_may_write_is_told_as_a_write(row):
    check(row, upload, "MRV201")


def test_what_was_replaced_in_numpy_is_put_back():
    before = {name: getattr(np, name) for name in ("nditer", "lexsort", "shares_memory", "zeros_like")}
    with virtual_device():
        assert all(getattr(np, name) is not stock for name, stock in before.items())
    assert all(getattr(np, name) is stock for name, stock in before.items())
