"""The bounds that decide whose exact score is computed at all: that they hold, and that nothing else decides."""

import importlib
import itertools

import numpy as np
import pytest
import torch
import triton.language as tl

from mrv2.fuzz.mutants import Mutation, mutated_package
from mrv2.refrunner.kernels.gumbel import coarse_logarithm, gumbel_noise
from mrv2.refrunner.kernels.launch import kernel
from mrv2.refrunner.kernels.logits_processing import BIAS, TOP_P
from mrv2.refrunner.sampling import blocks
from mrv2.refrunner.sampling import gumbel as module
from mrv2.refrunner.sampling.blocks import Parts

pytestmark = pytest.mark.usefixtures("compiled_kernels")

V = 300
TEMPERATURES = (0.0, 1e-30, 1e-3, 0.5, 1.0, 3.0, 50.0, 1e30)
# The smallest normal number: below it some devices read zeros.
LEAST = float(np.finfo(np.float32).tiny)


@kernel
def write_bounds(high_ptr, low_ptr, noise_ptr, coarse_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    high, low = tl.load(high_ptr + lane).to(tl.uint32), tl.load(low_ptr + lane).to(tl.uint32)
    tl.store(noise_ptr + lane, gumbel_noise(high, low))
    tl.store(coarse_ptr + lane, coarse_logarithm(high))


def noise_and_bounds(high, low, device):
    """Noise of words, and its bounds by their high halves, float64, nats; the number of words a multiple of 1024."""
    words = (torch.from_numpy(part.astype(np.int64)).to(device) for part in (high, low))
    noise, coarse = torch.empty(2, len(high), device=device)
    write_bounds[(len(high) // 1024,)](*words, noise, coarse, BLOCK=1024)
    noise, coarse = (values.cpu().numpy().astype(np.float64) for values in (noise, coarse))
    return noise, np.log(2) * (96 - coarse / 2**17)


def test_no_noise_is_above_its_bound(device):
    """Every power of two and its neighbours, where the line touches the logarithm, and random words of every size."""
    powers = [(1 << bit) + step for bit in range(33) for step in (-2, -1, 0, 1, 2)]
    random = np.random.default_rng(0).integers(0, 2**32, 3950, dtype=np.uint64) >> np.arange(3950, dtype=np.uint64) % 32
    high = np.concatenate([np.array(powers).clip(0, 2**32 - 1).astype(np.uint64), random])[:4096]
    high = np.concatenate([high, np.zeros(-len(high) % 1024, np.uint64)])
    for low in (0, 7, 2**32 - 1):
        noise, bound = noise_and_bounds(high, np.full_like(high, low), device)
        assert (noise - bound).max() <= 1e-5
        # Not idle either: where large noise comes from, 0.0861 is what the line loses of a binary logarithm.
        rare = (high > 0) & (high < 2**24)
        assert (bound - noise)[rare].max() <= 0.0862 * np.log(2) + np.log(2) / high[rare].min() + 0.01


def logits_of_many_kinds(device):
    """Rows by name, [16, V]."""
    normal = torch.from_numpy(np.random.default_rng(1).normal(size=(16, V)).astype(np.float32)).to(device)
    peaked, spoiled = normal.clone(), normal.clone()
    peaked[:, [5, 5 + V // 2]] = 30.0
    spoiled[::2, 3] = float("nan")
    spoiled[1::3, 7] = float("inf")
    spoiled[5::7] = float("-inf")
    return {
        "normal": normal,
        "wide": 40 * normal,
        "equal": torch.zeros_like(normal),
        "two peaks in one lane": peaked,
        "mostly minus infinity": torch.where(normal > 1.5, normal, float("-inf")),
        "huge": normal * 1e38,
        "tiny": normal * LEAST,
        "spoiled": spoiled,
    }


def outcomes(package, logits, staged):
    """Drawn with and without bounds, and with log-probabilities."""
    gumbel = importlib.import_module(f"{package}.sampling.gumbel")
    count, device = len(logits), logits.device
    rows = torch.arange(count, dtype=torch.int32, device=device)
    temperatures = torch.tensor(TEMPERATURES * 2, device=device)
    processed = None
    if staged:
        stages = rows % 2 * TOP_P.value + rows % 3 // 2 * BIAS.value
        processed = gumbel.Processed(stages, logits / 0.7, rows * 0 + (1 << 28))
    inputs = (logits, rows, rows + 3, temperatures, torch.arange(count, device=device) * 0x9E3779B97F4A7C1, processed)
    return gumbel.draw(*inputs), gumbel.draw(*inputs, rivals=0), gumbel.sample(*inputs).result


@pytest.mark.parametrize("staged", [False, True])
def test_bounds_change_no_result(device, staged):
    """Tokens, numbers of NaN, the first of them, and whether no token was left."""
    for name, logits in logits_of_many_kinds(device).items():
        screened, exact, told = outcomes("mrv2.refrunner", logits, staged)
        assert torch.equal(screened, exact), name
        assert torch.equal(told, exact), name


def test_logits_of_half_precision_are_drawn_as_their_values(device):
    logits = logits_of_many_kinds(device)["wide"].bfloat16()
    rows = torch.arange(len(logits), dtype=torch.int32, device=device)
    others = rows, rows, torch.ones(len(logits), device=device), rows.long()
    assert torch.equal(module.draw(logits, *others), module.draw(logits.float(), *others))


DIVISIONS = (
    Parts(number=5, most=8, blocks=4, block=16, groups=2, search=2, lanes=4, warps=4, few=1, chunk=2),
    Parts(number=3, most=128, blocks=2, block=64, groups=1, search=4, lanes=1, warps=4, few=1, chunk=4),
)


@pytest.mark.parametrize("parts", DIVISIONS, ids=lambda parts: f"{parts.number}x{parts.blocks}x{parts.block}")
def test_the_division_of_rows_changes_no_result(device, parts):
    """Nor do the lanes in which bounds are handed on to the second launch, down to one of a whole part."""
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    for name, logits in logits_of_many_kinds(device).items():
        rows = torch.arange(len(logits), dtype=torch.int32, device=device)
        inputs = (logits, rows, rows + 3, torch.tensor(TEMPERATURES * 2, device=device), rows.long())
        told = module.Sampled.empty(len(logits), logits.device)
        module.launch(*inputs, module.Processed(zero.expand(2), logits, zero), told, parts, statistics=False)
        assert torch.equal(told.result, module.draw(*inputs, rivals=0)), name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_OFFSET = tl.constexpr(66.5", "_OFFSET = tl.constexpr(60.5"),
        ("score = bound / scale + _OFFSET", "score = bound / scale + 60.5"),
    ],
    ids=["bounds", "reach"],
)
def test_a_bound_that_is_too_low_shows(old, new, monkeypatch):
    """The control: who has the largest bound wins more often than not, and not always."""
    low = Mutation("low", "kernels/draw.py", old, new, "")
    monkeypatch.setattr(blocks, "MOST_LANES", 8)
    rows = torch.arange(2000, dtype=torch.int32)
    logits = torch.linspace(-2.0, 2.0, V).expand(2000, -1)
    inputs = (logits, rows * 0, rows, torch.ones(1), torch.zeros(1, dtype=torch.int64))
    exact = module.draw(*inputs, rivals=0)[0]
    assert torch.equal(module.draw(*inputs)[0], exact)
    with mutated_package(low) as package:
        monkeypatch.setattr(importlib.import_module(f"{package}.sampling.blocks"), "MOST_LANES", 8)
        found = importlib.import_module(f"{package}.sampling.gumbel").draw(*inputs)[0]
    assert 0 < int((found != exact).sum()) < 1000


def test_many_rivals_are_followed_up_and_more_are_searched(device):
    """Equal logits of a greedy row reach the line together: the lowest of 2, 8, 9 or all of them wins."""
    for number, last in itertools.product((2, 8, 9, V), (0, 1)):
        logits = torch.zeros(1, V, device=device)
        chosen = torch.arange(number, device=device) * (V // number) + last * (number < V)
        logits[0, chosen] = 1.0
        zeros = torch.zeros(1, dtype=torch.int32, device=device)
        tokens = module.draw(logits, zeros, zeros, torch.zeros(1, device=device), zeros.long())
        assert tokens[0].tolist() == [int(chosen[0])]


def test_where_nothing_can_be_drawn_the_value_is_minus_infinity(device):
    """Also where the token that stands for all has no number for a logit."""
    logits = torch.full((2, V), float("-inf"), device=device)
    logits[0, 0] = float("nan")
    rows = torch.arange(2, dtype=torch.int32, device=device)
    told = module.sample(logits, rows, rows, torch.ones(2, device=device), rows.long(), report_logarithm=False)
    assert told.result.tolist() == [[0, 0], [1, 0], [0, 2**31 - 1], [1, 1]]
    assert told.logprobs.tolist() == [float("-inf")] * 2
