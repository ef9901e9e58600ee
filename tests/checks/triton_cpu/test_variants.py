"""Which variant a launch needs, and how its arguments are passed: as Triton's own launcher sees them."""

from __future__ import annotations

import linecache
import runpy
import struct
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from mrv2.checks.triton_cpu import enabled
from mrv2.checks.triton_cpu.arguments import Packer
from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.stable_text import Unstable
from mrv2.checks.triton_cpu.variants import Binder, constant_key

Pair = namedtuple("Pair", "left right")
LIMIT = tl.constexpr(7)


class Color(IntEnum):
    RED = 3


@triton.jit
def helper(x):
    return x + LIMIT


@triton.jit
def plain(x_ptr, n, scale=2.0, BLOCK: tl.constexpr = 64):
    tl.store(x_ptr, helper(n) * scale)


@triton.jit
def typed(x_ptr: tl.const, wide: tl.int64, small: tl.int8, half: tl.float16, brain: tl.bfloat16, exact: tl.float64):
    pass


@triton.jit(do_not_specialize=["n"])
def unspecialised(n):
    pass


@triton.jit(debug=True)
def debugged(n):
    pass


X = torch.zeros(4)


def bind(kernel, *args, **kwargs):
    binder = Binder(kernel)
    call = binder.bind(args, kwargs)
    return call, binder.variant(call)


def key(kernel, *args, **kwargs):
    return Binder(kernel).bind(args, kwargs).key


def test_types_are_tritons():
    call, variant = bind(plain, X, 5)
    assert dict(variant.signature) == {"x_ptr": "*fp32", "n": "i32", "scale": "fp32", "BLOCK": "constexpr"}
    assert dict(variant.constants) == {(3,): 64}
    assert call.words == [X.data_ptr(), 5, 2.0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, "i32"),
        (1, "i32"),
        (-(2**31), "i32"),
        (2**31, "i64"),
        (2**63, "u64"),
        (True, "u1"),
        (1.5, "fp32"),
        (Color.RED, "i32"),
        (np.float64(2.5), "fp32"),
        (torch.zeros(1, dtype=torch.bool), "*u1"),
        (torch.zeros(1, dtype=torch.bfloat16), "*bf16"),
        (torch.nn.Parameter(torch.zeros(1)), "*fp32"),
        (TensorWrapper(torch.zeros(1, dtype=torch.int8), tl.float8e4nv), "*fp8e4nv"),
        (TensorDescriptor(torch.zeros(8, 8), [8, 8], [8, 1], [4, 4]), "tensordesc<fp32[4, 4]>"),
    ],
)
def test_the_type_of_a_value(value, kind):
    call, variant = bind(plain, X, value)
    assert variant.signature["n"] == kind
    assert len(call.words) == 3


@pytest.mark.parametrize("value", [None, tl.constexpr(5), helper])
def test_what_is_no_value_at_run_time_is_a_constant(value):
    call, variant = bind(plain, X, value)
    assert variant.signature["n"] == "constexpr"
    assert variant.constants[1,] == (5 if isinstance(value, tl.constexpr) else value)
    assert call.words == [X.data_ptr(), 2.0]


def test_any_object_with_an_address_and_a_dtype():
    class Other:
        dtype = torch.int16

        def data_ptr(self):
            return 4096

    call, variant = bind(plain, Other(), 5)
    assert variant.signature["x_ptr"] == "*i16"
    assert call.words[0] == 4096
    assert call.key == key(plain, torch.zeros(1, dtype=torch.int16), 5)


def test_tuples_are_flattened_and_keep_their_shape():
    call, variant = bind(plain, X, Pair(2, (X, None, tl.constexpr(9), 4.0)))
    assert variant.signature["n"] == Pair("i32", ("*fp32", "constexpr", "constexpr", "fp32"))
    assert {place: variant.constants[place] for place in ((1, 1, 1), (1, 1, 2))} == {(1, 1, 1): None, (1, 1, 2): 9}
    assert call.words == [X.data_ptr(), 2, X.data_ptr(), 4.0, 2.0]
    assert variant.leaves() == ["*fp32", "i32", "*fp32", "fp32", "fp32"]


def test_annotations_decide():
    _, variant = bind(typed, X, 1, 2, 3.0, 4.0, 5.0)
    assert list(variant.signature.values()) == ["*kfp32", "i64", "i8", "fp16", "bf16", "fp64"]


def test_values_do_not_make_variants_but_their_types_do():
    assert key(plain, X, 1) == key(plain, X, 16) == key(plain, X, 0)
    different = [key(plain, X, value) for value in (1, 2**31, 2**63, True, 1.0, None, (1,), (2,), X)]
    different.append(key(plain, torch.zeros(4, dtype=torch.float64), 1))
    assert len(set(different)) == len(different)
    assert key(unspecialised, 1) == key(unspecialised, 16)


