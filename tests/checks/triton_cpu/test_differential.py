"""The harness sees what differs: a comparison that cannot fail would prove nothing."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from .differential import compare, copied, interpret, launch, same


def test_one_bit_is_a_difference():
    ours = torch.arange(8, dtype=torch.float32)
    theirs = ours.clone()
    compare([ours], [theirs])
    theirs.view(torch.int32)[5] ^= 1
    with pytest.raises(AssertionError, match=r"tensor 0 .* 1 differ; \[5\]"):
        compare([ours], [theirs])


def test_zeros_of_different_sign_differ():
    with pytest.raises(AssertionError, match="1 differ"):
        compare([torch.tensor([0.0])], [torch.tensor([-0.0])])


def test_nans_are_equal_and_differ_from_numbers():
    patterns = torch.tensor([0x7FC00000, -0x400000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    compare([patterns], [torch.full((3,), math.nan)])
    with pytest.raises(AssertionError, match="1 differ"):
        compare([torch.tensor([1.0])], [torch.tensor([math.nan])])


def test_copies_share_what_the_originals_share():
    x = torch.arange(8)
    one, two = copied((x, x[3:]))
    one[3] = -1
    assert two[0] == -1
    assert x[3] == 3


@triton.jit
def place_dependent(out):
    """The address differs from copy to copy, and so does what is stored."""
    tl.store(out, out.to(tl.int64))


def test_a_difference_between_the_two_is_found():
    with pytest.raises(AssertionError, match="1 differ"):
        same(place_dependent, (1,), torch.zeros(1, dtype=torch.int64))


@triton.jit
def count_up(out):
    tl.store(out, tl.load(out) + 1)


def test_both_really_run():
    out = torch.zeros(1, dtype=torch.int32)
    interpret(count_up, (3,), out)
    assert out.item() == 3
    launch(count_up, (4,), out)
    assert out.item() == 7
    same(count_up, (4,), out)
    assert out.item() == 7
