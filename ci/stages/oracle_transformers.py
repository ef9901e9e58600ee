"""Stage: is the oracle itself right? It is compared with Hugging Face transformers, which shares no code with it.

transformers reads the same file by its own loader and runs it in float32. It is one more float32 implementation, so
its logits must lie within the bound that :mod:`mrv2.refrunner.oracle.rounding` derives for any of them, and its
greedy tokens must be the oracle's but for near ties.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict
from mrv2.ci.stages.base import Budget, Progress, StageResult
from mrv2.fuzz.targets.protocols import RunnerTarget
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.models.checkpoint import Checkpoint
from mrv2.refrunner.oracle.llama import places
from mrv2.refrunner.oracle.oracle import Oracle, ScoredToken
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement, Rounding, TokenBound

# One token alone, the shortest sequence with a mask, an odd length, and a few dozen positions.
UNIFORM_LENGTHS = (1, 2, 17, 60)
TEXT_LIKE_LENGTH = 33
# A row of logits counts as compared if its bound is at most this share of their standard deviation: a coarser one
# could hide a fault of precision. TF32 products, the mildest of them, cost 0.0014 of it on a sequence of one token and
# 0.004 on twelve (tiny models, least of ten).
COARSEST_BOUND = 0.001

_REMEDY = (
    "compare that place in refrunner/oracle/llama.py with the model's published definition, and the checkpoint's "
    "loader with transformers' own: weights and their order, rotary base, epsilon"
)


@dataclass(frozen=True)
class _Comparison:
    """One sequence on both sides.

    Attributes:
        token_ids: the sequence, n tokens.
        hidden: transformers' states at each of ``places(config)``, float32 [n, hidden_size].
        logits: transformers' logits, float32 [n, vocab_size].
        rounding: the oracle's pass and its bounds.
    """

    token_ids: tuple[int, ...]
    hidden: tuple[Tensor, ...]
    logits: Tensor
    rounding: Rounding

    @functools.cached_property
    def difference(self) -> Tensor:
        """Absolute difference of every logit, float64 [n, vocab_size]."""
        return (self.logits - self.rounding.exact.logits).abs()

    @functools.cached_property
    def ratios(self) -> Tensor:
        """Largest difference at each position divided by its bound, float64 [n]; NaN if a logit is not a number."""
        # Where all logits are 0 there is nothing to round: the bound is 0, and so must be the difference.
        bounds = self.rounding.logit_bounds.clamp(min=torch.finfo(torch.float64).tiny)
        return self.difference.amax(dim=-1) / bounds

    @property
    def outside(self) -> Tensor:
        """Positions that rounding does not explain, bool [n]."""
        return ~(self.ratios <= 1)  # NaN is outside

    @property
    def sharp_rows(self) -> int:
        """Rows of logits whose bound is small enough to tell a fault from rounding."""
        spread = self.rounding.exact.logits.std(dim=-1, correction=0)
        return int((self.rounding.logit_bounds <= COARSEST_BOUND * spread).sum())


@dataclass(frozen=True)
class _Continuation:
    """Tokens that transformers generated greedily, judged by the oracle."""

    scored: tuple[ScoredToken, ...]
    bounds: tuple[TokenBound, ...]

    def count(self, judgement: Judgement) -> int:
        """How many tokens were judged so."""
        return sum(bound.judgement is judgement for bound in self.bounds)


class OracleAgainstTransformers:
    """Compares logits and greedy continuations of the oracle with transformers' on the same checkpoint.

    Findings: MRV301 (violation, sound) when a logit differs by more than float32 rounding can explain, or a greedy
    token differs and is no near tie; it names the sequence, the position, the token, and the first place in the model
    where the hidden states differ.

    Args:
        checkpoint: the model as the file has it, not rounded to another dtype; without a path, transformers is built
            from its configuration and tensors.
        oracle: the oracle over the same checkpoint, in float64.
    """

    name = "oracle against transformers"

    def __init__(self, checkpoint: Checkpoint, oracle: Oracle) -> None:
        self._checkpoint = checkpoint
        self._oracle = oracle

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """Compare; the target is not used, because the oracle is its yardstick.

        INCONCLUSIVE if transformers (or what it needs to read the file) is missing or cannot read the file, or if
        the bound is too coarse to tell anything.
        """
        missing = _missing_packages(self._checkpoint)
        if missing:
            line = f"pip install {' '.join(missing)}"
            return StageResult(RunVerdict.INCONCLUSIVE, f"{' and '.join(missing)} not installed: {line}")
        sequences = _sequences(budget.seed, self._oracle.model.config)
        progress.start(len(sequences) + 2)
        with _quiet():
            try:
                model = _load(self._checkpoint)
            except (ImportError, OSError, ValueError) as error:
                return StageResult(RunVerdict.INCONCLUSIVE, f"transformers cannot read the checkpoint: {error}")
            progress.advance()
            return self._compare(model, sequences, budget.new_tokens, progress)

    def _compare(
        self, model: Any, sequences: Sequence[tuple[int, ...]], new_tokens: int, progress: Progress
    ) -> StageResult:
        twins, comparisons = Float32Twins(self._oracle.model), []
        for token_ids in sequences:
            comparisons.append(_Comparison(token_ids, *_run(model, token_ids), twins.measure(token_ids)))
            progress.advance()
        continuation = self._continue(model, twins, sequences[-1], new_tokens)
        progress.advance()
        return _result(self._checkpoint.name, comparisons, continuation, places(self._oracle.model.config))

    def _continue(self, model: Any, twins: Float32Twins, prompt: tuple[int, ...], new_tokens: int) -> _Continuation:
        room = self._oracle.model.config.max_position_embeddings - len(prompt)
        generated = _generate(model, prompt, min(new_tokens, room)) if room > 0 else ()
        request = NewRequest("greedy", prompt, len(prompt), SamplingParams(max_tokens=new_tokens))
        scored = self._oracle.score(request, generated)
        return _Continuation(scored, twins.bounds(request, scored))


def _result(
    checkpoint: str, comparisons: Sequence[_Comparison], continuation: _Continuation, names: Sequence[str]
) -> StageResult:
    findings = [*_logit_findings(comparisons, names), *_token_findings(continuation)]
    rows, sharp = sum(len(c.token_ids) for c in comparisons), sum(c.sharp_rows for c in comparisons)
    ratio = float(torch.cat([c.ratios for c in comparisons]).max())  # NaN if there is one
    metrics: dict[str, JSON] = {
        "largest difference": max(float(c.difference.max()) for c in comparisons),
        "largest difference over its bound": ratio,
        "rows compared": sharp,
        "near ties": continuation.count(Judgement.NEAR_TIE),
    }
    coverage: dict[str, JSON] = {
        "checkpoint": checkpoint,
        "sequence lengths": [len(comparison.token_ids) for comparison in comparisons],
        "greedy tokens": len(continuation.bounds),
    }
    summary = (
        f"{sharp} of {rows} rows of logits compared, largest difference {ratio:.2f} of its bound; "
        f"{continuation.count(Judgement.EQUAL)} of {len(continuation.bounds)} greedy tokens equal"
    )
    verdict = RunVerdict.PASS
    if findings:
        verdict, summary = RunVerdict.FAIL, findings[0].title
    elif sharp < rows / 2:
        verdict, summary = RunVerdict.INCONCLUSIVE, f"only {sharp} of {rows} rows have a bound that can tell a fault"
    return StageResult(verdict, summary, tuple(findings), metrics, coverage)


def _logit_findings(comparisons: Sequence[_Comparison], names: Sequence[str]) -> list[Finding]:
    """One finding for all sequences that differ, with the shortest as its evidence."""
    wrong = sorted((c for c in comparisons if c.outside.any()), key=lambda c: len(c.token_ids))
    if not wrong:
        return []
    first = wrong[0]
    place, place_position = _first_difference(first, names)
    position = int(first.ratios.argmax())
    token = int(first.difference[position].argmax())
    evidence: dict[str, JSON] = {
        "sequence": first.token_ids,
        "position": position,
        "token": token,
        "oracle logit": float(first.rounding.exact.logits[position, token]),
        "transformers logit": float(first.logits[position, token]),
        "difference": float(first.difference[position, token]),
        "bound": float(first.rounding.logit_bounds[position]),
        "first place that differs": place,
        "first position that differs there": place_position,
        "sequences that differ": len(wrong),
        "sequences compared": len(comparisons),
    }
    title = f"the oracle's logits are not those of transformers: {place} is the first place that differs"
    return [Finding("MRV301", Verdict.VIOLATION, Soundness.SOUND, title, evidence=evidence, remedy=_REMEDY)]


def _first_difference(comparison: _Comparison, names: Sequence[str]) -> tuple[str, int]:
    """The first place whose hidden state leaves its bound at some position, and the first such position."""
    exact, bounds = comparison.rounding.exact.hidden, comparison.rounding.hidden_bounds
    for name, ours, theirs, bound in zip(names, exact, comparison.hidden, bounds, strict=True):
        outside = ~((theirs - ours).norm(dim=-1) <= bound)
        if outside.any():
            return name, int(outside.int().argmax())
    return "output projection", int(comparison.outside.int().argmax())


def _token_findings(continuation: _Continuation) -> list[Finding]:
    """A finding for the first wrong token; the later ones follow from it."""
    for token, bound in zip(continuation.scored, continuation.bounds, strict=True):
        if bound.judgement is Judgement.WRONG:
            evidence: dict[str, JSON] = {
                "position": token.position,
                "oracle token": token.choice,
                "transformers token": token.observed,
                "score gap": token.gap,
                "largest gap of a near tie": bound.tie_gap,
            }
            title = "the oracle's greedy token is not that of transformers"
            return [Finding("MRV301", Verdict.VIOLATION, Soundness.SOUND, title, evidence=evidence, remedy=_REMEDY)]
    return []


def _sequences(seed: int, config: Any) -> list[tuple[int, ...]]:
    """Token sequences of a seed: uniform ids, then one where low ids are common and come back, as in text."""
    generator = np.random.default_rng(seed)
    uniform = [generator.integers(config.vocab_size, size=length) for length in UNIFORM_LENGTHS]
    text_like = np.floor(config.vocab_size ** generator.random(TEXT_LIKE_LENGTH)).astype(np.int64) - 1
    limit = config.max_position_embeddings
    return [tuple(map(int, ids[:limit])) for ids in (*uniform, text_like)]


def _missing_packages(checkpoint: Checkpoint) -> list[str]:
    # transformers reads GGUF with the library gguf, and places the weights with accelerate.
    needed = ("transformers", "gguf", "accelerate") if checkpoint.format == "gguf" else ("transformers",)
    return [name for name in needed if importlib.util.find_spec(name) is None]


def _load(checkpoint: Checkpoint) -> Any:
    """transformers' model in float32, by its own loader where there is a file."""
    import transformers

    options = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    with torch.random.fork_rng(devices=[]):  # transformers fills the weights with random numbers before it reads them
        if checkpoint.path is None:
            config = transformers.LlamaConfig(**checkpoint.config.to_hugging_face(), attn_implementation="eager")
            model = transformers.LlamaForCausalLM(config)
            model.load_state_dict(checkpoint.tensors, strict=not checkpoint.config.tie_word_embeddings)
        elif checkpoint.format == "gguf":
            folder, file = checkpoint.path.parent, checkpoint.path.name
            model = transformers.LlamaForCausalLM.from_pretrained(folder, gguf_file=file, **options)
        else:
            model = transformers.LlamaForCausalLM.from_pretrained(checkpoint.path, **options)
    return model.eval()


@torch.no_grad()
def _run(model: Any, token_ids: Sequence[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Hidden states at the oracle's places, and logits.

    Hooks, because transformers' own list of hidden states leaves out the last layer before the norm.
    """
    hidden: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        hidden.append((output[0] if isinstance(output, tuple) else output)[0])

    decoder = model.model
    hooks = [part.register_forward_hook(keep) for part in (decoder.embed_tokens, *decoder.layers, decoder.norm)]
    try:
        logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(hidden), logits


@torch.no_grad()
def _generate(model: Any, prompt: Sequence[int], new_tokens: int) -> tuple[int, ...]:
    """transformers' greedy continuation, by its own generation loop and with its key-value cache."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
    )
    return tuple(output[0, len(prompt) :].tolist())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off the terminal, and put everything back afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # Its GGUF loader draws a bar of its own, which only a redirection stops.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
