"""What tests ask for themselves: markers, fixtures, schedules."""

import pytest

from .projects import allow, hot


def test_a_marked_test_is_checked_without_options(project):
    body = """
        @pytest.mark.mrv2
        def test_races(): engine.races()

        def test_other(): pass
    """
    result = project(body).runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["MRV201 *", "1 test checked"])


def test_a_marked_test_watches_the_hot_paths_of_the_project(project):
    body = "@pytest.mark.mrv2\ndef test_waits(): engine.waits()\n"
    result = project(body, hot("waits", "right")).runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["MRV101 *"])
    # Nobody asked for the whole session to be judged.
    result.stdout.no_fnmatch_line("*no test entered*")


def test_the_arguments_of_a_marker_come_before_the_options(project):
    body = """
        @pytest.mark.mrv2(race="off")
        def test_off(): engine.races()

        @pytest.mark.mrv2(race="record")
        class TestRecorded:
            def test_record(self): engine.races()

            @pytest.mark.mrv2(race="error")
            def test_error(self): engine.races()
    """
    result = project(body).runpytest("--mrv2-race=error", "-v")
    result.stdout.fnmatch_lines(["*::test_off PASSED*", "*::test_record PASSED*", "*::test_error FAILED*"])


def test_a_marker_may_allow_a_wait(project):
    entry = "{'site': 'engine:waits', 'code': 'MRV101', 'reason': 'one flag'}"
    body = f"@pytest.mark.mrv2(allow=[{entry}])\ndef test_one(): engine.waits()\n"
    project(body, hot("waits")).runpytest("--mrv2-sync=error").assert_outcomes(passed=1)
    body += "def test_two(): engine.waits()\n"
    project(body, hot("waits")).runpytest("--mrv2-sync=error").assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ("schedule='late'", ["*pytest.mark.mrv2(schedule=...)", "  rule *must be known", "  instead  schedules"]),
        ("'late'", ["*pytest.mark.mrv2('late',)", "  rule     its arguments have names"]),
        ("race='fail'", ["*pytest.mark.mrv2(race='fail')*", "  rule     it must be one of off, record, error"]),
        ("device='gpu'", ["*pytest.mark.mrv2(device='gpu')*", "  rule     it must be one of cuda, virtual, cpu"]),
        (
            "device='cpu', race='error'",
            ["*: race is error, and the device is cpu", "  rule *", "  instead  device virtual*"],
        ),
        ("schedules='latest'", ["schedule 'latest'", "  rule     a schedule is one of late, early*"]),
        ("schedules='explore'", ["schedule 'explore'", "  rule     explore is many runs*"]),
        ("schedules=['late']", ["*pytest.mark.mrv2(schedules=*", "  rule     it is one text"]),
        (
            "allow=[{'site': 'engine:waits', 'code': 'MRV101'}]",
            ["*pytest.mark.mrv2(allow=*, allowance of 'MRV101'*", "  rule *give a reason"],
        ),
    ],
)
def test_a_marker_that_means_nothing_is_an_error_of_its_module(project, arguments, lines):
    result = project(f"@pytest.mark.mrv2({arguments})\ndef test_it(): pass\n").runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(lines)


def test_each_checked_test_runs_once_in_each_schedule(project):
    body = """
        def name(device): return type(device.runtime.scheduler).__name__.lower()

        @pytest.mark.parametrize("size", [1, 2])
        def test_option(size, mrv2_device, request):
            assert name(mrv2_device) == request.node.name.partition("-")[2].removesuffix("]").partition(":")[0]

        @pytest.mark.mrv2(schedules="early")
        def test_marker(mrv2_device): assert name(mrv2_device) == "early"

        @pytest.mark.mrv2(device="cpu")
        def test_elsewhere(): assert not engine.torch.cuda.is_available()
    """
    result = project(body).runpytest("--mrv2-schedules=late,random:5", "-v")
    result.assert_outcomes(passed=6)
    names = [line.split()[0].partition("::")[2] for line in result.outlines if "PASSED" in line]
    assert names == [
        "test_option[1-late]", "test_option[1-random:5]", "test_option[2-late]", "test_option[2-random:5]",
        "test_marker", "test_elsewhere",
    ]  # fmt: skip


