"""How far a correct float32 implementation may be from the float64 oracle.

**Logits.** A worst-case bound over 30 layers is useless: it multiplies condition numbers and lands orders of
magnitude above any real error. Instead the rounding level of *this* computation, weights and tokens, is measured by
running the same formulas in float32 several times so that they round differently each time: once as they are and
once with the hidden and intermediate dimensions permuted (mathematically the same model, but every dot product and
norm adds up in another order), and each of these *twins* from the embedding as it is and from two copies whose every
element is moved by one unit in the last place. This is stochastic arithmetic (Vignes 1993, "A stochastic arithmetic
for reliable scientific computation"); the model behind it is that a deviation is a sum of many small,
mean-independent roundings (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis").
The *level* at a position is the largest deviation from float64 of any token's logit in any of the six runs. It is
taken for each position on its own, because conditioning differs: on SmolLM2 about one position in four hundred
amplifies rounding ten- to five-hundredfold (one huge activation takes up all the error). The bound is ``SAFETY`` = 8
times the level, 2 x 4:

* 2 because another implementation adds in another order. Root mean square error of dot products of 64, 128, 576 and
  1,536 terms relative to the twins' own (CPU matrix product, measured): one running sum without fused
  multiply-add 1.0, 1.0, 1.7, 2.7; pairwise tree 0.5, 0.4, 0.4, 0.4; blocks of 32, 0.5, 0.4, 0.4, 0.6.
* 4 because the level is the maximum of a sample. transformers in float32 exceeded it by a factor of at most 1.6 at
  16,929 positions of 20 tiny models and 1.4 at 939 positions of SmolLM2-135M (median 0.7 and 0.8), and the tail falls
  by a decade per 0.15. Where one direction carries all the error, which is what an ill-conditioned position looks
  like, the ratio is that of one normal deviate to the largest of six: above 4 in 6e-4 of such positions, above 8 in
  1e-5.

**Log-probabilities, the model's part.** The deviation of the twins' log-softmax (taken in float64), same factor. It
can never exceed twice the logits' bound, because log-sum-exp moves by at most the largest change of a logit.

**Log-probabilities, the kernel's part.** For one row with maximum m, S = sum exp(x_j - m), o the log-probability of
token i, u = 2^-24 and blocks of B logits that are summed as a tree and then added one after the other:

    |error| <= u * (|x_i - m| + |o| + 2 |ln S| + ceil(V / B) + log2(B) + 4 + sum_j p_j |x_j - m|)

The terms are the rounding of x_i - m and of the result; of ln S and its subtraction; of the sums; of exp and log (an
ulp or two each); and of the arguments of exp, each weighted by its probability.

**Tokens.** The sampler maximises x / T + g. Its own float32 scores differ from the oracle's by at most

    logit bound / T  +  NOISE_ERROR + 2 u |g|  +  u * (|x / T| + |x / T + g|)

(the noise is a logarithm good to one ulp, at most 2 u |g|, of an exponential whose relative error is at most
NOISE_ERROR; division and addition round once each; for greedy decoding only the first term is there, with T = 1). If
it returns another token than the oracle, it found that token's score at least as high, so the true gap is at most
the sum of this error over the two tokens. A differing token within that sum is a *near tie*: no verdict is possible.
Beyond it, it is wrong.

With further sampling parameters the logit bound is multiplied by what the stages may enlarge it by (``error_gain``),
and the roundings of the stages come on top. A filter's line may then pass on either side of a token: see ``filtered``.

**Assumptions.** The implementation multiplies and adds in float32 throughout (no TF32, no half-precision KV cache)
on the very weights that the oracle was given, which float32 represents exactly; its elementary functions are good to
a few ulp; rotary angles are formed in float32 as position times frequency, or better; its log-softmax has B >= 1024;
its noise follows ``noise`` within ``NOISE_ERROR``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..api import NewRequest, SamplingParams
from ..errors import ConfigurationError
from .llama import Forward, LlamaOracle
from .oracle import ScoredToken, runner_temperature
from .sampling import Drawing, error_gain, filtered, log_softmax

SAFETY = 8.0
JITTERED_RUNS = 2  # of each twin, besides the one from the exact embedding
UNIT_ROUNDOFF = 2.0**-24
# Largest error of float32's -log(-log1p(-u)) over a sweep of a kernel that switches from a series to the logarithm.
NOISE_ERROR = 2.1e-6
LOG_SOFTMAX_BLOCK = 1024
# Operations on a logit before the draw: bias, repetition, frequency and its product, presence, temperature, min-p.
PROCESSING_ROUNDINGS = 8

# Which axes of a weight are the hidden (h) and the intermediate (i) dimension, or two hidden ones in a row (H).
_AXES = {
    "embed_tokens": ".h",
    "lm_head": ".h",
    "q_proj": ".h",
    "k_proj": ".h",
    "v_proj": ".h",
    "o_proj": "h.",
    "gate_proj": "ih",
    "up_proj": "ih",
    "down_proj": "hi",
    "input_layernorm": "h",
    "post_attention_layernorm": "h",
    "norm": "h",
    "fc": "hH",
}


@dataclass(frozen=True)
class Rounding:
    """The oracle's pass over a sequence, and what float32 may make of it.

    Attributes:
        exact: the float64 pass over n tokens.
        logit_bounds: float64 [n], largest admissible deviation of any logit at each position.
        logprob_bounds: float64 [n], the same for log-probabilities, the model's part.
        hidden_bounds: float64 [len(exact.hidden), n], largest admissible Euclidean distance of the hidden state at
            each place and position.
    """

    exact: Forward
    logit_bounds: Tensor
    logprob_bounds: Tensor
    hidden_bounds: Tensor


class Judgement(enum.Enum):
    """What an observed token is."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    WRONG = "wrong"


