"""Syntax that canonicalised kernels seldom show, written by hand, and taken and printed by Triton's own parser."""

import math
import random
import struct

import pytest
import triton

from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.reader import read
from mrv2.checks.triton_cpu.reader.attributes import FLOAT_PREDICATES, WORDS
from mrv2.checks.triton_cpu.reader.operations import RULES

from .golden_kernels import CASES, GOLDEN
from .reading import generic, mutations, printed, structure

MINOR = int(triton.__version__.split(".")[1])
MATH = "absf ceil cos erf exp exp2 floor log log2 rsqrt sin sqrt"
TEXT = """module {{
  tt.func public @k(
    %p: !tt.ptr<f32> {{tt.divisibility = 16 : i32}}, %i: i32, %x: f32, %v: tensor<4xf32>, %j: tensor<4xi32>,
    %n: index, %l: i64, %d: !tt.tensordesc<{block}>, %e: !tt.tensordesc<{row}>, %c: i1) {{
    %c6 = arith.addi %i, %i overflow<nsw, nuw> : i32
    %c7 = arith.addf %x, %x fastmath<contract> : f32
    %c8 = arith.mulf %v, %v fastmath<nnan,ninf> : tensor<4xf32>
    %c9 = arith.cmpf uno, %x, %x : f32
    %c10 = arith.cmpf true, %v, %v fastmath<fast> : tensor<4xf32>
    %c11 = arith.extui %i {{tt.divisibility = dense<[16]> : tensor<1xi32>}} : i32 to i64
    %c12 = arith.trunci %l overflow<nsw> : i64 to i32
    %c13 = arith.constant dense<[1.0, 2.5, 0x7F800000, -0.0]> : tensor<4xf32>
    %c14 = arith.constant dense<[[1, -2], [3, 4]]> : tensor<2x2xi64>
    %c15 = arith.constant dense<"0x0000803F000000400000404000008040"> : tensor<4xf32>
    %c16 = arith.constant 7 : index
    %c17 = arith.constant dense<[true, false]> : tensor<2xi1>
    %c18 = arith.constant 1.000000e+00 : bf16
    %c19 = arith.constant dense<0xFF80> : tensor<4xbf16>
    %c20 = arith.constant -1 : i8
    %c21 = arith.constant dense<> : tensor<0xi32>
    %c22 = arith.shrui %i, %i : i32
    {math}
    %t = math.fma %x, %x, %x : f32
    %u = ub.poison : tensor<4xf32>
    scf.for %q = %n to %n step %n {{
      tt.store %p, %x : !tt.ptr<f32>
    }}
    scf.for unsigned %q = %i to %i step %i : i32 {{
      tt.store %p, %x : !tt.ptr<f32>
    }}
    %w = scf.while (%z = %i) : (i32) -> f32 {{
      scf.condition(%c) %x : f32
    }} do {{
    ^bb0(%y: f32):
      scf.yield %i : i32
    }}
    scf.if %c {{
      tt.store %p, %x : !tt.ptr<f32>
    }}
    scf.if %c {{
    }} else {{
      tt.store %p, %x : !tt.ptr<f32>
    }}
    %g1 = tt.descriptor_load %d[%i, %i] : !tt.tensordesc<{block}> -> tensor<16x16xf32>
    tt.descriptor_store %d[%i, %i], %g1 : !tt.tensordesc<{block}>, tensor<16x16xf32>
    tt.descriptor_reduce max, %d[%i, %i], %g1 : !tt.tensordesc<{block}>, tensor<16x16xf32>
    %i16 = tt.make_range {{end = 16 : i32, start = 0 : i32}} : tensor<16xi32>
    %g2 = tt.descriptor_gather %e[%i16, %i] : (!tt.tensordesc<{row}>, tensor<16xi32>, i32) -> tensor<16x16xf32>
    tt.descriptor_scatter %e[%i16, %i], %g2 : !tt.tensordesc<{row}>, tensor<16xi32>, i32, tensor<16x16xf32>
    %g3 = tt.make_tensor_descriptor %p, [%i, %i], [%l, %l] {{padding = 2 : i32}} : <f32>, <{block}>
    {further}
    cf.cond_br %c, ^bb1(%i : i32), ^bb2(%x, %x : f32, f32)
  ^bb1(%h: i32):
    cf.br ^bb2(%x, %x : f32, f32)
  ^bb2(%h1: f32, %h2: f32):
    tt.return
  }}
}}
"""
BLOCK_POINTERS = """
    %bp = tt.make_tensor_ptr %p, [%l, %l], [%l, %l], [%i, %i] {order = array<i32: 1, 0>} : <tensor<16x16xf32>>
    %bq = tt.advance %bp, [%i, %i] : <tensor<16x16xf32>>
    %bl = tt.load %bq {boundaryCheck = array<i32: 0, 1>, padding = 2 : i32} : !tt.ptr<tensor<16x16xf32>>
    tt.store %bq, %bl {boundaryCheck = array<i32: 1>} : !tt.ptr<tensor<16x16xf32>>
"""
SINCE_39 = """
    %ap = tt.approx_divf %x, %x : f32
    tt.grid_dependency_wait
    tt.grid_dependency_launch_dependents
"""


