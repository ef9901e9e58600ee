"""What is asked of a session and of each test: options, ini options, markers, fixtures."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ..errors import CheckError
from ..hot_path import Allowance
from ..report.baseline import Baseline, read_baseline
from ..sync.settings import Settings, find_settings, settings_from

_ARGUMENTS = ("schedules", "sync", "race", "device", "allow")
_FIXTURES = frozenset({"mrv2_device", "mrv2_hot_path"})
DEVICES = ("cuda", "virtual", "cpu")


class Mode(enum.Enum):
    """What a finding does to its test."""

    OFF = "off"
    RECORD = "record"
    ERROR = "error"


@dataclass(frozen=True)
class Plan:
    """How one test is checked.

    Attributes:
        sync: what findings of hot paths do, and of regions with a bound on their memory.
        race: what all others do.
        device: where the test runs.
        schedules: a list as in ``"late,random:5"``.
        allow: waits that are accepted in this test only.
        asked: whether the test asks for checks itself, wherever the session wants it to run.
    """

    sync: Mode
    race: Mode
    device: str
    schedules: str
    allow: tuple[Allowance, ...] = ()
    asked: bool = False

    @property
    def checked(self) -> bool:
        """Whether anything watches: on a GPU only what somebody asks for, on the virtual device all."""
        return self.device == "virtual" or (self.device == "cuda" and {self.sync, self.race} != {Mode.OFF})


class Options:
    """The options of a session, from the command line first and the project's ini file second.

    Raises:
        CheckError: they contradict each other, or mean nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.sync = self._mode("sync")
        self.race = self._mode("race")
        self.device = self._choice("device", DEVICES)
        self.schedules: str | None = self._given("schedules")
        self._settings: Settings | None = None
        _refuse_unchecked("the options of the session", self.device, {"sync": self.sync, "race": self.race})

    @property
    def everywhere(self) -> bool:
        """Whether tests are checked that do not ask for it themselves.

        Schedules of an ini file are meant for those that are checked for another reason.
        """
        wanted = {self.sync, self.race} - {None, Mode.OFF}
        return bool(wanted) or self.device is not None or self._config.getoption("mrv2_schedules") is not None

    @property
    def settings(self) -> Settings:
        """Hot paths and allowances of the project, ``[tool.mrv2]``.

        Raises:
            HotPathError: the table means nothing.
        """
        if self._settings is None:
            self._settings = find_settings(self._config.rootpath)[0]
        return self._settings

    def baseline(self) -> Baseline:
        """Accepted findings; none if no file is named.

        Raises:
            CheckError: the file is no baseline.
        """
        named = self._config.getoption("mrv2_baseline")
        if named:
            return read_baseline(self._config.invocation_params.dir / named, "--mrv2-baseline")
        named = self._config.getini("mrv2_baseline")
        if not named:
            return Baseline()
        folder = self._config.inipath.parent if self._config.inipath else self._config.rootpath
        return read_baseline(Path(folder) / named, "mrv2_baseline")

    def plan(self, node: pytest.Item, fixtures: Collection[str]) -> Plan | None:
        """How a test is checked; None if it is not ours.

        Raises:
            CheckError: its marker means nothing.
        """
        marked: dict[str, Any] = {}
        marks = list(node.iter_markers("mrv2"))
        for mark in reversed(marks):  # the innermost comes last, and wins
            marked.update(_arguments(node.nodeid, mark))
        _refuse_unchecked(f"{node.nodeid}, pytest.mark.mrv2", marked.get("device"), marked)
        asks = bool(marks) or not _FIXTURES.isdisjoint(fixtures)
        if not asks and not self.everywhere:
            return None
        default = Mode.ERROR if asks else Mode.OFF
        device = marked.get("device") or self.device or "virtual"
        return Plan(
            marked.get("sync") or self.sync or default,
            marked.get("race") or self.race or default,
            device,
            marked.get("schedules") or self.schedules or "late",
            marked.get("allow", ()),
            asks and "device" not in marked,
        )

    def settings_for(self, plan: Plan) -> Settings:
        """Those of the project, and what the test adds."""
        if plan.sync is Mode.OFF:
            return Settings()
        return replace(self.settings, allowances=(*self.settings.allowances, *plan.allow))

    def _given(self, name: str) -> Any:
        return self._config.getoption(f"mrv2_{name}") or self._config.getini(f"mrv2_{name}") or None

    def _choice(self, name: str, known: Collection[str]) -> str | None:
        value = self._given(name)
        return None if value is None else _one_of(f"mrv2_{name}", value, known)

    def _mode(self, name: str) -> Mode | None:
        value = self._choice(name, [mode.value for mode in Mode])
        return None if value is None else Mode(value)


def _refuse_unchecked(subject: str, device: str | None, modes: Mapping[str, Any]) -> None:
    for name in ("sync", "race"):
        mode = modes.get(name)
        if device == "cpu" and mode not in (None, Mode.OFF):
            raise CheckError(
                f"{subject}: {name} is {mode.value}, and the device is cpu",
                "waits and races are looked for on the virtual device and on CUDA",
                "what was not watched must not look as if it had passed",
                f"device virtual or cuda, or {name} off",
            )


def _arguments(test: str, mark: pytest.Mark) -> dict[str, Any]:
    """The arguments of a marker, judged."""
    subject = f"{test}, pytest.mark.mrv2"
    if mark.args:
        raise CheckError(
            f"{subject}{mark.args!r}", "its arguments have names", "the order would have to be guessed",
            "pytest.mark.mrv2(schedules='late,random:5')",
        )  # fmt: skip
    for name in mark.kwargs:
        if name not in _ARGUMENTS:
            close = difflib.get_close_matches(name, _ARGUMENTS, n=1)
            raise CheckError(
                f"{subject}({name}=...)", "an argument must be known", "a misspelt one would silently check nothing",
                close[0] if close else f"one of: {', '.join(_ARGUMENTS)}",
            )  # fmt: skip
    return {name: _argument(f"{subject}({name}={value!r})", name, value) for name, value in mark.kwargs.items()}


def _argument(subject: str, name: str, value: Any) -> Any:
    if name == "allow":
        return settings_from({"allow": value}, subject).allowances
    if name == "device":
        return _one_of(subject, value, DEVICES)
    if name != "schedules":
        return Mode(_one_of(subject, value, [mode.value for mode in Mode]))
    if not isinstance(value, str):
        raise CheckError(subject, "it is one text", "it is read like the option", "schedules='late,random:5'")
    return value


def _one_of(subject: str, value: Any, known: Collection[str]) -> str:
    if value in known:
        return str(value)
    raise CheckError(
        f"{subject}: {value!r}", f"it must be one of {', '.join(known)}", "it says what is checked", next(iter(known))
    )


def problem_lines(error: CheckError) -> str:
    """An error in four parts, as the command prints it."""
    parts: Mapping[str, str] = {"rule": error.rule, "why": error.reason, "instead": error.remedy}
    return "\n".join([error.subject, *(f"  {label:<8} {text}" for label, text in parts.items())])
