"""Compilers and tracers are refused in four parts, and are torch's own again when the device is gone."""

import subprocess
import sys

import pytest
import torch

from mrv2.checks.virtual import UnsupportedOperationError, virtual_device


def add_one(x):
    return x + 1


class Compiled(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2, device="cuda")
        self.compile()


def traced():
    return torch.jit.trace(add_one, (torch.ones(2, device="cuda"),))


REFUSED = {
    "function": lambda: torch.compile(add_one)(torch.ones(2, device="cuda")),
    "decorator": lambda: torch.compile(dynamic=True)(add_one)(torch.ones(2, device="cuda")),
    "function of the host": lambda: torch.compile(add_one)(torch.ones(2)),
    "module": lambda: torch.compile(torch.nn.Linear(2, 2)),
    "method": lambda: Compiled()(torch.ones(2, 2, device="cuda")),
    "export": lambda: torch.export.export(torch.nn.Linear(2, 2, device="cuda"), (torch.ones(2, device="cuda"),)),
    "trace": traced,
    "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(add_one)(torch.ones(2, device="cuda")),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_in_four_parts(late, use):
    with pytest.raises(UnsupportedOperationError) as caught:
        use()
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy)) and "force_eager" in error.remedy
    assert torch.ones(2, device="cuda").add(1).tolist() == [2, 2] and late.findings == []


def test_compiling_without_calling_is_no_harm(late):
    compiled = torch.compile(add_one)
    assert compiled.__name__ == "add_one"
    assert torch.compile(add_one, disable=True)(torch.ones(2, device="cuda")).tolist() == [2, 2]


def test_torch_has_its_own_compilers_again():
    before = torch.compile, torch.export.export, torch.jit.trace, torch.fx.experimental.proxy_tensor.make_fx
    with virtual_device("late"):
        assert torch.compile is not before[0]
    assert before == (torch.compile, torch.export.export, torch.jit.trace, torch.fx.experimental.proxy_tensor.make_fx)


def test_functions_compiled_before_or_during_a_device():
    program = (
        "import torch\n"
        "from mrv2.checks.virtual import UnsupportedOperationError, virtual_device\n"
        "def double(x):\n"
        "    return x * 2\n"
        "before = torch.compile(double, backend='eager')\n"
        "assert before(torch.ones(2)).tolist() == [2, 2]\n"
        "with virtual_device('late') as device:\n"
        "    x, during = torch.ones(2, device='cuda'), torch.compile(double, backend='eager')\n"
        "    for compiled in (before, during):\n"
        "        try:\n"
        "            compiled(x)\n"
        "        except UnsupportedOperationError as error:\n"
        "            assert 'double' in error.subject, error\n"
        "        else:\n"
        "            raise SystemExit('it must be refused')\n"
        "        with torch.compiler.set_stance('force_eager'):\n"
        "            assert compiled(x).tolist() == [2, 2] and compiled(x).is_cuda\n"
        "    assert device.findings == []\n"
        "for compiled in (before, during):\n"
        "    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]\n"
        "assert torch._dynamo.eval_frame._callback_from_stance.__module__ == 'torch._dynamo.eval_frame'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
