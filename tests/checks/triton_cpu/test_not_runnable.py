"""Kernels that neither compile for the CPU nor can be interpreted: an error at the launch, never a finding."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from mrv2.checks.triton_cpu import NotRunnable, Unsupported, enabled, prepared
from mrv2.checks.virtual import virtual_device

PTX = tl.constexpr("vabsdiff4.u32.u32.u32 $0, $1, $2, 0;")


@triton.jit
def assembly(x, out):
    a, b = tl.load(x), tl.load(x + 1)
    tl.store(out, tl.inline_asm_elementwise(PTX, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1))


@triton.jit
def library(x, out):
    tl.store(out, libdevice.cyl_bessel_i0(tl.load(x).to(tl.float32)).to(tl.int32))


@triton.jit
def known_library(x, out):
    tl.store(out, libdevice.tanh(tl.load(x).to(tl.float32)).to(tl.int32))


@triton.jit
def _both(a, b):
    return a + b, a - b


@triton.jit
def mapped(x, out):
    both = tl.map_elementwise(_both, tl.load(x + tl.arange(0, 4)), tl.load(x + tl.arange(0, 4)))
    tl.store(out + tl.arange(0, 4), both[0])


@triton.jit
def plain(x, out):
    tl.store(out, tl.load(x) + 1)


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(variant, **options):
        raise Unsupported("a machine without a C compiler")

    monkeypatch.setattr(prepared, "compiled", refuse)


@pytest.fixture
def new():
    """A kernel that this process has not seen."""

    def make(kernel):
        return triton.jit(type(kernel.fn)(kernel.fn.__code__, kernel.fn.__globals__, kernel.fn.__name__))

    return make


def launch(kernel, device):
    x, out = (torch.zeros(4, dtype=torch.int32, device=device) for _ in range(2))
    kernel[(1,)](x, out)
    return out


def refused_on_the_device(kernel):
    with virtual_device() as device:
        with pytest.raises(NotRunnable) as caught:
            launch(kernel, "cuda")
        torch.cuda.synchronize()
        assert device.findings == []
    return caught.value


@pytest.mark.parametrize(
    ("kernel", "what", "offset"),
    [(assembly, "inline assembly", 3), (library, "a function of a library, such as libdevice", 2)],
)
def test_the_launch_says_what_and_where(kernel, what, offset):
    line = kernel.fn.__code__.co_firstlineno + offset
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is not said to be interpreted
        error = refused_on_the_device(kernel)
        with enabled() as session, pytest.raises(NotRunnable) as caught:
            launch(kernel, "cpu")
    assert session.findings == []
    for found in (error, caught.value):
        assert found.subject == f"kernel {kernel.__name__}, which uses {what} at {__file__}:{line}"
        assert "neither" not in found.rule and "not compiled because of" in found.reason
        assert found.remedy


@pytest.mark.parametrize("kernel", [known_library, mapped], ids=lambda kernel: kernel.__name__)
def test_what_is_compiled_is_not_refused(kernel):
    with virtual_device() as device:
        launch(kernel, "cuda")
        torch.cuda.synchronize()
        assert device.findings == []


def test_without_a_compiler_the_reason_is_named(no_compiler, new):
    error = refused_on_the_device(new(known_library))
    assert "a machine without a C compiler" in error.reason


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
def test_what_triton_itself_refuses_is_left_to_the_interpreter(no_compiler):
    @triton.jit
    def integer_mask(x, out):
        tl.store(out, tl.load(x, mask=tl.load(x) + 1, other=3) + 1)

    with virtual_device() as device:
        assert launch(integer_mask, "cuda")[0].item() == 1
        assert device.findings == []


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
def test_what_the_interpreter_can_run_is_run(no_compiler, new):
    kernel = new(plain)
    with virtual_device() as device:
        assert launch(kernel, "cuda")[0].item() == 1
        assert device.findings == []
    with enabled():
        assert launch(kernel, "cpu")[0].item() == 1


@pytest.mark.parametrize("kernel", [assembly, library, known_library], ids=lambda kernel: kernel.__name__)
def test_where_all_kernels_are_interpreted_the_launch_is_refused_as_well(kernel):
    with virtual_device(kernels="interpreted") as device:
        with pytest.raises(NotRunnable, match="kernels='interpreted'"):
            launch(kernel, "cuda")
        torch.cuda.synchronize()
        assert device.findings == []


def test_where_all_kernels_are_interpreted_others_run():
    with virtual_device(kernels="interpreted") as device:
        assert launch(plain, "cuda")[0].item() == 1
        assert device.findings == []


def test_an_error_in_an_interpreted_kernel_is_still_a_fault():
    @triton.jit
    def fails(x, out):
        lane = tl.arange(0, 4)
        tl.store(out + lane, tl.gather(tl.load(x + lane), tl.load(x + lane) + 9, 0))

    with virtual_device(kernels="interpreted") as device:
        x, out = (torch.zeros(4, dtype=torch.int32, device="cuda") for _ in range(2))
        fails[(1,)](x, out)
        torch.cuda.synchronize()
        codes = [finding.code for finding in device.findings]
    assert codes == ["MRV214"]


class Local:
    """A variable of the function that launches."""


def variable_of_launch(kernel, device):
    local = Local()
    launch(kernel, device)
    return weakref.ref(local)


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
@pytest.mark.parametrize(("opened", "device"), [(virtual_device, "cuda"), (enabled, "cpu")], ids=["virtual", "cpu"])
def test_variables_of_a_function_that_launches_an_interpreted_kernel_end_with_it(no_compiler, new, opened, device):
    """What was not compiled is kept with the reason, and a reason with frames keeps their variables."""
    kernel = new(plain)
    gc.collect()
    gc.disable()
    try:
        with opened():
            assert [variable_of_launch(kernel, device)() for _ in range(2)] == [None, None]
    finally:
        gc.enable()
