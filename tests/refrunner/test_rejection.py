"""Rejection sampling of drafts: equal to the formulas for the same keys, and to the exact joint distribution.

The joint table of draft and token is exact under the null: P(d, accepted) = min(p(d), q(d)), and P(d, rejected, r) =
(q(d) - p(d))+ (p(r) - q(r))+ / sum (p - q)+. It sees faults that the tokens' own distribution hides.
"""

import os

import numpy as np
import pytest
from scipy import stats

from mrv2.checks import triton_cpu
from mrv2.fuzz.mutants import mutated_package
from mrv2.fuzz.mutants.speculation import DISTRIBUTION
from mrv2.fuzz.targets.speculation import ReferenceSpeculation
from mrv2.refrunner.oracle import speculation as oracle

# 4.4e3 draws show the harder of the two faults that must be found (V = 16, reversed draft) with a power of 0.9 at 1e-6.
DRAWS = 12_000
FALSE_ALARM = 1e-4
MANY = bool(os.environ.get("MRV2_SPECULATION_MUTANTS"))
MUTANTS = DISTRIBUTION if MANY else DISTRIBUTION[:3]


def softmax(logits):
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum(axis=-1, keepdims=True)


def reversed_draft(vocab_size, drafts):
    """Target logits and those of a draft that likes best what the target likes least."""
    shares = {3: (0.1, 0.6, 0.3)}.get(vocab_size, tuple(np.arange(1, vocab_size + 1) ** 1.5))
    target = np.log(np.array(shares, dtype=np.float64) / np.sum(shares))
    rows = np.stack([np.roll(target, offset) for offset in range(drafts + 1)]).astype(np.float32)
    return rows, rows[:drafts, ::-1].copy()


def tables(vocab_size, name):
    """A target and a draft by name.

    With three tokens a reversed draft leaves one token only that the target likes better, so what replaces a draft is
    certain, whatever the noise; a draft that is sure of the wrong one leaves two.
    """
    target, draft = reversed_draft(vocab_size, 2)
    return (target, draft) if name == "reversed" else (target, np.log(np.float32([[0.7, 0.1, 0.2]] * 2)))


def keys(count, temperature=1.0, position=7):
    """Temperature, seed and position of each draw."""
    return (
        np.full(count, temperature, np.float32),
        np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        np.full(count, position, np.int64),
    )


def draws(target, draft, count=DRAWS, package="mrv2.refrunner", verification="token", temperature=1.0, position=7):
    with triton_cpu.enabled() as session:
        drawn = ReferenceSpeculation(verification, package).speculate(
            target, draft, *keys(count, temperature, position)
        )
    assert session.findings == []
    return drawn


def p_value(counts, expected):
    """Of a G test; what cannot happen must not, and cells that are expected less than 25 times go together."""
    if counts[expected == 0].any():
        return 0.0
    rare = (expected < 25) & (expected > 0)
    often = expected >= 25
    observed, wanted = counts[often], expected[often]
    if rare.any():
        observed, wanted = np.append(observed, counts[rare].sum()), np.append(wanted, expected[rare].sum())
    return float(stats.power_divergence(observed, wanted * observed.sum() / wanted.sum(), lambda_=0).pvalue)


def joint_p_value(drawn, p, q):
    """Of the table of first draft and first token; its diagonal holds the accepted drafts."""
    size, count = len(p), len(drawn.drafts)
    rest, excess = np.maximum(p - q, 0), np.maximum(q - p, 0)
    expected = np.diag(np.minimum(p, q)) + np.outer(excess, rest / rest.sum())
    counts = np.zeros((size, size))
    np.add.at(counts, (drawn.drafts[:, 0], drawn.emitted[:, 0]), 1)
    return p_value(counts.ravel(), expected.ravel() * count)


def sequence_p_value(drawn, p):
    """Of the table of four tokens in a row, which are independent here; p is [4, 3]."""
    # Where a step ended early, the next one would draw from the target: the generator stands for it.
    later = [np.random.default_rng(place).choice(3, len(drawn.emitted), p=p[place]) for place in range(4)]
    tokens = np.where(drawn.emitted >= 0, drawn.emitted, np.stack(later, axis=1))
    cells = np.bincount(tokens @ (27, 9, 3, 1), minlength=81)
    return p_value(cells, np.einsum("a,b,c,d->abcd", *p).ravel() * len(tokens))


