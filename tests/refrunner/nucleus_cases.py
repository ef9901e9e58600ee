"""Thresholds of min-p, top-k and top-p by sorting, with exact masses, and by the kernels of a package."""

import importlib
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch

LOWEST, UNIT = -(2**31), np.float32(2.0**40)


@dataclass(frozen=True)
class Filters:
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 0.8

    def quotients(self, logits):
        """What is drawn from, float32 [V]."""
        return logits / np.float32(self.temperature)


def keys_of(logits):
    """The integers by which logits are compared, int64."""
    bits = (logits + np.float32(0.0)).astype(np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)


def weights_of(logits):
    """Of each token a whole number of 2**-40, int64: exact, and so are their sums up to 2**63."""
    with np.errstate(invalid="ignore"):
        share = np.where(logits == logits.max(), np.float32(1), np.exp(logits - logits.max()))
    return (share * UNIT).astype(np.int64)


def expected(logits, filters):
    """By sorting."""
    logits = filters.quotients(logits)
    keys, floor = keys_of(logits), LOWEST
    if filters.min_p:
        floor = int(keys_of(logits.max() + np.log(np.float32(filters.min_p), dtype=np.float32))[()])
    if 0 < filters.top_k <= len(logits):
        floor = max(floor, int(np.sort(keys)[-filters.top_k]))
    if filters.top_p == 1:
        return floor
    order = np.argsort(-keys, kind="stable")
    order = order[keys[order] >= floor]
    masses = np.cumsum(weights_of(logits)[order])
    target = max(1, int(np.ceil(np.float64(masses[-1]) * np.float64(np.float32(filters.top_p)))))
    return max(floor, int(keys[order][np.searchsorted(masses, target)]))


class Watched:
    """A kernel that keeps the arguments of its last launch."""

    def __init__(self, kernel):
        self._kernel = kernel
        self.arguments = ()

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.arguments = arguments
            self._kernel[grid](*arguments, **options)

        return launch


@dataclass(frozen=True)
class Found:
    """What the kernels have found: thresholds of rows, and in which of them one program had to search all of it."""

    thresholds: list
    searched: list


def found(pairs, grouping, search, device="cpu", package="mrv2.refrunner"):
    """Thresholds of rows with filters, by the kernels of a package.

    Args:
        pairs: of logits, float32 [V], and Filters, one for each row.
        grouping: fields of ``blocks.Grouping``.
        search: fields of ``blocks.Search``.
    """
    stages = importlib.import_module(f"{package}.kernels.logits_processing")
    nucleus = importlib.import_module(f"{package}.kernels.nucleus")
    host = importlib.import_module(f"{package}.sampling.filters")
    blocks = importlib.import_module(f"{package}.sampling.blocks")
    count, grouping = len(pairs), blocks.Grouping(**grouping)
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
        reals[index, stages.TEMPERATURE.value] = filters.temperature
    logits = torch.from_numpy(np.stack([logits for logits, _ in pairs]))
    padding = ((0, 0), (0, -logits.shape[1] % grouping.group))
    drawn_from = np.stack([filters.quotients(logits) for logits, filters in pairs])
    keys = keys_of(np.pad(drawn_from, padding, constant_values=-np.inf))
    maxima = torch.from_numpy(keys.reshape(count, -1, grouping.group).max(2).astype(np.int32))
    tensors = [logits, logits[:0], maxima, torch.arange(count, dtype=torch.int32), numbers, reals]
    tensors = [tensor.to(device) for tensor in tensors]
    settle = Watched(host.settle_nucleus)
    with (
        mock.patch.object(host, "search_of", return_value=blocks.Search(**search)),
        mock.patch.object(host, "settle_nucleus", settle),
    ):
        thresholds = host.thresholds_of(*tensors, stages.FILTERS.value, grouping)
    first_round = settle.arguments[3][:, 0]
    searched = (first_round[:, nucleus.OPEN.value] != 0) & (first_round[:, nucleus.SEARCHED.value] != 0)
    return Found(thresholds.tolist(), searched.tolist())
