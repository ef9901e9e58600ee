"""Findings fail the test in which they happen, in the way that options and markers ask for."""

import json
import textwrap

import pytest
import torch

from mrv2.checks import hot_path, memory

from .projects import allow, hot

WAITS = "def test_waits(): assert engine.waits() == 1\n"
RACES = "def test_races(): engine.races()\n"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    available, tolist = torch.cuda.is_available, torch.Tensor.tolist
    yield
    assert torch.cuda.is_available is available and torch.Tensor.tolist is tolist
    assert not hot_path._watchers and not memory._meters


def test_a_wait_in_a_hot_path_fails_its_test(project):
    tests = project(WAITS + "def test_right(): engine.right()\n", hot("waits", "right"))
    result = tests.runpytest("--mrv2-sync=error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_waits _*",
            "MRV101 Tensor.item waits for the device in hot path engine:waits [[]violation, sound]",
            "  place      engine.py:* in waits",
            "  remedy     keep the value on the device*",
            "  more       mrv2 explain MRV101; fingerprint *",
            "*= mrv2 =*",
            "2 tests checked",
            "entered 1 time: engine:waits",
            "failed: MRV101 *",
            "  place      engine.py:*",
            "  in         test_it.py::test_waits",
            "FAILED test_it.py::test_waits*MRV101 Tensor.item*",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_option_without_a_value_means_error(project):
    body = WAITS + RACES
    result = project(body, hot("waits")).runpytest("--mrv2-sync", "--mrv2-race", "--mrv2-device=virtual")
    result.assert_outcomes(failed=2)
    result = project(body, hot("waits")).runpytest("--mrv2-device=virtual", "--mrv2-race", "--mrv2-sync=off")
    result.assert_outcomes(passed=1, failed=1)


def test_a_wait_that_is_recorded_fails_nothing(project):
    result = project(WAITS, hot("waits")).runpytest("--mrv2-sync=record")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= mrv2 =*", "MRV101 *", "  place      engine.py:*", "  in         *test_waits"])
    assert result.ret == pytest.ExitCode.OK


def test_a_wait_is_nothing_where_only_races_are_looked_for(project):
    result = project(WAITS, hot("waits")).runpytest("--mrv2-race=error")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*MRV101*")
    result.stdout.no_fnmatch_line("*entered*")


def test_a_race_fails_its_test_with_both_sides_and_the_missing_edge(project):
    result = project(RACES + "def test_right(): engine.right()\n").runpytest("--mrv2-race=error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "MRV201 *",
            "  place      engine.py:* in races",
            "  against    engine.py:* in races",
            "  allocated  engine.py:* in races",
            "  missing    nothing makes host thread MainThread wait*",
            "  evidence   *line of the test=3*",
            "  remedy     record an event right after the copy*",
        ]
    )
    result.stdout.no_fnmatch_line("*_pytest/python.py*")


def test_a_race_is_nothing_where_only_waits_are_looked_for(project):
    project(RACES, hot("races")).runpytest("--mrv2-sync=error").assert_outcomes(passed=1)


def test_a_race_in_the_test_itself_has_the_place_of_the_test(project):
    body = """
        import torch

        @pytest.mark.mrv2
        def test_it():
            host, device = torch.ones(8, pin_memory=True), torch.empty(8, device="cuda")
            device.copy_(host, non_blocking=True)
            host[0] = 2
    """
    result = project(body).runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  place      test_it.py:* in test_it", "  against    test_it.py:* in test_it"])


def test_a_test_that_fails_itself_shows_what_was_found(project):
    result = project("def test_it(): assert engine.races()[0] == 7\n").runpytest("--mrv2-race=record")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert*== 7*", "*- mrv2 -*", "MRV201 *"])


def test_what_the_teardown_finds_is_an_error_of_it(project):
    body = """
        @pytest.fixture
        def late():
            yield
            engine.races()

        def test_it(late): pass
    """
    result = project(body).runpytest("--mrv2-race=error")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "MRV201 *"])


def test_a_test_that_is_expected_to_fail_may_fail_by_a_finding(project):
    project("@pytest.mark.xfail(strict=True)\n" + RACES).runpytest("--mrv2-race=error").assert_outcomes(xfailed=1)


def test_a_skipped_test_needs_no_device(project):
    result = project("@pytest.mark.skip\n" + RACES).runpytest("--mrv2-race=error")
    result.assert_outcomes(skipped=1)
    result.stdout.no_fnmatch_line("*checked*")


