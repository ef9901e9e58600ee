"""Kernels on host memory: same results as compiled ones, and no patch of Triton left behind."""

import inspect
import threading

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterError
from triton.runtime.jit import JITFunction

from mrv2.refrunner.kernels import launch
from mrv2.refrunner.kernels.launch import kernel


@kernel
def square(value):
    return value * value


@kernel
def square_and_largest(values):
    return square(values), tl.max(square(values), 0)


@kernel
def fill_squares(out_ptr, largest_ptr, count, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    lane = program * BLOCK + tl.arange(0, BLOCK)
    values, largest = square_and_largest(lane)
    tl.store(out_ptr + lane, values, mask=lane < count)
    tl.store(largest_ptr + program, largest)


@kernel
def fill_grid(out_ptr, width):
    x, y = tl.program_id(0), tl.program_id(1)
    tl.store(out_ptr + x * width + y, 10 * x + y + 1000 * tl.num_programs(0))


@kernel
def fail_in_second_program(out_ptr):
    program = tl.program_id(0)
    tl.store(out_ptr + program, 1)
    if program == 1:
        tl.store(out_ptr + program, undefined_name)  # noqa: F821


@kernel
def fail_in_nested(out_ptr):
    tl.store(out_ptr, square(undefined_name))  # noqa: F821


@kernel
def double_in_place(ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(ptr + lane, tl.load(ptr + lane) * 2)


def language():
    """Every attribute that the interpreter replaces while it runs, by identity."""
    owners = {"tl": tl, "core": tl.core, "math": tl.math, "tensor": tl.tensor, "jit": JITFunction}
    members = {(name, key): inspect.getattr_static(owner, key) for name, owner in owners.items() for key in dir(owner)}
    return {key: value for key, value in members.items() if key[1] != "__annotations__"}  # made by Python on demand


@pytest.fixture(autouse=True)
def _no_patch_is_left():
    before = language()
    yield
    after = language()
    changed = [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)]
    assert changed == []


def squares(count=10, block=4):
    out = torch.full((count + 3,), -1, dtype=torch.int32)
    programs = -(-count // block)
    largest = torch.zeros(programs, dtype=torch.int32)
    fill_squares[(programs,)](out, largest, count, BLOCK=block)
    return out.tolist(), largest.tolist()


def test_nested_functions_and_library_functions():
    assert squares() == ([lane**2 for lane in range(10)] + [-1] * 3, [9, 49, 121])


def test_grid_of_two_dimensions():
    out = torch.zeros(2, 3, dtype=torch.int32)
    fill_grid[(2, 3)](out, 3)
    assert out.tolist() == [[2000, 2001, 2002], [2010, 2011, 2012]]


def test_grid_from_a_function():
    out = torch.zeros(2, 3, dtype=torch.int32)
    fill_grid[lambda arguments: (2, 3)](out, 3)
    assert out[1, 2] == 2012


def test_a_view_is_written_in_place():
    memory = torch.arange(12, dtype=torch.int32)
    double_in_place[(1,)](memory[4:8], BLOCK=4)
    assert memory.tolist() == [0, 1, 2, 3, 8, 10, 12, 14, 8, 9, 10, 11]


@pytest.mark.parametrize("failing", [fail_in_second_program, fail_in_nested])
def test_an_exception_leaves_no_patch_and_no_lock(failing):
    with pytest.raises(InterpreterError, match="undefined_name"):
        failing[(3,)](torch.zeros(3, dtype=torch.int32))
    assert launch._interpreter_lock.acquire(blocking=False)
    launch._interpreter_lock.release()
    assert squares()[1] == [9, 49, 121]


def test_wrong_arguments_leave_no_patch():
    with pytest.raises(TypeError):
        fill_squares[(1,)](torch.zeros(3, dtype=torch.int32))


@pytest.mark.parametrize("after_launch", [False, True])
def test_calling_a_kernel_function_outside_is_refused(after_launch):
    if after_launch:
        squares()
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        square(3)


def test_kernels_are_ordinary_jit_functions():
    assert isinstance(fill_squares, JITFunction)
    assert [parameter.name for parameter in fill_squares.params if parameter.is_constexpr] == ["BLOCK"]


def test_tensors_of_another_device_take_the_compiled_road(monkeypatch):
    calls = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: calls.append((args, kwargs)))
    out = torch.empty(3, dtype=torch.int32, device="meta")
    fill_grid[(1, 3)](out, 3)
    ((args, kwargs),) = calls
    assert args == (out, 3)
    assert kwargs == {"grid": (1, 3), "warmup": False}


def test_threads_take_turns():
    """The interpreter has one grid index for the whole process; without the lock, programs would swap theirs."""
    count, threads = 6, 4
    start, results = threading.Barrier(threads), {}

    def work(index):
        start.wait()
        results[index] = [squares(10 + index) for _ in range(count)]

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for index in range(threads):
        expected = [lane**2 for lane in range(10 + index)] + [-1] * 3
        assert [out for out, _ in results[index]] == [expected] * count


def test_a_thread_that_fails_does_not_stop_the_others():
    failures = []

    def work():
        try:
            fail_in_nested[(1,)](torch.zeros(1, dtype=torch.int32))
        except InterpreterError as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert len(failures) == 1
    assert squares()[1] == [9, 49, 121]
