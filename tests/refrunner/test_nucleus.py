"""Min-p, top-k and top-p against sorting, with exact masses, however the search is divided and whatever has room."""

import importlib
import itertools
import os
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.fuzz.mutants import Mutation, mutated_package

V, TEMPERATURE = 700, np.float32(0.8)
LOWEST, UNIT = -(2**31), np.float32(2.0**40)


@dataclass(frozen=True)
class Filters:
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


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
    "sample": 128, "run": 2, "sample_warps": 4, "slots": 256, "parts": 3, "part_blocks": 2, "block": 128, "warps": 4,
    "settle_block": 32, "settle_warps": 4,
}  # fmt: skip
ROOMS = {
    "ample": ({}, {}),
    "no list": ({"list": 2}, {}),
    "no groups": ({"most": 0}, {}),
    "one likely": ({"likely": 1}, {}),
    "no slots": ({"likely": 1}, {"slots": 1}),
    "a sample of two": ({"likely": 1}, {"sample": 2}),
}


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    with triton_cpu.enabled():
        yield


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
    sampled = np.isin(np.arange(V) // 2, np.arange(64) * (V // 2) // 64)  # by the "one likely" of ROOMS
    yield "likely ones unseen", (np.where(sampled, -0.5, -0.1) + 0.01 * normal).astype(np.float32)
    yield "unlikely ones unseen", (np.where(sampled, -0.1, -0.5) + 0.01 * normal).astype(np.float32)
    infinite = normal.copy()
    infinite[7], infinite[::3] = np.inf, -np.inf
    yield "infinite", infinite


def keys_of(logits):
    """The integers by which logits are compared, int64."""
    bits = (logits + np.float32(0.0)).astype(np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)


def weights_of(logits):
    """Of each token a whole number of 2**-40, as Python integers: no sum is rounded."""
    with np.errstate(invalid="ignore"):
        share = np.where(logits == logits.max(), np.float32(1), np.exp(logits - logits.max()))
    return (share * UNIT).astype(np.int64).astype(object)


def expected(logits, filters):
    """By sorting."""
    logits = logits / TEMPERATURE
    keys, floor = keys_of(logits), LOWEST
    if filters.min_p:
        floor = int(keys_of(logits.max() + np.log(np.float32(filters.min_p), dtype=np.float32))[()])
    if 0 < filters.top_k <= V:
        floor = max(floor, int(np.sort(keys)[-filters.top_k]))
    if filters.top_p == 1:
        return floor
    order = np.argsort(-keys, kind="stable")
    order = order[keys[order] >= floor]
    masses = np.cumsum(weights_of(logits)[order])
    target = max(1, int(np.ceil(np.float64(masses[-1]) * np.float64(np.float32(filters.top_p)))))
    reached = [int(keys[token]) for token, mass in zip(order, masses, strict=True) if mass >= target]
    return max(floor, reached[0])


def found(pairs, room=({}, {}), device="cpu", package="mrv2.refrunner"):
    """Thresholds of rows with filters, by the kernels of a package."""
    stages = importlib.import_module(f"{package}.kernels.logits_processing")
    host = importlib.import_module(f"{package}.sampling.filters")
    blocks = importlib.import_module(f"{package}.sampling.blocks")
    count, grouping = len(pairs), blocks.Grouping(**GROUPING | room[0])
    numbers = torch.zeros(count, stages.NUMBERS.value, dtype=torch.int32)
    reals = torch.zeros(count, stages.REALS.value)
    for index, (_, filters) in enumerate(pairs):
        numbers[index, stages.STAGES.value] = (
            stages.MIN_P.value * bool(filters.min_p)
            + stages.TOP_K.value * bool(filters.top_k)
            + stages.TOP_P.value * (filters.top_p < 1)
        )
        numbers[index, stages.COLUMN_TOP_K.value] = filters.top_k
        reals[index, stages.COLUMN_TOP_P.value] = filters.top_p
        reals[index, stages.LOG_MIN_P.value] = float(np.log(np.float32(filters.min_p or 1)))
        reals[index, stages.TEMPERATURE.value] = float(TEMPERATURE)
    logits = torch.from_numpy(np.stack([logits for logits, _ in pairs]))
    keys = keys_of(np.pad(logits.numpy() / TEMPERATURE, ((0, 0), (0, -V % grouping.group)), constant_values=-np.inf))
    maxima = torch.from_numpy(keys.reshape(count, -1, grouping.group).max(2).astype(np.int32))
    tensors = (logits, logits[:0], maxima, torch.arange(count, dtype=torch.int32), numbers, reals)
    with mock.patch.object(host, "search_of", return_value=blocks.Search(**SEARCH | room[1])):
        return host.thresholds_of(*(tensor.to(device) for tensor in tensors), stages.FILTERS.value, grouping).tolist()


PAIRS = [(logits, filters) for (_, logits), filters in itertools.product(rows(), FILTERS)]
NAMES = [f"{kind}, {filters}" for (kind, _), filters in itertools.product(rows(), FILTERS)]
WHOLE_ROWS = ({"most": 0, "likely": 1, "list": 2}, {"slots": 1})


@pytest.mark.parametrize("room", ROOMS)
def test_they_are_those_of_sorting(device, room):
    right = right_ones()
    if device == "cuda":  # another exponential, so other masses: what the search in whole rows finds is right
        whole = found(PAIRS, WHOLE_ROWS, device)
        right = [there if pair[1].top_p < 1 else here for pair, here, there in zip(PAIRS, right, whole, strict=True)]
    assert dict(zip(NAMES, found(PAIRS, ROOMS[room], device), strict=True)) == dict(zip(NAMES, right, strict=True))


NUCLEUS, FINDING = "kernels/nucleus.py", "kernels/filters.py"
# A fault, and in which room it shows. Most others only make the search take longer, since exact masses judge it.
FAULTS = {
    "what is above ends too low": ("one likely", NUCLEUS, "where(logit > high", "where(logit >= high"),
    "equals of the k-th weigh nothing": ("ample", FINDING, "whole += equal *", "whole += 0 *"),
    "the k-th of the list is one too low": ("ample", FINDING, "kth_of_tile(keys, line + 1, count)", "line"),
    "a sample without the likely is believed": ("one likely", NUCLEUS, "elif missing > 0:", "else:"),
    "a sample of the likely is believed": ("one likely", NUCLEUS, "tl.sum(weights, 0) >= missing", "found > 0"),
    "a full list is believed": ("no slots", NUCLEUS, "elif found <= SLOTS", "else"),
}


@pytest.mark.skipif(not os.environ.get("MRV2_SAMPLER_MUTANTS"), reason="MRV2_SAMPLER_MUTANTS=1 runs it")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault):
    room, *mutation = FAULTS[fault]
    with mutated_package(Mutation("nucleus", *mutation, "see FAULTS")) as package:
        assert found(PAIRS, ROOMS[room], package=package) != right_ones()


def right_ones():
    return [expected(*pair) for pair in PAIRS]
