"""One reading of the logits for rows with filters: its maxima, and a draw that reads only the groups that matter."""

import importlib
import itertools
import os

import numpy as np
import pytest
import torch

from mrv2.fuzz.mutants import Mutation, mutated_package
from mrv2.refrunner.kernels.logits_processing import BIAS, MIN_P, NUMBERS, REALS, STAGES, TEMPERATURE, TOP_K
from mrv2.refrunner.sampling.blocks import Parts

pytestmark = pytest.mark.usefixtures("compiled_kernels")

V, GROUP = 300, 8
TEMPERATURES = (0.0, 1e-30, 1e-3, 0.5, 1.0, 3.0, 50.0, 1e30)
COUNT = 2 * len(TEMPERATURES)
LOWEST, MINUS_INFINITY = -(2**31), -(2**31) + 2**23 - 1
PARTS = (
    Parts(number=3, most=4, blocks=4, block=32, groups=2, search=2, lanes=4, warps=4, few=1, chunk=4),
    Parts(number=5, most=8, blocks=4, block=16, groups=1, search=4, lanes=1, warps=4, few=1, chunk=16),
)


def ordered(values):
    """The integers of `kernels.order.ordered`, of float32."""
    values = np.where(np.isnan(values), np.float32(-np.inf), values).astype(np.float32) + np.float32(0.0)
    bits = values.view(np.int32)
    return bits ^ ((bits >> 31) & 2**31 - 1)


def quotients(logits, temperatures):
    """What rows with filters only are drawn from, float32."""
    divisor = np.where(temperatures > 0, temperatures, 1).astype(np.float32)[:, None]
    with np.errstate(over="ignore", under="ignore"):
        return (logits / divisor).astype(np.float32)


