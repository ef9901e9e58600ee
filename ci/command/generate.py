"""``mrv2 generate``: text from the reference runner."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrv2.checks.findings import JSON
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.problem import InputError

from .environment import describe
from .generate_options import (
    AttentionOption,
    DeviceOption,
    DraftModelOption,
    FrequencyPenaltyOption,
    GraphModeOption,
    LogprobsOption,
    MaxModelLenOption,
    MaxTokensOption,
    MinPOption,
    MinTokensOption,
    NumDraftsOption,
    PresencePenaltyOption,
    PromptOption,
    RepetitionPenaltyOption,
    SeedOption,
    SpeculationOption,
    StreamOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    VerificationOption,
)
from .grammars import GrammarOption, JsonSchemaOption, read_grammar
from .shared import DebugOption, JsonOption, ModelOption, guarded, notes

if TYPE_CHECKING:
    from mrv2.refrunner.api import SamplingParams
    from mrv2.refrunner.llm import LLM, Completion
    from mrv2.refrunner.scheduler import SpeculationStats


def generate(
    prompt: PromptOption,
    model: ModelOption = "smollm2",
    max_tokens: MaxTokensOption = 16,
    temperature: TemperatureOption = 0.0,
    max_model_len: MaxModelLenOption = None,
    seed: SeedOption = None,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    presence_penalty: PresencePenaltyOption = 0.0,
    min_tokens: MinTokensOption = 0,
    logprobs: LogprobsOption = None,
    json_schema: JsonSchemaOption = None,
    grammar: GrammarOption = None,
    device: DeviceOption = "cpu",
    attention: AttentionOption = "torch",
    graph_mode: GraphModeOption = "eager",
    speculation: SpeculationOption = "none",
    draft_model: DraftModelOption = "",
    num_drafts: NumDraftsOption = None,
    verification: VerificationOption = "equal",
    stream: StreamOption = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Continue a prompt with the reference runner; only the text goes to standard output."""
    # Ranges are left to the library, whose errors say why; checked here, they would be a second truth.
    with guarded(debug):
        from mrv2.refrunner.api import SamplingParams
        from mrv2.refrunner.llm import LLM

        from .kernels import compiled_kernels

        draft = Path(draft_model) if draft_model else None
        check_destinations({"--json": json}, (Path(model), draft, json_schema, grammar))
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
        settings |= {"speculation": speculation, "verification": verification, **_num_drafts(num_drafts, speculation)}
        settings |= {"grammars": sampling.grammar is not None, "draft_model": draft_model}
        with compiled_kernels(), LLM.from_model(model, max_model_len=max_model_len, **settings) as llm:
            done = _run(llm, prompt, sampling, stream)
            stats = llm.speculation
        try:
            if json:
                write_report(json, _as_report(model, prompt, done, stats))
        finally:
            _show(done, "" if stream else prompt + done.text + "\n", stats)


def _num_drafts(number: int | None, speculation: str) -> dict[str, int]:
    """The setting, if it was given.

    Raises:
        InputError: nobody would propose them.
    """
    if number is None:
        return {}
    if speculation == "none":
        raise InputError(
            f"--num-drafts {number} without --speculation",
            "a number of drafts comes with somebody who proposes them",
            "without drafts the number would be ignored",
            "--speculation ngram (or draft, or eagle), or no --num-drafts",
        )
    return {"num_drafts": number}


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


def _show(done: Completion, text: str, stats: SpeculationStats) -> None:
    """What is still to be printed of a text, and how it ended.

    Raises:
        RequestError: by an error.
    """
    _print(text)
    if done.error is not None:
        raise done.error
    seeded = "" if done.seed is None else f", seed {done.seed}"
    screen.line(notes(), f"{len(done.token_ids)} tokens, finished by {done.finish_reason}{seeded}{_drafted(stats)}")


def _print(text: str) -> None:
    """Text as it is, but for characters that the output's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _drafted(stats: SpeculationStats) -> str:
    return f", {stats.accepted} of {stats.drafts} drafts accepted in {stats.steps} steps" if stats.steps else ""


def _as_report(model: str, prompt: str, done: Completion, stats: SpeculationStats) -> Report:
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
    if stats.steps:
        metrics["speculation"] = asdict(stats)
    if done.top_logprobs:
        metrics["top_logprobs"] = [asdict(entry) for entry in done.top_logprobs]
    return Report("generate", describe(), None, metrics=metrics)
