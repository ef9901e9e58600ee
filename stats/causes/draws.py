"""Causes of what the contract, noise, replay and distribution layers found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mrv2.checks.findings import JSON

from ..decision import Audit, JudgedTest
from ..diagnosis import Cause, fit_temperature, replay_cause, shape_cause
from ..gof import index_test, rank_test
from ..layers import LayerResult, RowDraws
from ..planted.faults import bfloat16
from ..replay_layer import ReplayResult, noise_scores
from ..strata import Stratum, log_softmax
from ..tail_profile import TailProfile, tail_profile
from ..targets import NoiseTarget, SamplerTarget

_LARGEST_PADDING = 1024
_MOST_TOKENS = 2_000_000  # draws of a row that are looked at one by one
_LANES = 16
_KEYS = 2**20  # random keys whose noise is compared: 128 pairs if 32 bits tell them apart
_FEWEST_PAIRS = 8
_USUAL, _UNHEARD_OF = 3.0, 6.0  # standard errors
_EXPLAINED, _NO_TEMPERATURE = 1e-3, 1e-5  # p-values of groups with the temperature that fits best
_TELLING = 25.0  # expected draws from which on a tail is shown as the example

#: What to do about noise that is too coarse for rare tokens.
MORE_BITS = (
    "make each value of the noise from 53 random bits or more, and from 1 - u where u is near 1: there rare tokens "
    "win, and floats near 1 are coarse"
)


def contract_causes(failed: Sequence[JudgedTest], target: object) -> list[Cause]:
    """From the tests of the contract layer that failed."""
    by_name = {test.first.name: test.first.evidence for test in failed if test.layer == "contract"}
    causes = [_call_cause(by_name["one id of the vocabulary per row"])] if _FORM in by_name else []
    last = [name for name in ("the last id can be drawn", "a single possible id is drawn") if name in by_name]
    if last:
        causes.append(_last_block_cause(by_name[last[0]]))
    if any(name.startswith("draws do not depend") for name in by_name) and isinstance(target, SamplerTarget):
        causes.append(_batch_cause(target))
    if "NaN is never drawn" in by_name and "masked ids are never drawn" not in by_name:
        causes.append(_NAN)
    if "a row without a possible id" in by_name:
        told = by_name["a row without a possible id"]
        causes.append(replace(_EMPTY, detail=f"id {told.get('drawn')} came out of a row of {told.get('width')} tokens"))
    if not causes and _COLD in by_name:
        causes.append(_cold_cause(by_name[_COLD]))
    return causes or [_generic(by_name)] if by_name else []


_FORM = "one id of the vocabulary per row"
_COLD = "keys and temperatures at their ends"


_NAN = Cause(
    "NaN wins",
    "a token whose logit is NaN came out although others had numbers",
    "replace NaN by -inf before the maximum: NaN is neither smaller nor larger than a number",
)
_EMPTY = Cause(
    "an id outside the vocabulary for a row without a number",
    "",
    "clamp the id, or refuse the row: an id that does not exist is read from foreign memory later",
)


def _call_cause(evidence: Mapping[str, JSON]) -> Cause:
    drawn, width = evidence.get("drawn"), evidence.get("width")
    if isinstance(drawn, int) and isinstance(width, int) and width < drawn < width + _LARGEST_PADDING:
        return Cause(
            "padding is drawn",
            f"id {drawn} came out of a row of {width} tokens: a column behind the last token",
            "give the columns that pad the vocabulary the logit -inf, or leave them out of the maximum",
        )
    if isinstance(drawn, int) and drawn == width:
        return Cause(
            "one past the end",
            f"id {drawn} came out of a row of {width} tokens",
            "start the search for the maximum at a valid id, and mask the lanes behind the last token",
        )
    if "raised" in evidence:
        told = f"{evidence['raised']} (rows of {width} tokens, temperatures {evidence.get('temperatures')})"
        return raised_cause(told)
    if "changed" in evidence:
        return Cause(
            "the sampler changes its arguments", "logits or keys were overwritten", "write to memory of its own"
        )
    return Cause("answers of the wrong form", _facts(evidence), "return one integer id for each row of logits")


def raised_cause(told: str) -> Cause:
    """The sampler raised an error; ``told`` says which, and for what."""
    return Cause(
        "the sampler raises an error",
        told,
        "answer for every row and key: logits are [N, V], or one row [V] for all N draws; temperature 0 means greedy",
    )


def _last_block_cause(evidence: Mapping[str, JSON]) -> Cause:
    width = evidence.get("width")
    return Cause(
        "last block is never drawn",
        f"a row of {width} tokens in which only the last id leads gave id {evidence.get('drawn')}",
        "launch a program for the partial block at the end too (round the number of blocks up), and mask within it",
    )


def _batch_cause(target: SamplerTarget) -> Cause:
    """Whose key was used: each row again, alone, with the key of row 0."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(_LANES, 2000)).astype(np.float32)
    warm = np.ones(_LANES, np.float32)
    seeds, positions = random.integers(0, 2**64, _LANES, dtype=np.uint64), random.integers(0, 2**31, _LANES)
    together = target.sample(rows, warm, seeds, positions)

    def alone(seed_lane: int | None, position_lane: int | None) -> float:
        hits = 0
        for lane in range(1, _LANES):
            seed = seeds[lane if seed_lane is None else seed_lane]
            position = positions[lane if position_lane is None else position_lane]
            token = target.sample(rows[lane : lane + 1], warm[:1], np.array([seed]), np.array([position]))
            hits += int(token[0] == together[lane])
        return hits / (_LANES - 1)

    for seed_lane, position_lane, what in ((0, None, "seed"), (None, 0, "position"), (0, 0, "seed and position")):
        if alone(seed_lane, position_lane) > 0.9 > alone(None, None):
            return Cause(
                f"{what} of another row",
                f"in a batch every row draws as if it had the {what} of row 0",
                f"read the {what} of each row by its own index; a tensor of one element must not be broadcast",
            )
    return Cause(
        "draws depend on the batch",
        "the same row and key give another token in other company",
        "key the noise by the row's own seed, its position and the token id, never by the place in the batch",
    )


