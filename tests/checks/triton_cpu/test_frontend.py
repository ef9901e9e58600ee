"""The front end: kernels to TTIR, without a GPU, whatever state Triton is in."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.compiler import code_generator
from triton.compiler.errors import CompilationError
from triton.experimental import gluon
from triton.runtime import driver, interpreter

from mrv2.checks.hooks.triton_language import interpreted_language
from mrv2.checks.triton_cpu import frontend, language
from mrv2.checks.triton_cpu.errors import RejectedModule, Unsupported
from mrv2.checks.triton_cpu.ir import Pointer, Scalar
from mrv2.checks.triton_cpu.reader import read
from mrv2.checks.triton_cpu.said import Said, heard
from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.kernels.launch import kernel as runner_kernel

from .golden_kernels import CASES, VERSION
from .reading import structure


@triton.jit
def halved(x):
    return x / 2


@triton.jit
def nested(p, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(p + lanes, mask=lanes < n, other=0.0)
    tl.store(p, halved(tl.sum(x)) + tl.max(x) + tl.sum(tl.rand(n, lanes)))


NESTED = ({"p": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 32})


def names_of(text):
    return [operation.name for operation in read(text).kernel.body.walk()]


@pytest.fixture(scope="module")
def expected():
    return frontend.ttir(nested, *NESTED)


# What comes out


def test_the_driver_is_not_asked(monkeypatch, expected):
    class Refusing:
        def __getattr__(self, name):
            raise AssertionError(f"the driver was asked for {name}")

    monkeypatch.setattr(driver, "_active", Refusing(), raising=False)
    monkeypatch.setattr(type(driver), "active", Refusing(), raising=False)
    assert frontend.ttir(nested, *NESTED) == expected


def test_functions_are_inlined_and_lines_kept(expected):
    kernel = read(expected).kernel
    quotient = next(operation for operation in kernel.body.walk() if operation.name in ("arith.divf", "arith.mulf"))
    assert [site.function for site in quotient.location][:2] == ["halved", "nested"]
    assert "tt.call" not in names_of(expected)


@runner_kernel
def of_the_runner(p):
    tl.store(p, 1)


def test_subclasses_of_jit_functions():
    assert names_of(frontend.ttir(of_the_runner, {"p": "*i32"})) == ["arith.constant", "tt.store", "tt.return"]


def test_tuples_become_arguments_and_constants():
    kernel = read(CASES["tuples"].ttir()).kernel
    assert [argument.type for argument in kernel.arguments] == [
        Pointer(Scalar("f32")), Scalar("f32"), Scalar("i32"), Scalar("i32"),
    ]  # fmt: skip


@triton.jit
def optional(p, q, n):
    if q is None:
        tl.store(p, n)
    else:
        tl.store(q, n)


def test_none_is_a_constant():
    kernel = read(frontend.ttir(optional, {"p": "*i32", "q": "constexpr", "n": "i32"}, {"q": None})).kernel
    store = next(operation for operation in kernel.body.walk() if operation.name == "tt.store")
    assert store.operands[0] is kernel.arguments[0]


def test_descriptors_become_arguments_and_no_operations():
    text = CASES["descriptors"].ttir()
    kinds = [getattr(argument.type, "name", "pointer") for argument in read(text).kernel.arguments]
    rounding = ["i1"] if VERSION[1] >= 7 else []
    given = ["pointer", "i64", "i64", "i64", "i64", "i1", *rounding, "i32", "i32", "i64", "i64"]
    assert kinds == [*given, *given, "pointer", "pointer", "i32"]
    assert not any("descriptor" in name for name in names_of(text))


def test_nothing_is_specialised_on_values(expected):
    assert "tt.divisibility" not in expected


@triton.jit
def asserting(p):
    tl.device_assert(tl.load(p) > 0, "positive")


def test_assertions_stay_if_asked_for():
    assert "tt.assert" in names_of(frontend.ttir(asserting, {"p": "*i32"}, options={"debug": True}))
    assert "tt.assert" not in names_of(frontend.ttir(asserting, {"p": "*i32"}))


def test_options_that_mean_nothing_here_are_ignored(expected):
    assert frontend.ttir(nested, *NESTED, {"num_warps": 8, "num_stages": 4, "enable_fp_fusion": False}) == expected


# Errors


@triton.jit
def broken(p):
    x = tl.load(p)
    tl.store(p, x.no_such_thing)


def test_errors_are_triton_s_and_name_the_line():
    with pytest.raises(CompilationError, match=r"at 3:") as refused:
        frontend.ttir(broken, {"p": "*i32"})
    assert "x.no_such_thing" in str(refused.value)


@gluon.jit
def in_gluon(p):
    pass


def test_gluon_is_refused():
    with pytest.raises(Unsupported, match="the Gluon kernel in_gluon"):
        frontend.ttir(in_gluon, {"p": "*i32"})


# States of Triton


def test_while_the_language_is_interpreted(expected):
    with interpreted_language():
        before = tl.load, tl.reduce, tl.tensor.__dict__["T"]
        assert frontend.ttir(nested, *NESTED) == expected
        assert (tl.load, tl.reduce, tl.tensor.__dict__["T"]) == before
    assert tl.core.is_builtin(tl.load)


def test_when_the_interpreter_left_the_language_replaced(expected):
    leftover = interpreter._patch_lang(nested)
    try:
        assert not tl.core.is_builtin(tl.load)
        assert frontend.ttir(nested, *NESTED) == expected
        assert not tl.core.is_builtin(tl.load)
        assert "__index__" in vars(tl.tensor)
    finally:
        leftover.restore()


def test_everything_replaced_is_known():
    lost = [name for names in language._originals.values() for name, value in names.items() if value is language._LOST]
    assert lost == []


def test_an_original_that_was_never_seen_is_an_error(monkeypatch):
    leftover = interpreter._patch_lang(nested)
    try:
        monkeypatch.setitem(language._originals[id(tl)], "reduce", language._LOST)
        with pytest.raises(Unsupported, match=r"left triton\.language\.reduce replaced"):
            frontend.ttir(nested, *NESTED)
    finally:
        leftover.restore()
    assert frontend.ttir(nested, *NESTED)


def test_on_the_virtual_device(expected):
    with virtual_device():
        torch.zeros(4, device="cuda")
        assert frontend.ttir(nested, *NESTED) == expected


def test_threads(expected):
    names = ["loops", "shapes", "reductions", "calls"] * 3
    alone = {name: CASES[name].ttir() for name in set(names)}
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda name: CASES[name].ttir(), names)) == [alone[name] for name in names]


SCRIPT = """
import sys, types
import triton, triton.language as tl
from mrv2.checks.triton_cpu import frontend
from mrv2.checks.triton_cpu.language import jit_function

