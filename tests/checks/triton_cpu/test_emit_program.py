"""What Triton's front end does not print, but its passes may: written by hand, read, translated, run."""

from __future__ import annotations

import numpy as np
import pytest

from mrv2.checks.triton_cpu.emit.program import emit
from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.reader import read

from .hand_written import block, built


def run(text: str, folder, *arrays: np.ndarray) -> None:
    """Run one program of a module with the given arrays as arguments."""
    kernel = built(emit(read(text)), folder, ["*i8"] * len(arrays))
    words = tuple(array.ctypes.data for array in arrays)
    result = kernel.launch(kernel.pack(words), (1, 1, 1), blocks=block(*arrays))
    assert result.stopped is None
    assert not len(result.strays)


def elementwise(operation: str, kind: str, result: str | None = None) -> str:
    """A kernel that applies one binary operation to two arrays of 16 lanes."""
    result = result or kind
    return f"""
module {{
  tt.func public @kernel(%x: !tt.ptr<{kind}>, %y: !tt.ptr<{kind}>, %out: !tt.ptr<{result}>) {{
    %i = tt.make_range {{end = 16 : i32, start = 0 : i32}} : tensor<16xi32>
    %xs = tt.splat %x : !tt.ptr<{kind}> -> tensor<16x!tt.ptr<{kind}>>
    %xp = tt.addptr %xs, %i : tensor<16x!tt.ptr<{kind}>>, tensor<16xi32>
    %ys = tt.splat %y : !tt.ptr<{kind}> -> tensor<16x!tt.ptr<{kind}>>
    %yp = tt.addptr %ys, %i : tensor<16x!tt.ptr<{kind}>>, tensor<16xi32>
    %os = tt.splat %out : !tt.ptr<{result}> -> tensor<16x!tt.ptr<{result}>>
    %op = tt.addptr %os, %i : tensor<16x!tt.ptr<{result}>>, tensor<16xi32>
    %a = tt.load %xp : tensor<16x!tt.ptr<{kind}>>
    %b = tt.load %yp : tensor<16x!tt.ptr<{kind}>>
    {operation}
    tt.store %op, %r : tensor<16x!tt.ptr<{result}>>
    tt.return
  }}
}}
"""


A = np.array([7, -7, 7, -7, 8, -8, 0, 5, -128, 127, -128, 1, -1, 127, -127, 6], np.int8)
B = np.array([2, 2, -2, -2, 4, 4, 3, 0, -1, -1, 0, 127, -128, 127, 2, -3], np.int8)
F = np.array([0.0, -0.0, 1.0, 2.0, np.nan, np.nan, 1.0, np.inf, -np.inf, np.inf, 3.0, -1.0, 5.0, 5.0, np.nan, 0.0])
G = np.array([-0.0, 0.0, 2.0, 1.0, 1.0, np.nan, np.nan, np.inf, np.inf, 1.0, 3.0, 1.0, -5.0, 5.0, -np.inf, np.nan])
_ORDERED = {
    "eq": np.equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
    "ne": lambda a, b: (a < b) | (a > b),
}  # fmt: skip


@pytest.mark.parametrize("sort", ["f32", "f64"])
def test_all_predicates_of_floats(sort, tmp_path):
    kind = {"f32": np.float32, "f64": np.float64}[sort]
    a, b = F.astype(kind), G.astype(kind)
    unordered = np.isnan(a) | np.isnan(b)
    expected = {f"o{word}": rule(a, b) for word, rule in _ORDERED.items()}
    expected |= {f"u{word}": rule(a, b) | unordered for word, rule in _ORDERED.items()}
    expected |= {"ord": ~unordered, "uno": unordered, "true": unordered | True, "false": unordered & False}
    out = np.zeros(16, np.int32)
    run(elementwise(_all_predicates(list(expected), sort), sort, "i32"), tmp_path, a, b, out)
    for bit, (predicate, flags) in enumerate(expected.items()):
        assert (out >> bit & 1).tolist() == flags.astype(int).tolist(), predicate


def _all_predicates(names: list[str], sort: str) -> str:
    """One bit of the result for each."""
    text = "%r0 = arith.constant dense<0> : tensor<16xi32>\n"
    for bit, name in enumerate(names):
        last = "%r" if bit == len(names) - 1 else f"%r{bit + 1}"
        text += f"""
    %c{bit} = arith.cmpf {name}, %a, %b : tensor<16x{sort}>
    %w{bit} = arith.extui %c{bit} : tensor<16xi1> to tensor<16xi32>
    %k{bit} = arith.constant dense<{bit}> : tensor<16xi32>
    %s{bit} = arith.shli %w{bit}, %k{bit} : tensor<16xi32>
    {last} = arith.ori %r{bit}, %s{bit} : tensor<16xi32>"""
    return text


