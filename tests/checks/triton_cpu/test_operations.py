"""Every operation of the reader's table is compared with something, over the element types that it takes.

Nothing here trusts a list of what tests contain: the tests themselves are called, with a recorder in the place of the
two functions that launch, so that what counts is what Triton's front end makes of their kernels.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.triton_cpu import launcher
from mrv2.checks.triton_cpu.ir import Module, Pointer
from mrv2.checks.triton_cpu.reader.operations import RULES
from mrv2.checks.triton_cpu.variants import Binder

from .differential import same
from .numbers import INTEGERS, floats, integers
from .operation_rows import (
    AGAINST_REFERENCE,
    COMPARED,
    COMPARED_SINCE_39,
    DIFFERENTIAL,
    OTHERWISE,
    REFERENCE,
    REFERENCE_SINCE_39,
)

N = 16
OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
Seen = dict[str, set[str]]


@triton.jit
def moved(x, places, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    square = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    a = tl.load(x + lane)
    left, right = tl.split(tl.reshape(a, (N // 2, 2)))
    tl.store(out + tl.arange(0, N), tl.reshape(tl.join(right, left), (N,)))
    tl.store(out + N + lane, tl.cat(left, right, can_reorder=True))
    tl.store(out + 2 * N + square, tl.trans(tl.reshape(a, (4, 4))))
    tl.store(out + 3 * N + lane, tl.gather(a, tl.load(places + lane), 0))
    one, two = tl.split(tl.load(x + tl.arange(0, 2)))
    tl.store(out + 4 * N + square, tl.broadcast_to(one, (4, 4)))
    row = tl.load(x + tl.arange(0, 4))
    tl.store(out + 5 * N + square, tl.broadcast_to(row[:, None], (4, 4)), mask=square < 13)
    tl.store(out + 6 * N, two)


@pytest.mark.filterwarnings("ignore:tl.cat")
@pytest.mark.parametrize(
    "dtype",
    [*(kind for kind in INTEGERS if kind.is_signed), torch.bfloat16, torch.float16, torch.float32, torch.float64],
    ids=str,
)
def test_every_type_is_moved(dtype):
    x = floats(dtype, N, 1) if dtype.is_floating_point else integers(dtype, N, 1)
    places = torch.randint(0, N, (N,), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
    same(moved, (1,), x, places, torch.zeros(6 * N + 1, dtype=dtype), N)


@triton.jit
def rest(a, b, c, d, flags, half, single, double, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.assume(N > 1)
    tl.store(a + lane, tl.abs(tl.load(a + lane)))
    tl.store(b + lane, tl.abs(tl.load(b + lane)))
    tl.store(c + lane.to(tl.int64), tl.abs(tl.load(c + lane)))
    wide = tl.load(d + lane)
    tl.store(d + lane, tl.abs(wide))
    flag = tl.load(flags + lane) != 0
    tl.store(half + lane, flag.to(tl.float16))
    tl.store(double + lane, tl.where(flag, flag.to(tl.float64), wide.to(tl.float64, bitcast=True)))
    tl.store(single + lane, flag.to(tl.float32))


def test_what_no_other_test_compares():
    """Absolute values of integers, the least of which stays as it is; flags as numbers; numbers as bits."""
    numbers = [integers(kind, N, 3) for kind in INTEGERS if kind.is_signed]
    for each in numbers:
        each[0] = torch.iinfo(each.dtype).min
    flags = torch.tensor([0, 1] * (N // 2), dtype=torch.int8)
    results = [torch.zeros(N, dtype=kind) for kind in (torch.float16, torch.float32, torch.float64)]
    same(rest, (1,), *numbers, flags, *results, N)


def _module(kernel: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Module:
    """What Triton's front end makes of a launch, read."""
    ours = {"audit", "truncate_bf16", "memory", "options"}
    binder = Binder(kernel)
    given = {name: value for name, value in keywords.items() if name not in ours}
    return launcher.read(binder.variant(binder.bind(tuple(arguments), given)))


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    """All combinations that pytest would call it with."""
    axes = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            axes.append([dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values])
    for choice in itertools.product(*axes):
        yield {name: value for part in choice for name, value in part.items()}


