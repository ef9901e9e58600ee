"""Accesses that go where data tells them to, told from those that follow from the arguments alone."""

import pytest
import triton
import triton.language as tl

from mrv2.checks.triton_cpu import frontend
from mrv2.checks.triton_cpu.addresses import guided_by_data
from mrv2.checks.triton_cpu.reader import read


@triton.jit
def copy(p, q, n):
    lanes = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.store(q + lanes, tl.load(p + lanes, mask=lanes < n) + 1, mask=lanes < n)


@triton.jit
def gather(p, q, n):
    lanes = tl.arange(0, 16)
    tl.store(q + lanes, tl.load(p + tl.load(n + lanes)))


@triton.jit
def scatter(p, q, n):
    lanes = tl.arange(0, 16)
    tl.store(q + tl.load(n + lanes), tl.load(p + lanes))


@triton.jit
def masked_by_data(p, q, n):
    lanes = tl.arange(0, 16)
    tl.store(q + lanes, tl.load(p + lanes, mask=tl.load(n + lanes) > 0))


@triton.jit
def looped_by_data(p, q, n):
    for index in range(tl.load(n)):
        tl.store(q + index, tl.load(p + index))


@triton.jit
def branched_by_data(p, q, n):
    if tl.load(n) > 0:
        tl.store(q, tl.load(p))


@triton.jit
def accumulated(p, q, n):
    lanes = tl.arange(0, 16)
    total = tl.zeros([16], tl.float32)
    for index in range(4):
        total += tl.load(p + index * 16 + lanes)
    tl.store(q + lanes, total)


@triton.jit
def walked_by_data(p, q, n):
    place = 0
    for _ in range(4):
        tl.store(q + place, tl.load(p))
        place += tl.load(n)


@triton.jit
def reduced_to_an_index(p, q, n):
    lanes = tl.arange(0, 16)
    tl.store(q + tl.argmax(tl.load(p + lanes), 0), 1.0)


@triton.jit
def _offset(n, lanes):
    return tl.load(n + lanes)


@triton.jit
def gathered_by_a_function(p, q, n):
    lanes = tl.arange(0, 16)
    tl.store(q + lanes, tl.load(p + _offset(n, lanes)))


CASES = [
    (copy, "i32", ""),
    (accumulated, "*i32", ""),
    (gather, "*i32", "p"),
    (scatter, "*i32", "q"),
    (masked_by_data, "*i32", "p"),
    (looped_by_data, "*i32", "pqn"),
    (branched_by_data, "*i32", "pqn"),
    (walked_by_data, "*i32", "q"),
    (reduced_to_an_index, "*i32", "q"),
    (gathered_by_a_function, "*i32", "p"),
]


@pytest.mark.parametrize(("kernel", "kind", "guided"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_what_data_decides(kernel, kind, guided):
    signature = {"p": "*fp32", "q": "*fp32", "n": kind}
    found = guided_by_data(read(frontend.ttir(kernel, signature, {})))
    assert "".join(name for name, holds in zip("pqn", found, strict=True) if holds) == guided
