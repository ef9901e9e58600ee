"""The reader: a printed module in, the same module as objects out."""

import pytest
import triton
import triton.language as tl

from mrv2.checks.triton_cpu import frontend
from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.ir import Pointer, Scalar, Tensor
from mrv2.checks.triton_cpu.reader import read


@triton.jit
def scaled(x):
    return x * 2


@triton.jit
def add(p, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(p + offsets, scaled(tl.load(p + offsets, mask=mask)), mask=mask)


@pytest.fixture
def module():
    return read(frontend.ttir(add, {"p": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 64}))


def test_operations_operands_and_types(module):
    kernel = module.kernel
    assert [(argument.name, argument.type) for argument in kernel.arguments] == [
        ("p", Pointer(Scalar("f32"))),
        ("n", Scalar("i32")),
    ]
    load = next(operation for operation in kernel.body.walk() if operation.name == "tt.load")
    assert load.results[0].type == Tensor((64,), Scalar("f32"))
    assert load.results[0].origin is load
    assert [operand.origin.name for operand in load.operands] == ["tt.addptr", "arith.cmpi"]
    assert load.operands[1].origin.attributes["predicate"] == "slt"


def test_locations_are_chains_of_calls(module):
    product = next(operation for operation in module.kernel.body.walk() if operation.name == "arith.mulf")
    assert [site.function for site in product.location] == ["scaled", "add"]
    assert product.location[1].line == product.location[0].line + 7


def test_unknown_operations_are_refused_by_name_and_line():
    text = frontend.ttir(add, {"p": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 64})
    with pytest.raises(Unsupported, match=r"'tt.stove' as an operation in line \d+ of the TTIR at .*test_reader.py:22"):
        read(text.replace("tt.store", "tt.stove"))
