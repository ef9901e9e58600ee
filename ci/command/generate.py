"""``mrv2 generate``: text from the reference runner."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrv2.checks.findings import JSON
from mrv2.ci.report import console as screen
from mrv2.ci.report.json_report import Report, check_destination, write_report

from .environment import describe
from .grammars import GrammarOption, JsonSchemaOption, read_grammar
from .shared import DebugOption, JsonOption, ModelOption, guarded, notes

if TYPE_CHECKING:
    from mrv2.refrunner.api import SamplingParams
    from mrv2.refrunner.llm import LLM, Completion


def generate(
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to continue.", show_default=False)],
    model: ModelOption = "smollm2",
    max_tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens at most.")] = 16,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 picks the most likely token.")] = 0.0,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Longest sequence; by default the model's context, 4096 at most.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="Seed of the draws, 64 bits; one is drawn if not given.")
    ] = None,
    top_k: Annotated[int, typer.Option(metavar="K", help="Keep the K most likely tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens up to this probability.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(metavar="P", help="Keep tokens at least so likely relative to the likeliest.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(metavar="R", help="Above 1 makes tokens of prompt and output less likely.")
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option(metavar="F", help="Subtracted from a logit for each occurrence in the output.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(metavar="F", help="Subtracted from a logit if the token is in the output.")
    ] = 0.0,
    min_tokens: Annotated[int, typer.Option(metavar="N", help="No stop token before so many tokens.")] = 0,
    logprobs: Annotated[
        int | None,
        typer.Option(metavar="K", help="Report the K likeliest tokens beside each, in --json.", show_default=False),
    ] = None,
    json_schema: JsonSchemaOption = None,
    grammar: GrammarOption = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, or cuda with or without an index.")] = "cpu",
    attention: Annotated[
        str, typer.Option(metavar="NAME", help="torch, the reference, or triton, whose layers are kernels.")
    ] = "torch",
    graph_mode: Annotated[
        str, typer.Option(metavar="MODE", help="CUDA graphs: eager (none), piecewise or full.")
    ] = "eager",
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it is generated.")] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Continue a prompt with the reference runner; only the text goes to standard output."""
    # Ranges are left to the library, whose errors say why; checked here, they would be a second truth.
    with guarded(debug):
        from mrv2.refrunner.api import SamplingParams
        from mrv2.refrunner.llm import LLM

        from .kernels import compiled_kernels

        if json:
            check_destination(json)
        sampling = SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            min_tokens=min_tokens,
            logprobs=logprobs,
            grammar=read_grammar(json_schema, grammar),
        )
        settings: dict[str, Any] = {"device": device, "attention": attention, "graph_mode": graph_mode}
        settings["grammars"] = sampling.grammar is not None
        with compiled_kernels(), LLM.from_model(model, max_model_len=max_model_len, **settings) as llm:
            done = _run(llm, prompt, sampling, stream)
        if json:
            write_report(json, _as_report(model, prompt, done))
        _show(done, "" if stream else prompt + done.text + "\n")


def _run(llm: LLM, prompt: str, sampling: SamplingParams, stream: bool) -> Completion:
    """Generate; a stream is printed on the way."""
    requests = llm.stream([prompt], sampling)
    due = prompt
    for delta in requests:
        if stream:
            _print(due + delta.text)
            due = ""
    if stream:
        _print("\n")
    return requests.completions()[0]


def _show(done: Completion, text: str) -> None:
    """What is still to be printed of a text, and how it ended.

    Raises:
        RequestError: by an error.
    """
    _print(text)
    if done.error is not None:
        raise done.error
    seeded = "" if done.seed is None else f", seed {done.seed}"
    screen.line(notes(), f"{len(done.token_ids)} tokens, finished by {done.finish_reason}{seeded}")


def _print(text: str) -> None:
    """Text as it is, but for characters that the output's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _as_report(model: str, prompt: str, done: Completion) -> Report:
    """The completion as JSON; generating judges nothing, so there is no verdict."""
    metrics: dict[str, JSON] = {
        "model": model,
        "prompt": prompt,
        "text": done.text,
        "token_ids": list(done.token_ids),
        "logprobs": list(done.logprobs),
        "finish_reason": done.finish_reason,
        "seed": done.seed,
        "faults": {str(index): asdict(fault) for index, fault in done.faults.items()},
    }
    if done.top_logprobs:
        metrics["top_logprobs"] = [asdict(entry) for entry in done.top_logprobs]
    return Report("generate", describe(), None, metrics=metrics)
