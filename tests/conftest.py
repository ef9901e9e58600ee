"""Settings of every test: deterministic Hypothesis, one width, one thread per worker, GPU tests only with a GPU."""

import gc
import os
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.load_profile("ci")

# The tests of our plugin run pytest; only the uppermost conftest may ask for what that takes.
pytest_plugins = ["pytester"]

# A project of its own, with faults on purpose: tests/checks/pytest_plugin runs it.
collect_ignore = ["example_project"]

# What the command prints is laid out for one width wherever the tests run; workers of pytest-xdist would see another.
os.environ["COLUMNS"] = "120"

if "PYTEST_XDIST_WORKER" in os.environ:
    # One worker runs per core already. The variables reach the commands that tests start, and torch if it comes later.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector: it would go through millions of living objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_enabled:
            gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let the garbage collector pass over all tests and modules; whoever opens a virtual device ends this again."""
    if gc.get_freeze_count() == 0:
        gc.collect(1)
        gc.freeze()


def pytest_unconfigure() -> None:
    """Give back what is passed over: the interpreter's end frees nothing else of it."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where CUDA is missing.

    Raises:
        pytest.UsageError: a test is named after an address, so each worker of pytest-xdist would know another one.
    """
    unstable = next((item.nodeid for item in items if " at 0x" in item.nodeid), None)
    if unstable:
        raise pytest.UsageError(f"{unstable}: give its parameters names that are the same in every process")
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="torch.cuda.is_available() is False here; run by ci/gpu/suite"))