def hand_written():
    """The text above in the syntax of the installed version."""
    block, row = ("16x16xf32", "1x16xf32") if MINOR >= 8 else ("tensor<16x16xf32>", "tensor<1x16xf32>")
    further = {6: BLOCK_POINTERS, 7: BLOCK_POINTERS}.get(MINOR, SINCE_39 if MINOR >= 9 else "")
    functions = "\n".join(f"    %m_{name} = math.{name} %x : f32" for name in MATH.split())
    return TEXT.format(block=block, row=row, further=further + each_word(block), math=functions)


def each_word(block):
    """A line for each word of each enumeration."""
    dot = "%m, %m, %m, inputPrecision = {} : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>"
    lines = {
        "arith.cmpi {}, %i, %i : i32": WORDS["predicate"].values(),
        "arith.cmpf {}, %x, %x : f32": FLOAT_PREDICATES.values(),
        "tt.atomic_rmw {}, relaxed, gpu, %pi, %i, %c : (!tt.ptr<i32>, i32, i1) -> i32": integer_updates(),
        "tt.atomic_cas {}, gpu, %pi, %i, %i : (!tt.ptr<i32>, i32, i32) -> i32": WORDS["sem"].values(),
        "tt.atomic_cas relaxed, {}, %pi, %i, %i : (!tt.ptr<i32>, i32, i32) -> i32": WORDS["scope"].values(),
        "tt.fp_to_fp %x, rounding = {} : f32 -> f16": WORDS["rounding"].values(),
        "tt.clampf %x, %x, %x, propagateNan = {} : f32": WORDS["propagateNan"].values(),
        f"tt.dot {dot}": set(WORDS["inputPrecision"].values()) - ({"bf16x3", "bf16x6"} if MINOR < 6 else set()),
        "tt.get_program_id {} : i32": "xyz",
    }
    if MINOR < 9:
        lines["tt.load %p cacheModifier = {} : !tt.ptr<f32>"] = WORDS["cache"].values()
        lines["tt.load %p evictionPolicy = {} : !tt.ptr<f32>"] = WORDS["evict"].values()
    else:
        policy = "#tt.cache_policy<cache_modifier = {}, eviction_policy = {}>"
        load = "tt.load %p {{{{cachePolicy = {}}}}} : !tt.ptr<f32>"
        lines[load.format(policy.format("{}", "evict_last"))] = {"ca", "cg"}
        lines[load.format(policy.format("ca", "{}"))] = WORDS["evict"].values()
    head = "    %pi = tt.bitcast %p : !tt.ptr<f32> -> !tt.ptr<i32>\n    %m = ub.poison : tensor<16x16xf32>\n"
    numbered = enumerate(line.format(word) for line, words in lines.items() for word in words)
    reductions = "".join(
        f"    tt.descriptor_reduce {word}, %d[%i, %i], %m : !tt.tensordesc<{block}>, tensor<16x16xf32>\n"
        for word in WORDS["kind"].values()
    )
    return head + "".join(f"    %w{index} = {line}\n" for index, line in numbered) + reductions


def integer_updates():
    return set(WORDS["atomic_rmw_op"].values()) - {"fadd"}


def test_printed_and_generic_form_agree(tmp_path):
    text = printed(hand_written(), tmp_path)
    assert structure(read(text)) == structure(read(generic(text, tmp_path)))


def test_every_rule_is_tested(tmp_path):
    """Each operation that has a rule occurs in a golden file or in the text written by hand."""
    texts = [file.read_text() for file in GOLDEN.glob("*/*.ttir")] + [printed(hand_written(), tmp_path)]
    found = {
        operation.name
        for text in texts
        for function in read(text).functions.values()
        for operation in function.body.walk()
    }
    not_here = {"tt.make_tensor_ptr", "tt.advance"} if MINOR > 7 else set()
    not_here |= (
        {"tt.approx_divf", "tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"} if MINOR < 9 else set()
    )
    assert set(RULES) - found == not_here


