"""What a project says about its hot paths: the table ``[tool.mrv2]`` of its ``pyproject.toml``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hot_path import Allowance, HotPathError
from ..memory import MemoryBound

_KEYS = ("hot_paths", "allow", "warmup_calls", "memory")
_ALLOWANCE_KEYS = ("site", "code", "reason", "owner", "budget")
_MEMORY_KEYS = ("site", "bytes")


@dataclass(frozen=True)
class Settings:
    """Hot paths and allowances, named from outside.

    Attributes:
        hot_paths: functions and methods, as ``package.module:Class.method``.
        allowances: accepted waits, each with the site at which it is accepted.
        memory: functions that may take only so much device memory.
        warmup_calls: entries of each hot path that are not judged: first launches, autotuning, caches that fill.
    """

    hot_paths: tuple[str, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    warmup_calls: int = 0
    memory: tuple[MemoryBound, ...] = ()


def find_settings(folder: Path) -> tuple[Settings, Path | None]:
    """The settings of the project that a folder belongs to, and the file that they are in.

    The nearest ``pyproject.toml`` with a table ``[tool.mrv2]`` counts, in the folder itself or above it.

    Raises:
        HotPathError: a file on the way cannot be read, or the table says something that means nothing.
    """
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if path.is_file() and _table(path):
            return read_settings(path), path
    return Settings(), None


def read_settings(path: Path) -> Settings:
    """Read ``[tool.mrv2]`` of a ``pyproject.toml``; a file without that table gives empty settings.

    Raises:
        HotPathError: the file cannot be read, or the table says something that means nothing.
    """
    return settings_from(_table(path), str(path))


def _table(path: Path) -> Any:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HotPathError(
            str(path), f"it must be a readable TOML file ({error})", "the hot paths are named in it", "repair the file"
        ) from error
    return document.get("tool", {}).get("mrv2", {})


def settings_from(table: Mapping[str, Any], subject: str = "[tool.mrv2]") -> Settings:
    """The settings that a table holds.

    Args:
        table: the content of ``[tool.mrv2]``.
        subject: where it comes from, for errors.

    Raises:
        HotPathError: a key is unknown, or a value has the wrong form.
    """
    if not isinstance(table, Mapping):
        raise _wrong(subject, "tool.mrv2", table, "a table: [tool.mrv2]")
    _check_keys(subject, table, _KEYS)
    hot_paths = table.get("hot_paths", [])
    if not isinstance(hot_paths, list | tuple) or not all(isinstance(name, str) for name in hot_paths):
        raise _wrong(subject, "hot_paths", hot_paths, 'a list: hot_paths = ["my_engine.runner:Runner.execute"]')
    warmup = table.get("warmup_calls", 0)
    if type(warmup) is not int or warmup < 0:
        raise _wrong(subject, "warmup_calls", warmup, "a whole number: warmup_calls = 3")
    allowances = table.get("allow", [])
    if not isinstance(allowances, list | tuple):
        raise _wrong(subject, "allow", allowances, "tables: [[tool.mrv2.allow]]")
    bounds = table.get("memory", [])
    if not isinstance(bounds, list | tuple):
        raise _wrong(subject, "memory", bounds, "tables: [[tool.mrv2.memory]]")
    return Settings(
        tuple(hot_paths),
        tuple(_allowance(subject, entry) for entry in allowances),
        warmup,
        tuple(_memory_bound(subject, entry) for entry in bounds),
    )


def _memory_bound(subject: str, entry: Any) -> MemoryBound:
    if not isinstance(entry, Mapping):
        raise _wrong(subject, "memory", entry, "tables: [[tool.mrv2.memory]]")
    _check_keys(f"{subject}, memory", entry, _MEMORY_KEYS)
    site = entry.get("site")
    if not isinstance(site, str) or not site:
        raise _wrong(subject, "memory.site", site, 'a text: site = "my_engine.logprobs:logprobs"')
    return MemoryBound(site, entry.get("bytes", -1), site)


def _allowance(subject: str, entry: Any) -> Allowance:
    if not isinstance(entry, Mapping):
        raise _wrong(subject, "allow", entry, "tables: [[tool.mrv2.allow]]")
    _check_keys(f"{subject}, allow", entry, _ALLOWANCE_KEYS)
    for key in ("site", "code"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise _wrong(subject, f"allow.{key}", entry.get(key), f'a text: {key} = "..."')
    owner = str(entry.get("owner", ""))
    try:
        return Allowance(entry["code"], entry.get("reason", ""), entry["site"], owner, entry.get("budget"))
    except HotPathError as error:  # which does not know where the table stands
        raise HotPathError(f"{subject}, {error.subject}", error.rule, error.reason, error.remedy) from error


def _check_keys(subject: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise HotPathError(
                f"{subject}, key {key!r}",
                "a key must be known",
                "a misspelt one would silently check nothing",
                f"{close[0]}" if close else f"one of: {', '.join(known)}",
            )


def _wrong(subject: str, key: str, value: object, remedy: str) -> HotPathError:
    return HotPathError(
        f"{subject}, {key} = {value!r}", "it has the wrong form", "it says what is checked, and how", remedy
    )