@pytest.mark.parametrize(("vocab_size", "name"), [(3, "reversed"), (3, "sure"), (16, "reversed")])
def test_the_joint_table_of_draft_and_token_is_exact(vocab_size, name):
    target, draft = tables(vocab_size, name)
    drawn = draws(target, draft)
    assert joint_p_value(drawn, softmax(target)[0], softmax(draft)[0]) > FALSE_ALARM


@pytest.mark.parametrize("fault", MUTANTS, ids=lambda fault: fault.name)
def test_a_planted_fault_breaks_the_joint_table(fault):
    with mutated_package(fault) as package:
        for vocab_size, name in ((3, "sure"), (16, "reversed")):
            target, draft = tables(vocab_size, name)
            drawn = draws(target, draft, package=package)
            assert joint_p_value(drawn, softmax(target)[0], softmax(draft)[0]) < 1e-9


@pytest.mark.parametrize("verification", ["token", "block"])
def test_what_comes_out_is_distributed_as_without_drafts(verification):
    target, draft = reversed_draft(3, 3)
    drawn, p = draws(target, draft, verification=verification), softmax(target)
    assert sequence_p_value(drawn, p) > FALSE_ALARM


def test_blocks_accept_more():
    target, draft = reversed_draft(3, 3)
    one_by_one, together = (
        (draws(target, draft, verification=way).emitted >= 0).sum() - DRAWS for way in ("token", "block")
    )
    assert together > one_by_one * 1.02


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_every_decision_is_that_of_the_formulas(verification, temperature):
    random = np.random.default_rng(3)
    target, draft = (random.normal(size=(rows, 19)).astype(np.float32) * 2 for rows in (4, 3))
    drawn = draws(target, draft, 300, verification=verification, temperature=temperature, position=1000)
    divided = [logits.astype(np.float64) / np.float32(temperature) for logits in (target, draft)]
    close = 0
    for index, (drafts, emitted) in enumerate(zip(drawn.drafts.tolist(), drawn.emitted.tolist(), strict=True)):
        seed = index * 0x9E3779B97F4A7C15 % 2**64
        assert drafts == [oracle.draw_draft(divided[1][j], seed, 1000 + j, j) for j in range(3)]
        wanted = oracle.verify(*divided, drafts, seed, 1000, in_blocks=verification == "block")
        same = [token for token in emitted if token >= 0] == list(wanted.token_ids)
        assert same or wanted.margin < 1e-5, (index, wanted, emitted)
        close += not same
    assert close <= 1


def test_a_greedy_request_accepts_what_it_would_draw():
    random = np.random.default_rng(5)
    target, draft = (random.integers(0, 3, (rows, 5)).astype(np.float32) for rows in (4, 3))
    drawn = draws(target, draft, 4, temperature=0.0)
    best = target.argmax(axis=1).tolist()
    assert drawn.drafts.tolist() == [draft.argmax(axis=1).tolist()] * 4
    expected = oracle.accept_equal(best, drawn.drafts[0].tolist())
    assert [token for token in drawn.emitted[0].tolist() if token >= 0] == list(expected)


@pytest.mark.parametrize("verification", ["token", "block"])
def test_interpreted_kernels_decide_the_same(verification):
    random = np.random.default_rng(3)
    target, draft = (random.normal(size=(rows, 11)).astype(np.float32) * 2 for rows in (3, 2))
    asked = (target, draft, np.array([1, 0.5, 0, 0.8], np.float32), *keys(4)[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        interpreted = ReferenceSpeculation(verification).speculate(*asked)
    with triton_cpu.enabled():
        compiled = ReferenceSpeculation(verification).speculate(*asked)
    assert interpreted.drafts.tolist() == compiled.drafts.tolist()
    assert interpreted.emitted.tolist() == compiled.emitted.tolist()


@pytest.mark.parametrize("verification", ["token", "block"])
def test_no_draft_is_accepted_where_every_token_is_forbidden(verification):
    """Without drafts the token is id 0 there; the ratio of the two models is no number."""
    target, draft = (np.zeros((rows, 5), np.float32) for rows in (4, 3))
    target[1:] = -np.inf
    drawn = draws(target, draft, 400, verification=verification)
    lengths = (drawn.emitted >= 0).sum(axis=1)
    assert set(lengths.tolist()) <= {1, 2} and (lengths == 2).sum() > 100
    assert set(drawn.emitted[lengths == 2, 1].tolist()) == {0}


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_draft_model_without_proper_logits_changes_nothing(verification, broken):
    target, draft = reversed_draft(3, 3)
    draft[1] = broken
    drawn, p = draws(target, draft, verification=verification), softmax(target)
    assert sequence_p_value(drawn, p) > FALSE_ALARM