def _record(module: Module, seen: Seen) -> None:
    for function in module.functions.values():
        for operation in function.body.walk():
            elements = [value.element for value in (*operation.operands, *operation.results)]
            seen[operation.name].update(element.name for element in elements if not isinstance(element, Pointer))


def seen_in(tests: Sequence[str], launching: str, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Operations, with their element types, in the launches that tests make by ``same`` or ``launch``."""
    seen: Seen = defaultdict(set)

    def recorder(kernel: Any, grid: Any, *arguments: Any, **keywords: Any) -> None:
        _record(_module(kernel, arguments, keywords), seen)
        calls.append(kernel)

    for name in tests:
        file, _, function = name.partition(".")
        home, calls = importlib.import_module(f".{file}", __package__), []
        test = getattr(home, function)
        with monkeypatch.context() as patched:
            patched.setattr(home, launching, recorder)
            for values in _parameters(test):
                with contextlib.suppress(AssertionError, AttributeError):  # nothing was launched: results are not right
                    test(**values)
        assert calls, f"{name} launches nothing by {launching}"
    return seen


def missing(rows: Mapping[str, frozenset[str]], seen: Seen) -> dict[str, list[str]]:
    """Element types of rows that were not seen, and names that were not, without a type."""
    gaps = {name: sorted(types - seen.get(name, set())) for name, types in rows.items()}
    return {name: types for name, types in gaps.items() if types or name not in seen}


def _here(rows: Mapping[str, frozenset[str]], since: frozenset[str]) -> dict[str, frozenset[str]]:
    """The rows of the installed Triton."""
    return {name: types for name, types in rows.items() if not (OLD and name in since)}


def test_each_operation_is_in_a_table():
    assert set(DIFFERENTIAL) | set(REFERENCE) | set(OTHERWISE) == set(RULES)
    assert not set(OTHERWISE) & (set(DIFFERENTIAL) | set(REFERENCE))


@pytest.mark.parametrize("name", sorted({test for test, _ in OTHERWISE.values()}))
def test_a_test_that_is_named_exists(name):
    file, _, function = name.partition(".")
    assert callable(getattr(importlib.import_module(f".{file}", __package__), function))


@pytest.mark.filterwarnings("ignore:tl.cat")
def test_each_operation_is_compared_with_the_interpreter_over_its_types(monkeypatch):
    fused = "test_emit_elementwise.test_a_fused_product_and_sum_is_rounded_once"
    seen = seen_in([name for name in COMPARED if not (OLD and name == fused)], "same", monkeypatch)
    gaps = missing(_here(DIFFERENTIAL, COMPARED_SINCE_39), seen)
    assert not gaps, gaps


def test_what_the_interpreter_refuses_is_compared_with_something_else(monkeypatch):
    seen = seen_in(AGAINST_REFERENCE, "launch", monkeypatch)
    gaps = missing(_here(REFERENCE, REFERENCE_SINCE_39), seen)
    assert not gaps, gaps


def test_a_missing_operation_and_a_missing_type_are_named():
    rows = {"a.b": frozenset({"i8", "f16"}), "a.c": frozenset(), "a.d": frozenset({"f32"})}
    assert missing(rows, {"a.b": {"i8"}, "a.d": {"f32"}}) == {"a.b": ["f16"], "a.c": []}


def test_what_is_recorded_is_what_the_kernels_do(monkeypatch):
    """A test without the operation does not count for it."""
    seen = seen_in(["test_emit_control.test_programs_know_their_place"], "same", monkeypatch)
    assert "tt.get_program_id" in seen and "math.exp" not in seen