def test_what_is_only_suspected_fails_nothing(project):
    body = """
        def test_it(mrv2_hot_path):
            device, pageable = engine.torch.empty(8, 1 << 18, device="cuda"), engine.torch.zeros(1 << 18)
            with mrv2_hot_path("upload"):
                for row in device:
                    row.copy_(pageable, non_blocking=True)
    """
    result = project(body).runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["MRV102 * [[]suspect, sound]", "  in         test_it.py::test_it"])


def test_a_bound_on_memory_is_judged_with_the_waits(project):
    bound = "[[tool.mrv2.memory]]\nsite = 'engine:right'\nbytes = %d\n"
    tests = "def test_right(): engine.right()\n"
    for size, outcome in ((16, {"failed": 1}), (1 << 20, {"passed": 1})):
        result = project(tests, bound % size).runpytest("--mrv2-sync=error")
        result.assert_outcomes(**outcome)
    result = project("def test_it(): pass\n", bound % 16).runpytest("--mrv2-sync=error")
    result.stdout.fnmatch_lines(["error: hot paths that no test entered: engine:right"])


def test_the_ini_file_has_options_of_the_same_names(project):
    ini = "mrv2_sync = 'error'\nmrv2_race = 'error'\nmrv2_schedules = 'late,random:5'\n"
    tests = project(RACES, hot("races"), ini)
    result = tests.runpytest("-v")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*::test_races[[]late] FAILED*", "*::test_races[[]random:5] FAILED*"])
    tests.runpytest("--mrv2-race=off").assert_outcomes(passed=2)


def test_junit_has_the_findings_as_properties(project):
    tests = project(RACES)
    tests.runpytest("--mrv2-race=error", "--junitxml=out.xml", "--mrv2-schedules=early")
    text = (tests.path / "out.xml").read_text()
    assert 'property name="mrv2_schedule" value="early"' in text
    assert 'property name="mrv2_finding" value="MRV201 ' in text


# --- The baseline


def accepted(pytester, fingerprint, code="MRV201"):
    entry = {"fingerprint": fingerprint, "code": code, "reason": "ticket 12", "owner": "me"}
    (pytester.path / "known.json").write_text(json.dumps({"schema": 1, "accepted": [entry]}))


def fingerprint_in(result):
    (line,) = {line for line in result.outlines if "fingerprint" in line}
    return line.rpartition(" ")[2]


def test_the_baseline_accepts_one_finding_in_whatever_test_it_happens(project):
    tests = project(RACES + "def test_other():\n    engine.right()\n    engine.races()\n", hot("right"))
    fingerprint = fingerprint_in(tests.runpytest("--mrv2-race=error"))
    accepted(tests, fingerprint)
    result = tests.runpytest("--mrv2-race=error", "--mrv2-baseline=known.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["accepted: MRV201 *(reason: ticket 12)"])
    accepted(tests, "0" * 16)
    result = tests.runpytest("--mrv2-race=error", "--mrv2-sync=error", "--mrv2-baseline=known.json")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["warning: baseline entry 0000000000000000 matched no finding*"])


def test_two_lines_of_one_function_are_both_shown_and_one_finding_to_the_baseline(project, monkeypatch):
    monkeypatch.delenv("CI", raising=False)  # there pytest repeats whole messages in its summary
    body = """
        def test_both():
            with hot_path("decode"):
                values = torch.ones(2, device="cuda")
                values[0].item()
                values[1].item()
    """
    tests = project("import torch\nfrom mrv2.checks.hot_path import hot_path\n" + textwrap.dedent(body))
    result = tests.runpytest("--mrv2-sync=error", "--mrv2-race=error")
    assert len([line for line in result.outlines if line.startswith("MRV101 ")]) == 2
    accepted(tests, fingerprint_in(result), code="MRV101")
    tests.runpytest("--mrv2-sync=error", "--mrv2-race=error", "--mrv2-baseline=known.json").assert_outcomes(passed=1)


def test_a_finding_in_a_thread_of_the_test_is_that_of_the_test(project):
    body = """
        def test_races(): engine.races()

        def test_thread():
            thread = threading.Thread(target=lambda: engine.races())
            thread.start()
            thread.join()
    """
    tests = project("import threading\n" + textwrap.dedent(body))
    accepted(tests, fingerprint_in(tests.runpytest("--mrv2-race=error")))
    tests.runpytest("--mrv2-race=error", "--mrv2-baseline=known.json").assert_outcomes(passed=2)