@dataclass(frozen=True)
class TokenBound:
    """What float32 may do to one generated token.

    Attributes:
        logprob_error: largest admissible error of the observed token's log-probability.
        tie_gap: score gap up to which another token than the oracle's is a near tie.
        judgement: of the observed token.
    """

    logprob_error: float
    tie_gap: float
    judgement: Judgement


class Float32Twins:
    """Measures the rounding level of a model in float32; see the module's text for the derivation.

    The twins are of the model's own class and take their weights from it, so a model that computes something else
    (a negative control) keeps a small rounding level and cannot hide behind a large one.

    Args:
        model: the float64 oracle; its weights must be exact in float32.

    Raises:
        ConfigurationError: the model does not compute in float64.
    """

    def __init__(self, model: LlamaOracle) -> None:
        if model.dtype != torch.float64:
            raise ConfigurationError(
                f"an oracle in {model.dtype}",
                "rounding is measured against float64",
                "a reference with errors of its own size would make the bound too small",
                "LlamaOracle(config, tensors), whose default is float64",
            )
        self.model = model
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(model.config.hidden_size, generator=generator)
        inner = torch.randperm(model.config.intermediate_size, generator=generator)
        plain = {name: weight.float() for name, weight in model.weights.items()}
        reordered = {name: _reorder(name, weight, order, inner) for name, weight in plain.items()}
        # Each twin, and where its hidden dimensions belong.
        self._twins = (
            (type(model)(model.config, plain, torch.float32), torch.arange(model.config.hidden_size)),
            (type(model)(model.config, reordered, torch.float32), order.argsort()),
        )

    @property
    def twins(self) -> tuple[LlamaOracle, ...]:
        """The two float32 models; hidden columns of the second are in an order that their number alone decides."""
        return tuple(twin for twin, _ in self._twins)

    def measure(self, token_ids: Sequence[int]) -> Rounding:
        """Run the oracle and its twins over one sequence and derive the bounds.

        Raises:
            RequestError: see :meth:`LlamaOracle.logits`.
        """
        exact = self.model.forward(token_ids)
        logprobs = exact.logits.log_softmax(dim=-1)
        runs = [_deviations(exact, logprobs, run) for run in self._runs(token_ids)]
        bounds = SAFETY * torch.stack(runs).amax(dim=0)
        return Rounding(exact, bounds[-2], bounds[-1], bounds[:-2])

    def _runs(self, token_ids: Sequence[int]) -> Iterator[Forward]:
        generator = torch.Generator().manual_seed(0)
        for twin, places in self._twins:
            embedded = twin.embed(token_ids)
            for run in range(1 + JITTERED_RUNS):
                signs = torch.randint(2, embedded.shape, generator=generator) * 2 - 1
                start = embedded * (1 + 2 * UNIT_ROUNDOFF * signs) if run else embedded
                forward = twin.decode(start)
                yield Forward(tuple(state[:, places] for state in forward.hidden), forward.logits)

    def bounds(self, request: NewRequest, scored: Sequence[ScoredToken]) -> tuple[TokenBound, ...]:
        """Bounds and judgements for the tokens that :meth:`Oracle.score` scored for this request, in its order.

        Raises:
            RequestError: see :meth:`LlamaOracle.logits`.
        """
        if not scored:
            return ()
        rounding = self.measure([*request.token_ids, *(token.observed for token in scored[:-1])])
        return tuple(bound_token(token, request.sampling, rounding, self.model.config.vocab_size) for token in scored)