def constants_of(lines):
    text = "\n".join(f"%c{index} = arith.constant {line}" for index, line in enumerate(lines))
    module = read(f"module {{\n tt.func public @k() {{\n{text}\n tt.return\n }}\n}}")
    return [operation.attributes["value"] for operation in module.kernel.body.blocks[0].operations[:-1]]


def test_constants():
    assert constants_of(["7 : i32", "-1 : i8", "true", "false", "dense<3> : tensor<4xi64>", "1 : index"]) == [
        7, -1, True, False, 3, 1,
    ]  # fmt: skip
    assert constants_of(["dense<[1, 2]> : tensor<2xi32>", "dense<[[1], [2]]> : tensor<2x1xi8>"]) == [(1, 2), (1, 2)]
    assert constants_of(['dense<"0x0000803F00000040"> : tensor<2xf32>', 'dense<"0x0100FFFF"> : tensor<2xi16>']) == [
        (1.0, 2.0),
        (1, -1),
    ]
    assert constants_of(["dense<[true, false]> : tensor<2xi1>", "dense<0xFC00> : tensor<2xf16>"]) == [
        (True, False),
        -math.inf,
    ]
    assert constants_of(["0xFF80 : bf16", "0x7F800000 : f32", "0xFFF0000000000000 : f64"]) == [
        -math.inf, math.inf, -math.inf,
    ]  # fmt: skip
    assert all(map(math.isnan, constants_of(["0x7FC00000 : f32", "0x7FFF : bf16", "0x7E00 : f16"])))
    assert math.copysign(1.0, constants_of(["-0.000000e+00 : f32"])[0]) == -1.0


def test_decimals_are_rounded_once():
    """By way of a double the first would be rounded to a tie, and then down."""
    just_above_a_tie = "1.0000000596046447753906250001"
    assert constants_of([f"{just_above_a_tie} : f32"]) == [1.0 + 2**-23]
    assert constants_of(["1.000000059604644775390625 : f32"]) == [1.0]
    generator = random.Random(3)
    for _ in range(300):
        bits = generator.getrandbits(32)
        number = struct.unpack("<f", struct.pack("<I", bits))[0]
        if math.isfinite(number):
            assert constants_of([f"{number:.8e} : f32"]) == [number]
    assert constants_of(["1.401300e-45 : f32", "5.960460e-08 : f16", "9.183550e-41 : bf16"]) == [
        2**-149,
        2**-24,
        2**-133,
    ]


