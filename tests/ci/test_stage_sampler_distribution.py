"""The stage against samplers written in numpy: the right one passes, each wrong one is caught and named."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict, Soundness, Verdict
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.sampler_distribution import SamplerDistribution
from mrv2.ci.stages.sampler_edges import check_edges
from mrv2.fuzz.targets.protocols import Feature
from mrv2.stats.replay import gumbel_scores

V = 1000
ORDINARY = 32  # batches of 2,000 draws; the edges come behind them
BLOCK = 128
LOW = np.uint64(0xFFFFFFFF)


def mix(words):
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): uint64 to well mixed uint64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def uniforms(seeds, positions, tokens):
    """float64 [N, T] in (0, 1), a pure function of (seed, position, token)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    keys = mix(mix(seeds + golden) ^ (positions.astype(np.uint64) * golden + np.uint64(1)))
    words = mix(keys[:, np.newaxis] + (tokens.astype(np.uint64) + np.uint64(1)) * golden)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def noise(seed, position, vocab_size):
    keys = np.array([seed], np.uint64), np.array([position], np.int64)
    return -np.log(-np.log1p(-uniforms(*keys, np.arange(vocab_size))))[0]


EXACT = gumbel_scores(noise)


def to_bfloat16(values):
    """Keep the 8 significant bits of bfloat16, rounding toward zero; float32."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def coarse(u):
    """1 - u in bfloat16 and away from 1: the winning tail is a few large steps."""
    return 1.0 - np.minimum(to_bfloat16(1.0 - u), np.float32(1 - 2.0**-8)).astype(np.float64)


@dataclass
class GumbelSampler:
    """Gumbel-max in float32; each field is where one defect goes, and the default is right.

    ``scores`` and ``tokens`` apply to draws at a temperature above 0 only.
    """

    name: str = "numpy sampler"
    keys: Callable = lambda seeds, positions: (seeds, positions)
    temperature: Callable = lambda temperature: temperature
    uniform: Callable = lambda u: u
    noise: Callable = lambda gumbel, logits: gumbel
    scores: Callable = lambda scores, logits: scores
    tokens: Callable = lambda tokens, logits: tokens
    batches: list = field(default_factory=list)

    def sample(self, logits, temperature, seeds, positions):
        self.batches.append((logits.shape, seeds, positions))
        result = np.where(np.isnan(logits), -np.inf, logits).argmax(axis=1)
        warm = temperature > 0
        logits, divisor = logits[warm], self.temperature(temperature[warm])[:, np.newaxis]
        keys = self.keys(seeds[warm], positions[warm])
        u = self.uniform(uniforms(*keys, np.arange(logits.shape[1])))
        gumbel = self.noise(-np.log(-np.log1p(-u)).astype(np.float32), logits)
        scores = self.scores(logits / divisor + gumbel, logits)
        result[warm] = self.tokens(scores.argmax(axis=1), logits)
        return result


@dataclass
class Target:
    inner: object
    features: frozenset = frozenset({Feature.SAMPLER})
    name: str = "numpy"
    knobs: dict = field(default_factory=dict)

    def build(self, config):
        raise NotImplementedError

    def sampler(self):
        return self.inner


class Units:
    """Progress that counts."""

    total = done = 0

    def start(self, total):
        self.total = total

    def advance(self, units=1):
        self.done += units


LOGITS = (np.random.default_rng(7).normal(size=(6, V)) * 2.5).astype(np.float32)


def verify(sampler, *, seed=0, draws=2000, exact=EXACT, logits=LOGITS, progress=None):
    stage = SamplerDistribution(lambda: logits, exact)
    result = stage.run(Target(sampler), Budget(seed=seed, distribution_draws=draws), progress or Units())
    json.dumps([result.metrics, result.coverage, [dict(f.evidence) for f in result.findings]], allow_nan=False)
    return result


def by_code(result):
    return {finding.code: finding for finding in result.findings}


# Defects


def by_rank(gumbel, logits):
    moved = np.empty_like(gumbel)
    np.put_along_axis(moved, np.argsort(-logits, axis=1, kind="stable"), gumbel, axis=1)
    return moved


def lose_last_block(scores, logits):
    return np.where(np.arange(V) < V // BLOCK * BLOCK, scores, -np.inf)


def drop_top(scores, logits):
    return np.where(logits == logits.max(axis=1, keepdims=True), -np.inf, scores)


def zero(values):
    return np.zeros_like(values)


# What the distribution alone shows, and the words that must name it.
VISIBLE = {
    "temperature ignored": (GumbelSampler(temperature=np.ones_like), "instead of 0.70, "),
    "temperature 15 % high": (GumbelSampler(temperature=lambda t: t * np.float32(1.15)), "0.81 instead of 0.70"),
    "last block lost": (GumbelSampler(scores=lose_last_block), "to 999 in "),
    "top token dropped": (GumbelSampler(scores=drop_top), "the most likely token of a row never"),
    "always the argmax": (GumbelSampler(noise=lambda gumbel, logits: zero(gumbel)), "took the most likely token"),
    "token off by one": (GumbelSampler(tokens=lambda tokens, logits: (tokens + 1) % V), "adding 1"),
    "seeds ignored": (GumbelSampler(keys=lambda seeds, positions: (zero(seeds), positions)), "seed bits 0-63"),
    "positions ignored": (GumbelSampler(keys=lambda seeds, positions: (seeds, zero(positions))), "468 of 468 pairs"),
    "seed cut": (GumbelSampler(keys=lambda seeds, positions: (seeds & LOW, positions)), "no effect of seed bits 32-63"),
    "coarse uniforms": (GumbelSampler(uniform=coarse), "trails the most likely one by more than"),
}
# What only a replay shows, and the words that must name it.
HIDDEN = {
    "noise by rank": (GumbelSampler(noise=by_rank), "falling logit"),
    "position + 1": (GumbelSampler(keys=lambda seeds, positions: (seeds, positions + 1)), "position + 1"),
    "bfloat16 noise": (
        GumbelSampler(noise=lambda gumbel, logits: to_bfloat16(gumbel)),
        "scores of the two tokens",
    ),
    "another generator": (GumbelSampler(uniform=lambda u: u[:, ::-1]), "the distribution itself shows no error"),
}
# What the replay says about a visible defect, where it knows more than the distribution.
REPLAYED = {
    "temperature ignored": "temperature 1 in place of the row's own",
    "last block lost": "leaving out a last, partial block",
    "top token dropped": "leaving out the most likely token",
    "seeds ignored": "seed 0",
    "seed cut": "the low 32 bits of the seed",
}


@pytest.mark.parametrize("exact", [EXACT, None], ids=["replayed", "not replayed"])
def test_a_right_sampler_passes(exact):
    progress = Units()
    result = verify(GumbelSampler(), exact=exact, progress=progress)
    assert result.verdict is RunVerdict.PASS
    assert result.findings == ()
    assert progress.done == progress.total == 33
    assert ("replayed exactly" in result.summary) == (exact is not None)
    assert ("not replayed" in result.summary) == (exact is None)
    assert result.coverage == {"features": ["sampler on its own"]}


@pytest.mark.parametrize("seed", range(100, 130))
def test_a_right_sampler_passes_with_every_seed(seed):
    assert verify(GumbelSampler(), seed=seed, exact=None, logits=LOGITS[:, :300]).verdict is RunVerdict.PASS


@pytest.mark.parametrize("name", VISIBLE)
def test_a_wrong_distribution_is_caught_and_named_without_a_replay(name):
    sampler, words = VISIBLE[name]
    result = verify(sampler, exact=None)
    assert result.verdict is RunVerdict.FAIL
    (finding,) = result.findings
    assert finding.code == "MRV401"
    assert (finding.verdict, finding.soundness) == (Verdict.VIOLATION, Soundness.MAY)
    assert words in finding.evidence["likely_cause"]
    assert words in result.summary
    assert finding.evidence["false_fail_rate"] == 1e-6
    assert all(test["p_value"] <= 1e-6 and test["groups"] for test in finding.evidence["failed"].values())


@pytest.mark.parametrize("name", VISIBLE)
def test_a_wrong_distribution_is_replayed_too(name):
    sampler, words = VISIBLE[name]
    findings = by_code(verify(sampler))
    assert set(findings) == {"MRV401", "MRV402"}
    assert words in findings["MRV401"].evidence["likely_cause"]
    assert REPLAYED.get(name, words) in findings["MRV402"].evidence["likely_cause"]


@pytest.mark.parametrize("name", HIDDEN)
def test_wrong_noise_with_the_right_distribution_needs_the_replay(name):
    sampler, words = HIDDEN[name]
    assert verify(sampler, exact=None).verdict is RunVerdict.PASS
    result = verify(sampler)
    assert result.verdict is RunVerdict.FAIL
    (finding,) = result.findings
    assert finding.code == "MRV402"
    assert words in finding.evidence["likely_cause"]
    example = finding.evidence["examples"][0]
    assert example["drawn"] != example["exact"]
    assert example["drawn_score"] < example["exact_score"]


def test_titles_hold_no_measured_numbers():
    titles = {
        tuple(f.title for f in verify(VISIBLE["temperature 15 % high"][0], seed=seed).findings) for seed in (1, 2)
    }
    assert len(titles) == 1


def test_an_id_past_the_vocabulary_is_a_contract_violation():
    result = verify(GumbelSampler(tokens=lambda tokens, logits: np.where(tokens == 7, V, tokens)))
    (finding,) = result.findings
    assert finding.code == "MRV403"
    assert "V itself" in finding.evidence["likely_cause"]
    assert {example["drawn"] for example in finding.evidence["examples"]} == {V}


def test_a_negative_id_is_a_contract_violation():
    (finding,) = verify(GumbelSampler(tokens=lambda tokens, logits: tokens - 1 - V)).findings
    assert finding.code == "MRV403"
    assert finding.evidence["likely_cause"] is None


def test_a_masked_token_is_a_contract_violation():
    masked = LOGITS.copy()
    masked[:, ::2] = -np.inf
    assert verify(GumbelSampler(), logits=masked).verdict is RunVerdict.PASS
    unmasked = GumbelSampler(scores=lambda scores, logits: np.where(np.isneginf(scores), 50.0, scores))
    (finding,) = verify(unmasked, logits=masked).findings
    assert finding.code == "MRV403"
    assert "probability zero" in finding.title


@pytest.mark.parametrize("answer", [lambda n: np.zeros(n - 1, np.int64), np.zeros, lambda n: 3])
def test_another_shape_or_type_is_a_contract_violation(answer):
    class Odd:
        name = "odd"

        def sample(self, logits, temperature, seeds, positions):
            return answer(len(seeds))

    result = verify(Odd())
    assert len(result.findings) == 1
    assert result.verdict is RunVerdict.FAIL
    assert by_code(result)["MRV403"].evidence["rows"] == 64


def test_greedy_draws_must_take_the_lowest_of_the_largest_logits():
    class LastOfTies(GumbelSampler):
        def sample(self, logits, temperature, seeds, positions):
            last = logits.shape[1] - 1 - np.where(np.isnan(logits), -np.inf, logits)[:, ::-1].argmax(axis=1)
            return np.where(temperature > 0, super().sample(logits, temperature, seeds, positions), last)

    tied = LOGITS.copy()
    tied[:, [3, 900]] = tied.max()
    assert verify(GumbelSampler(), logits=tied).verdict is RunVerdict.PASS
    (finding,) = verify(LastOfTies(), logits=tied).findings
    assert finding.code == "MRV402"
    assert (finding.evidence["mismatches"], finding.evidence["draws"]) == (126, 126)
    assert {(e["drawn"], e["exact"]) for e in finding.evidence["examples"]} == {(900, 3)}


@pytest.mark.parametrize("draws", [1, 5, 64, 500, 1500])
def test_too_few_draws_are_inconclusive_never_a_pass(draws):
    result = verify(GumbelSampler(), draws=draws)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert result.findings == ()
    assert "draws" in result.summary


def test_the_shortage_says_how_many_draws_would_do():
    result = verify(GumbelSampler(), draws=1000)
    needed = int(result.summary.split("about ")[1].split()[0])
    assert 1000 < needed < 2000
    assert verify(GumbelSampler(), draws=needed + 20).verdict is RunVerdict.PASS


def test_too_few_draws_can_still_fail():
    assert verify(GumbelSampler(temperature=np.ones_like), draws=200).verdict is RunVerdict.FAIL


def test_rows_that_always_give_one_token_show_nothing():
    peaked = np.zeros((2, V), np.float32)
    peaked[:, 5] = 60.0
    result = verify(GumbelSampler(), logits=peaked)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "can show nothing" in result.summary


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (np.full((2, 5), np.nan, np.float32), "NaN"),
        (np.full((2, 5), -np.inf, np.float32), "row of -inf"),
        (np.zeros((0, 5), np.float32), "shape (0, 5)"),
        (np.zeros(5, np.float32), "shape (5,)"),
    ],
)
def test_logits_without_a_distribution_are_inconclusive(logits, words):
    result = verify(GumbelSampler(), logits=logits)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert words in result.summary


def test_a_target_without_a_sampler_is_inconclusive_and_the_feature_named():
    stage = SamplerDistribution(lambda: LOGITS, EXACT)
    for target in (Target(GumbelSampler(), frozenset()), NoProvider()):
        result = stage.run(target, Budget(), Units())
        assert result.verdict is RunVerdict.INCONCLUSIVE
        assert "sampler on its own" in result.summary
        assert result.coverage == {}


class NoProvider:
    name = "claims a sampler"
    features = frozenset({Feature.SAMPLER})


def test_no_draws_are_inconclusive():
    assert verify(GumbelSampler(), draws=0).verdict is RunVerdict.INCONCLUSIVE


def test_the_rows_of_highest_entropy_are_drawn_from():
    logits = np.concatenate([LOGITS[:3] * 8, LOGITS[3:], LOGITS[:1]])
    seen = []

    class Watching(GumbelSampler):
        def sample(self, logits, *rest):
            seen.append(logits)
            return super().sample(logits, *rest)

    verify(Watching(), logits=logits)
    drawn = {row.tobytes() for batch in seen[:ORDINARY] for row in batch}
    assert drawn == {row.tobytes() for row in logits[3:]}


def test_keys_vary_both_ways_in_batches_of_64():
    sampler = GumbelSampler()
    verify(sampler)
    batches = sampler.batches[:ORDINARY]
    assert {shape for shape, _, _ in batches[:-1]} == {(64, V)}
    seeds = np.concatenate([seeds for _, seeds, _ in batches])
    positions = np.concatenate([positions for _, _, positions in batches])
    assert np.unique(seeds, return_counts=True)[1].max() == 936
    assert np.unique(positions, return_counts=True)[1].max() >= 938
    assert len(set(zip(seeds.tolist(), positions.tolist(), strict=True))) == 2000


def test_every_test_tells_what_it_could_have_seen():
    result = verify(GumbelSampler())
    tests = result.metrics["tests"]
    assert len(tests) == 10
    assert all(
        test["could_see"] <= test["must_see"] and test["draws"] >= test["min_num_samples"] for test in tests.values()
    )
    errors = [test["temperature_error"] for test in tests.values() if "temperature_error" in test]
    assert len(errors) == 3
    assert max(errors) < 0.2
    assert f"{max(errors):.0%}" in result.summary


def test_a_run_is_repeatable():
    first, second = verify(GumbelSampler(), seed=5), verify(GumbelSampler(), seed=5)
    assert first == second
    assert verify(GumbelSampler(), seed=6).metrics != first.metrics


# What the arguments must not be used for, and how an argument is changed so that the draw agrees with the change.
SPOILED = {
    "temperature": lambda logits, temperature, seeds, positions: temperature.fill(1.0),
    "seeds": lambda logits, temperature, seeds, positions: np.bitwise_and(seeds, LOW, out=seeds),
    "positions": lambda logits, temperature, seeds, positions: np.mod(positions, 16, out=positions),
    "logits": lambda logits, temperature, seeds, positions: logits.fill(0.0),
}


@pytest.mark.parametrize("argument", SPOILED)
def test_a_sampler_that_changes_its_arguments_is_found_out(argument):
    class InPlace(GumbelSampler):
        def sample(self, *arguments):
            SPOILED[argument](*arguments)
            return super().sample(*arguments)

    (finding,) = verify(InPlace()).findings
    assert finding.code == "MRV403"
    assert finding.title.endswith(f"changes its arguments: {argument}")


@pytest.mark.parametrize("answer", [[[1], [1, 2]], None, object(), ["x"] * 64, np.ones(64, bool)])
def test_junk_is_a_contract_violation(answer):
    (finding,) = verify(SimpleNamespace(name="junk", sample=lambda *arguments: answer)).findings
    assert finding.code == "MRV403"


def test_a_sampler_that_raises_is_a_finding():
    (finding,) = verify(SimpleNamespace(name="broken", sample=lambda *arguments: 1 / 0)).findings
    assert finding.code == "MRV307"
    assert "ZeroDivisionError" in finding.title


@pytest.mark.parametrize("inner", [None, object(), SimpleNamespace(sample=len)])
def test_a_target_without_the_sampler_it_promises(inner):
    result = verify(inner)
    assert result.verdict is RunVerdict.FAIL
    assert by_code(result)["MRV403"].title == "target numpy gives no sampler: it has no sample() or no name"


class Greedy(GumbelSampler):
    """Right but for greedy draws."""

    choose: Callable = staticmethod(lambda logits: logits.argmax(axis=1))

    def sample(self, logits, temperature, seeds, positions):
        return np.where(temperature > 0, super().sample(logits, temperature, seeds, positions), self.choose(logits))


class Ties(Greedy):
    choose = staticmethod(lambda logits: logits.shape[1] - 1 - np.nan_to_num(logits, nan=-99)[:, ::-1].argmax(axis=1))


class Strays(GumbelSampler):
    """Reads one lane too far in a flat table."""

    def sample(self, logits, temperature, seeds, positions):
        stray = np.append(logits[1:, :1], logits[:1, :1], axis=0) if logits.shape[1] < V else logits[:, :0]
        return super().sample(np.concatenate([logits, stray], axis=1), temperature, seeds, positions)


# Right on ordinary draws, wrong at one edge, and the edge that must show it.
AT_AN_EDGE = {
    "temperature": (
        GumbelSampler(temperature=lambda t: np.maximum(t, np.float32(0.5))),
        "MRV402",
        "far seeds, positions and temperatures",
    ),
    "positions": (
        GumbelSampler(keys=lambda seeds, positions: (seeds, positions % 4096)),
        "MRV402",
        "far seeds, positions and temperatures",
    ),
    "ties": (Ties(), "MRV402", "greedy rows with ties, -inf and NaN"),
    "NaN wins": (Greedy(), "MRV403", "greedy rows with ties, -inf and NaN"),
    "stray lane": (Strays(), "MRV403", "vocabulary of -1 columns"),
    "coarse noise": (
        GumbelSampler(noise=lambda gumbel, logits: np.where(gumbel > 5.0, gumbel + np.float32(1e-4), gumbel)),
        "MRV402",
        "tails of the noise",
    ),
}


@pytest.mark.parametrize("case", AT_AN_EDGE)
def test_a_fault_at_an_edge_is_found_there(case):
    sampler, code, edge = AT_AN_EDGE[case]
    result = verify(sampler)
    assert result.verdict is RunVerdict.FAIL
    assert edge in result.metrics["wrong_edges"]
    assert code in {finding.code for finding in result.findings}
    assert any(finding.title.endswith(edge) for finding in result.findings)


@pytest.mark.parametrize("seed", range(10))
def test_a_right_sampler_is_right_at_the_edges_with_every_seed(seed):
    result = check_edges(GumbelSampler(), LOGITS[:4], EXACT, seed)
    assert result.wrong == {}
    assert (len(result.names), result.draws) == (6, 102)
