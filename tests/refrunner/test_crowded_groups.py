"""Top-k where the likeliest tokens are neighbours, as in a vocabulary sorted by frequency: too many for the list."""

import itertools

import numpy as np
import pytest

from mrv2.fuzz.mutants import Mutation, mutated_package

from .nucleus_cases import Filters, expected, found

V = 160 * 128
GROUPING = {"group": 128, "tile": 16, "most": 512, "likely": 64, "list": 512, "warps": 4}
SEARCH = {
    "sample": 2048, "run": 8, "sample_warps": 4, "rounds": 4, "slots": 1024, "parts": 4, "part_blocks": 5, "tile": 8,
    "warps": 4, "settle_block": 4096, "settle_warps": 4,
}  # fmt: skip
#: Two groups have room on the list, and more than 50 tokens above the line.
FEW = (Filters(top_k=50), Filters(top_k=50, top_p=0.9), Filters(top_k=20, min_p=0.01))
#: They have not 150; then one program searches the row.
MANY = (Filters(top_k=150), Filters(top_k=150, top_p=0.9))

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def rows():
    """Logits, float32 [V], whose likeliest 50 tokens are in very few groups, and the next thousands beside them."""
    normal = np.random.default_rng(0).normal(size=V)
    zipf = -1.25 * np.log(np.arange(V) + 1)
    return [row.astype(np.float32) for row in (zipf, np.sort(zipf), np.sort(normal), zipf + 0.2 * normal)]


def thresholds(filters, device="cpu", package="mrv2.refrunner"):
    """Thresholds of all rows with each of the filters."""
    return found(list(itertools.product(rows(), filters)), GROUPING, SEARCH, device, package).thresholds


def right_ones(filters):
    return [expected(*pair) for pair in itertools.product(rows(), filters)]


def test_thresholds_are_those_of_sorting(device):
    # A GPU has another exponential, so other masses.
    filters = [one for one in FEW + MANY if device == "cpu" or one.top_p == 1]
    assert thresholds(filters, device) == right_ones(filters)


def test_the_row_is_searched_only_where_there_is_no_room():
    """The search gives another answer than asked for: only who calls it gets it."""
    another = ("LOWEST, count, BLOCK)", "LOWEST, 1, BLOCK)")
    with mutated_package(Mutation("crowded", "kernels/filters.py", *another, "see the test")) as package:
        assert thresholds(FEW, package=package) == right_ones(FEW)
        assert thresholds(MANY, package=package) != right_ones(MANY)


def test_too_few_tokens_above_the_line_are_not_taken_for_enough():
    fault = ("& ((crowded == 0) | (found >= count))", "")
    with mutated_package(Mutation("crowded", "kernels/filters.py", *fault, "see the test")) as package:
        assert thresholds(MANY, package=package) != right_ones(MANY)
