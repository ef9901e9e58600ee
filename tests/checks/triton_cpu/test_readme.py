"""The pages of the room: every module is named, and the examples run."""

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks import triton_cpu
from mrv2.checks.triton_cpu.__main__ import main

ROOM = Path(triton_cpu.__file__).parent
USERS, INNER = ((ROOM / page).read_text() for page in ("README.md", "emit/README.md"))


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < n
    tl.store(out + lanes, tl.load(x + lanes, mask=inside) + tl.load(y + lanes, mask=inside), mask=inside)


@triton.jit
def waits_for_nobody(x):
    while tl.load(x) == 0:
        pass


def examples(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_every_module_is_named():
    table = INNER.partition("## Map")[2].partition("## Contract")[0]
    named = set(re.findall(r"`(\w+)`", table))
    modules = {file.stem for file in ROOM.glob("*.py")} | {file.parent.name for file in ROOM.glob("*/__init__.py")}
    assert modules - {"__init__"} <= named


def test_the_users_example_runs():
    x, y, out = torch.ones(1000), torch.ones(1000), torch.zeros(1000)
    (example,) = examples(USERS)
    exec(example, {"add_kernel": add_kernel, "x": x, "y": y, "out": out, "n": 1000})
    assert torch.equal(out, x + y)


def test_the_steps_of_the_launcher_run():
    x, out = torch.ones(1024), torch.zeros(1024)
    spans = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in (x, out)]
    steps = next(example for example in examples(INNER) if "pack_blocks" in example)
    steps = steps.replace("[(low, high)]", "spans")
    names = {"function": add_kernel, "args": (x, x, out, 1000), "kwargs": {"BLOCK": 256}, "spans": spans}
    exec(steps, names)
    assert out.tolist() == [2.0] * 1000 + [0.0] * 24
    assert names["result"].ranges(write=True) == [(spans[1][0], spans[1][0] + 4000)]


@pytest.mark.parametrize("option", re.findall(r"--[a-z][a-z-]*", USERS.partition("## ")[0]))
def test_every_option_of_the_script_runner_is_one(option, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert option in capsys.readouterr().out


def test_a_loop_without_effect_just_ends():
    with triton_cpu.enabled() as session:
        waits_for_nobody[(1,)](torch.zeros(1))
    assert session.findings == []
