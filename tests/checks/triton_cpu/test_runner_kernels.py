"""Every launch of the reference runner at work, made twice on the same bytes: by Triton, and compiled for the CPU.

Triton is its interpreter on a machine without a GPU, and the GPU where there is one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.kernels.launch import Kernel
from mrv2.refrunner.kernels.nucleus_rounds import narrow_rows
from mrv2.refrunner.llm import LLM, default_config
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.models.tiny import tiny_checkpoint

#: Results that a GPU rounds differently: exp, log and the square root there are approximations of their own, products
#: and sums are fused unless the launch says no, and sums are trees. At most so many units in the last place of the
#: largest value of the tensor, since sums cancel.
ROUNDED = {
    "attend_paged.out_ptr", "combine_blocks.statistics_ptr", "combine_blocks.value_ptr", "find_maxima.float_ptr",
    "judge_drafts.judged_ptr",
    "recover_tokens.mass_ptr", "report_all.out_ptr", "report_top.sorted_value_ptr", "rms_norm.out_ptr",
    "rotate_heads.heads_ptr", "sample_blocks.float_ptr", "silu_and_multiply.out_ptr",
}  # fmt: skip
#: Likewise, as integers: masses of exponentials in fixed point, whose sums are exact and whose summands are rounded.
FIXED_POINT = {"find_thresholds.mass_ptr", "narrow_rows.after_mass_ptr", "weigh_rows.mass_ptr"}
#: Lists in any order: whose program asks for room first is not the same everywhere. Rows are compared as sets.
UNORDERED = {"narrow_rows.keys_ptr"}
UNITS = 64


@dataclass
class Shadow:
    """What was compared: launches by kernel, lanes that differ and by how much, by kernel and parameter."""

    launches: dict[str, int] = field(default_factory=dict)
    differing: dict[tuple[str, str], int] = field(default_factory=dict)
    units: dict[tuple[str, str], float] = field(default_factory=dict)
    findings: list[Any] = field(default_factory=list)
    #: Whether one NaN is as good as another: a GPU makes 0x7fffffff where a CPU makes 0x7fc00000.
    any_nan: bool = False

    def compare(self, kernel: Kernel, args: tuple[Any, ...], mine: tuple[Any, ...]) -> None:
        self.launches[kernel.__name__] = self.launches.get(kernel.__name__, 0) + 1
        pairs = [pair for pair in zip(args, mine, strict=True) if isinstance(pair[0], torch.Tensor)]
        for name, theirs, own in zip(kernel.arg_names, args, mine, strict=False):
            if isinstance(theirs, torch.Tensor):
                self._tensor((kernel.__name__, name), theirs.cpu(), own)
        for theirs, own in pairs:
            own.copy_(theirs)  # what is left are bytes that no argument holds
        for theirs, own in pairs:
            self._tensor((kernel.__name__, "bytes beside the arguments"), _bytes(theirs).cpu(), _bytes(own))

    def _tensor(self, place: tuple[str, str], theirs: torch.Tensor, own: torch.Tensor) -> None:
        theirs, own = theirs.contiguous(), own.contiguous()
        if ".".join(place) in UNORDERED:
            theirs, own = theirs.sort().values, own.sort().values
        differs = theirs.view(_BITS[theirs.element_size()]) != own.view(_BITS[own.element_size()])
        if self.any_nan and theirs.dtype.is_floating_point:
            differs &= ~(theirs.isnan() & own.isnan())
        if not differs.any():
            return
        self.differing[place] = self.differing.get(place, 0) + int(differs.sum())
        if theirs.dtype.is_floating_point or ".".join(place) in FIXED_POINT:
            rounded = theirs.dtype if theirs.dtype.is_floating_point else torch.float32
            scale = theirs[theirs.isfinite()].abs().max() * torch.finfo(rounded).eps
            units = float(((theirs - own)[differs].abs() / scale).max())
        else:
            units = float("inf")
        self.units[place] = max(self.units.get(place, 0.0), units)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All of the storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments on the CPU; tensors that share memory share it again."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        twin = storages.setdefault(storage.data_ptr(), storage.cpu().clone())
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(twin, value.storage_offset(), value.shape, value.stride())

    return tuple(map(copy, args))


@contextmanager
def shadowed(shadow: Shadow, most: int) -> Iterator[None]:
    """Make launches of the runner's kernels a second time, compiled for the CPU; of each the first so many.

    On a CPU the others are made once, compiled: the interpreter takes milliseconds for each program.
    """
    stock, launches = Kernel.run, Counter[str]()

    def run(self: Kernel, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches[self.__name__] += 1
        if launches[self.__name__] > most:
            with triton_cpu.enabled():
                JITFunction.run(self, *args, grid=grid, warmup=warmup, **kwargs)
            return
        mine = _copies(args)
        stock(self, *args, grid=grid, warmup=warmup, **kwargs)
        with triton_cpu.enabled() as session:
            JITFunction.run(self, *mine, grid=grid, warmup=warmup, **kwargs)
        shadow.findings += session.findings
        shadow.compare(self, args, mine)

    Kernel.run = run
    try:
        yield
    finally:
        Kernel.run = stock


SAMPLING = [
    SamplingParams(max_tokens=6),
    SamplingParams(max_tokens=9, temperature=1.0, seed=3),
    SamplingParams(max_tokens=4, temperature=0.3, seed=2**63, logprobs=3, prompt_logprobs=1),
    SamplingParams(max_tokens=7, temperature=2.5, seed=11, top_k=20, top_p=0.8, min_p=0.01, logprobs=-1),
    SamplingParams(max_tokens=5, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1),
    SamplingParams(
        max_tokens=5, temperature=1.0, seed=5, bad_words=((1,), (2, 3)), logit_bias=((7, 1.5),), min_tokens=3
    ),
]


PROMPTS = [[1, 2, 3], list(range(40)), [7], [200, 3] * 9, [5, 5, 9], [8]]
SETTINGS = {"attention": "triton", "max_num_batched_tokens": 24, "poison": True, "pad_to": 4}
#: Further settings, and the model that proposes drafts.
RUNS = [
    ({}, ""),
    ({"speculation": "ngram", "num_drafts": 2}, ""),
    ({"speculation": "draft", "num_drafts": 2, "verification": "block"}, "tiny-draft"),
    ({"speculation": "eagle", "num_drafts": 2}, "tiny-eagle"),
]


def generate(device: str) -> Shadow:
    """What is compared: the launches of steps, and not those that load a GPU's kernels before the first."""
    checkpoint, shadow = tiny_checkpoint(), Shadow(any_nan=device == "cuda")
    for number, (settings, draft_model) in enumerate(RUNS):
        config = replace(default_config(checkpoint), device=device, **SETTINGS, **settings)
        draft = load_checkpoint(draft_model) if draft_model else None
        most = sys.maxsize if device == "cuda" else 2 if number else 4
        with LLM(checkpoint, config, draft=draft) as engine, shadowed(shadow, most):
            engine.generate(PROMPTS, SAMPLING)
    return shadow


