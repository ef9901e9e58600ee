"""Options of ``mrv2 generate``. Ranges are left to the library, whose errors say why."""

from __future__ import annotations

from typing import Annotated

import typer

PromptOption = Annotated[str, typer.Option(metavar="TEXT", help="The text to continue.", show_default=False)]
MaxTokensOption = Annotated[int, typer.Option(metavar="N", help="How many tokens at most.")]
TemperatureOption = Annotated[float, typer.Option(metavar="T", help="0 picks the most likely token.")]
MaxModelLenOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Longest sequence; by default the model's context, 4096 at most.", show_default=False
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="S", help="Seed of the draws, 64 bits; one is drawn if not given.")
]
TopKOption = Annotated[int, typer.Option(metavar="K", help="Keep the K most likely tokens; 0 keeps all.")]
TopPOption = Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens up to this probability.")]
MinPOption = Annotated[
    float, typer.Option(metavar="P", help="Keep tokens at least so likely relative to the likeliest.")
]
RepetitionPenaltyOption = Annotated[
    float, typer.Option(metavar="R", help="Above 1 makes tokens of prompt and output less likely.")
]
FrequencyPenaltyOption = Annotated[
    float, typer.Option(metavar="F", help="Subtracted from a logit for each occurrence in the output.")
]
PresencePenaltyOption = Annotated[
    float, typer.Option(metavar="F", help="Subtracted from a logit if the token is in the output.")
]
MinTokensOption = Annotated[int, typer.Option(metavar="N", help="No stop token before so many tokens.")]
LogprobsOption = Annotated[
    int | None,
    typer.Option(metavar="K", help="Report the K likeliest tokens beside each, in --json.", show_default=False),
]
DeviceOption = Annotated[str, typer.Option(metavar="DEVICE", help="cpu, or cuda with or without an index.")]
AttentionOption = Annotated[
    str, typer.Option(metavar="NAME", help="torch, the reference, or triton, whose layers are kernels.")
]
GraphModeOption = Annotated[str, typer.Option(metavar="MODE", help="CUDA graphs: eager (none), piecewise or full.")]
StreamOption = Annotated[bool, typer.Option("--stream", help="Print the text as it is generated.")]
SpeculationOption = Annotated[
    str, typer.Option(metavar="NAME", help="Who proposes drafts: none, ngram, draft (a model) or eagle (a head).")
]
DraftModelOption = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="What proposes: a model, for eagle the folder of a head; or self:N, made of N layers of the model itself.",
        show_default=False,
    ),
]
NumDraftsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Drafts for each step, with --speculation; 3 by default.", show_default=False),
]
VerificationOption = Annotated[
    str, typer.Option(metavar="NAME", help="equal, or token or block for drafts that are drawn at the temperature.")
]