def _cold_cause(evidence: Mapping[str, JSON]) -> Cause:
    """At temperature 0.001 a token 0.05 below the best is drawn once in e**50."""
    return Cause(
        "a low temperature is not applied",
        f"at temperature {evidence.get('temperature')} id {evidence.get('drawn')} came out, and not the best, "
        f"{evidence.get('expected')}, although it is 50 nats or more below it",
        "divide each row by its own temperature; if it is, look at the largest seeds and positions",
    )


def _generic(by_name: Mapping[str, Mapping[str, JSON]]) -> Cause:
    name, evidence = next(iter(by_name.items()))
    return Cause(f"broken rule: {name}", _facts(evidence) or "see the test", "the example can be repeated by hand")


def _facts(evidence: Mapping[str, JSON]) -> str:
    """Evidence in a line; how to make the arguments again is for the report."""
    return ", ".join(f"{key} {value}" for key, value in evidence.items() if key != "arguments")


def noise_causes(failed: Sequence[JudgedTest], target: object) -> list[Cause]:
    """From the tests of the noise layer that failed."""
    tests = {test.first.name: test.first for test in failed if test.layer == "noise"}
    causes = []
    if "no two keys have the same noise" in tests:
        causes.append(_duplicates_cause(tests["no two keys have the same noise"].evidence, target))
    tails = [test for name, test in tests.items() if name.startswith("mass of a tail")]
    if tails and isinstance(target, NoiseTarget):
        worst = max(tails, key=lambda test: abs(float(str(test.evidence["relative error"]))))
        causes.append(
            Cause(
                f"{target.noise_bits}-bit noise",
                f"noise ends {float(str(worst.evidence['largest noise'])):.2f} nats up; the tail "
                f"{float(str(worst.evidence['gap'])):g} nats down comes "
                f"{change(float(str(worst.evidence['relative error'])))}",
                MORE_BITS,
            )
        )
    if tests and not causes:
        first = next(iter(tests.values()))
        causes.append(
            Cause(
                f"broken rule: {first.name}",
                _facts(first.evidence),
                "compare the noise of the example with -log(-log(u))",
            )
        )
    return causes


def _duplicates_cause(evidence: Mapping[str, JSON], target: object) -> Cause:
    """Random keys tell the size of the state: pairs among n keys of b bits come n**2 / 2**(b + 1) times."""
    pairs = _pairs_of_random_keys(target) if isinstance(target, NoiseTarget) else 0
    if pairs >= _FEWEST_PAIRS:
        bits = math.log2(_KEYS**2 / (2.0 * pairs))
        return Cause(
            f"row state of {bits:.0f} bits",
            f"{pairs} pairs of {_KEYS:,} random keys have the same noise, as a state of 2^{bits:.1f} values gives",
            "carry 64 bits of seed and position into the noise of each token",
        )
    examples = evidence.get("examples")
    return Cause(
        "different keys have the same noise",
        f"for example {examples}" if examples else "see the test",
        "feed every bit of seed, position and purpose into the noise",
    )


