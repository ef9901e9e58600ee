"""The pytest plugin with ``--mrv2-device=cuda``: trap, bounds and recorder for CUDA around each test of a project."""

import shutil
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from mrv2.checks.cuda import audit, sync_trap

from ..pytest_plugin.conftest import project  # noqa: F401 - a fixture
from ..pytest_plugin.projects import allow, hot
from .facade import Allocator, for_recorder, recorder_over

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"

BODY = """
    def test_waits(): engine.waits()

    def test_right(): engine.right()

    def test_flag(): engine.is_finished()
"""
SETTINGS = hot("waits", "right", "is_finished") + allow("is_finished", "MRV101")


BOUND = """
    from mrv2.checks.memory import memory_bound

    @pytest.mark.parametrize("size", [256, 257])
    def test_memory(size):
        with memory_bound("logprobs", bytes=1024):
            engine.torch.empty(size, device="cuda")
"""
OVER = [
    "MRV601 region logprobs takes more device memory than its bound *",
    "  place      test_it.py:* in test_memory",
]  # fmt: skip
BOTH = ["--mrv2-device=cuda", "--mrv2-sync=error", "--mrv2-race=error"]


@pytest.fixture
def gpu(warning_device, monkeypatch):
    """A device that is there for the trap and for the recorder."""
    with for_recorder(), warning_device() as device:
        monkeypatch.setattr(sync_trap, "require_cuda", lambda subject: None)
        monkeypatch.setattr(audit, "require_cuda", lambda subject: None)
        monkeypatch.setattr(audit, "CudaDevice", lambda: device)
        monkeypatch.setattr(audit, "race_recorder", lambda **more: recorder_over(device.opened, **more))
        monkeypatch.setattr(audit, "CachingAllocator", lambda index: Allocator(device.opened.runtime))
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
    result = project("def test_it(): pass\n").runpytest("--mrv2-device=cuda", "--mrv2-sync=error", "-rN")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there must be a CUDA device*"])
    # Said once, in its four parts, without the exception that it came as.
    assert result.stdout.str().count("there must be a CUDA device") == 1


@pytest.mark.parametrize("with_races", [False, True])
def test_memory_beyond_a_bound_fails_its_test(gpu, project, with_races):  # noqa: F811
    result = project(BOUND).runpytest(*(BOTH if with_races else BOTH[:2]))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([*OVER, "  evidence *, bound=1024, peak=1028, allocation=1028, held at entry=0, *"])


def test_a_race_fails_its_test_and_waits_are_found_beside_it(gpu, project):  # noqa: F811
    body = BODY + "\n    def test_races(): engine.races()\n"
    result = project(body, SETTINGS).runpytest(*BOTH)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["MRV101 *", "MRV201 *", "  place      engine.py:* in races", "4 tests checked"])
    # Without waits the recorder is alone, and a test that asks has both.
    result = project(body).runpytest("--mrv2-device=cuda", "--mrv2-race=error")
    result.assert_outcomes(passed=3, failed=1)
    result = project("@pytest.mark.mrv2\ndef test_it(): engine.races()\n").runpytest("--mrv2-device=cuda")
    result.assert_outcomes(failed=1)
    assert gpu.mode == 0 and not hasattr(torch.Tensor.item, "__wrapped__")


def example(pytester):
    """The example project, in a folder of its own."""
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester


def check_example(pytester, run):
    """It fails with the wait and the race; mended it passes."""
    result = run(*BOTH)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "MRV101 Tensor.item waits for the device in hot path tiny_engine.runner:Runner.step *",
            "  place      tiny_engine/runner.py:25 in Runner.step",
            "MRV203 'Tensor.tolist' touches pinned host memory that 'aten.copy_' may not have filled yet *",
            "  place      tiny_engine/runner.py:31 in Runner.results",
        ]
    )
    shutil.copy(pytester.path / "mended" / "runner.py", pytester.path / "tiny_engine" / "runner.py")
    result = run(*BOTH)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 tests checked", "entered 3 times: tiny_engine.runner:Runner.step"])


def test_the_example_project(gpu, pytester):
    check_example(example(pytester), pytester.runpytest)


def options():
    """The plugin by name, where mrv2 is not installed: the GPU suite runs on a checkout."""
    return [] if entry_points(group="pytest11", name="mrv2") else ["-p", "mrv2.checks.pytest_plugin"]


@pytest.mark.gpu
def test_on_a_real_device(project):  # noqa: F811
    result = project(BODY, SETTINGS).runpytest(*options(), "--mrv2-device=cuda", "--mrv2-sync=error")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["MRV101 Tensor.item waits for the device in hot path engine:waits *"])


@pytest.mark.gpu
@pytest.mark.parametrize("with_races", [False, True])
def test_bounds_on_a_real_device(project, with_races):  # noqa: F811
    result = project(BOUND).runpytest(*options(), *(BOTH if with_races else BOTH[:2]))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(OVER)


@pytest.mark.gpu
def test_the_example_project_on_a_real_device(pytester):
    example(pytester)
    check_example(pytester, lambda *more: pytester.runpytest_subprocess(*options(), *more))
