"""The checks of one session: opens a device around each test that is checked, and judges what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import CheckError
from ..libraries import portable_path
from ..report.identity import identity, spot
from ..report.text import finding_lines, headline, printable
from .options import Mode, Options, Plan, problem_lines
from .run import Judged, TestName, TestRun
from .summary import Summary

if TYPE_CHECKING:
    from ..virtual import VirtualDevice

_PARAMETER = "_mrv2_schedule"
_RUN = pytest.StashKey[TestRun]()
_PLAN = pytest.StashKey[Plan | None]()
_FOUND = pytest.StashKey[list[Judged]]()
_OURS = pytest.StashKey[bool]()
#: How a session ends that ran its tests; another one says nothing of hot paths.
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def device_of(item: pytest.Item) -> VirtualDevice:
    """The device on which a test runs.

    Raises:
        pytest.skip.Exception: it runs elsewhere, by ``--mrv2-device``.
        CheckError: nobody knew before the test that it wants one.
    """
    run = item.stash.get(_RUN, None)
    if run is not None and run.device is not None:
        return run.device
    plan = item.stash.get(_PLAN, None)
    if plan is not None:
        pytest.skip(f"needs the virtual device, and mrv2_device is {plan.device}")
    raise CheckError(
        f"{item.nodeid}, fixture mrv2_device",
        "a test asks for it by an argument or by usefixtures",
        "the device must be there before all other fixtures",
        "mrv2_device among the arguments of the test",
    )


class Checks:
    """Hooks of a session in which something asks for checks.

    Attributes:
        summary: what all tests found, those of workers too.

    Raises:
        pytest.UsageError: the options mean nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        with _usage_errors():
            self._options = Options(config)
            self._baseline = self._options.baseline()
            if self._options.everywhere and self._options.schedules:
                _schedules(self._options.schedules)  # wrong for every test: told once, before any is collected
        self.summary = Summary(self._options, self._baseline)
        self._open: TestRun | None = None
        self._shown: dict[object, str] = {}

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Let a test run once in each of its schedules.

        Raises:
            pytest.Collector.CollectError: its marker means nothing, or one of them is no schedule.
        """
        try:
            plan = self._plan(metafunc.definition, metafunc.fixturenames)
            schedules = _schedules_of(plan) if plan is not None and plan.checked else []
        except CheckError as error:
            raise pytest.Collector.CollectError(problem_lines(error)) from error
        if len(schedules) > 1:
            if _PARAMETER not in metafunc.fixturenames:
                metafunc.fixturenames.append(_PARAMETER)
            metafunc.parametrize(_PARAMETER, schedules, ids=schedules, indirect=True)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Where workers collect, names are judged before they start.

        Raises:
            pytest.UsageError: a hot path names nothing.
        """
        distributed = self._config.getoption("dist", "no") != "no" and not self._is_worker
        if distributed and self._options.everywhere and self._options.sync not in (None, Mode.OFF):
            self._check_names(elsewhere=True)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before any test runs, every name must name something.

        Raises:
            pytest.UsageError: one does not, or a marker means nothing.
        """
        with _usage_errors():
            plans = [self._plan(item, getattr(item, "fixturenames", ())) for item in session.items]
        if any(plan is not None and plan.checked and plan.sync is not Mode.OFF for plan in plans):
            self._check_names()

    def _check_names(self, *, elsewhere: bool = False) -> None:
        from ..sync.memory import MemoryWatch
        from ..sync.watch import Watch

        with _usage_errors():
            settings = self._options.settings
            try:
                with Watch(settings), MemoryWatch(settings.memory):
                    pass
            except CheckError as error:
                # The workers have more folders on their path: those of the tests.
                if not (elsewhere and isinstance(error.__cause__, ModuleNotFoundError)):
                    raise

    def _plan(self, item: pytest.Item, fixtures: Any) -> Plan | None:
        if not isinstance(item, pytest.Function):
            return None  # a doctest, or what another plugin runs
        if _PLAN not in item.stash:
            item.stash[_PLAN] = self._options.plan(item, fixtures)
        return item.stash[_PLAN]

    # After the marks of skipped tests are judged, and before the first fixture is made.
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Open the device."""
        plan = self._plan(item, getattr(item, "fixturenames", ()))
        if plan is None or not plan.checked:
            return
        schedule = _schedule_of(item) or _schedules_of(plan)[0]
        try:
            self._open = TestRun(_name_of(item), plan, self._options.settings_for(plan), schedule, self._baseline)
        except CheckError as error:
            raise pytest.fail.Exception(problem_lines(error), pytrace=False) from None
        item.stash[_RUN] = self._open
        item.user_properties.append(("mrv2_schedule", schedule))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Judge what was found by the end of the test."""
        run = item.stash.get(_RUN, None)
        if run is None:
            return (yield)
        try:
            result = yield
        finally:
            _note(item, run.take())
        self._fail(item)
        return result

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Close the device after the last fixture, and judge what was found since the test."""
        run = item.stash.get(_RUN, None)
        if run is None:
            return (yield)
        try:
            result = yield
        finally:
            item.stash[_FOUND] = []
            try:
                _note(item, run.take())
            finally:
                self._close()
        self._fail(item)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send what was found with the report."""
        report = yield
        run, plan = item.stash.get(_RUN, None), item.stash.get(_PLAN, None)
        if run is None and plan is not None and plan.asked and call.when == "teardown":
            report.mrv2 = {"unchecked": plan.device}  # type: ignore[attr-defined]
        if run is None or call.when == "setup":
            return report
        found = item.stash.get(_FOUND, [])
        coverage = run.coverage() if call.when == "teardown" else {}
        # Under a name of its own, in values that workers can send.
        report.mrv2 = {  # type: ignore[attr-defined]
            "found": [one.as_json() for one in found], "test": _without_schedule(item), **coverage,
        }  # fmt: skip
        if report.failed and found and not item.stash.get(_OURS, False):
            report.sections.append(("mrv2", self._text(item, found)))
        item.stash[_OURS] = False
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A session in which a hot path was never judged has not passed."""
        self._close()
        if not self._is_worker and session.exitstatus in _ENDED and not self._config.getoption("collectonly"):
            self.summary.end()
            if self.summary.must_fail and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was found."""
        self.summary.write(terminalreporter)

    def _fail(self, item: pytest.Item) -> None:
        """Fail the test if something that was just found asks for it.

        Raises:
            pytest.fail.Exception: with the findings as text.
        """
        found = item.stash[_FOUND]
        if any(one.fails for one in found):
            item.stash[_OURS] = True
            pytest.fail(self._text(item, [one for one in found if one.fails]), pytrace=False)

    def _text(self, item: pytest.Item, found: list[Judged]) -> str:
        """Findings in full; of those that another schedule of the test has shown so, the first line."""
        return "\n\n".join("\n".join(map(printable, self._lines(item, one))) for one in found)

    def _lines(self, item: pytest.Item, one: Judged) -> list[str]:
        key = _without_schedule(item), identity(one.finding), spot(one.finding)
        shown = self._shown.setdefault(key, item.name)
        if shown == item.name:
            return list(finding_lines(one.finding))
        return [headline(one.finding), f"  {'as in':<10} {shown}"]

    def _close(self) -> None:
        """Whatever device is open; one is left open if a session is interrupted."""
        run, self._open = self._open, None
        if run is not None:
            run.close()


@contextlib.contextmanager
def _usage_errors() -> Generator[None, None, None]:
    try:
        yield
    except CheckError as error:
        raise pytest.UsageError(problem_lines(error)) from error


def _schedules_of(plan: Plan) -> list[str]:
    """The schedules in which a test runs; a GPU has one, and nobody to ask for another."""
    return ["cuda"] if plan.device == "cuda" else _schedules(plan.schedules)


def _schedules(text: str) -> list[str]:
    """The schedules of a list, each as text.

    Raises:
        CheckError: one of them is none, or is many runs.
    """
    from ..virtual.schedules import expand

    found = expand(text)
    for schedule in found:
        schedule.scheduler()
    return [str(schedule) for schedule in found]


def _name_of(item: pytest.Item) -> TestName:
    return TestName(portable_path(str(item.path)), getattr(item, "originalname", None) or item.name)


def _schedule_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get(_PARAMETER)


def _without_schedule(item: pytest.Item) -> str:
    """The node id of a test, the same in all its schedules; the schedule is its last parameter."""
    schedule = _schedule_of(item)
    if schedule is None:
        return item.nodeid
    rest = item.nodeid.removesuffix(f"{schedule}]")
    return rest.removesuffix("[") if rest.endswith("[") else f"{rest.removesuffix('-')}]"


def _note(item: pytest.Item, found: list[Judged]) -> None:
    """Keep findings for the report, and as properties of the test for JUnit."""
    item.stash[_FOUND] = found
    item.user_properties.extend(("mrv2_finding", headline(one.finding)) for one in found)
