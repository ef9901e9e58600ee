"""What a kernel reads from outside of itself is in its key, or it is kept for its process alone."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from mrv2.checks.triton_cpu import enabled
from mrv2.checks.triton_cpu.stable_text import Unstable, outer_values, text_of

HEAD = "import triton, triton.language as tl, math, os\nimport settings_of_test as settings\n"
SETTINGS = """
import triton, triton.language as tl
V = tl.constexpr({0})
class Sizes:
    X = tl.constexpr({0})
    class Inner:
        Y = {0}
class Holder:
    def __init__(self, v): self.v = v
    def __repr__(self): return "always the same"
O = tl.constexpr(Holder({0}))
N = {0}
@triton.jit
def deep(): return V
"""
KERNEL = "@triton.jit\ndef kernel(x):\n    tl.store(x, {0} * 1.0)\n"
COMPUTED = "@triton.constexpr_function\ndef computed():\n    {0}\n" + KERNEL.format("computed()")


@pytest.fixture
def kernel_of(tmp_path, monkeypatch):
    """Loads a kernel and the settings that it reads as another process would, from the same files."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text, value):
        for name in ("kernel_of_test", "settings_of_test"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / "settings_of_test.py").write_text(SETTINGS.format(value))
        (tmp_path / "kernel_of_test.py").write_text(HEAD + text)
        importlib.invalidate_caches()
        return importlib.import_module("kernel_of_test").kernel

    return load


STABLE = {
    "a module's": KERNEL.format("settings.V"),
    "its value": KERNEL.format("settings.V.value"),
    "a class's": KERNEL.format("settings.Sizes.X"),
    "an inner class's": "Sizes = settings.Sizes\n" + KERNEL.format("tl.constexpr(Sizes.Inner.Y)"),
    "a called function's": KERNEL.format("settings.deep()"),
    "a computed one": COMPUTED.format("return settings.N + 1"),
    "a closure's": "def make(n):\n    @triton.jit\n    def kernel(x):\n        tl.store(x, n * 1.0)\n"
    "    return kernel\nkernel = make(tl.constexpr(settings.N))\n",
}


@pytest.mark.parametrize("text", STABLE.values(), ids=STABLE)
def test_what_is_read_through_names_is_told_apart(kernel_of, text):
    one, other, again = (outer_values(kernel_of(text, value)) for value in (1, 5, 1))
    assert one == again != other


UNSTABLE = {
    "an object with a constant repr": KERNEL.format("settings.O.v"),
    "the environment": COMPUTED.format("return int(os.environ['PATH'] != '')"),
    "a module that is imported inside": COMPUTED.format("import os.path; return 1"),
    "a module as a value": COMPUTED.format("return getattr(settings, 'N')"),
    "an open file": COMPUTED.format("return len(open('x').read())"),
    "a Python function": "def plain(): return 1\n" + COMPUTED.format("return plain()"),
}


@pytest.mark.parametrize("text", UNSTABLE.values(), ids=UNSTABLE)
def test_what_no_text_shows_is_not_kept(kernel_of, text):
    with pytest.raises(Unstable):
        outer_values(kernel_of(text, 1))


def test_what_triton_and_python_bring_is_not_looked_at(kernel_of):
    text = KERNEL.format("tl.sum(tl.zeros((math.ceil(1.5),), tl.float32) + max(1, 2))")
    assert outer_values(kernel_of(text, 1)) == []


def test_names_of_its_own_hide_outer_ones(kernel_of):
    text = "own = object()\n@triton.jit\ndef kernel(x):\n    own = 1\n    tl.store(x, own)\n"
    assert outer_values(kernel_of(text, 1)) == []


def test_annotations_mean_nothing(kernel_of):
    text = "@triton.jit\ndef kernel(x: os.PathLike):\n    y: tl.constexpr = 1\n    tl.store(x, y)\n"
    assert outer_values(kernel_of(text, 1)) == []


def test_functions_that_call_each_other_come_to_an_end(kernel_of):
    calls = "@triton.jit\ndef {0}(x):\n    {1}(x)\n    tl.store(x, settings.V)\n"
    kernel = kernel_of(calls.format("kernel", "other") + calls.format("other", "kernel"), 1)
    assert "function" in text_of((kernel, 3))
    assert len(outer_values(kernel)) == 2


@pytest.mark.parametrize("text", [KERNEL.format("settings.V"), COMPUTED.format("return int(settings.N)")])
def test_a_changed_constant_is_not_served_from_the_disk(kernel_of, tmp_path, monkeypatch, text):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path / "cache"))
    for value in (1, 5, 1):
        out = torch.zeros(1)
        with enabled():
            kernel_of(text, value)[(1,)](out)
        assert out.tolist() == [value]