def test_the_baseline_of_the_ini_file_is_beside_it(project):
    tests = project(RACES, ini="mrv2_race = 'error'\nmrv2_baseline = 'known.json'\n")
    accepted(tests, "0" * 16)
    fingerprint = fingerprint_in(tests.runpytest())
    accepted(tests, fingerprint)
    folder = tests.mkdir("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tests.runpytest("..").assert_outcomes(passed=1)


def test_a_broken_baseline_is_a_usage_error(project):
    result = project(RACES).runpytest("--mrv2-race=error", "--mrv2-baseline=absent.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mrv2-baseline *absent.json", "  rule     the file must be readable*"])


# --- Hot paths over the whole session


def test_a_hot_path_that_no_test_entered_is_an_error(project):
    tests = project("def test_right(): engine.right()\n", hot("right", "waits"))
    result = tests.runpytest("--mrv2-sync=error")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["error: hot paths that no test entered: engine:waits", "  rule *", "  instead *"])
    result = tests.runpytest("--mrv2-sync=record")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["warning: hot paths that no test entered: engine:waits"])


def test_hot_paths_are_judged_over_all_tests(project):
    body = "def test_right(): engine.right()\ndef test_races(): engine.races()\n"
    assert project(body, hot("right", "races")).runpytest("--mrv2-sync=error").ret == pytest.ExitCode.OK


def test_entries_during_the_warm_up_do_not_count(project):
    body = "def test_right():\n    for _ in range(%d): engine.right()\n"
    for times, code in ((2, pytest.ExitCode.TESTS_FAILED), (3, pytest.ExitCode.OK)):
        tests = project(body % times, hot("right") + "warmup_calls = 2\n")
        assert tests.runpytest("--mrv2-sync=error").ret == code


def test_without_any_hot_path_nothing_was_checked(project):
    result = project("def test_right(): engine.right()\n").runpytest("--mrv2-sync=error")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["error: hot paths that no test entered: none is named*"])


def test_a_misspelt_hot_path_is_an_error_before_any_test(project):
    result = project(WAITS, hot("wait")).runpytest("--mrv2-sync=error")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: hot path 'engine:wait'", "  instead  did you mean waits?"])
    result.stdout.no_fnmatch_line("test_it.py *")
    result.stdout.no_fnmatch_line("*no test entered*")


def test_an_allowed_wait_is_none_and_one_that_no_test_needs_is_told(project):
    body = WAITS + "def test_right(): engine.right()\n"
    tests = project(body, hot("waits", "right") + allow("waits", "MRV101") + allow("right", "MRV104"))
    result = tests.runpytest("--mrv2-sync=error")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["MRV122 MRV104 is allowed at engine:right and never happened*"])
    result.stdout.no_fnmatch_line("*MRV101 is allowed*")


def test_a_schedule_of_the_session_that_means_nothing_is_a_usage_error(project):
    result = project("def test_it(): pass\n").runpytest("--mrv2-schedules=late,lat")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: schedule 'lat'", "  instead *"])


def test_settings_that_mean_nothing_are_a_usage_error(project):
    result = project(WAITS, "hot_path = []\n").runpytest("--mrv2-sync=error")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *key 'hot_path'", "  instead  hot_paths"])


def test_an_interrupted_session_closes_its_device(project):
    result = project("def test_it(): pytest.exit('enough')\n").runpytest("--mrv2-race=error")
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_kernels_that_may_have_been_loaded_in_a_hot_path_are_told_together(project):
    body = """
        import triton
        import triton.language as tl

        @triton.jit
        def double(x, n, BLOCK: tl.constexpr):
            at = tl.arange(0, BLOCK)
            tl.store(x + at, tl.load(x + at, at < n) * 2, at < n)

        @triton.jit
        def halve(x, n, BLOCK: tl.constexpr):
            at = tl.arange(0, BLOCK)
            tl.store(x + at, tl.load(x + at, at < n) / 2, at < n)

        @pytest.mark.parametrize("size", [4, 8])
        def test_kernels(mrv2_hot_path, size):
            x = engine.right()
            with mrv2_hot_path("decode"):
                double[(1,)](x, size, BLOCK=8)
                halve[(1,)](x, size, BLOCK=8)
    """
    result = project(body).runpytest("--mrv2-sync=error")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "MRV107 the first launch of double waits * in hot path decode [[]suspect, sound]",
            "  remedy *warm-up*",
            "  likewise   the first launch of halve, in decode",
            "  in         test_it.py::test_kernels[[]4], test_it.py::test_kernels[[]8]",
        ]
    )