def _pairs_of_random_keys(target: NoiseTarget) -> int:
    """Keys with random seeds, at positions that requests reach, whose noise of two tokens equals another's."""
    random = np.random.default_rng(3)
    seeds, positions = random.integers(0, 2**64, _KEYS, dtype=np.uint64), random.integers(0, 2**24, _KEYS)
    first, second = (target.words(seeds, positions, np.array([token])) for token in (3, 1021))
    rows = np.stack([first, second], axis=1)
    return _KEYS - len(np.unique(rows, axis=0))


def change(error: float) -> str:
    """A relative error of a rate in words: a share while it is small, else how many times."""
    if error < -0.999:
        return "never"
    way, times = ("rarely", 1.0 / (1.0 + error)) if error < 0 else ("often", 1.0 + error)
    if times < 2.0:
        return f"{100.0 * abs(error):.2g} % too {way}"
    return f"{times:,.0f} times too {way}" if times >= 10.0 else f"{times:.2g} times too {way}"


def replay_causes(audit: Audit, failed: Sequence[JudgedTest], target: object) -> list[Cause]:
    """From the draws that differ from their replay."""
    if not any(test.layer == "replay" for test in failed) or not isinstance(target, NoiseTarget):
        return []
    (result,) = [result for result in audit.results if isinstance(result, ReplayResult)]
    cause = replay_cause(result.cases, noise_scores(target), result.replayed) if result.cases else None
    return [cause] if cause else []


def distribution_causes(audit: Audit, failed: Sequence[JudgedTest]) -> list[Cause]:
    """From the counts of the distribution layer: noise by its tails, then temperature, then what else has a shape."""
    names = [test for test in failed if test.layer == "distribution"]
    if not names:
        return []
    draws = drawn_rows(audit.results, audit.repeats.values())
    if _ends_behind_the_head(draws):
        return [_RUNNING_SUM]
    profile = tail_profile(draws)
    if profile is not None and profile.named is not None:
        return [_tail_cause(profile)]
    for cause in (_temperature_cause(draws), _shape_cause(draws, names), _pair_cause(names)):
        if cause is not None:
            return [cause]
    worst = min(names, key=lambda test: test.p_value)
    return [Cause("no known cause", f"most telling test: {worst.first.name}", "look at the groups that stand out")]


_RUNNING_SUM = Cause(
    "a running sum too coarse for rare tokens",
    "behind the likeliest token rare ones come with a wrong share, before it with the right one",
    "draw by Gumbel noise or an exponential race, or keep the cumulative sum of probabilities in float64: in float32 "
    "it moves in steps of 6e-8 once it is near 1",
)


def _ends_behind_the_head(draws: Mapping[str, Sequence[RowDraws]]) -> bool:
    """Whether equally rare tokens are drawn rightly before the row's likeliest token, and wrongly behind it."""
    off = np.zeros((2, 2))  # before and behind: observed, expected
    for name, runs in draws.items():
        if name.startswith("cliff"):
            shares, counts = np.exp(runs[0].log_probabilities), np.sum([run.counts for run in runs], axis=0)
            head = int(shares.argmax())
            for side, part in enumerate((slice(0, head), slice(head + 1, None))):
                off[side] += counts[part].sum(), counts.sum() * shares[part].sum()
    if not (off[:, 1] > _TELLING).all():
        return False
    before, behind = np.abs(off[:, 0] - off[:, 1]) / np.sqrt(off[:, 1])
    return bool(before < _USUAL and behind > _UNHEARD_OF)


def drawn_rows(first: Sequence[LayerResult], again: Sequence[LayerResult] | object) -> dict[str, list[RowDraws]]:
    """All draws of each row, of first and second runs."""
    rows: dict[str, list[RowDraws]] = {}
    for result in (*first, *again):  # type: ignore[misc]
        for name, draws in result.draws.items():
            rows.setdefault(name, []).append(draws)
    return rows


