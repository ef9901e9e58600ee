"""``mrv2 audit``: the options; the work is in ``auditing``, imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import DebugOption, JsonOption, guarded


def audit(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="refrunner, another known name, or package.module:object; --list."),
    ] = "refrunner",
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="How closely to look: pr (a minute), nightly (half an hour), overnight (8 h)."
        ),
    ] = "pr",
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End after so long: 60s, 10m, 8h; what is cut then counts as not tested."),
    ] = None,
    alpha: Annotated[float, typer.Option(metavar="P", help="Chance that a correct sampler fails.")] = 1e-4,
    layers: Annotated[str, typer.Option(metavar="LIST", help="Layers to run, with commas; all by default.")] = "",
    vocab: Annotated[
        int | None, typer.Option(metavar="V", min=2, max=2**20, help="Tokens in the widest rows.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Root of every random choice.")] = 0,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Audit fourteen samplers with planted faults; each must be caught.")
    ] = False,
    names: Annotated[bool, typer.Option("--list", help="Show the samplers that have names, and stop.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Let SUSPICIOUS fail too.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Continue the evidence of earlier nights; overnight keeps one anyway."),
    ] = None,
    json: JsonOption = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report with plots.")] = None,
    debug: DebugOption = False,
) -> None:
    """Say whether a sampler draws what it should, how sure that is, and why not."""
    with guarded(debug):
        from . import auditing

        if names:
            auditing.show_names()
            return
        options = auditing.Options(
            target=target, profile=profile, time=time, alpha=alpha, layers=layers, vocab=vocab, seed=seed,
            strict=strict, ledger=ledger, json=json, html=html,
        )  # fmt: skip
        if self_test:
            auditing.run_self_test(options)
        else:
            auditing.run(options)
