"""Finding a C compiler, what it is told, and what is said when it fails."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys

import pytest

from mrv2.checks.triton_cpu import compiler
from mrv2.checks.triton_cpu.compiler import Compiler, find_compiler
from mrv2.checks.triton_cpu.errors import CompileError, NoCompiler, Unsupported

ADD = "int add(int a, int b) { return a + b; }\n"


@pytest.fixture
def fake_tools(monkeypatch):
    """A machine with the given programs and packages alone."""

    def arrange(*programs: str, ziglang: bool = False) -> None:
        spec = importlib.util.find_spec("json") if ziglang else None
        monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/bin/{name}" if name in programs else None)
        monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: spec)

    return arrange


def test_cc_comes_first(fake_tools):
    fake_tools("mycc", "gcc", "clang")
    assert find_compiler({"CC": "mycc -pipe"}).command == ("mycc", "-pipe")


@pytest.mark.parametrize(
    ("programs", "ziglang", "expected"),
    [
        (("gcc", "clang"), True, ("gcc",)),
        (("clang",), True, ("clang",)),
        ((), True, (sys.executable, "-m", "ziglang", "cc")),
    ],
)
def test_order_of_the_search(fake_tools, programs, ziglang, expected):
    fake_tools(*programs, ziglang=ziglang)
    assert find_compiler({}).command == expected


def test_no_compiler_is_said_in_four_parts(fake_tools):
    fake_tools()
    with pytest.raises(NoCompiler) as caught:
        find_compiler({})
    assert isinstance(caught.value, Unsupported)
    assert "ziglang" in caught.value.remedy


def test_a_compiler_that_is_not_there_is_not_replaced_silently(fake_tools):
    fake_tools("gcc")
    with pytest.raises(NoCompiler, match="CC=nosuchcc"):
        find_compiler({"CC": "nosuchcc"})


def test_words_of_cc_are_words_and_never_a_shell(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(compiler.subprocess, "run", lambda command, **options: seen.append((command, options)) or DONE)
    (tmp_path / "add.so").touch()
    Compiler(("gcc", "; touch x")).build(ADD, "kernel", tmp_path / "add.so")
    ((command, options),) = seen
    assert command[:2] == ["gcc", "; touch x"]
    assert not options.get("shell")


class DONE:
    returncode = 0
    stderr = ""


@pytest.mark.parametrize(
    ("command", "gcc"), [("cc", True), ("env cc", True), ("zig cc", False), ("env -m ziglang cc", False)]
)
def test_the_cc_of_zig_is_not_the_machines(tmp_path, monkeypatch, command, gcc):
    """Where ``cc`` is gcc, zig must not be told what only gcc knows."""
    for name in ("env", "zig", "gcc-12"):
        (tmp_path / name).touch(0o755)
    (tmp_path / "cc").symlink_to("gcc-12")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_compiler({"CC": command})
    assert ("-fvect-cost-model=dynamic" in found.flags) is gcc
    assert found.portable is not gcc


def test_ziglang_is_not_told_to_use_this_machines_instructions(fake_tools):
    fake_tools(ziglang=True)
    assert "-march=native" not in find_compiler({}).flags
    fake_tools("gcc")
    assert "-march=native" in find_compiler({}).flags


def test_flags_keep_the_meaning_of_numbers():
    flags = find_compiler().flags
    for flag in ("-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno"):
        assert flag in flags
    assert not {"-ffast-math", "-Ofast", "-O3"} & set(flags)


def test_it_builds(tmp_path):
    find_compiler().build(ADD, "kernel", tmp_path / "add.so")
    assert ctypes.CDLL(str(tmp_path / "add.so")).add(2, 3) == 5


def test_integers_wrap_around_and_products_are_not_fused(tmp_path):
    text = """
    int above(int a) { return a + 1 < a; }
    double fused(double a, double b, double c) { return a * b + c; }
    """
    find_compiler().build(text, "kernel", tmp_path / "library.so")
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    library.fused.argtypes, library.fused.restype = (ctypes.c_double,) * 3, ctypes.c_double
    assert library.above(2**31 - 1) == 1
    nearly = 1 + 2.0**-30
    assert library.fused(nearly, nearly, -(1 + 2.0**-29)) == nearly * nearly - (1 + 2.0**-29)


def test_the_error_names_the_kernel_and_what_the_compiler_said(tmp_path):
    with pytest.raises(CompileError, match=r"kernel nonsense .*error.*undeclared_name"):
        find_compiler().build("int x = undeclared_name;", "kernel nonsense", tmp_path / "x.so")


def test_a_compiler_that_does_not_run_is_an_error_too(tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("no program")
    broken.chmod(0o700)
    with pytest.raises(CompileError, match="did not run"):
        Compiler((str(broken),)).build(ADD, "kernel", tmp_path / "x.so")


def test_identity_starts_no_process_and_tells_compilers_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler.subprocess, "run", None)
    copy = tmp_path / "gcc"
    shutil.copy(shutil.which(find_compiler().command[0]), copy)
    one, other = find_compiler(), Compiler((str(copy),))
    assert one.identity() == find_compiler().identity()
    assert one.identity() != other.identity()
    assert one.identity() != Compiler(one.command, portable=True).identity()


def test_a_cc_that_is_no_command_is_said(fake_tools):
    with pytest.raises(NoCompiler, match="No closing quotation"):
        find_compiler({"CC": "gcc 'x"})


def test_a_compiler_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(CompileError, match="wrote no file"):
        Compiler(("true",)).build("int x;", "kernel k", tmp_path / "k.so")