def test_a_fixture_gives_the_device_that_the_test_runs_on(project):
    body = """
        from mrv2.checks.virtual import VirtualDevice

        def test_right(mrv2_device):
            assert isinstance(mrv2_device, VirtualDevice)
            assert engine.right().device.type == "cuda" and not mrv2_device.findings

        def test_races(mrv2_device):
            with mrv2_device.at_step(3):
                engine.races()
            assert len(mrv2_device.findings) == 1
    """
    result = project(body).runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["MRV201 *", "  step       step 3"])


def test_the_device_is_there_before_the_other_fixtures(project):
    body = """
        @pytest.fixture
        def tensor(): return engine.right()

        def test_it(tensor, mrv2_device): assert tensor.device.type == "cuda"
    """
    project(body).runpytest().assert_outcomes(passed=1)


def test_a_device_that_was_not_asked_for_in_time_is_an_error(project):
    result = project("def test_it(request): request.getfixturevalue('mrv2_device')\n").runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_it, fixture mrv2_device: a test asks for it by an argument*"])


def test_a_hot_path_of_the_test_s_own(project):
    body = """
        def test_it(mrv2_hot_path):
            engine.waits()
            with mrv2_hot_path("decode"):
                engine.right()

        def test_waits(mrv2_hot_path):
            with mrv2_hot_path("decode"):
                engine.is_finished()
    """
    result = project(body).runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["MRV101 bool() of a tensor waits*decode*", "  place      engine.py:* in is_finished"])


def test_tests_of_unittest_are_checked_in_the_first_schedule(project):
    body = """
        import unittest

        class TestEngine(unittest.TestCase):
            def test_races(self): engine.races()
            def test_right(self): engine.right()
    """
    result = project(body).runpytest("--mrv2-race=error", "--mrv2-schedules=early,late")
    result.assert_outcomes(passed=1, failed=1)
    marked = body.replace("class", "@pytest.mark.mrv2\n        class")
    project(marked).runpytest().assert_outcomes(passed=1, failed=1)


def test_on_another_device_nothing_is_checked(project):
    body = """
        def test_device(mrv2_device): pass

        @pytest.mark.mrv2
        def test_marked(): assert not engine.torch.cuda.is_available()
    """
    result = project(body).runpytest("--mrv2-device=cpu", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "0 tests checked",
            "2 tests that asked for it not checked: on cpu, or with all checks off",
            "SKIPPED*needs the virtual device, and mrv2_device is cpu",
        ]
    )


@pytest.mark.parametrize("check", ["sync", "race"])
def test_checks_on_the_cpu_are_refused(project, check):
    result = project("def test_it(): pass\n").runpytest("--mrv2-device=cpu", f"--mrv2-{check}=error")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: the options of the session: {check} is error, and the device is cpu", "  rule *", "  instead *"]
    )


def test_an_ini_option_that_means_nothing_is_refused(project):
    result = project("def test_it(): pass\n", ini="mrv2_sync = 'on'\n").runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: mrv2_sync: 'on'", "  rule     it must be one of off, record, error"])


def test_a_second_device_is_an_error(project):
    body = """
        from mrv2.checks.virtual import virtual_device

        def test_it():
            with virtual_device():
                pass
    """
    project(body).runpytest().assert_outcomes(passed=1)
    result = project(body).runpytest("--mrv2-race=error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*virtual_device inside another*"])


def test_allowances_are_added_up_over_tests(project):
    body = "def test_waits(): engine.waits()\ndef test_right(): engine.right()\n"
    result = project(body, hot("waits", "right") + allow("waits", "MRV101")).runpytest("--mrv2-sync=error")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*MRV122*")


def test_properties_of_hypothesis_run_in_each_schedule(project):
    body = """
        from hypothesis import given, strategies

        @given(strategies.integers(0, 3))
        def test_right(number): assert engine.right()[number] == 2

        @given(strategies.integers(0, 3))
        def test_races(number): engine.races()
    """
    result = project(body).runpytest("--mrv2-race=error", "--mrv2-schedules=late,early")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["MRV201 *", "  place      engine.py:* in races", "  against    engine.py:* in races"])
    result.stdout.no_fnmatch_line("*hypothesis/core.py*")