def rarity(gap: float) -> str:
    """How much less likely a token is whose logit is so many nats lower, in words that need no logarithm."""
    times = math.exp(gap)
    if times < 1e6:
        return f"{times / 1e3:,.0f} thousand times"
    return f"{times / 1e6:,.0f} million times" if times < 1e9 else f"{times / 1e9:,.0f} billion times"


def _tail_cause(profile: TailProfile) -> Cause:
    model, second = profile.named, profile.models[1]
    assert model is not None
    lead = (model.log_likelihood - second.log_likelihood) / math.log(10.0)
    telling = [point for point in profile.points if point.expected >= _TELLING] or profile.points
    worst = max(telling, key=lambda point: abs(point.observed / point.expected - 1.0))
    return Cause(
        model.name,
        f"tokens {worst.gap:.4g} nats below the best ({rarity(worst.gap)} less likely) came {worst.observed:,} times, "
        f"{worst.expected:,.0f} expected; "
        f"all tails together fit {model.name}, 10^{lead:.0f} times better than {second.name}",
        MORE_BITS,
    )


def _temperature_cause(draws: Mapping[str, Sequence[RowDraws]]) -> Cause | None:
    """The row whose draws say most about the temperature, if another temperature explains them and all other rows.

    A row that no temperature at all explains, a flat one for example, shows another fault, and a tail that moved with
    it looks like a temperature by itself.
    """
    fits, refuted = [], False
    for name, runs in draws.items():
        stratum = _stratum(runs)
        if stratum is None or stratum.draws == 0:
            continue
        factor, gain = fit_temperature([stratum])
        refit = Stratum(log_softmax(stratum.log_probabilities, factor), stratum.tokens)
        least = rank_test([refit]).p_value
        if gain > 25.0 and least >= _EXPLAINED:
            fits.append((gain, name, factor))
        refuted |= min(least, index_test([refit]).p_value) < _NO_TEMPERATURE
    if refuted or not fits:
        return None
    gain, name, factor = max(fits)
    rounded = float(bfloat16(np.array([0.7], np.float32))[0]) / float(np.float32(0.7))
    # The gain is the square of the distance from 1 in standard errors.
    if name in ("half head", "zipf") and abs(factor - rounded) < 3.0 * abs(factor - 1.0) / math.sqrt(gain):
        return _ROUNDED
    return Cause(
        "wrong temperature",
        f"row {name!r} is drawn as if its temperature were {factor:.4f} times what it is",
        "divide each row's logits by that row's own temperature, once, in float32",
    )


_ROUNDED = Cause(
    "temperature rounded to bfloat16",
    "0.7 is used as 0.69921875",
    "keep temperatures in float32: bfloat16 has three significant digits",
)


def _stratum(runs: Sequence[RowDraws]) -> Stratum | None:
    """The draws of a row one by one, or of very many a random part; None without any, or with impossible ones."""
    counts = np.sum([run.counts for run in runs], axis=0)
    if not counts.sum() or np.isneginf(runs[0].log_probabilities[counts > 0]).any():
        return None
    if counts.sum() > _MOST_TOKENS:
        counts = np.random.default_rng(0).binomial(counts, _MOST_TOKENS / counts.sum())
    return Stratum(runs[0].log_probabilities, np.repeat(np.arange(counts.size), counts))


def _shape_cause(draws: Mapping[str, Sequence[RowDraws]], failed: Sequence[JudgedTest]) -> Cause | None:
    for test in failed:
        stratum = _stratum(draws[test.first.part]) if test.first.part in draws else None
        cause = shape_cause({1.0: [stratum]}) if stratum is not None else None
        if cause is not None:
            return cause
    return None


def _pair_cause(failed: Sequence[JudgedTest]) -> Cause | None:
    for test in failed:
        if test.first.name.startswith(("agreement of keys", "independence of keys")):
            what = test.first.part
            return Cause(
                f"noise is shared between keys that differ in {what}",
                _pair_facts(test),
                "feed every bit of seed and position into the noise",
            )
    return None


def _pair_facts(test: JudgedTest) -> str:
    """How often both keys of a pair drew the same token, or what else says that they are not independent."""
    result = test.first.result
    if not test.first.name.startswith("agreement") or not result.groups:
        return f"{test.first.name}: p-value {test.p_value:.1e}"
    same = result.groups[0]
    return (
        f"Of {result.draws:,} pairs of keys that differ in {test.first.part}, {same.observed:,.0f} drew the same "
        f"token, {same.expected:,.2f} expected"
    )