LOOP = """
module {
  tt.func public @kernel(%out: !tt.ptr<i32>) {
    %low = arith.constant 1879048192 : i32
    %high = arith.constant -536870912 : i32
    %step = arith.constant 268435456 : i32
    %one = arith.constant 1 : i32
    %zero = arith.constant 0 : i32
    %n = scf.for unsigned %i = %low to %high step %step iter_args(%k = %zero) -> (i32) : i32 {
      %p = tt.addptr %out, %k : !tt.ptr<i32>, i32
      tt.store %p, %i : !tt.ptr<i32>
      %next = arith.addi %k, %one : i32
      scf.yield %next : i32
    }
    %last = arith.constant 15 : i32
    %p = tt.addptr %out, %last : !tt.ptr<i32>, i32
    tt.store %p, %n : !tt.ptr<i32>
    tt.return
  }
}
"""


def test_unsigned_counters_pass_the_greatest_signed_number(tmp_path):
    out = np.zeros(16, np.uint32)
    run(LOOP, tmp_path, out)
    assert out.tolist() == [k << 28 for k in range(7, 14)] + [0] * 8 + [7]


JUMPS = """
module {
  tt.func public @kernel(%out: !tt.ptr<i32>) {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %five = arith.constant 5 : i32
    %range = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    cf.br ^head(%zero, %one, %two, %range : i32, i32, i32, tensor<4xi32>)
  ^head(%k: i32, %a: i32, %b: i32, %t: tensor<4xi32>):
    %more = arith.cmpi slt, %k, %five : i32
    cf.cond_br %more, ^body, ^exit(%a, %b : i32, i32)
  ^body:
    %next = arith.addi %k, %one : i32
    %as = tt.splat %a : i32 -> tensor<4xi32>
    %u = arith.addi %t, %as : tensor<4xi32>
    cf.br ^head(%next, %b, %a, %u : i32, i32, i32, tensor<4xi32>)
  ^exit(%c: i32, %d: i32):
    tt.store %out, %c : !tt.ptr<i32>
    %p = tt.addptr %out, %one : !tt.ptr<i32>, i32
    tt.store %p, %d : !tt.ptr<i32>
    %q = tt.addptr %out, %two : !tt.ptr<i32>, i32
    %qs = tt.splat %q : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %qp = tt.addptr %qs, %range : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    tt.store %qp, %t : tensor<4x!tt.ptr<i32>>
    tt.return
  }
}
"""


def test_block_arguments_change_all_at_once(tmp_path):
    out = np.zeros(6, np.int32)
    run(JUMPS, tmp_path, out)
    assert out.tolist() == [2, 1, 7, 8, 9, 10]


def test_an_unknown_operation_is_refused_by_name_and_line():
    text = elementwise("%r = math.acosh %a : tensor<16xf32> loc(#loc1)", "f32") + '#loc1 = loc("kernel.py":12:3)\n'
    with pytest.raises(Unsupported, match=r"math\.acosh.*kernel\.py:12"):
        emit(read(text))


def test_poison_that_nothing_uses(tmp_path):
    text = """
    %p = ub.poison : tensor<16xi8>
    %yes = arith.constant dense<true> : tensor<16xi1>
    %s = arith.select %yes, %a, %p : tensor<16xi1>, tensor<16xi8>
    %r = arith.addi %s, %b : tensor<16xi8>"""
    out = np.zeros(16, np.int8)
    run(elementwise(text, "i8"), tmp_path, A, B, out)
    assert out.tolist() == (A + B).tolist()


def test_what_orders_threads_or_launches_does_nothing(tmp_path):
    text = """
    tt.grid_dependency_wait
    gpu.barrier
    %r = arith.addi %a, %b : tensor<16xi8>
    tt.grid_dependency_launch_dependents"""
    out = np.zeros(16, np.int8)
    run(elementwise(text, "i8"), tmp_path, A, B, out)
    assert out.tolist() == (A + B).tolist()


def test_approximate_quotients_are_exact(tmp_path):
    a, b, out = F.astype(np.float32), G.astype(np.float32), np.zeros(16, np.float32)
    run(elementwise("%r = tt.approx_divf %a, %b : tensor<16xf32>", "f32"), tmp_path, a, b, out)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, a / b)
