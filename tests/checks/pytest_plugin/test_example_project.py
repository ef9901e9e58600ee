"""A third party's project gains the checks by naming its hot path."""

import re
import shutil
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"


@pytest.fixture
def example(pytester):
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester


def test_the_engine_knows_nothing_of_mrv2():
    sources = [path.read_text() for folder in ("tiny_engine", "mended") for path in (EXAMPLE / folder).glob("*.py")]
    assert len(sources) == 3 and not any("mrv2" in source for source in sources)
    assert not re.search("import.*mrv2", (EXAMPLE / "tests" / "test_engine.py").read_text())


def test_it_fails_with_both_findings(pytester):
    result = pytester.runpytest_subprocess(str(EXAMPLE), "-p", "no:cacheprovider")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "*_ test_a_request_is_finished_at_its_limit[[]late] _*",
            "MRV101 Tensor.item waits for the device in hot path tiny_engine.runner:Runner.step *",
            "  place      tiny_engine/runner.py:25 in Runner.step",
            "  remedy     keep the value on the device*",
            "MRV203 'Tensor.tolist' touches pinned host memory that 'aten.copy_' may not have filled yet *",
            "  place      tiny_engine/runner.py:31 in Runner.results",
            "  against    tiny_engine/runner.py:26 in Runner.step",
            "  missing    nothing makes host thread MainThread wait for 'aten.copy_'*",
            "  remedy     record an event after the copy and synchronise it*",
            # What one schedule has shown in full, the other names.
            "*_ test_a_request_is_finished_at_its_limit[[]random:5] _*",
            "MRV101 Tensor.item waits for the device in hot path *",
            "  as in      test_a_request_is_finished_at_its_limit[[]late]",
            "failed: MRV101 *",
            "  in         tests/test_engine.py::test_sums (2 schedules), *::test_a_request_* (2 schedules)",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_mended_it_passes(example):
    shutil.copy(example.path / "mended" / "runner.py", example.path / "tiny_engine" / "runner.py")
    result = example.runpytest_subprocess()
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["4 tests checked", "entered 6 times: tiny_engine.runner:Runner.step"])
    assert result.ret == pytest.ExitCode.OK


def test_with_a_misspelt_hot_path_it_is_an_error(example):
    settings = example.path / "pyproject.toml"
    settings.write_text(settings.read_text().replace("Runner.step", "Runner.stop"))
    result = example.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: hot path 'tiny_engine.runner:Runner.stop'", "  instead  did you mean step?"])


def test_it_is_no_part_of_our_own_suite(request):
    assert not [item for item in request.session.items if EXAMPLE in item.path.parents]
