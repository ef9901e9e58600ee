"""The pytest plugin with ``--mrv2-device=cuda``: the trap for CUDA around each test of somebody else's project."""

from importlib.metadata import entry_points

import pytest
import torch

from mrv2.checks.cuda import sync_trap

from ..pytest_plugin.conftest import project  # noqa: F401 - a fixture
from ..pytest_plugin.projects import allow, hot

BODY = """
    def test_waits(): engine.waits()

    def test_right(): engine.right()

    def test_flag(): engine.is_finished()
"""
SETTINGS = hot("waits", "right", "is_finished") + allow("is_finished", "MRV101")


@pytest.fixture
def gpu(warning_device, monkeypatch):
    """A device that is there for the trap."""
    with warning_device() as device:
        monkeypatch.setattr(sync_trap, "require_cuda", lambda subject: None)
        monkeypatch.setattr(sync_trap, "CudaDevice", lambda: device)
        yield device


def test_a_wait_in_a_hot_path_fails_its_test(gpu, project):  # noqa: F811
    result = project(BODY, SETTINGS).runpytest("--mrv2-device=cuda", "--mrv2-sync=error")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["MRV101 Tensor.item waits for the device in hot path engine:waits *", "3 tests checked"]
    )
    assert gpu.mode == 0 and not hasattr(torch.Tensor.item, "__wrapped__")


def test_a_hot_path_that_no_test_entered_is_an_error(gpu, project):  # noqa: F811
    result = project("def test_it(): pass\n", SETTINGS).runpytest("--mrv2-device=cuda", "--mrv2-sync=error")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_needs_the_virtual_device_is_skipped_and_marked_tests_are_checked(gpu, project):  # noqa: F811
    body = """
        def test_device(mrv2_device): pass

        @pytest.mark.mrv2(schedules="late,early")
        def test_marked(): engine.waits()
    """
    result = project(body, SETTINGS).runpytest("--mrv2-device=cuda")
    result.assert_outcomes(failed=1, skipped=1)


def test_without_a_device_a_checked_test_fails_and_says_why(project):  # noqa: F811
    result = project("def test_it(): pass\n").runpytest("--mrv2-device=cuda", "--mrv2-sync=error")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there must be a CUDA device*"])


@pytest.mark.gpu
def test_on_a_real_device(project):  # noqa: F811
    options = ["--mrv2-device=cuda", "--mrv2-sync=error"]
    if not entry_points(group="pytest11", name="mrv2"):  # the GPU suite runs on a checkout that is not installed
        options = ["-p", "mrv2.checks.pytest_plugin", *options]
    result = project(BODY, SETTINGS).runpytest(*options)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["MRV101 Tensor.item waits for the device in hot path engine:waits *"])