@triton.jit
def doubled(x):
    return x * 2

helpers = types.ModuleType("helpers")
helpers.doubled = doubled

def made():
    @triton.jit
    def plus(x):
        return x + 1

    @triton.jit
    def kernel(p, n, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        x = tl.load(p + lanes)
        tl.store(p + lanes, plus(doubled(x)) + helpers.doubled(x) + x.sum(0) + tl.sort(x) + tl.rand(n, lanes))
    return kernel

kernel = made()
jitted = jit_function(kernel)
assert jit_function(kernel) is jitted and len(jitted.cache_key) == 64
print(type(kernel).__name__)
print(frontend.ttir(kernel, {"p": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 16}))
"""


def run(script, tmp_path, **variables):
    file = tmp_path / "script.py"
    file.write_text(script)
    return subprocess.run(
        [sys.executable, str(file)], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def test_functions_made_for_the_interpreter(tmp_path):
    compiled = run(SCRIPT, tmp_path)
    interpreted = run(SCRIPT, tmp_path, TRITON_INTERPRET="1")
    assert compiled.stderr == interpreted.stderr == ""
    kind, text = compiled.stdout.split("\n", 1)
    other_kind, other_text = interpreted.stdout.split("\n", 1)
    assert (kind, other_kind) == ("JITFunction", "InterpretedFunction")
    assert structure(read(text)) == structure(read(other_text))


FAILING = """
import triton, triton.language as tl
from mrv2.checks.triton_cpu import frontend

@triton.jit
def inner(x):
    return x.nothing

@triton.jit
def kernel(p):
    tl.store(p, inner(tl.load(p)))

@triton.jit
def fine(p):
    tl.store(p, tl.load(p) * 2.0 + 1.0)

kept = None
try:
    frontend.ttir(kernel, {"p": "*fp32"})
except triton.compiler.errors.CompilationError as error:
    kept = error
assert kept is not None
frontend.ttir(fine, {"p": "*fp32"})
print("done")
"""


def test_silent_and_nothing_is_left_at_exit(tmp_path):
    """Triton reports objects of its compiler that outlive it on stderr, at exit."""
    ended = run(FAILING, tmp_path)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("done\n", "", 0)


LATE = """
import torch
from mrv2.checks import triton_cpu
import triton, triton.language as tl
from triton.runtime import interpreter

@triton.jit
def doubled(x):
    return tl.sum(x) * 2

@triton.jit
def kernel(p):
    tl.store(p, doubled(tl.load(p + tl.arange(0, 4))))

interpreter._patch_lang(kernel)  # as Triton's interpreter leaves it
assert not tl.core.is_builtin(tl.load)
x = torch.ones(4)
with triton_cpu.enabled():
    kernel[(1,)](x)
print(x.tolist())
"""


def test_the_first_launch_after_an_interpreter(tmp_path):
    """The front end is imported late, the original language is remembered early."""
    ended = run(LATE, tmp_path, MRV2_CACHE_DIR=str(tmp_path))
    assert (ended.stdout, ended.stderr) == ("[8.0, 1.0, 1.0, 1.0]\n", "")


@triton.jit
def with_an_integer_mask(x, out):
    tl.store(out, tl.load(x, mask=tl.load(x) + 1, other=3))


POINTERS = {"x": "*i32", "out": "*i32"}


def test_what_the_verifier_refuses_is_said_by_the_error_alone(capfd):
    before = os.fstat(2)
    with pytest.raises(RejectedModule, match="1-bit signless integer") as caught:
        frontend.ttir(with_an_integer_mask, POINTERS)
    line = with_an_integer_mask.fn.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}:" in caught.value.rule and "tt.load" in caught.value.dump
    assert capfd.readouterr() == ("", "")
    assert os.path.samestat(before, os.fstat(2))


def writes(good: bool, where: list[os.stat_result]):
    """A verifier that writes to stderr, and notes where that leads."""

    def verify(module: object) -> bool:
        where.append(os.fstat(2))
        os.write(2, b"words")
        return good

    return verify


def test_the_words_of_a_refusal_are_taken_and_all_others_come_later(capfd):
    where, said = [os.fstat(2)], Said()
    assert not said.verify(writes(False, where), None)
    assert (said.words, capfd.readouterr().err) == ("words", "")
    said = Said()
    assert said.verify(writes(True, where), None)
    assert (said.words, capfd.readouterr().err) == ("", "words")
    assert [os.path.samestat(where[0], each) for each in (*where[1:], os.fstat(2))] == [False, False, True]


def test_stderr_is_taken_from_nobody_but_the_verifier(capfd):
    """A child process would keep what it inherits, and an abort within the front end would say nothing."""
    before, verify = os.fstat(2), ir.module.verify
    with heard("kernel"):
        assert os.path.samestat(before, os.fstat(2))
        os.write(2, b"from the front end")
        assert capfd.readouterr().err == "from the front end"
        assert ir.module.verify is not verify
    assert ir.module.verify is verify


def test_words_of_what_is_no_refusal_are_not_lost(capfd, monkeypatch):
    def fails():
        with heard("kernel"):
            ir.module.verify(None)
            raise ValueError("something else")

    monkeypatch.setattr(ir.module, "verify", writes(False, []))
    with pytest.raises(ValueError, match="something else"):
        fails()
    assert capfd.readouterr() == ("", "words")


def test_a_closed_stderr_is_no_error():
    said, kept = Said(), os.dup(2)
    os.close(2)
    try:
        assert said.verify(lambda module: True, None)
        assert not said.verify(writes(False, []), None)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert said.words == "words"


def test_prints_of_other_threads_are_left_alone(capfd):
    with heard("kernel") as said:
        thread = threading.Thread(target=lambda: code_generator.print("theirs"))
        thread.start()
        thread.join()
        assert said.dump == ""
    assert capfd.readouterr() == ("theirs\n", "")
    assert not hasattr(code_generator, "print")
