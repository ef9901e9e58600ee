"""Runs a Python script with its Triton kernels compiled for the CPU: ``python -m mrv2.checks.triton_cpu script.py``.

The exit code is the script's own. If the script ends well but a kernel did something wrong, which is then said on
standard error, it is 1; for a wrong command line it is 2.
"""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from ..codes import CODES
from ..errors import CheckError
from ..findings import Finding
from ..libraries import is_library
from ..report.text import finding_lines
from .enable import Order, enabled

_NAMED_ORDERS: dict[str, Order] = {"forward": "forward", "reverse": "reverse"}


def main(words: Sequence[str] | None = None) -> int:
    """Run a script as the command line says.

    Args:
        words: of the command line, without the program's name.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(words)
    if not Path(options.script).is_file():
        _say(
            subject=f"script {options.script}",
            rule="it must be a file",
            reason="it is run as Python would run it",
            remedy="give the path of a Python file; words after it are its own arguments",
        )
        return 2
    try:
        with (
            _as_main(options.script, options.arguments),
            enabled(check=options.check, order=options.order, masked_lanes=options.masked_lanes) as session,
        ):
            code = _run(options.script)
    except CheckError as error:  # of enabled itself
        _say(error.subject, error.rule, error.reason, error.remedy)
        return 2
    for finding in session.findings:
        _say_finding(finding)
    return 1 if code == 0 and session.findings else code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mrv2.checks.triton_cpu",
        description="Run a Python script with its Triton kernels compiled for the CPU, every access checked.",
        epilog="Exit code: the script's own; 1 if it ends well but a kernel did something wrong.",
    )
    parser.add_argument("--order", type=_order, default="forward", help="of a kernel's programs: forward, reverse, or "
                        "a number that shuffles them")  # fmt: skip
    parser.add_argument(
        "--masked-lanes",
        type=_byte,
        default=0,
        metavar="BYTE",
        help="what lanes hold that a load without `other` "
        "masks off, e.g. 0xfb; a GPU promises nothing about them (default: 0, as in Triton's interpreter)",
    )
    parser.add_argument("--no-check", dest="check", action="store_false", help="neither check nor log accesses")
    parser.add_argument("script", help="a Python file")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, if it takes any")
    rest.required = False  # Python 3.11 would ask for them
    return parser


def _order(word: str) -> Order:
    if word in _NAMED_ORDERS:
        return _NAMED_ORDERS[word]
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not forward, reverse, or a number") from None


def _byte(word: str) -> int:
    try:
        number = int(word, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is no number") from None
    if not 0 <= number <= 0xFF:
        raise argparse.ArgumentTypeError(f"{word} is not a byte, 0 to 255")
    return number


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Let the script see its own command line, and the modules beside it."""
    before = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [str(Path(script).resolve().parent), *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before


def _run(script: str) -> int:
    """The exit code of a script."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        return _code(error)
    except CheckError as error:
        _say_error(error, script)
        return 1
    except BaseException as error:  # noqa: BLE001 - Python itself ends a script so
        traceback.print_exception(error.with_traceback(_from_script(error.__traceback__, script)))
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _from_script(found: TracebackType | None, script: str) -> TracebackType | None:
    """Without the frames of this module and of runpy."""
    part = found
    while part is not None and part.tb_frame.f_code.co_filename != script:
        part = part.tb_next
    return part or found


def _say_error(error: CheckError, script: str) -> None:
    """What the toolkit refuses, and the lines of the program that led there, without the toolkit's own and Triton's."""
    frames = traceback.extract_tb(_from_script(error.__traceback__, script))
    own = traceback.StackSummary.from_list([frame for frame in frames if not is_library(frame.filename)])
    print("Traceback (most recent call last):", "".join(own.format()), sep="\n", end="", file=sys.stderr)
    _say(f"{type(error).__name__}: {error.subject}", error.rule, error.reason, error.remedy)


def _say_finding(finding: Finding) -> None:
    """As everywhere else, and why it matters: who runs a script need not know the command that explains codes."""
    info = CODES[finding.code]
    lines = [*finding_lines(finding), f"  {'rule':<10} {info.rule}", f"  {'why':<10} {info.why}"]
    print("\n".join(lines), file=sys.stderr)


def _say(subject: str, rule: str, reason: str, remedy: str) -> None:
    lines = [subject, f"  rule: {rule}", f"  why: {reason}", f"  instead: {remedy}"]
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
