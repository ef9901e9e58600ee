"""Other people's suites: the plugin loads nothing and changes nothing; and what only other processes can show."""

import importlib.metadata
import re

from mrv2.checks import pytest_plugin

from .projects import hot

PLAIN = """
    import sys

    import pytest

    HEAVY = {"torch", "triton", "numpy", "scipy", "rich"}


    def test_nothing_heavy_is_imported():
        assert HEAVY.isdisjoint(sys.modules)
        ours = {name for name in sys.modules if name.partition(".")[0] == "mrv2"}
        assert ours <= {"mrv2", "mrv2.checks", "mrv2.checks.pytest_plugin"}


    def test_fails():
        assert 1 == 2


    @pytest.mark.parametrize("number", [1, 2])
    def test_numbers(number, request, record_property):
        record_property("number", number)
        assert "_mrv2_schedule" not in request.fixturenames


    @pytest.mark.skip
    def test_skipped():
        pass
"""
TIMES = re.compile(r"\d+\.\d+s|plugins: .*")


def test_the_entry_point_is_the_plugin():
    (found,) = importlib.metadata.entry_points(group="pytest11", name="mrv2")
    assert found.load() is pytest_plugin


def test_a_suite_that_asks_for_nothing_runs_as_without_the_plugin(pytester):
    pytester.makepyfile(test_plain=PLAIN)
    options = ("-v", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    with_plugin = pytester.runpytest_subprocess(*options)
    without = pytester.runpytest_subprocess(*options, "-p", "no:mrv2")
    with_plugin.assert_outcomes(passed=3, failed=1, skipped=1)
    assert any("mrv2" in line for line in with_plugin.outlines if line.startswith("plugins:"))
    assert [TIMES.sub("", line) for line in with_plugin.outlines] == [TIMES.sub("", line) for line in without.outlines]
    assert with_plugin.errlines == without.errlines == []


def test_settings_alone_change_nothing(project):
    body = """
        from mrv2.checks.virtual.streams import is_active

        def test_it():
            assert not hasattr(engine.waits, "__wrapped__") and not is_active()
    """
    result = project(body, hot("waits"), "mrv2_schedules = 'late,early'\n").runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= mrv2 =*")


def test_the_marker_is_known_where_markers_must_be(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.mrv2(device='cpu')\ndef test_it(): pass\n")
    pytester.runpytest("--strict-markers").assert_outcomes(passed=1)
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.mrv2(schedules=..., sync=*"])


def test_collecting_alone_judges_nothing(project):
    result = project("def test_it(): pass\n", hot("waits")).runpytest("--mrv2-sync=error", "--collect-only")
    assert result.ret == 0


BODY = """
    def test_right(): engine.right()
    def test_races(): engine.races()
    def test_again(): engine.right()
"""


def test_findings_and_hot_paths_come_together_from_workers(project):
    tests = project(BODY, hot("right", "races"))
    result = tests.runpytest_subprocess("-n2", "--mrv2-sync=error", "--mrv2-race=error", "--junitxml=out.xml")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "MRV201 *",
            "*= mrv2 =*",
            "3 tests checked",
            "entered 1 time: engine:races",
            "entered 2 times: engine:right",
            "failed: MRV201 *",
        ]
    )
    result.stdout.no_fnmatch_line("*no test entered*")
    assert 'property name="mrv2_finding" value="MRV201 ' in (tests.path / "out.xml").read_text()


def test_workers_of_a_session_without_options_send_what_marked_tests_found(project):
    body = "@pytest.mark.mrv2(race='record')\ndef test_races(): engine.races()\n"
    result = project(body).runpytest_subprocess("-n1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= mrv2 =*", "1 test checked", "MRV201 *", "  in         test_it.py::test_races"])


def test_what_no_worker_entered_is_an_error_and_so_is_a_misspelt_name(project):
    result = project(BODY, hot("right", "waits")).runpytest_subprocess("-n1", "--mrv2-sync=error")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["error: hot paths that no test entered: engine:waits"])
    result = project(BODY, hot("write")).runpytest_subprocess("-n1", "--mrv2-sync=error")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: hot path 'engine:write'", "  instead  did you mean *right?"])
