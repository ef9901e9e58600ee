"""Min-p, top-k and top-p against sorting, with exact masses, however the search is divided and whatever has room."""

import itertools
import os

import numpy as np
import pytest

from mrv2.fuzz.mutants import Mutation, mutated_package

from .nucleus_cases import Filters, expected, found

V = 700

FILTERS = (
    Filters(),
    *(Filters(top_p=p) for p in (1e-30, 0.1, 0.5, 0.9, 0.999)),
    *(Filters(top_k=k) for k in (1, 2, 7, 8, 9, 44, 45, 300, V, V + 1)),
    *(Filters(top_k=k, top_p=p) for k, p in ((1, 0.8), (7, 0.8), (20, 0.3), (20, 0.6), (40, 0.4), (300, 0.8))),
    Filters(min_p=0.01),
    Filters(min_p=0.01, top_p=0.7),
    Filters(min_p=0.2, top_k=40, top_p=0.95),
    Filters(min_p=1.0, top_k=5, top_p=0.5),
)
GROUPING = {"group": 16, "tile": 2, "most": 44, "likely": 16, "list": 64, "warps": 4}
SEARCH = {
    "sample": 128, "run": 2, "sample_warps": 4, "rounds": 4, "slots": 64, "parts": 3, "part_blocks": 2, "tile": 8,
    "warps": 4, "settle_block": 32, "settle_warps": 4,
}  # fmt: skip
ROOMS = {
    "ample": ({}, {}),
    "no list": ({"list": 2}, {}),
    "no groups": ({"most": 0}, {}),
    "one likely": ({"likely": 1}, {}),
    "no slots": ({"likely": 1}, {"slots": 1}),
    "a sample of two": ({"likely": 1}, {"sample": 2, "run": 1}),
}


pytestmark = pytest.mark.usefixtures("compiled_kernels")


def rows():
    """Logits by kind, float32 [V]."""
    random = np.random.default_rng(0)
    normal = random.normal(size=V).astype(np.float32)
    yield "normal", normal
    yield "wide", 30 * normal
    yield "coarse", np.round(2 * normal) / 2
    yield "equal", np.full(V, 3.5, dtype=np.float32)
    yield "descending", np.sort(normal)[::-1].copy()
    yield "five above the rest", np.where(np.arange(V) % 140 == 9, np.arange(V) / 700 + 1, 0).astype(np.float32)
    yield "one group", np.where(np.arange(V) // 16 == 7, normal + 9, normal)
    yield "one peak", np.where(np.arange(V) == 699, np.float32(20), normal)
    yield "zeros of both signs", np.where(normal > 0, 0.0, -0.0).astype(np.float32)
    yield "mostly minus infinity", np.where(normal > 2, normal, -np.inf).astype(np.float32)
    yield "nothing", np.full(V, -np.inf, dtype=np.float32)
    sampled = np.isin(np.arange(V) // 2, (2 * np.arange(64) + 1) * (V // 2) // 128)  # by the "one likely" of ROOMS
    yield "likely ones unseen", (np.where(sampled, -0.5, -0.1) + 0.01 * normal).astype(np.float32)
    yield "unlikely ones unseen", (np.where(sampled, -0.1, -0.5) + 0.01 * normal).astype(np.float32)
    infinite = normal.copy()
    infinite[7], infinite[::3] = np.inf, -np.inf
    yield "infinite", infinite


def thresholds(room=({}, {}), device="cpu", package="mrv2.refrunner"):
    """Of all PAIRS, with rooms that differ from those above."""
    return found(PAIRS, GROUPING | room[0], SEARCH | room[1], device, package).thresholds


PAIRS = [(logits, filters) for (_, logits), filters in itertools.product(rows(), FILTERS)]
NAMES = [f"{kind}, {filters}" for (kind, _), filters in itertools.product(rows(), FILTERS)]
WHOLE_ROWS = ({"most": 0, "likely": 1, "list": 2}, {"slots": 1})


@pytest.mark.parametrize("room", ROOMS)
def test_they_are_those_of_sorting(device, room):
    right = right_ones()
    if device == "cuda":  # another exponential, so other masses: what the search in whole rows finds is right
        whole = thresholds(WHOLE_ROWS, device)
        right = [there if pair[1].top_p < 1 else here for pair, here, there in zip(PAIRS, right, whole, strict=True)]
    assert dict(zip(NAMES, thresholds(ROOMS[room], device), strict=True)) == dict(zip(NAMES, right, strict=True))


def between_halves(tiny):
    """Two hundred logits of about 98 and of about -98 each, and tiny ones in between: float32 [V]."""
    far = 98 * np.linspace(0.5, 1, 200)
    return np.random.default_rng(2).permutation(np.concatenate([far, -far, tiny]).astype(np.float32))


@pytest.mark.parametrize("slots", [1024, 32])
def test_quotients_in_the_middle_of_two_subnormal_numbers_are_rounded_as_the_draw_rounds_them(device, slots):
    """With 1,024 slots they are listed, where a product was kept for a quotient; with 32 a round finds their range."""
    odd = 49 * (2 * np.arange(300) - 299) * 2.0**-149
    pairs = [
        (between_halves(tiny), Filters(top_p=share, temperature=98))
        for tiny, share in itertools.product((odd, np.full(300, 49 * 127 * 2.0**-149)), (0.55, 0.6, 0.65, 0.7, 0.75))
    ]
    thresholds = found(pairs, GROUPING, SEARCH | {"slots": slots}, device).thresholds
    if device == "cpu":
        assert thresholds == [expected(*pair) for pair in pairs]
    assert thresholds == found(pairs, GROUPING | WHOLE_ROWS[0], SEARCH | WHOLE_ROWS[1], device).thresholds


FINDING, ROUNDS, NUCLEUS = "kernels/filters.py", "kernels/nucleus_rounds.py", "kernels/nucleus.py"
# A fault, and in which room it shows. Others only make the search take longer, since exact masses judge it.
FAULTS = {
    "equals of the k-th weigh nothing": ("ample", FINDING, "whole += equal *", "whole += 0 *"),
    "the k-th of the list is one too low": ("ample", FINDING, "few), line + 1, count)", "few), line + 1, count + 1)"),
    "what is not kept weighs": ("one likely", ROUNDS, "as_logit(cut), largest)", "-1e38, largest)"),
    "a group is not read": ("one likely", ROUNDS, "other=LOWEST) >= least", "other=LOWEST) > least"),
    "the highest is not listed": ("one likely", ROUNDS, "(logit <= most)", "(logit < most)"),
    "what is above is forgotten": ("one likely", NUCLEUS, "short, above, high_mass", "short, 0, high_mass"),
    "all equal where they are not": ("no slots", NUCLEUS, "if threshold < high:", "if found < 0:"),
}


@pytest.mark.skipif(not os.environ.get("MRV2_SAMPLER_MUTANTS"), reason="MRV2_SAMPLER_MUTANTS=1 runs it")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault):
    room, *mutation = FAULTS[fault]
    with mutated_package(Mutation("nucleus", *mutation, "see FAULTS")) as package:
        assert thresholds(ROOMS[room], package=package) != right_ones()


def right_ones():
    return [expected(*pair) for pair in PAIRS]
