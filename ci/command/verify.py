"""``mrv2 verify``: the options; the work is in ``verification``, imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import DebugOption, JsonOption, guarded


def verify(
    target: Annotated[
        str, typer.Option(metavar="TARGET", help="What to verify: refrunner, baseline_v1, or package.module:object.")
    ] = "refrunner",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="smollm2, tiny, a folder or a GGUF file; by default smollm2 if installed, else tiny."
        ),
    ] = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="How much work to do.")] = "quick",
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Root of every random choice.")] = 0,
    stage: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run this stage only; repeatable.")] = None,
    device: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="Where races and sync run: virtual, or cuda, this machine's GPU."),
    ] = "virtual",
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Findings that are accepted.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let SUSPICIOUS fail too.")] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Verify a model runner, stage by stage, against the oracle."""
    with guarded(debug):
        from .verification import Settings, run

        run(Settings(target, model, profile, seed, tuple(stage or ()), device, baseline, strict, json, debug))
