"""How long the search for top-p takes: a few rounds over all of a row, and not one program, whatever the logits."""

import itertools
import os

import numpy as np
import pytest
import torch
import triton.language as tl

from mrv2.fuzz.mutants import Mutation, mutated_package
from mrv2.refrunner.kernels.launch import kernel
from mrv2.refrunner.kernels.nucleus_rounds import inverse_for, quotients

from .nucleus_cases import Filters, expected, found

V, SHARES = 40_000, (0.1, 0.5, 0.9, 0.95, 0.999)
GROUPING = {"group": 128, "tile": 16, "most": 512, "likely": 64, "list": 512, "warps": 4}
SEARCH = {
    "sample": 2048, "run": 8, "sample_warps": 4, "rounds": 4, "slots": 1024, "parts": 4, "part_blocks": 10, "tile": 8,
    "warps": 4, "settle_block": 4096, "settle_warps": 4,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("compiled_kernels")


def rows():
    """Logits by kind, float32 [V]: flat ones, those with few heavy tokens as of real models, and equal ones."""
    random = np.random.default_rng(0)
    normal = random.normal(size=V).astype(np.float32)
    rank = random.permutation(V)
    yield "normal", normal
    yield "normal times four", 4 * normal
    yield "normal times ten", 10 * normal
    yield "hardly different", normal / 100
    yield "bfloat16", torch.from_numpy(4 * normal).bfloat16().float().numpy()
    yield "bfloat16 times ten", torch.from_numpy(10 * normal).bfloat16().float().numpy()
    yield "coarse", np.round(2 * normal) / 2
    yield "equal", np.zeros(V, dtype=np.float32)
    yield "two values", np.where(rank < V // 3, 1.5, -2.25)
    for exponent in (0.8, 1.0, 1.2):
        yield f"Zipf {exponent}", -exponent * np.log(rank + 1)
    yield "Zipf, ascending", np.sort(-np.log(rank + 1))
    yield "Zipf, descending", -np.log(np.arange(V) + 1)
    yield "five giants", np.where(rank < 5, 12, normal)
    yield "two hundred giants", np.where(rank < 200, 9 + normal, normal)
    yield "heavy, and a tail", np.where(rank < 500, 3 * normal + 6, 1.5 * normal - 2)
    yield "two-sided exponential", 2 * np.sign(normal) * random.exponential(size=V)
    another = np.random.default_rng(1).normal(size=V)
    yield "normal, whose tail a coarse look at the sample misses", another
    yield "nearly ascending", np.sort(-1.1 * np.log(rank + 1)) + 0.5 * another
    yield "mostly minus infinity", np.where(rank < 3000, 3 * normal, -np.inf)


KINDS = [(kind, logits.astype(np.float32)) for kind, logits in rows()]
PAIRS = [(logits, Filters(top_p=share)) for (_, logits), share in itertools.product(KINDS, SHARES)]
NAMES = [f"{kind}, {share}" for (kind, _), share in itertools.product(KINDS, SHARES)]


@pytest.fixture(scope="module")
def result(device, compiled_kernels):
    return found(PAIRS, GROUPING, SEARCH, device)


def searched(result):
    """Rows that one program had to search."""
    return [name for name, so in zip(NAMES, result.searched, strict=True) if so]


def test_no_row_is_searched_by_one_program(result):
    assert searched(result) == []


def test_thresholds_are_those_of_sorting(device, result):
    if device == "cuda":
        pytest.skip("another exponential, so other masses: the next test compares with a search in whole rows")
    assert result.thresholds == [expected(*pair) for pair in PAIRS]


def test_where_there_is_no_room_rows_are_searched_and_thresholds_are_the_same(device, result):
    little = found(PAIRS, GROUPING, SEARCH | {"rounds": 2, "slots": 1}, device)
    assert sum(little.searched) > len(PAIRS) // 4
    assert little.thresholds == result.thresholds


NUCLEUS, ROUNDS, SAMPLE = (f"kernels/nucleus{which}.py" for which in ("", "_rounds", "_sample"))
FAULTS = {
    "many are listed": (ROUNDS, "few = low_mass", "few = -low_mass"),
    "nothing is listed": (ROUNDS, "<= SLOTS * weight_of", "< 0 * weight_of"),
    "an interval keeps its lower end": (NUCLEUS, "tl.where(enough, pivot + 1, low)", "tl.where(enough, low, low)"),
    "a sample of nothing": (SAMPLE, "& (logit <= line), weight", "& (logit > line), weight"),
}


@pytest.mark.skipif(not os.environ.get("MRV2_SAMPLER_MUTANTS"), reason="MRV2_SAMPLER_MUTANTS=1 runs it")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_search_that_takes_too_long_is_noticed(fault):
    with mutated_package(Mutation("rounds", *FAULTS[fault], "see FAULTS")) as package:
        assert searched(found(PAIRS, GROUPING, SEARCH, package=package))


@kernel
def write_quotients(x_ptr, quotient_ptr, divisor, compared, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    inverse = inverse_for(divisor, compared, 1.0, 1.0, 1.0, 1.0, 1.0)
    tl.store(quotient_ptr + place, quotients(tl.load(x_ptr + place), divisor, inverse))


def multiplied(x, divisor, compared=1.0, device="cpu"):
    """Quotients where none is compared with a smaller number than ``compared``, which may be products."""
    result = torch.empty(len(x), device=device)
    write_quotients[(1,)](torch.from_numpy(x).to(device), result, divisor, compared, SIZE=len(x))
    return result.cpu().numpy()


DIVISORS = [
    float(np.float32(divisor)) for divisor in (0.8, 1.0, 3.0, 1 / 3, 0.1, 1e-3, 50.0, 1.9999999, 1.0000001, 1e19)
]


@pytest.mark.parametrize("divisor", DIVISORS)
def test_products_are_quotients_rounded_once(device, divisor):
    bits = np.random.default_rng(1).integers(0, 2**32, 2**14, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.linspace(-40, 40, 2**14, dtype=np.float32)])
    x[:4] = np.inf, -np.inf, np.nan, 0.0
    with np.errstate(all="ignore"):
        right = x / np.float32(divisor)
    ordinary = ~(np.abs(right) < 2.0**-126)
    np.testing.assert_array_equal(multiplied(x, divisor, 1.0, device)[ordinary], right[ordinary])
    np.testing.assert_array_equal(multiplied(x, divisor, 1e-35, device), right)


def test_below_the_smallest_ordinary_number_they_may_not_be():
    x = (np.arange(2**14) * 2.0**-149).astype(np.float32)
    assert (multiplied(x, 98.0) != x / np.float32(98.0)).any()
    np.testing.assert_array_equal(multiplied(x, 98.0, 1e-35), x / np.float32(98.0))
