"""What all subcommands share: exit codes, common options, consoles, and the one place where errors become text."""

from __future__ import annotations

import enum
import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mrv2.checks.findings import RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.problem import FourParts, four_parts


class ExitCode(enum.IntEnum):
    """What the shell sees."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INTERRUPTED = 130


JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the result as JSON, atomically.")
]
ModelOption = Annotated[str, typer.Option("--model", metavar="MODEL", help="smollm2, tiny, a folder or a GGUF file.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")]


def exit_code(verdict: RunVerdict, strict: bool = False) -> ExitCode:
    """The exit code of a verdict; ``strict`` lets SUSPICIOUS fail too."""
    if verdict is RunVerdict.SUSPICIOUS:
        return ExitCode.FAIL if strict else ExitCode.PASS
    codes = {
        RunVerdict.PASS: ExitCode.PASS,
        RunVerdict.FAIL: ExitCode.FAIL,
        RunVerdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    }
    return codes[verdict]


def output() -> Console:
    """Results: the standard output of this moment."""
    return screen.make_console(sys.stdout)


def notes() -> Console:
    """Progress, warnings and errors: the standard error of this moment."""
    return screen.make_console(sys.stderr)


@contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Turn whatever a command raises into a message and an exit code; without ``debug`` never a traceback.

    Raises:
        typer.Exit: 2 for an error, 130 for Ctrl-C and where nobody reads the output any more.
    """
    try:
        yield
    except typer.BadParameter:
        raise
    except BrokenPipeError:  # as in ``mrv2 lint . | head``: the verdict was not told, so neither 0 nor 1
        _drop_output()
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except KeyboardInterrupt:
        screen.line(notes(), "interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    # SystemExit and its like too: whoever raises them below, they would leave with any code, and no word.
    except BaseException as error:
        if isinstance(error, typer.Exit) and _is_ours(error):
            raise
        if debug:
            traceback.print_exception(error)
        screen.print_problem(notes(), four_parts(error) or _full(error) or _ended(error) or _internal(error))
        raise typer.Exit(ExitCode.USAGE) from None


def _drop_output() -> None:
    """Let what is still to be written go nowhere; Python would complain of it when it ends."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _is_ours(error: typer.Exit) -> bool:
    """Whether a command itself left, and not the code that it looks at."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")).startswith("mrv2.ci.")


def _ended(error: BaseException) -> FourParts | None:
    """What to say of an exception that asks the whole process to end."""
    if isinstance(error, Exception) and not isinstance(error, typer.Exit):
        return None
    return FourParts(
        f"the process, by {type(error).__name__}: {error}",
        "the code under test must not end the command",
        "what did not run must not be taken as verified",
        "a program that returns, or raises an error that says what is wrong",
    )


def _full(error: BaseException) -> FourParts | None:
    """What to say when the standard output's disk is full."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
        return None
    return FourParts(
        "standard output",
        "there must be room for what is printed",
        "a result that is cut off must not be taken for the whole",
        "make room on the disk, or send the output elsewhere",
    )


def _internal(error: BaseException) -> FourParts:
    """What to say of an exception that nobody gave four parts: a defect of ours."""
    return FourParts(
        f"internal error, {type(error).__name__}: {error}",
        "mrv2 must not fail by itself; this says nothing about the target",
        "what was not verified because of it must not be taken as verified",
        "run it again with --debug and report the traceback as a defect of mrv2",
    )
