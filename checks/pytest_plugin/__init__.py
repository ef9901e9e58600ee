"""The pytest plugin: hidden waits and races make the test fail in which they happen.

Installing mrv2 installs it (entry point ``pytest11``). Without one of its options, ini options, markers or fixtures it
does nothing and loads nothing: neither torch nor Triton nor numpy, and no other module of mrv2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mrv2.checks.virtual import VirtualDevice

_MODES = ("off", "record", "error")
_DEVICES = ("cuda", "virtual", "cpu")
_MARKER = (
    "mrv2(schedules=..., sync=..., race=..., device=..., allow=[...]): check this test, by default on the virtual "
    "device. The arguments come before the options of the same names, and allow holds tables as [[tool.mrv2.allow]] "
    "does."
)
_HELP = {
    "sync": "What a wait of the host in a hot path does: nothing (off, the default), be listed (record), or fail the "
    "test (error, also meant without a value).",
    "race": "The same for races, and for whatever else the device's recorder finds.",
    "device": "Where code runs that says device='cuda': virtual (the default of checked tests), cuda, a real one, or "
    "cpu, nowhere, unchecked.",
    "schedules": "Orders in which the virtual device runs its work, e.g. late,random:5; each checked test runs once in "
    "each. The default is late.",
    "baseline": "JSON file of findings that are known and accepted.",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, and ini options of the same names with an underscore."""
    group = parser.getgroup("mrv2", "hidden waits and races of GPU code (mrv2)")
    choices = {"sync": _MODES, "race": _MODES, "device": _DEVICES}
    for name, text in _HELP.items():
        metavar = {"baseline": "FILE", "schedules": "LIST"}.get(name)
        extra: dict[str, Any] = {"choices": choices[name]} if name in choices else {"metavar": metavar}
        if name in ("sync", "race"):
            extra.update(nargs="?", const="error")
        group.addoption(f"--mrv2-{name}", default=None, help=text, **extra)
        parser.addini(f"mrv2_{name}", text, type="string", default=None)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and be ready if a session wants checks."""
    config.addinivalue_line("markers", _MARKER)
    config.pluginmanager.register(_Waiting(config), "mrv2-waiting")


class _Waiting:
    """Looks whether anything in a session asks for checks, and only then brings in what checks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._checks: Any = None
        if any(self._given(name) for name in _HELP):
            self._start()

    def _given(self, name: str) -> Any:
        return self._config.getoption(f"mrv2_{name}") or self._config.getini(f"mrv2_{name}")

    def _start(self) -> Any:
        if self._checks is None:
            from .session import Checks

            self._checks = Checks(self._config)
            self._config.pluginmanager.register(self._checks, "mrv2-checks")
        return self._checks

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """The schedules come last in the names of tests."""
        if self._checks is not None or _asks(metafunc.definition, metafunc.fixturenames):
            self._start().parametrize(metafunc)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tests of ``unittest`` come by here only."""
        if self._checks is None and any(_asks(item, getattr(item, "fixturenames", ())) for item in items):
            self._start()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What a test found comes with its report, from workers of pytest-xdist too."""
        if hasattr(report, "mrv2"):
            self._start().summary.add(report)


def _asks(node: pytest.Item, fixtures: Any) -> bool:
    """Whether a test asks for checks itself."""
    return node.get_closest_marker("mrv2") is not None or not {"mrv2_device", "mrv2_hot_path"}.isdisjoint(fixtures)


@pytest.fixture
def _mrv2_schedule(request: pytest.FixtureRequest) -> str:
    """The schedule of this run of the test; where a test has more than one, they become its parameter."""
    return str(request.param)


@pytest.fixture
def mrv2_device(request: pytest.FixtureRequest) -> VirtualDevice:
    """The virtual device on which the test runs; what it finds makes the test fail."""
    from .session import device_of

    return device_of(request.node)


@pytest.fixture
def mrv2_hot_path() -> Callable[[str], AbstractContextManager[None]]:
    """A hot path of the test's own.

    with mrv2_hot_path("decode"): ...
    """
    from mrv2.checks.hot_path import hot_path

    return hot_path
