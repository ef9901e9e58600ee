"""The process that judges mutants of order for ``mrv2 mutants``: ``python -m mrv2.ci.command.mutants_worker``.

What it is to do comes through standard input, a line of JSON. It tells what it does through standard output, a JSON
object a line. It ends with 0 when it is done, or has told in four parts what keeps it from its work, and with a line on
standard error after any other error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

from mrv2.checks.findings import JSON
from mrv2.ci.report.problem import four_parts

CANNOT_WORK = 1


def main() -> int:
    """Judge; returns the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # What the code under test prints is none of what is told.
    told, sys.stdout = sys.stdout, sys.stderr

    def tell(**entry: JSON) -> None:
        print(json.dumps(entry), file=told, flush=True)

    order = json.loads(sys.stdin.readline())
    try:
        _judge(order["target"], order["package"], order["site"], order["workers"], tell)
    except Exception as error:  # noqa: BLE001 - whatever it is, the command must be told, in one line
        parts = four_parts(error)
        if parts is not None:
            tell(refused=vars(parts))
            return 0
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return CANNOT_WORK
    return 0


def _judge(target: str, package: str, site: str | None, workers: int, tell: Callable[..., None]) -> None:
    from mrv2.ci.stages.sync import settings_of
    from mrv2.fuzz.mutants.generated.judge import Battery, Subject
    from mrv2.fuzz.mutants.generated.processes import judge_all, one_thread
    from mrv2.fuzz.mutants.generated.score import as_json
    from mrv2.fuzz.mutants.generated.sites import generate
    from mrv2.fuzz.mutants.source import package_folder

    from .targets import importable, module_of_target, resolve_target

    one_thread()
    with importable(Path.cwd()):
        subject = Subject(
            package,
            module_of_target(target),
            lambda: resolve_target(target, "TARGET"),
            lambda one: settings_of(one, Path.cwd()),
        )
        chosen = [one for one in generate(package_folder(package)) if _is_at(site, one.file, one.line)]
        if not chosen:
            exists = site is None or _names_a_file(site, package_folder(package))
            tell(battery={"exercises": [], "left_out": {}}, mutants=0, not_entered=[], site_exists=exists)
            return
        battery = Battery.of(subject, lambda name: tell(exercise=name))
        loaded = [one for one in chosen if one.file in battery.files_entered]
        others: list[JSON] = [*sorted({one.file for one in chosen} - battery.files_entered)]
        exercises: list[JSON] = [known.exercise.name for known in battery.known]
        tell(
            battery={"exercises": exercises, "left_out": dict(battery.left_out)},
            mutants=len(loaded),
            not_entered=others,
            site_exists=True,
        )
        for verdict in judge_all(battery, loaded, workers):
            tell(verdict=as_json(verdict))


def _names_a_file(site: str, folder: Path) -> bool:
    """Whether a file of the package is named, or lies in the folder that is, whatever the line."""
    path, _, number = site.rpartition(":")
    wanted = path if number.isdigit() else site
    return any(_is_at(wanted, str(file.relative_to(folder)), 0) for file in folder.rglob("*.py"))


def _is_at(site: str | None, file: str, line: int) -> bool:
    """Whether a place is asked for: by its folder, its file, or ``FILE:LINE``, from inside the package or above it."""
    if site is None:
        return True
    path, _, number = site.rpartition(":") if site.rpartition(":")[2].isdigit() else (site, "", "")
    parts, wanted = PurePath(file).parts, PurePath(path).parts
    named = parts[: len(wanted)] == wanted or wanted[-len(parts) :] == parts
    return named and (not number or int(number) == line)


if __name__ == "__main__":
    sys.exit(main())
