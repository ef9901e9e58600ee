"""Whose code a file is: judged by where packages are installed, so that a user's folder of the same name is seen."""

import contextlib
import copy
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import triton

from mrv2.checks import libraries
from mrv2.checks.libraries import folder_of, is_library, is_standard, portable_path
from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.runs import run_program

RACE = """
def race(torch):
    host = torch.zeros(4, pin_memory=True)
    torch.ones(4, device="cuda").copy_(host, non_blocking=True)
    host.add_(1)
"""


@pytest.mark.parametrize("package", [torch, triton, np])
def test_installed_packages_are_libraries(package):
    assert is_library(package.__file__) and not is_standard(package.__file__)


@pytest.mark.parametrize("module", [contextlib, threading, copy])
def test_the_standard_library_is_standard(module):
    assert is_standard(module.__file__) and not is_library(module.__file__)


def test_installed_packages_are_not_the_standard_library():
    assert not is_standard(pytest.__file__) and not is_library(pytest.__file__)


def test_a_package_that_is_not_installed_has_no_folder():
    assert folder_of("no_package_has_this_name") == ()


def test_a_library_reached_through_a_link_is_one(tmp_path):
    (tmp_path / "link").symlink_to(Path(np.__file__).parent)
    assert is_library(str(tmp_path / "link" / "__init__.py"))


@pytest.mark.parametrize("folder", ["triton", "torch", "numpy", "checks", "lib/python3.11"])
def test_a_folder_of_the_user_may_be_called_like_a_library(tmp_path, folder):
    file = tmp_path / folder / "engine.py"
    file.parent.mkdir(parents=True)
    file.write_text(RACE)
    assert not is_library(str(file)) and not is_standard(str(file))
    program = runpy.run_path(str(file))["race"]
    with virtual_device() as device:
        program(torch)
    (finding,) = device.findings
    assert [(site.file, site.function) for site in finding.where[:1]] == [("engine.py", "race")]
    assert finding.where[0].line == 5


def test_a_thread_whose_target_is_a_method_of_a_tensor_still_has_a_place():
    with virtual_device() as device:
        host = torch.zeros(4, pin_memory=True)
        torch.ones(4, device="cuda").copy_(host, non_blocking=True)
        thread = threading.Thread(target=host.fill_, args=(1.0,))
        thread.start()
        thread.join()
    (finding,) = device.findings
    assert finding.where and finding.where[0].file == "threading.py"


def test_findings_are_the_same_from_both_ways_in(tmp_path):
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "step.py").write_text(RACE)
    race = runpy.run_path(str(package / "step.py"))["race"]
    with virtual_device() as device:
        race(torch)
    (finding,) = device.findings
    (other,) = run_program(lambda: race(torch)).findings
    assert finding.where[0].file == other.where[0].file == "engine/step.py"
    places = (*finding.where, *finding.other, *finding.allocation)
    assert not any(Path(site.file).is_absolute() for site in places)


def test_a_path_starts_at_the_outermost_package():
    assert portable_path(torch.nn.__file__) == "torch/nn/__init__.py"


THROUGH_A_LINK = """
import sys

import torch

from mrv2.checks import libraries
from mrv2.checks.hooks.edges import called_internally
from mrv2.checks.sync.called import outermost
from mrv2.checks.virtual import virtual_device

spelled, real = sys.argv[1:]
assert libraries.__file__.startswith(spelled), libraries.__file__


def call(file):
    code = compile("def item(ask): return ask(1)", file, "exec")
    names = {}
    exec(code, names)
    return names["item"]


def outermost_of(file):
    source = "class DeviceTensor:\\n    def item(self): return sys._getframe()"
    names = {"sys": sys}
    exec(compile(source, file, "exec"), names)
    return outermost([names["DeviceTensor"]().item()])


for folder in (spelled, real):
    assert libraries.is_library(f"{folder}virtual/tensor.py"), folder
    assert call(f"{folder}virtual/tensor.py")(called_internally), folder
    assert outermost_of(f"{folder}virtual/tensor.py") == "Tensor.item", folder
assert not call("/home/user/engine.py")(called_internally)
assert outermost_of("/home/user/engine.py") is None
with virtual_device() as device:
    host = torch.zeros(4, pin_memory=True)
    torch.ones(4, device="cuda").copy_(host, non_blocking=True)
    host.add_(1)
    (finding,) = device.findings
print(finding.where[0].function)
"""


def test_the_toolkit_may_be_installed_through_a_link(tmp_path):
    real = Path(libraries.__file__).resolve().parent
    link = tmp_path / "mrv2" / "checks"
    link.parent.mkdir()
    link.symlink_to(real)
    (tmp_path / "program.py").write_text(THROUGH_A_LINK)
    words = [sys.executable, str(tmp_path / "program.py"), f"{link}/", f"{real}/"]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("<module>\n", "", 0)