def test_constants_are_told_apart_by_more_than_equality():
    values = (1, True, 1.0, 0.0, -0.0, 0, False, "1", None, (1,), (True,), Pair(1, 2), (1, 2), tl.float32, helper)
    keys = [key(plain, X, 5, BLOCK=value) for value in values]
    assert len(set(keys)) == len(values)
    assert key(plain, X, 5, BLOCK=tl.constexpr(64)) == key(plain, X, 5)


@dataclass(frozen=True)
class Factor:
    by: float


def test_constants_that_are_equal_but_not_the_same_are_told_apart():
    """And those that are the same are one, even NaN, which equals nothing."""
    for make in (Factor, np.float64, np.float32, lambda x: [x], lambda x: (Factor(x),)):
        zero, negative, nan, again = (constant_key(make(x)) for x in (0.0, -0.0, float("nan"), float("nan")))
        assert zero != negative
        assert nan == again
        assert {zero: 1}[constant_key(make(0.0))] == 1
    assert constant_key(Factor(1.0)) != constant_key((1.0,))


def test_defaults_and_keywords():
    call, _ = bind(plain, X, n=3, scale=4)
    assert call.values == [X, 3, 4, 64]
    assert call.words == [X.data_ptr(), 3, 4]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X,), {}, "missing a required argument: 'n'"),
        ((X, 1), {"n": 2}, "multiple values for argument 'n'"),
        ((X, 1, 1.0, 64, 5), {}, "too many positional"),
        ((X, "text"), {}, "failed to specialize argument of type: str"),
        ((X, [1]), {}, "failed to specialize argument of type: list"),
    ],
)
def test_wrong_arguments_are_refused(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        bind(plain, *args, **kwargs)


def test_a_number_that_is_too_large_is_refused_in_tritons_words():
    with pytest.raises(OverflowError, match="too large"):
        bind(plain, X, 2**64)


def test_an_unknown_keyword_is_refused_in_tritons_words():
    with pytest.raises(KeyError, match="Keyword argument num_wraps was specified but unrecognised"):
        bind(plain, X, 1, num_wraps=4)


def test_options_that_only_concern_speed_make_no_variant():
    assert key(plain, X, 1, num_warps=8, num_stages=2) == key(plain, X, 1)


def test_assertions_are_a_variant_of_their_own():
    assert bind(plain, X, 1)[1].options == {}
    assert bind(plain, X, 1, debug=True)[1].options == {"debug": True}
    assert bind(debugged, 1)[1].options == {"debug": True}
    assert key(plain, X, 1, debug=True) != key(plain, X, 1)


# The key on the disk


def test_the_key_is_the_same_in_another_process(tmp_path):
    module = tmp_path / "kernels_of_two.py"
    module.write_text(
        "import torch, triton, triton.language as tl\n"
        "from mrv2.checks.triton_cpu.variants import Binder\n"
        "@triton.jit\n"
        "def kernel(x, n, B: tl.constexpr, t: tl.constexpr):\n"
        "    tl.store(x, n + B)\n"
        "binder = Binder(kernel)\n"
        "print(binder.variant(binder.bind((torch.zeros(1), 3, 4, ('a', 1.5, tl.int8)), {})).key())\n"
    )
    said = {
        subprocess.run(
            [sys.executable, str(module)], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop().strip()) == 64


def test_the_key_depends_on_all_that_the_code_depends_on(monkeypatch):
    base = bind(plain, X, 5)[1].key()
    others = [
        bind(plain, X, 2**40)[1].key(),
        bind(plain, X, 5, BLOCK=32)[1].key(),
        bind(plain, X, 5, BLOCK=64.0)[1].key(),
        bind(plain, X, 5, BLOCK=(64,))[1].key(),
        bind(plain, X, 5, debug=True)[1].key(),
        bind(unspecialised, 5)[1].key(),
    ]
    monkeypatch.setattr(triton, "__version__", "0.0.0")
    others.append(bind(plain, X, 5)[1].key())
    assert len({base, *others}) == len(others) + 1


def test_the_key_depends_on_global_constants(tmp_path):
    keys = [bind(kernel_with_global(tmp_path, value), X)[1].key() for value in (1, 2, 1)]
    assert keys[0] == keys[2] != keys[1]


def kernel_with_global(folder, value):
    """A kernel of a module that is written to one place again and again."""
    place = folder / "module.py"
    head = "import triton, triton.language as tl"
    place.write_text(f"{head}\nN = tl.constexpr({value})\n@triton.jit\ndef kernel(x):\n    tl.store(x, N)\n")
    linecache.checkcache(str(place))
    return runpy.run_path(str(place))["kernel"]


def test_a_constant_without_a_stable_text_is_not_kept_on_disk():
    with pytest.raises(Unstable):
        bind(plain, X, 5, BLOCK=object())[1].key()


# Packing


def test_numbers_as_eight_bytes_each():
    words = Packer(["*fp32", "i32", "u1", "i64", "u64", "fp32", "fp64"]).pack([2**47, -2, True, -3, 2**63, 0.5, 0.25])
    assert len(words) == 7 * 8
    assert struct.unpack("=Qi4x?7xqQf4xd", words) == (2**47, -2, True, -3, 2**63, 0.5, 0.25)


@pytest.mark.parametrize(("value", "bits"), [(1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (-0.0, 0x8000)])
def test_bfloat16_is_rounded_to_nearest_even(value, bits):
    assert struct.unpack("=Q", Packer(["bf16"]).pack([value])) == (bits,)
    assert torch.tensor(value).to(torch.bfloat16).view(torch.int16).item() & 0xFFFF == bits


def test_bfloat16_of_what_is_not_finite():
    packed = [struct.unpack("=Q", Packer(["bf16"]).pack([value]))[0] for value in (float("inf"), 3.4e38, float("nan"))]
    assert packed == [0x7F80, 0x7F80, 0x7FC0]


@pytest.mark.parametrize(("kind", "letter"), [("fp32", "f4x"), ("fp16", "e6x")])
def test_floats_beyond_the_largest_become_infinite(kind, letter):
    assert struct.unpack(f"=q{letter}", Packer(["i64", kind]).pack([5, -1e300])) == (5, float("-inf"))


@pytest.mark.parametrize(
    ("kind", "value", "packed"),
    [
        ("i8", 300, 44), ("i8", 200, -56), ("i8", -129, 127), ("i16", 1 << 15, -1 << 15), ("i32", (1 << 40) + 7, 7),
        ("u8", 300, 44), ("u16", (1 << 64) - 1, 0xFFFF), ("u32", 1 << 32, 0), ("i8", -1, -1), ("u8", 255, 255),
    ],
)  # fmt: skip
def test_integers_wrap_to_their_declared_type(kind, value, packed):
    """Triton's own launcher takes 64 bits and keeps the low ones."""
    size = int(kind[1:]) // 8
    assert int.from_bytes(Packer([kind]).pack([value])[:size], "little", signed=kind[0] == "i") == packed


@pytest.mark.parametrize(("kind", "value"), [("u8", -1), ("i8", 1 << 63), ("u32", 1 << 64), ("i64", 1 << 63)])
def test_what_tritons_launcher_does_not_convert_is_refused(kind, value):
    with pytest.raises(OverflowError, match=kind):
        Packer([kind]).pack([value])


def test_a_value_not_of_its_declared_type_is_refused():
    with pytest.raises(TypeError):
        Packer(["i32"]).pack(["text"])


def test_what_cannot_be_passed_by_value_is_refused():
    with pytest.raises(Unsupported, match="fp8e5"):
        Packer(["fp8e5"])


def test_a_tensor_descriptor_is_what_triton_makes_of_it():
    tensor = torch.zeros(8, 8)
    words = Packer(["tensordesc<fp32[4, 4]>"]).pack([TensorDescriptor(tensor, [8, 6], [8, 1], [4, 4], "nan")])
    numbers = struct.unpack(f"={len(words) // 8}q", words)
    assert numbers[:6] == (tensor.data_ptr(), 8, 6, 8, 1, 1)
    assert numbers[-4:] == (8, 6, 8, 1)


SCALE = tl.constexpr(2)


@triton.jit
def _scaled(value):
    return value * SCALE


@triton.jit
def scales(out):
    tl.store(out, 3 * SCALE)


@triton.jit
def scales_in_a_call(out):
    tl.store(out, _scaled(3))


def _skip_if_triton_does_not_notice(kernel):
    if triton.__version__.startswith("3.6.") and kernel is scales_in_a_call:
        pytest.skip("Triton 3.6 takes over a called function's variables before it has looked for them")


@pytest.mark.parametrize("kernel", [scales, scales_in_a_call], ids=lambda kernel: kernel.__name__)
def test_a_global_that_is_replaced_by_an_equal_one_changes_nothing(monkeypatch, kernel):
    out = torch.zeros(1)
    with enabled():
        kernel[(1,)](out)
        monkeypatch.setitem(globals(), "SCALE", tl.constexpr(2))
        kernel[(1,)](out)
    assert out.item() == 6


@pytest.mark.parametrize("kernel", [scales, scales_in_a_call], ids=lambda kernel: kernel.__name__)
def test_a_global_that_changes_after_a_kernel_was_built_is_an_error_as_in_triton(monkeypatch, kernel):
    """What was built holds the old value."""
    _skip_if_triton_does_not_notice(kernel)
    out = torch.zeros(1)
    with enabled():
        kernel[(1,)](out)
        monkeypatch.setitem(globals(), "SCALE", tl.constexpr(5))
        with pytest.raises(RuntimeError, match="Global variable SCALE has changed since we compiled this kernel"):
            kernel[(1,)](out)
        monkeypatch.undo()
        kernel[(1,)](out)
    assert out.item() == 6