def logits_of_many_kinds():
    """Rows by name, float32 [COUNT, V]."""
    normal = np.random.default_rng(1).normal(size=(COUNT, V)).astype(np.float32)
    peaked, spoiled, dropped, zeros = normal.copy(), normal.copy(), normal.copy(), np.zeros_like(normal)
    peaked[:, [5, 5 + V // 2]] = 30.0
    spoiled[::2, 3] = np.nan
    spoiled[1::4, V - 1] = np.nan
    spoiled[1::3, 7] = np.inf
    spoiled[5::7] = -np.inf
    spoiled[6, 64:192] = np.nan
    dropped[:, : V // 2] = -np.inf
    dropped[3] = -np.inf
    zeros[:, ::3] = -0.0
    tiny = (normal * np.finfo(np.float32).tiny).astype(np.float32)
    return {
        "normal": normal, "wide": 40 * normal, "peaked": peaked, "spoiled": spoiled, "dropped": dropped,
        "zeros": zeros, "ties": np.round(normal), "lanes": tied_in_two_lanes(), "tiny": tiny,
        "huge": np.clip(normal, -3, 3) * np.float32(1e38),
    }  # fmt: skip


def tied_in_two_lanes():
    """Two largest logits: of the first lane of listed places, but a later block of them, and of the second lane."""
    logits = np.full((COUNT, V), -9.0, np.float32)
    logits[:, [24, 40, 56, 72, 104]] = 1.0  # a token each of groups 3, 5, 7, 9 and 13
    logits[:, [28, 88]] = 2.0  # of groups 3 and 11: places 4 and 32
    return logits


def thresholds_of(values, k):
    """The k-th largest integer of each row; of some rows that of everything, or above everything."""
    keys = np.sort(ordered(values), axis=1)[:, ::-1]
    thresholds = keys[:, k - 1].copy()
    thresholds[7], thresholds[8], thresholds[9] = LOWEST, keys[8, 0] + 1, MINUS_INFINITY
    return thresholds.astype(np.int32)


class Draws:
    """A draw of every row by a package, with and without maxima."""

    def __init__(self, logits, device, stages, k=5, package="mrv2.refrunner", kind=torch.float32):
        self.gumbel = importlib.import_module(f"{package}.sampling.gumbel")
        maxima = importlib.import_module(f"{package}.sampling.maxima")
        self.find_maxima = maxima.find_maxima
        self.logits = torch.from_numpy(logits).to(device, kind)
        temperatures = np.array(TEMPERATURES * 2, dtype=np.float32)
        numbers, reals = np.zeros((COUNT, NUMBERS.value), np.int32), np.zeros((COUNT, REALS.value), np.float32)
        numbers[:, STAGES.value], reals[:, TEMPERATURE.value] = stages, temperatures
        self.values = quotients(self.logits.float().cpu().numpy(), temperatures)
        self.numbers, self.reals = (torch.from_numpy(table).to(device) for table in (numbers, reals))
        self.thresholds = torch.from_numpy(thresholds_of(self.values, k)).to(device)
        self.rows = torch.arange(COUNT, dtype=torch.int32, device=device)

    def maxima(self, parts):
        groups = torch.full((COUNT, -(-V // GROUP)), 7, dtype=torch.int32, device=self.logits.device)
        return self.find_maxima(self.logits, self.rows, self.numbers, self.reals, groups, GROUP, parts)

    def drawn(self, parts, maxima, **options):
        """Results, values and statistics of the draw, as bits."""
        told = self.gumbel.Sampled.empty(COUNT, self.logits.device)
        stages = self.numbers[:, STAGES.value]
        # Rows with a bias have a copy, and need not be those of the model.
        processed = self.gumbel.Processed(stages, self.logits.float() / 0.7, self.thresholds, maxima)
        temperature, seeds = self.reals[:, TEMPERATURE.value], self.rows.long() * 0x9E3779B97F4A7C1
        inputs = (self.logits, self.rows, self.rows + 3, temperature, seeds, processed, told, parts)
        self.gumbel.launch(*inputs, report_logarithm=True, **options)
        return told.drawn, told.statistics.view(torch.int32)


ON_REQUEST = pytest.mark.skipif("MRV2_SAMPLER_MUTANTS" not in os.environ, reason="MRV2_SAMPLER_MUTANTS=1 runs it")
ALONE = np.full(COUNT, TOP_K.value)
MIXED = np.array([MIN_P.value, 0, TOP_K.value, BIAS.value + TOP_K.value, BIAS.value] * 4)[:COUNT]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_the_maxima_are_those_of_the_quotients(device, kind):
    """Bit for bit, with the marks of NaN and plus infinity; rows with another stage, or none, are not touched."""
    for name, logits in logits_of_many_kinds().items():
        draws = Draws(logits, device, MIXED, kind=kind)
        found = draws.maxima(PARTS[0])
        keys = np.full((COUNT, -(-V // GROUP) * GROUP), LOWEST)
        keys[:, :V] = ordered(draws.values)
        expected = keys.reshape(COUNT, -1, GROUP).max(2)
        expected[(MIXED == 0) | (MIXED & BIAS.value != 0)] = 7
        assert np.array_equal(found.groups.cpu().numpy(), expected), name
        size = PARTS[0].blocks * PARTS[0].block
        odd = np.isnan(draws.values) | (draws.logits.float().cpu().numpy() == np.inf)
        marks = np.stack([odd[:, at : at + size].any(1) for at in range(0, V, size)], 1)
        only = (MIXED != 0) & (MIXED & BIAS.value == 0)
        assert np.array_equal(found.ints[3].cpu().numpy()[only], marks[only].astype(np.int32)), name


@pytest.mark.parametrize("stages", [ALONE, MIXED], ids=["alone", "mixed"])
@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: f"{parts.number}x{parts.blocks}x{parts.block}")
def test_what_is_not_read_changes_nothing(device, parts, stages):
    """Tokens, numbers of NaN, the first of them, whether a token was left, values and statistics."""
    for (name, logits), k in itertools.product(logits_of_many_kinds().items(), (1, 5, 60)):
        draws = Draws(logits, device, stages, k)
        (exact, _), (told, shares) = draws.drawn(parts, None, rivals=0), draws.drawn(parts, None)
        found, its_shares = draws.drawn(parts, draws.maxima(parts))
        assert torch.equal(found[:4], exact[:4]), (name, k)
        assert torch.equal(found, told), (name, k)
        assert torch.equal(its_shares, shares), (name, k)


def test_lanes_of_listed_groups_are_asked_in_the_second_launch(device):
    """A greedy row whose two largest logits are equal: the first launch asks the lane that has the higher id."""
    draws, parts = Draws(tied_in_two_lanes(), device, ALONE, 7), PARTS[0]
    maxima = draws.maxima(parts)
    found, _ = draws.drawn(parts, maxima)
    assert maxima.ints[3, 0].tolist() == [6 * GROUP, 0, 0]
    assert (int(maxima.ints[0, 0, 0]), int(found[0, 0])) == (88, 28)


def test_groups_are_listed_where_they_are_few(device):
    """Of an even row with one token left one group is, of one with NaN none, nor where most of the groups matter."""
    parts = PARTS[0]
    logits = np.linspace(-1.0, 1.0, V, dtype=np.float32)[None].repeat(COUNT, 0)
    logits[1, 200] = np.nan
    draws = Draws(logits, device, ALONE, 1)
    maxima = draws.maxima(parts)
    draws.drawn(parts, maxima)
    places = maxima.ints[3].cpu().numpy()
    assert places[0].tolist() == [0, 0, GROUP]
    assert places[1].tolist() == [0, -1, GROUP]
    assert places[7].tolist() == [-1, -1, -1]
    assert places[8].tolist() == [0, 0, 0]


def test_logits_of_half_precision_are_drawn_as_their_values(device):
    logits = torch.from_numpy(logits_of_many_kinds()["wide"]).bfloat16().float().numpy()
    half, single = Draws(logits, device, ALONE, kind=torch.bfloat16), Draws(logits, device, ALONE)
    parts = PARTS[0]
    for mine, other in zip(half.drawn(parts, half.maxima(parts)), single.drawn(parts, None), strict=True):
        assert torch.equal(mine, other)


# Each takes seconds, since everything is compiled anew: the first two always, the others on request.
FAULTS = {
    "marks are forgotten": ("kernels/maxima.py", "(total != total)", "(total == 7e7)"),
    "a group too far": ("kernels/maxima.py", "number += tl.sum(reaches, 0)", "number += tl.sum(reaches, 0) - 1"),
    "the line itself is dropped": ("kernels/maxima.py", "(largest >= threshold)", "(largest > threshold)"),
    "places for tokens": ("kernels/maxima.py", "tl.where(listed, group * GROUP + place % GROUP, place)", "place"),
    "not divided": ("kernels/maxima.py", "ordered(divided(top, divisor))", "ordered(top)"),
    "the second launch takes no places": ("kernels/draw.py", "listed = places >= 0\n", "listed = places > 999\n"),
}  # fmt: skip


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=ON_REQUEST if at > 1 else ()) for at, fault in enumerate(FAULTS)]
)
def test_a_planted_fault_shows(fault):
    """The control: each is met by the comparison above."""
    with mutated_package(Mutation("planted", *FAULTS[fault], "")) as package:
        for logits, k in itertools.product(logits_of_many_kinds().values(), (1, 5)):
            draws, right = (Draws(logits, "cpu", TOP_K.value, k, name) for name in (package, "mrv2.refrunner"))
            found = draws.drawn(PARTS[0], draws.maxima(PARTS[0]))[0]
            if not torch.equal(found, right.drawn(PARTS[0], None)[0]):
                return
    pytest.fail("no draw is another one")
