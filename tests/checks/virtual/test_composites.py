"""Operators that are made of others: in inference mode they arrive whole, and most need not be taken apart."""

import pytest
import torch

from mrv2.checks.virtual import virtual_device

ONE_KERNEL = {
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "linear, bias": lambda x: torch.nn.functional.linear(x, x, x[0]),
    "matmul": lambda x: x @ x,
    "matmul, batched": lambda x: x.expand(3, 4, 4) @ x,
    "square": lambda x: x.square(),
}
#: Program, and whether its results share the memory of its argument.
PERHAPS_VIEWS = {
    "chunk": (lambda x: x.chunk(2, dim=1), True),
    "reshape of what is dense": (lambda x: x.reshape(2, 8), True),
    "reshape of what is not": (lambda x: x.t().reshape(16), False),
    "flatten": (lambda x: x.flatten(), True),
    "contiguous, not so before": (lambda x: x.t().contiguous(), False),
    "narrow": (lambda x: x.narrow(1, 1, 2), True),
    "to another type": (lambda x: x.to(torch.float64), False),
}


def numbers(device):
    return torch.arange(16, dtype=torch.float32, device=device).view(4, 4)


def every(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("program", ONE_KERNEL.values(), ids=list(ONE_KERNEL))
@torch.inference_mode()
def test_what_computes_fresh_memory_is_one_operation(program):
    expected = program(numbers("cpu"))
    with virtual_device("late") as device:
        x = numbers("cuda")
        for _ in range(2):  # worked out, then by its recipe
            before = device.runtime.engine.submitted
            found = program(x)
            assert device.runtime.engine.submitted - before == 1
            assert torch.equal(found.cpu(), expected)
        assert device.findings == []


@pytest.mark.parametrize("program", ONE_KERNEL.values(), ids=list(ONE_KERNEL))
@torch.inference_mode()
def test_it_reads_its_arguments(program):
    with virtual_device("late") as device:
        x, side = numbers("cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            x.zero_()
        program(x)
        assert {finding.code for finding in device.findings} == {"MRV204"}


@pytest.mark.parametrize(("program", "shares"), PERHAPS_VIEWS.values(), ids=list(PERHAPS_VIEWS))
@torch.inference_mode()
def test_views_are_views_and_copies_are_made_in_their_turn(program, shares):
    plain = numbers("cpu")
    plain.add_(1)
    expected = every(program(plain))
    with virtual_device("late") as device:
        for _ in range(2):
            x = numbers("cuda")
            x.add_(1)  # pending, so what is copied too early is seen
            found = every(program(x))
            assert [item.stride() for item in found] == [item.stride() for item in expected]
            assert all(torch.equal(one.cpu(), other) for one, other in zip(found, expected, strict=True))
            x.zero_()
            assert all(bool((item == 0).all()) == shares for item in (one.cpu() for one in found))
        assert device.findings == []


@pytest.mark.parametrize("program", [lambda x: x.to(torch.float32), lambda x: x.contiguous()], ids=["to", "contiguous"])
@torch.inference_mode()
def test_what_changes_nothing_gives_the_same_tensor(program):
    with virtual_device():
        x = numbers("cuda")
        assert program(x) is x
        assert program(x) is x
