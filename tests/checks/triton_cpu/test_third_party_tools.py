"""The tools of the test of third-party kernels, on packages and kernels made here."""

import sys
import zipfile

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .third_party import fetch
from .third_party.harness import Comparison, Memory, Thrice, Verdict
from .third_party.loader import loading

# Fetching

PACKAGE = fetch.Package("made-here", "1.0", "0" * 64, "made_here")


def archive(folder, **members):
    path = folder / "made_here-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_only_python_files_of_the_package_are_unpacked(tmp_path):
    wheel = archive(
        tmp_path, **{"made_here/a.py": "x = 1", "made_here/b.so": "no", "other/c.py": "no", "made_here.py": "no"}
    )
    assert fetch._unpack(wheel, PACKAGE, tmp_path / "out") == 1
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["a.py"]


def test_a_path_out_of_the_folder_is_refused(tmp_path):
    wheel = archive(tmp_path, **{"made_here/../../evil.py": "x = 1"})
    with pytest.raises(ValueError, match="leads out of the folder"):
        fetch._unpack(wheel, PACKAGE, tmp_path / "out")
    assert not (tmp_path / "evil.py").exists()


def test_a_link_becomes_a_plain_file(tmp_path):
    link = zipfile.ZipInfo("made_here/link.py")
    link.external_attr = 0o120777 << 16
    path = tmp_path / "made_here-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(link, "/etc/passwd")
    fetch._unpack(path, PACKAGE, tmp_path / "out")
    assert not (tmp_path / "out/made_here/link.py").is_symlink()


def test_a_large_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_MOST_BYTES_OF_A_FILE", 3)
    wheel = archive(tmp_path, **{"made_here/a.py": "x = 1"})
    with pytest.raises(ValueError, match=r"more than expected.*made_here/a\.py"):
        fetch._unpack(wheel, PACKAGE, tmp_path / "out")


# Loading


@pytest.fixture
def package(tmp_path):
    (tmp_path / "made_here/inner").mkdir(parents=True)
    (tmp_path / "made_here/__init__.py").write_text("raise RuntimeError('executed')")
    (tmp_path / "made_here/inner/kernels.py").write_text(
        "from made_here import platform\n"
        "from made_here.base import Base, register\n"
        "class Thing(Base): pass\n"
        "@register(name='f')\n"
        "def f(): return 3\n"
        "fast = platform.is_fast() or platform.version() > 3\n"
    )
    return tmp_path


def test_one_module_is_executed_and_nothing_is_left(package):
    finders = list(sys.meta_path)
    with loading(package, ["made_here"]) as load:
        module = load("made_here.inner.kernels")
        assert module.f() == 3
        assert module.Thing.__bases__ == (object,)
        assert not module.fast
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith("made_here")]


def test_what_was_imported_before_comes_back(package, monkeypatch):
    mine = type(sys)("made_here")
    monkeypatch.setitem(sys.modules, "made_here", mine)
    with loading(package, ["made_here"]) as load:
        assert load("made_here.inner.kernels").f() == 3
    assert sys.modules["made_here"] is mine


# Comparing


@triton.jit
def copy_rows(source, target, scale, stride, SIZE: tl.constexpr):
    lanes = tl.program_id(0) * stride + tl.arange(0, SIZE)
    tl.store(target + lanes, tl.load(source + lanes) * scale)


@triton.jit
def method_of_a_float(source, target, scale, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(target + lanes, tl.load(source + lanes) * scale.to(tl.float32))


@triton.jit
def square(source, target, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    values = tl.load(source + lanes)
    tl.store(target + lanes, values * values)


@triton.jit
def hyperbolic(source, target, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(target + lanes, libdevice.tanh(tl.load(source + lanes)))


@triton.jit
def number_of_the_last(target):
    tl.store(target, tl.program_id(0))


@triton.jit
def not_a_kernel(target):
    tl.store(target, tl.float32(1.0))


def compared(kernel, grid, *args):
    comparison = Comparison()
    with comparison.watching([]):
        kernel[grid](*args)
    (launch,) = comparison.launches
    return launch


def test_a_kernel_of_both_is_identical_and_leaves_the_result():
    source, target = torch.arange(8.0), torch.zeros(8)
    launch = compared(copy_rows, (2,), source, target, 3, 4, 4)
    assert (launch.verdict, launch.report, launch.backward, launch.changed) == (Verdict.IDENTICAL, "", "", True)
    assert launch.programs == 2
    torch.testing.assert_close(target, source * 3, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kernel", "dtype", "rest"),
    [(method_of_a_float, torch.float32, (1.5,)), (square, torch.bfloat16, ()), (hyperbolic, torch.float32, ())],
)
def test_what_the_stock_interpreter_lacks_is_said(kernel, dtype, rest):
    source, target = torch.linspace(-2, 2, 8).to(dtype), torch.zeros(8, dtype=dtype)
    launch = compared(kernel, (1,), source, target, *rest, 8)
    assert launch.verdict is Verdict.COMPLETED
    assert launch.detail.startswith("stock: ")


def test_overlapping_programs_are_reported():
    launch = compared(copy_rows, (2,), torch.arange(8.0), torch.zeros(8), 3, 2, 4)
    assert launch.report == ""  # both write the same numbers
    storage = torch.arange(8.0)
    launch = compared(copy_rows, (2,), storage, storage, 3, 2, 4)
    assert launch.report.startswith("conflicts between the lines")
    assert launch.verdict is Verdict.IDENTICAL


def test_an_order_that_matters_is_seen():
    launch = compared(number_of_the_last, (3,), torch.zeros(1, dtype=torch.int32))
    assert "differ" in launch.backward
    assert launch.report.startswith("conflicts")


def test_an_access_out_of_memory_is_reported():
    launch = compared(copy_rows, (1,), torch.arange(16.0)[:8], torch.zeros(2), 3, 4, 4)
    assert "strays" in launch.report


def test_what_triton_does_not_compile_is_said():
    assert compared(not_a_kernel, (1,), torch.zeros(1)).verdict is Verdict.REJECTED


def test_a_difference_of_one_byte_is_seen_and_does_not_spoil_memory():
    class Spoiled(Thrice):
        """Its compiled launch changes one byte more."""

        def _run(self, kernel, words, *, step):
            report = super()._run(kernel, words, step=step)
            target.view(torch.uint8)[5] ^= 1
            return report

    source, target = torch.arange(8.0), torch.zeros(8)
    launch = Spoiled(copy_rows, (2,), (source, target, 3, 4, 4), {}, ()).run()
    assert launch.verdict is Verdict.DIFFERENT
    assert launch.detail == "1 of 32 bytes of tensor 1 differ, from byte 5 on"
    torch.testing.assert_close(target, source * 3, rtol=0, atol=0)


def test_memory_is_that_of_storages_not_of_views():
    storage = torch.arange(8, dtype=torch.uint8)
    memory = Memory([storage[2:4], storage[3:6]])
    assert memory.bytes == [bytes(range(8))]
    storage[7] = 0
    assert memory.difference(memory.bytes) == "1 of 8 bytes of tensor 0 differ, from byte 7 on"
    memory.restore()
    np.testing.assert_array_equal(storage.numpy(), np.arange(8))