@pytest.mark.parametrize(
    "line",
    [
        "%a = tt.frobnicate %x : f32",
        '%a = "tt.frobnicate"(%x) : (f32) -> f32',
        "%a = arith.addf %x, %i : f32",
        "%a = arith.addf %x, %x : f64",
        "%a = arith.addf %x, %x {surprise = 1 : i32} : f32",
        "%a = arith.addf %x, %undefined : f32",
        "%a = arith.addf %x, %x, %x : f32",
        "%x = arith.addf %x, %x : f32",
        "%a, %b = arith.addf %x, %x : f32",
        "%a:2 = arith.addf %x, %x : f32",
        "%a = arith.cmpi slightly, %i, %i : i32",
        "%a = arith.constant 3.5 : i32",
        "%a = arith.constant 300 : i8",
        "%a = arith.constant 1.0e39 : f32",
        "%a = arith.constant 0x7F8000000 : f32",
        "%a = arith.constant dense<[1, 2, 3]> : tensor<2xi32>",
        '%a = arith.constant dense<"0x00"> : tensor<2xi32>',
        "%a = arith.constant dense<1> : tensor<2xi32, #blocked>",
        "%a = arith.constant dense_resource<blob> : tensor<2xi32>",
        "%a = tt.load %x : f32",
        "%a = tt.load %p cacheModifier = dubious : !tt.ptr<f32>",
        "%a = tt.make_range {start = 0 : i32} : tensor<4xi32>",
        "%a = tt.atomic_rmw nand, relaxed, gpu, %p, %x : (!tt.ptr<f32>, f32) -> f32",
        "tt.call @nowhere() : () -> ()",
        "cf.br ^nowhere",
        "scf.forall (%a) in (4) {\n}",
        "%a = builtin.unrealized_conversion_cast %x : f32 to f32",
        "ttg.barrier local",
        "%a = scf.if %c -> (f32) {\nscf.yield %x : f32\n}",
        "%a = scf.if %c -> (f32) {\nscf.yield %x : f32\n} else {\nscf.yield %i : i32\n}",
        "%a = scf.for %j = %i to %i step %i iter_args(%b = %x) -> (f32) : i32 {\nscf.yield %j : i32\n}",
        (
            "%a = scf.while (%b = %x) : (f32) -> i32 {\nscf.condition(%c) %b : f32\n}"
            " do {\n^bb0(%d: f32):\nscf.yield %x : f32\n}"
        ),
        "scf.if %c {\ntt.return\n}",
        (
            '%a = "tt.reduce"(%v) <{axis = 0 : i32}> ({\n^bb0(%b: f32):\ntt.reduce.return %b : f32\n})'
            " : (tensor<4xf32>) -> f32"
        ),
        '%a = "arith.negf"(%x) ({\n^bb0(%b: f32):\ntt.return\n}) : (f32) -> f32',
    ],
)
def test_what_is_not_known_is_refused(line):
    head = "module {\n  tt.func public @k(%p: !tt.ptr<f32>, %x: f32, %i: i32, %c: i1, %v: tensor<4xf32>) {\n"
    place = ' loc("kernel.py":12:3)'
    with pytest.raises(Unsupported) as refused:
        read(f"{head}    {line}{place}\n    tt.return\n  }}\n}}")
    if "nowhere" not in line and "\n" not in line:
        assert "at kernel.py:12:" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module {",
        "module {\n}",
        "module {\n}\nmodule {\n}",
        "module attributes {what.is = 1 : i32} {\n}",
        "module {\n tt.func public @k() {\n }\n}",
        "module {\n tt.func public @k() attributes {cold} {\n tt.return\n }\n}",
        "module {\n tt.func public @k(%a: !tt.ptr<f32, 3>) {\n tt.return\n }\n}",
        "module {\n tt.func public @k(%a: i32 {tt.secret = 1 : i32}) {\n tt.return\n }\n}",
        "module {\n tt.func public @k() {\n tt.return\n }\n tt.func public @l() {\n tt.return\n }\n}",
        "module {\n tt.func public @k(%a: i32) {\n tt.return %a : i32\n }\n}",
        "module {\n tt.func public @k() -> i32 {\n tt.return\n }\n}",
        "module {\n tt.func private @k() {\n tt.return\n }\n tt.func public @k() {\n tt.return\n }\n}",
        "module {\n tt.func public @k() {\n tt.return loc(#nowhere)\n }\n}",
        '#a = loc("x"(#b))\n#b = loc("y"(#a))\nmodule {\n tt.func public @k() {\n tt.return loc(#a)\n }\n}',
    ],
)
def test_modules_that_make_no_sense_are_refused(text):
    with pytest.raises(Unsupported):
        read(text)


def test_locations():
    lines = [
        '"a.py":3:4',
        '"name"("a.py":3:4)',
        'callsite("a.py":3:4 at "b.py":5:6)',
        'callsite(callsite("a.py":3:4 at "b.py":5:6) at "n"("c.py":7:8))',
        'fused<"tag">[unknown, "a.py":3:4, "b.py":5:6]',
        'fused["a.py":3:4]',
        '"a.py":3:4 to 5:6',
        '"a.py":3:4 to :6',
        "unknown",
        "#other",
        '"name"',
    ]
    text = "\n".join(f"gpu.barrier loc({line})" for line in lines)
    module = read(f'#other = loc("z.py":9:9)\nmodule {{\n tt.func public @k() {{\n{text}\n tt.return\n }}\n}}')
    found = [[(site.file, site.line) for site in o.location] for o in module.kernel.body.walk()]
    a, b, c = ("a.py", 3), ("b.py", 5), ("c.py", 7)
    assert found == [[a], [a], [a, b], [a, b, c], [a], [a], [a], [a], [], [("z.py", 9)], [], []]


def test_names_are_unique_in_a_function():
    body = "scf.if %c {\n%a = arith.negf %x : f32\n} else {\n%a = arith.negf %x : f32\n}\n%a = arith.negf %x : f32"
    module = read(f"module {{\n tt.func public @k(%c: i1, %x: f32) {{\n{body}\n tt.return\n }}\n}}")
    names = [result.name for operation in module.kernel.body.walk() for result in operation.results]
    assert len(set(names)) == 3


@pytest.mark.parametrize("name", ["loops", "atomics", "calls", "mapped", "early_return", "constants", "descriptors"])
def test_damaged_text_is_read_or_refused(name, tmp_path):
    """Nothing but ``Unsupported`` comes out, whatever goes in."""
    text = CASES[name].ttir()
    outcomes = {"read": 0, "refused": 0}
    for damaged in mutations(text, random.Random(name), 80):
        try:
            read(damaged)
            outcomes["read"] += 1
        except Unsupported:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 40
    assert outcomes["read"] > 0