def bound_token(token: ScoredToken, sampling: SamplingParams, rounding: Rounding, vocab_size: int) -> TokenBound:
    """Bounds for one scored token, and its judgement, from the rounding of its sequence."""
    row = token.position - 1
    logit_bound = float(rounding.logit_bounds[row])
    gap, tie_gap = token.gap, near_tie_gap(token, sampling, logit_bound)
    if token.drawing is not None:
        gap, tie_gap = processed_gap(token.drawing, token.observed, sampling, logit_bound)
    logprob_error = float(rounding.logprob_bounds[row]) + log_softmax_error(token, vocab_size)
    if token.observed == token.choice:
        return TokenBound(logprob_error, tie_gap, Judgement.EQUAL)
    return TokenBound(logprob_error, tie_gap, Judgement.NEAR_TIE if gap <= tie_gap else Judgement.WRONG)


def processed_gap(drawing: Drawing, observed: int, sampling: SamplingParams, logit_bound: float) -> tuple[float, float]:
    """How far the observed token is from what must have been drawn, and how far rounding may have brought it.

    A token that a filter drops whatever the errors is infinitely far. One that it may keep competes with those that it
    keeps whatever the errors: had they been drawn instead, their scores would have been larger.
    """
    temperature = runner_temperature(sampling)
    rounding = PROCESSING_ROUNDINGS * UNIT_ROUNDOFF * drawing.magnitude / (temperature or 1.0)
    slack = logit_bound * error_gain(sampling) + rounding
    kept, scores = filtered(drawing.processed, sampling, slack), drawing.scores
    if not kept.possibly[observed]:
        # With every token forbidden there is nothing to choose from, and the lowest id is the answer.
        return (0.0 if observed == 0 and not kept.possibly.any() else math.inf), 2 * slack
    best = int(np.argmax(np.where(kept.surely, scores, -np.inf))) if kept.surely.any() else observed
    noise = 0.0
    if temperature:
        noise = sum(_noise_error(float(drawing.processed[t]), float(scores[t])) for t in (best, observed))
    return float(scores[best] - scores[observed]), 2 * slack + noise


def near_tie_gap(token: ScoredToken, sampling: SamplingParams, logit_bound: float) -> float:
    """Largest score gap that float32 rounding can turn around, given the bound on the logits."""
    temperature = runner_temperature(sampling)
    if temperature == 0:
        return 2 * logit_bound
    errors = (_score_error(*pair, temperature) for pair in zip(token.logits, token.scores, strict=True))
    return 2 * logit_bound / temperature + sum(errors)


def _score_error(logit: float, score: float, temperature: float) -> float:
    return _noise_error(logit / temperature, score)


def _noise_error(scaled: float, score: float) -> float:
    noise = NOISE_ERROR + 2 * UNIT_ROUNDOFF * abs(score - scaled)
    return noise + UNIT_ROUNDOFF * (abs(scaled) + abs(score))


def log_softmax_error(token: ScoredToken, vocab_size: int) -> float:
    """Bound on the error of a float32 log-softmax kernel for the observed token, given its float32 logits.

    A token that cannot be has a log-probability of minus infinity, exactly.
    """
    if token.logprob == -math.inf:
        return 0.0
    below_top = token.top_logit - token.logits[1]
    return float(_kernel_error(np.array(below_top), np.array(token.logprob), token.mean_drop, vocab_size))


def log_softmax_errors(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for every token of a row of logits [V]: float64 [V]."""
    logprobs, below_top = log_softmax(logits), logits.max() - logits
    return _kernel_error(below_top, logprobs, float(np.exp(logprobs) @ below_top), len(logits))


def _kernel_error(
    below_top: NDArray[np.float64], logprob: NDArray[np.float64], mean_drop: float, vocab_size: int
) -> NDArray[np.float64]:
    log_sum = -logprob - below_top
    additions = math.ceil(vocab_size / LOG_SOFTMAX_BLOCK) + math.log2(LOG_SOFTMAX_BLOCK) + 4
    error: NDArray[np.float64] = below_top + np.abs(logprob) + 2 * np.abs(log_sum) + additions + mean_drop
    return np.multiply(UNIT_ROUNDOFF, error)


def _deviations(exact: Forward, logprobs: Tensor, run: Forward) -> Tensor:
    """Deviation of a run at each position, float64 [len(exact.hidden) + 2, n]: hidden states, logits, logprobs."""
    hidden = [(ours - theirs).norm(dim=-1) for ours, theirs in zip(exact.hidden, run.hidden, strict=True)]
    logits = (exact.logits - run.logits).abs().amax(dim=-1)
    return torch.stack((*hidden, logits, (logprobs - run.logits.double().log_softmax(dim=-1)).abs().amax(dim=-1)))


def _reorder(name: str, weight: Tensor, hidden: Tensor, inner: Tensor) -> Tensor:
    places = {"h": hidden, "i": inner, "H": torch.cat((hidden, hidden + len(hidden)))}
    for axis, kind in zip(range(weight.dim()), _AXES[name.split(".")[-2]], strict=False):  # a bias has one axis
        if kind != ".":
            weight = weight.index_select(axis, places[kind])
    return weight
