"""Reads and writes through the numpy alias of tracked memory."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mrv2.checks.events import OperationKind
from mrv2.checks.hooks import numpy_alias
from mrv2.checks.hooks.byte_ranges import array_ranges, selected_ranges
from mrv2.checks.hooks.numpy_alias import TrackedArray


@pytest.fixture
def host(device):
    """A device whose pinned memory is tracked through numpy."""
    undo = numpy_alias.install(device)
    yield device
    undo()


class Memory:
    """A tracked array of 2 x 4 floats, and what was told of it: element numbers, read and written."""

    def __init__(self, device):
        self.device = device
        self.array = device.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
        self.base = self.array.ctypes.data

    def told(self):
        """Elements read, elements written since the last call."""
        accesses, self.device.judge.accesses = self.device.judge.accesses, []
        elements = (set(), set())
        for _, write, ranges in accesses:
            for low, high in ranges:
                elements[write].update(range((low - self.base) // 4, (high - self.base) // 4))
        return elements


@pytest.fixture
def memory(host):
    return Memory(host)


NOTHING = (set(), set())
FIRST, SECOND = {0, 1, 2, 3}, {4, 5, 6, 7}
ALL = FIRST | SECOND
MASK = np.eye(2, 4) > 0


class TestViewsAreNoAccess:
    @pytest.mark.parametrize(
        "look",
        [
            lambda a: a[1], lambda a: a[:, 1:3], lambda a: a[None, ..., 0], lambda a: a[::-1], lambda a: a[1, ...],
            lambda a: (a.shape, a.strides, a.dtype, a.nbytes, a.flags, len(a), a.ndim, a.size, a.itemsize, a.base),
            lambda a: (a.T, a.reshape(4, 2), a.reshape((8,)), a.ravel(), a.view(np.int32), a.view(), a.squeeze()),
            lambda a: (a.transpose(1, 0), a.swapaxes(0, 1), a.diagonal(), a.real, a.ctypes.data, a.__array_interface__),
            lambda a: (np.may_share_memory(a, a), np.shares_memory(a[0], a[1]), np.shape(a), np.ndim(a), np.size(a)),
            lambda a: (np.empty_like(a), np.zeros_like(a), np.full_like(a, 3), np.result_type(a, np.float64)),
            lambda a: (np.reshape(a, 8), np.split(a, 2), np.expand_dims(a, 0), np.moveaxis(a, 0, 1), np.flip(a)),
            lambda a: (np.asarray(a), np.asanyarray(a), np.array(a, copy=False), np.ascontiguousarray(a)),
            lambda a: (np.broadcast_to(a, (3, 2, 4)), np.atleast_2d(a), np.ravel(a), a.view(np.ndarray), iter(a)),
            lambda a: (torch.from_numpy(a), torch.frombuffer(memoryview(a), dtype=torch.float32)),
        ],
    )  # fmt: skip
    def test_looking(self, memory, look):
        look(memory.array)
        assert memory.told() == NOTHING

    @pytest.mark.parametrize(
        "alias",
        [
            lambda a: a[1], lambda a: a.T[1:], lambda a: a.reshape(8)[4:], lambda a: a.view(np.int32)[1:],
            lambda a: np.asarray(a)[1], lambda a: np.split(a, 2)[1], lambda a: np.expand_dims(a, 0)[0, 1],
            lambda a: np.frombuffer(memoryview(a.reshape(8)), np.float32)[4:], lambda a: next(iter(a[1:])),
            lambda a: np.broadcast_to(a, (3, 2, 4))[0, 1], lambda a: a.view(np.ndarray)[1], lambda a: np.flip(a)[0],
            lambda a: np.asarray(torch.from_numpy(a))[1], lambda a: np.from_dlpack(torch.from_numpy(a))[1],
            lambda a: np.lib.stride_tricks.sliding_window_view(a, (1, 4))[1], lambda a: a.flat.base[1],
        ],
    )  # fmt: skip
    def test_views_go_on_being_tracked(self, memory, alias):
        view = alias(memory.array)
        assert isinstance(view, TrackedArray)
        view.sum()
        assert memory.told()[0] >= {5, 6, 7}


class TestReads:
    @pytest.mark.parametrize(
        ("access", "elements"),
        [
            (lambda a: a[1, 2], {6}), (lambda a: a[-1, -1], {7}), (lambda a: a[0][3], {3}),
            (lambda a: a[np.int64(1), np.int32(0)], {4}), (lambda a: a[:, 1].tolist(), {1, 5}),
            (lambda a: a[[1]], SECOND), (lambda a: a[np.array([0]), 1:3], {1, 2}),
            (lambda a: a[[0, 1], [1, 2]], {1, 6}), (lambda a: a[np.array([False, True])], SECOND),
            (lambda a: a[a > 5.0], ALL), (lambda a: a[:, [True, False, False, True]], {0, 3, 4, 7}),
            (lambda a: a.item(3), {3}), (lambda a: a.item(1, 0), {4}), (lambda a: a[1].item(2), {6}),
            (lambda a: a.take([1, 2]), {1, 2}), (lambda a: a.take([3], axis=1), {3, 7}),
            (lambda a: np.take(a, [0], axis=0), FIRST), (lambda a: a.compress([False, True], axis=0), SECOND),
            (lambda a: np.extract(MASK, a), {0, 5}), (lambda a: a.flat[2:5], {2, 3, 4}),
            (lambda a: np.take_along_axis(a, np.array([[1], [2]]), 1), {1, 6}), (lambda a: list(a.flat), ALL),
            (lambda a: float(a[1:, 2:3][0, 0]), {6}), (lambda a: float(a[0, 1:2].reshape(())), {1}),
            (lambda a: int(a[0, 1:2].reshape(())), {1}), (lambda a: bool(a[0, 1:2]), {1}),
            (lambda a: list(a[0]), FIRST), (lambda a: [float(x) for row in a for x in row], ALL),
            (lambda a: 3.0 in a[0], FIRST), (lambda a: max(a[1]), SECOND), (lambda a: str(a[0]), FIRST),
            (lambda a: f"{a[0]}", FIRST), (lambda a: repr(a[0]), FIRST), (lambda a: a.copy(), ALL),
            (lambda a: a.astype(int), ALL), (lambda a: a.tobytes(), ALL), (lambda a: a.flatten(), ALL),
            (lambda a: a.T.reshape(8), ALL), (lambda a: a.T.ravel(), ALL), (lambda a: np.ravel(a.T), ALL),
            (lambda a: a[0] + 1, FIRST), (lambda a: 1 - a[1], SECOND), (lambda a: a[0] == a[1], ALL),
            (lambda a: a @ a.T, ALL), (lambda a: np.add.reduce(a[0]), FIRST), (lambda a: np.exp(a[1]), SECOND),
            (lambda a: np.add.reduce(a, where=a > 9), ALL), (lambda a: np.add.reduce(a, where=MASK), {0, 5}),
            (lambda a: a.sum(), ALL), (lambda a: a.max(axis=0), ALL), (lambda a: a[0].argmax(), FIRST),
            (lambda a: np.concatenate([a[0], a[1, :2]]), {0, 1, 2, 3, 4, 5}), (lambda a: np.stack((a[0], a[0])), FIRST),
            (lambda a: np.array(a, copy=True), ALL), (lambda a: np.array([a[0], a[0]]), FIRST),
            (lambda a: np.copy(a[0]), FIRST),
            (lambda a: np.asarray(a[0], dtype=int), FIRST), (lambda a: np.where(a > 1, a, 0), ALL),
            (lambda a: pickle.dumps(a[0]), FIRST), (lambda a: copy.deepcopy(a[0]), FIRST),
            (lambda a: copy.copy(a[0]), FIRST), (lambda a: np.searchsorted(a[0], 2.0), FIRST),
            (lambda a: np.array_equal(a[0], [1]), FIRST), (lambda a: np.arange(3.0).__add__(a[0, :3]), {0, 1, 2}),
        ],
    )  # fmt: skip
    def test_exact_bytes(self, memory, access, elements):
        access(memory.array)
        assert memory.told() == (elements, set())

    @pytest.mark.parametrize(
        "make",
        [
            np.copy, np.array, np.exp, pickle.loads, copy.deepcopy, copy.copy, lambda a: a.copy(), lambda a: a + 1,
            lambda a: a[[0]], lambda a: a.astype(int), lambda a: a.T.ravel(), lambda a: a.sum(axis=0), lambda a: a > 2,
            lambda a: np.concatenate([a, a]), lambda a: a.flatten(), lambda a: a.take([1]), np.sort,
        ],
    )  # fmt: skip
    def test_what_is_no_alias_is_plain(self, memory, make):
        made = make(pickle.dumps(memory.array) if make is pickle.loads else memory.array)
        assert type(made) is np.ndarray
        memory.told()
        made[:] = 0
        assert memory.told() == NOTHING

    def test_values_are_right(self, memory):
        expected = np.arange(8, dtype=np.float32).reshape(2, 4)
        array = memory.array
        assert (array[1, 2], array.item(3), array.sum(), array.tolist()) == (6.0, 3.0, 28.0, expected.tolist())
        assert np.array_equal(pickle.loads(pickle.dumps(array)), expected)
        assert np.array_equal(array[[1, 0]], expected[[1, 0]])
        assert np.array_equal(np.take(array, [5, 2]), [5.0, 2.0])
        assert list(array.flat) == list(range(8))


class TestWrites:
    @pytest.mark.parametrize(
        ("access", "elements"),
        [
            (lambda a: a.__setitem__((1, 2), 9), {6}), (lambda a: a.__setitem__((slice(None), 1), 9), {1, 5}),
            (lambda a: a[0].__setitem__(slice(1, 3), [8, 9]), {1, 2}), (lambda a: a.__setitem__(1, 0), SECOND),
            (lambda a: a.__setitem__(([0, 1], [1, 2]), 9), {1, 6}), (lambda a: a.__setitem__(MASK, 9), {0, 5}),
            (lambda a: a.__setitem__(..., 9), ALL), (lambda a: a.__setitem__([True, False], 9), FIRST),
            (lambda a: a.fill(1), ALL), (lambda a: a[1].sort(), SECOND), (lambda a: a[0].partition(2), FIRST),
            (lambda a: a.put([1, 6], 9), {1, 6}), (lambda a: np.put(a, [-1], 9), {7}),
            (lambda a: np.copyto(a[0], 5), FIRST), (lambda a: np.copyto(a, 5, where=MASK), {0, 5}),
            (lambda a: np.place(a, MASK, [9]), {0, 5}), (lambda a: np.putmask(a, MASK, 9), {0, 5}),
            (lambda a: np.fill_diagonal(a, 9), {0, 5}), (lambda a: a.byteswap(inplace=True), ALL),
            (lambda a: np.put_along_axis(a, np.array([[1], [2]]), 9, 1), {1, 6}),
            (lambda a: np.add(1, 2, out=a[0]), FIRST), (lambda a: np.exp(np.ones(4), a[1]), SECOND),
            (lambda a: np.add(np.ones((2, 4)), 1, out=a, where=MASK), {0, 5}),
            (lambda a: np.add.at(a, ([0, 1], [1, 2]), 9), {1, 6}), (lambda a: np.negative.at(a, (0, 1)), {1}),
            (lambda a: np.ones((2, 4)).sum(axis=0, out=a[1]), SECOND),
            (lambda a: np.sum(np.ones((2, 4)), 0, None, a[1]), SECOND),
            (lambda a: np.concatenate([np.ones(2)] * 2, out=a[0], casting="same_kind"), FIRST),
            (lambda a: np.clip(np.ones(4), 0, 1, out=a[0]), FIRST), (lambda a: setattr(a, "flat", 3), ALL),
            (lambda a: a.flat.__setitem__(slice(2, 5), 9), {2, 3, 4}), (lambda a: a.flat.__setitem__(7, 9), {7}),
            (lambda a: np.divmod(np.ones(4), 2, a[0], a[1]), ALL), (lambda a: a[0].__iadd__(1), FIRST),
        ],
    )  # fmt: skip
    def test_exact_bytes(self, memory, access, elements):
        access(memory.array)
        assert memory.told() == (set(), elements)

    @pytest.mark.parametrize(
        ("access", "reads", "writes"),
        [
            (lambda a: a.__setitem__(0, a[1]), SECOND, FIRST),
            (lambda a: np.copyto(a[0], a[1]), SECOND, FIRST),
            (lambda a: np.add(a[1], 1, out=a[0]), SECOND, FIRST),
            (lambda a: a[1].sum(keepdims=True, out=a[0, :1]), SECOND, {0}),
            (lambda a: a.flat.__setitem__(slice(4), a[1]), SECOND, FIRST),
        ],
    )
    def test_both_sides(self, memory, access, reads, writes):
        access(memory.array)
        assert memory.told() == (reads, writes)

    @pytest.mark.parametrize(
        "use",
        [lambda a, t: a.__setitem__(0, t), lambda a, t: np.copyto(a[0], t), lambda a, t: np.add(t, 1, out=a[0])],
    )
    def test_a_tensor_as_the_source(self, host, memory, use):
        """The fake device has no torch hooks, so its tensor gives a plain array: only the values are looked at."""
        use(memory.array, torch.full((4,), 8.0))
        assert memory.told() == (set(), FIRST)
        assert memory.array[0].tolist() in ([8.0] * 4, [9.0] * 4)

    def test_results_are_the_outputs_given(self, memory):
        row = memory.array[0]
        assert np.add(1, 2, out=row) is row
        assert np.sum(np.ones((2, 4)), axis=0, out=row) is row
        assert np.ones((2, 4)).sum(axis=0, out=row) is row
        before = row
        row += 1
        assert row is before
        assert memory.array[0].tolist() == [3.0] * 4

    def test_a_wrong_index_is_no_access(self, memory):
        with pytest.raises(IndexError):
            memory.array[2, 0]
        with pytest.raises(IndexError):
            memory.array[2] = 0
        assert memory.told() == NOTHING


class TestRaces:
    def test_disjoint_slices_of_one_buffer(self, host):
        source = host.pinned([0.0] * 8)
        host.upload(source[:4])
        host.wrap_array(source.numpy())[4:] = 1.0
        assert host.codes == []

    def test_overlapping_write(self, host):
        source = host.pinned([0.0] * 8)
        host.upload(source[:4])
        host.wrap_array(source.numpy())[3:] = 1.0
        assert host.codes == ["MRV201"]

    def test_read_before_the_download_is_over(self, host):
        target = host.pinned([0.0] * 8)
        span = (target.data_ptr(), target.data_ptr() + 16)
        host.enqueue("download", OperationKind.COPY_TO_HOST, lambda: None, writes=[span])
        alias = host.wrap_array(target.numpy())
        assert alias[4:].sum() == 0.0
        assert host.codes == []
        assert alias[3] == 0.0
        assert host.codes == ["MRV203"]

    def test_after_waiting(self, host):
        source = host.pinned([0.0] * 8)
        host.upload(source)
        host.synchronize()
        host.wrap_array(source.numpy())[:] = 1.0
        assert host.codes == []


class TestInstalling:
    def test_undone(self, device):
        before = dict(vars(np))
        numpy_alias.install(device)()
        assert dict(vars(np)) == before
        assert device.wrap_array is None

    def test_arrays_outlive_the_device(self, memory):
        memory.device.active = False
        memory.array[0] = memory.array[1] + 1
        assert memory.array[0].tolist() == [5.0, 6.0, 7.0, 8.0]
        assert memory.told() == NOTHING

    def test_plain_arrays_stay_plain(self, host):
        array = np.arange(4.0)
        assert type(np.asarray(array)) is np.ndarray
        assert type(np.frombuffer(memoryview(array))) is np.ndarray
        assert type(np.array([[1, 2], [3, 4]])) is np.ndarray


# Byte ranges against the definition

shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)


@st.composite
def views(draw):
    """A view of some memory, with gaps, broadcast axes and negative strides."""
    array = np.arange(draw(st.sampled_from([60, 120])), dtype=np.int16)
    array = array[: np.prod(shape)].reshape(shape) if np.prod(shape := draw(shapes)) <= len(array) else array
    view = array[draw(hnp.basic_indices(array.shape, min_dims=0, allow_newaxis=True))]
    return np.asarray(view).transpose(draw(st.permutations(range(np.ndim(view)))))


def _elements(array):
    """Addresses of all bytes of an array, one element at a time."""
    bases = {
        array.ctypes.data + sum(index * stride for index, stride in zip(position, array.strides, strict=True))
        for position in np.ndindex(array.shape)
    }
    return {base + offset for base in bases for offset in range(array.itemsize)}


def _flat(ranges):
    assert all(low < high for low, high in ranges)
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))
    return {byte for low, high in ranges for byte in range(low, high)}


@given(views())
def test_array_ranges(view):
    assert _flat(array_ranges(view)) == _elements(view)


@given(st.data())
def test_selected_ranges(data):
    view = data.draw(views().filter(lambda array: array.ndim > 0 and array.size > 0))
    if data.draw(st.booleans()):
        key = data.draw(hnp.arrays(bool, view.shape[: data.draw(st.integers(1, view.ndim))]))
    else:
        key = data.draw(hnp.integer_array_indices(view.shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3)))
    marked = np.zeros(view.shape, bool)
    marked[key] = True
    chosen = [view[tuple(slice(index, index + 1) for index in position)] for position in np.argwhere(marked)]
    assert _flat(selected_ranges(view, key)) == set().union(*map(_elements, chosen))