STEP_KERNELS = {
    "apply_staged_writes", "clear_counts", "combine_blocks", "count_drawn_tokens",
    "count_known_tokens", "fill_blocks", "find_maxima", "find_thresholds", "post_update",
    "prepare_block_tables", "prepare_inputs", "process_logits", "report_all", "report_top", "sample_blocks",
    "select_top", "survey", "ask_by_sample", "weigh_rows", "narrow_rows", "settle_nucleus",
}  # fmt: skip
ATTENTION_KERNELS = {"attend_paged", "write_keys_and_values", "rms_norm", "rotate_heads", "silu_and_multiply"}
SPECULATION_KERNELS = {
    "accept_by_chance", "accept_equal", "count_emitted_tokens", "draw_drafts", "judge_drafts", "keep_states",
    "locate_logits", "post_update_verified", "prepare_draft_inputs", "propose_ngrams", "recover_tokens",
    "states_before",
}  # fmt: skip


def test_compiled_kernels_are_bit_identical_to_the_interpreter():
    shadow = generate("cpu")
    assert set(shadow.launches) == STEP_KERNELS | ATTENTION_KERNELS | SPECULATION_KERNELS
    assert shadow.differing == {}
    assert shadow.findings == []


def test_the_comparison_sees_a_difference():
    kernel, tensor = next(iter(_kernels())), torch.tensor([1.0, 2.0])
    shadow = Shadow()
    shadow.compare(kernel, (tensor,), (tensor + torch.tensor([0.0, 2.0**-20]),))
    ((place, count),) = shadow.differing.items()
    assert (place[0], count) == (kernel.__name__, 1)
    assert shadow.units[place] == pytest.approx(4.0)


def test_lists_in_any_order_are_compared_as_sets():
    def differing(kernel, own):
        shadow = Shadow()
        shadow.compare(kernel, tuple(keys for _ in kernel.arg_names), tuple(own for _ in kernel.arg_names))
        return {name for _, name in shadow.differing}

    keys = torch.tensor([[4, 9, 2], [1, 1, 5]], dtype=torch.int32)
    another_order, another_row = keys[:, [2, 0, 1]].clone(), keys.flip(0).clone()
    ordered = set(narrow_rows.arg_names) - {"keys_ptr"}
    assert differing(narrow_rows, another_order) == ordered
    assert differing(narrow_rows, another_row) == ordered | {"keys_ptr"}


def _kernels() -> Iterator[Kernel]:
    from mrv2.refrunner.kernels import draw

    yield draw.sample_blocks


@pytest.mark.gpu
def test_compiled_kernels_agree_with_the_gpu(record_property):
    shadow = generate("cuda")
    table = {
        f"{kernel}.{name}": [count, shadow.units[kernel, name]] for (kernel, name), count in shadow.differing.items()
    }
    figures = {"launches": shadow.launches, "differing lanes and units in the last place": table}
    record_property("figures", json.dumps(figures))
    print(json.dumps(figures))
    assert set(shadow.launches) == STEP_KERNELS | ATTENTION_KERNELS | SPECULATION_KERNELS
    assert shadow.findings == []
    assert set(table) <= ROUNDED | FIXED_POINT
    assert all(units <= UNITS for _, units in table.values())
