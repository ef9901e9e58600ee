"""Entry point of the ``mrv2`` command."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Annotated

import typer

from .audit import audit
from .bench import bench
from .conform import conform
from .diff import diff
from .doctor import doctor
from .explain import explain
from .fences import fences
from .fuzz import fuzz
from .generate import generate
from .lint import lint
from .mutants import mutants
from .race import race
from .replay import replay
from .trace import trace
from .verify import verify

# No rich markup and no pretty exceptions: help and usage errors stay plain text, and no local variable is ever shown.
app = typer.Typer(
    name="mrv2",
    help="Verify the GPU model runner of an LLM engine. Exit codes: 0 pass, 1 fail, 2 usage, 3 inconclusive.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (verify, audit, race, lint, fuzz, mutants, replay, fences, bench, generate, doctor, explain, diff):
    app.command()(command)
app.add_typer(trace, name="trace")
app.add_typer(conform, name="conform")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mrv2 {importlib.metadata.version('mrv2')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options before the subcommand; ``--version`` acts in its callback."""


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    # Read by OpenMP when torch is first imported. Its threads spin while they wait, and on cores that others use too
    # (a CI machine) that made a matrix product five to eight times slower than sleeping threads do.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app()
