"""In-place and ``out=`` operators give what they give on the host, values and errors, whatever the shapes.

Broadcast, non-contiguous, empty and 0-dimensional arguments, promotion of types, outputs that are resized, arguments
that share memory: each case runs twice on the device, since the second call follows the recipe of the first.
"""

import warnings

import pytest
import torch

from mrv2.checks.virtual import virtual_device


def T(*shape, dtype=torch.float32, start=0):  # noqa: N802 - the table is full of it
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count) % 7 + 1 + start).reshape(shape).to(dtype)


# fmt: off
OPERATORS = [
    ("addbmm_", lambda a, b, d: a.addbmm_(b, d, beta=0.5, alpha=2), [(T(3, 5), T(4, 3, 2), T(4, 2, 5)),
        (T(5), T(4, 3, 2), T(4, 2, 5)), (T(3, 1), T(4, 3, 2), T(4, 2, 5)), (T(3, 5), T(0, 3, 2), T(0, 2, 5)),
        (T(5, 3).t(), T(4, 3, 2), T(4, 2, 5)), (T(3, 5), T(3, 4, 2).transpose(0, 1), T(4, 2, 5)),
        (T(3, 5, dtype=torch.int64), T(4, 3, 2, dtype=torch.int64), T(4, 2, 5, dtype=torch.int64)),
        (T(3, 5), T(4, 3, 2), T(4, 3, 5)), (T(3, 5).expand(3, 5)[::1, :], T(1, 3, 2).expand(4, 3, 2), T(4, 2, 5))]),
    ("addbmm", lambda a, b, d: torch.addbmm(a, b, d, beta=0.5, alpha=2), [(T(3, 5), T(4, 3, 2), T(4, 2, 5)),
        (T(5), T(4, 3, 2), T(4, 2, 5)), (T(1, 1), T(4, 3, 2), T(4, 2, 5)), (T(3, 5), T(0, 3, 2), T(0, 2, 5))]),
    ("addbmm.out", lambda a, b, d, o: torch.addbmm(a, b, d, out=o), [(T(3, 5), T(4, 3, 2), T(4, 2, 5), T(3, 5)),
        (T(5), T(4, 3, 2), T(4, 2, 5), T(3, 5)), (T(5), T(4, 3, 2), T(4, 2, 5), T(0))]),
    ("addmm_", lambda a, b, d: a.addmm_(b, d, beta=0.5, alpha=2), [(T(3, 5), T(3, 2), T(2, 5)),
        (T(5), T(3, 2), T(2, 5)), (T(3, 5), T(2, 3).t(), T(5, 2).t()), (T(5, 3).t(), T(3, 2), T(2, 5)),
        (T(3, 5), T(3, 0), T(0, 5)), (T(3, 5), T(3, 2), T(2, 5, dtype=torch.float64)),
        (T(3, 10)[:, ::2], T(3, 2), T(2, 5))]),
    ("addmm", lambda a, b, d: torch.addmm(a, b, d, beta=0.5, alpha=2), [(T(3, 5), T(3, 2), T(2, 5)),
        (T(5), T(3, 2), T(2, 5)), (T(1), T(3, 2), T(2, 5)), (T(), T(3, 2), T(2, 5)), (T(3, 1), T(3, 2), T(2, 5)),
        (T(3, 5), T(3, 0), T(0, 5))]),
    ("addmm.out", lambda a, b, d, o: torch.addmm(a, b, d, out=o), [(T(5), T(3, 2), T(2, 5), T(3, 5)),
        (T(5), T(3, 2), T(2, 5), T(0)), (T(5), T(3, 2), T(2, 5), T(5, 3).t()),
        (T(5), T(3, 2), T(2, 5), T(3, 5, dtype=torch.float64))]),
    ("baddbmm_", lambda a, b, d: a.baddbmm_(b, d, beta=0.5, alpha=2), [(T(4, 3, 5), T(4, 3, 2), T(4, 2, 5)),
        (T(3, 5), T(4, 3, 2), T(4, 2, 5)), (T(4, 5, 3).transpose(1, 2), T(4, 3, 2), T(4, 2, 5)),
        (T(4, 3, 5), T(4, 3, 0), T(4, 0, 5)), (T(3, 4, 5).transpose(0, 1), T(4, 3, 2), T(4, 2, 5))]),
    ("baddbmm", lambda a, b, d: torch.baddbmm(a, b, d, beta=0.5, alpha=2), [(T(3, 5), T(4, 3, 2), T(4, 2, 5)),
        (T(5), T(4, 3, 2), T(4, 2, 5)), (T(), T(4, 3, 2), T(4, 2, 5)), (T(1, 1, 1), T(4, 3, 2), T(4, 2, 5))]),
    ("addmv_", lambda a, b, d: a.addmv_(b, d, beta=0.5, alpha=2), [(T(3), T(3, 4), T(4)), (T(1), T(3, 4), T(4)),
        (T(6)[::2], T(4, 3).t(), T(8)[::2]), (T(3), T(3, 0), T(0))]),
    ("addmv", lambda a, b, d: torch.addmv(a, b, d, beta=0.5, alpha=2), [(T(3), T(3, 4), T(4)), (T(1), T(3, 4), T(4)),
        (T(), T(3, 4), T(4))]),
    ("addr_", lambda a, b, d: a.addr_(b, d, beta=0.5, alpha=2), [(T(3, 4), T(3), T(4)), (T(4), T(3), T(4)),
        (T(4, 3).t(), T(3), T(4)), (T(3, 4, dtype=torch.int64), T(3), T(4))]),
    ("addr", lambda a, b, d: torch.addr(a, b, d, beta=0.5, alpha=2), [(T(3, 4), T(3), T(4)), (T(4), T(3), T(4)),
        (T(), T(3), T(4))]),
    ("addr.out", lambda a, b, d, o: torch.addr(a, b, d, out=o), [(T(4), T(3), T(4), T(3, 4)),
        (T(4), T(3), T(4), T(0))]),
    ("addcmul_", lambda a, b, d: a.addcmul_(b, d, value=2), [(T(3, 4), T(4), T(3, 1)), (T(4), T(3, 4), T(4)),
        (T(3, 4, dtype=torch.int64), T(4), T(4)), (T(3, 4), T(), T(4, dtype=torch.int64)), (T(0, 4), T(4), T(1, 4)),
        (T(), T(), T()), (T(4, 3).t(), T(4), T(3, 1))]),
    ("addcdiv_", lambda a, b, d: a.addcdiv_(b, d, value=2), [(T(3, 4), T(4), T(3, 1)), (T(4), T(3, 4), T(4)),
        (T(3, 4), T(4, dtype=torch.int64), T(4, dtype=torch.int64)), (T(3, 4), T(), T(4))]),
    ("addcmul", lambda a, b, d: torch.addcmul(a, b, d, value=2), [(T(3, 4), T(4), T(3, 1)), (T(4), T(3, 4), T(4)),
        (T(), T(3, 4), T(4, dtype=torch.float64))]),
    ("lerp_", lambda a, b, w: a.lerp_(b, w), [(T(3, 4), T(4), 0.5), (T(3, 4), T(4), T(3, 1)), (T(4), T(3, 4), 0.5),
        (T(4), T(4), T(3, 4)), (T(3, 4), T(4, dtype=torch.float64), 0.5), (T(), T(), T())]),
    ("lerp", torch.lerp, [(T(3, 4), T(4), 0.5), (T(4), T(3, 4), 0.5), (T(4), T(4), T(3, 4)), (T(), T(4), T(3, 1))]),
    ("index_add_", lambda a, i, s: a.index_add_(0, i, s, alpha=2), [(T(4, 3), torch.tensor([0, 2, 2]), T(3, 3)),
        (T(4), torch.tensor([0, 2, 2]), T(3)), (T(4, 3), torch.tensor([0, 2, 2]), T(3)),
        (T(4, 3), torch.tensor([0, 2]), T(3, 3)), (T(4, 3), torch.tensor([0, 2, 2]), T(3, 3, dtype=torch.int64)),
        (T(3, 4).t(), torch.tensor([0, 2, 2]), T(3, 3)), (T(4), torch.tensor(1), T()),
        (T(4), torch.tensor([], dtype=torch.long), T(0)),
        (T(4, 3), torch.tensor([0, 2, 2], dtype=torch.int32), T(3, 1).expand(3, 3))]),
    ("index_copy_", lambda a, i, s: a.index_copy_(0, i, s), [(T(4, 3), torch.tensor([0, 2]), T(2, 3, start=9)),
        (T(4), torch.tensor(1), T(start=9)), (T(4, 3), torch.tensor([0, 2]), T(3, start=9))]),
    ("index_fill_", lambda a, i: a.index_fill_(1, i, 7), [(T(4, 3), torch.tensor([0, 2])),
        (T(4, 3), torch.tensor(1))]),
    ("index_reduce_", lambda a, i, s: a.index_reduce_(0, i, s, "amax"), [
        (T(4, 3), torch.tensor([0, 2, 2]), T(3, 3, start=5))]),
    ("scatter_", lambda a, i, s: a.scatter_(1, i, s), [
        (T(3, 4), torch.tensor([[0, 1], [2, 3], [1, 0]]), T(3, 2, start=9)),
        (T(3, 4), torch.tensor([[0, 1]]), T(3, 4, start=9)), (T(3, 4), torch.tensor([[0, 1]]), 5.0),
        (T(3, 4), torch.zeros(0, 2, dtype=torch.long), T(3, 4)), (T(), torch.tensor(0), T()),
        (T(3, 4), torch.tensor([[0, 1]]), T(3, 4, dtype=torch.int64))]),
    ("scatter_add_", lambda a, i, s: a.scatter_add_(1, i, s), [
        (T(3, 4), torch.tensor([[0, 0], [2, 3], [1, 1]]), T(3, 2)),
        (T(4, 3).t(), torch.tensor([[0, 0], [2, 3], [1, 1]]), T(3, 2)),
        (T(3, 4), torch.tensor([[0], [1], [2]]).expand(3, 2), T(3, 2))]),
    ("scatter_reduce_", lambda a, i, s: a.scatter_reduce_(1, i, s, "mean", include_self=False), [
        (T(3, 4), torch.tensor([[0, 0], [2, 3], [1, 1]]), T(3, 2))]),
    ("scatter_reduce_amax", lambda a, i, s: a.scatter_reduce_(1, i, s, "amax"), [
        (T(3, 4), torch.tensor([[0, 0], [2, 3], [1, 1]]), T(3, 2, start=5))]),
    ("scatter_rstr", lambda a, i, s: a.scatter_(1, i, s, reduce="multiply"), [
        (T(3, 4), torch.tensor([[0, 1], [2, 3], [1, 0]]), T(3, 2, start=1))]),
    ("index_put_acc", lambda a, i, s: a.index_put_((i,), s, accumulate=True), [
        (T(4, 3), torch.tensor([0, 2, 2]), T(3, 3)), (T(4, 3), torch.tensor([0, 2, 2]), T(3)),
        (T(4, 3), torch.tensor([0, 2, 2]), T()), (T(3, 4).t(), torch.tensor([0, 2, 2]), T(3))]),
    ("setitem", lambda a, i, s: a.__setitem__((slice(None), i), s) or a, [
        (T(4, 3), torch.tensor([0, 2]), T(4, 2, start=9)), (T(4, 3), torch.tensor([0, 2]), T(2, start=9)),
        (T(4, 3), torch.tensor([0, 2]), T(4, 1, start=9)), (T(4, 3), torch.tensor([[0], [1]]), T(start=9)),
        (T(4, 3), torch.tensor([0, 2]), T(2, dtype=torch.float64))]),
    ("put_", lambda a, i, s: a.put_(i, s, accumulate=True), [(T(4, 3), torch.tensor([0, 2, 2]), T(3))]),
    ("take_out", lambda a, i, o: torch.take(a, i, out=o), [(T(4, 3), torch.tensor([0, 2, 2]), T(3)),
        (T(4, 3), torch.tensor([0, 2, 2]), T(0))]),
    ("masked_fill_", lambda a, m, v: a.masked_fill_(m, v), [(T(3, 4), T(4) > 2, 9.0),
        (T(3, 4), T(3, 1) > 2, T(start=3)), (T(4), T(3, 4) > 2, 9.0), (T(4, 3).t(), T(3, 4) > 2, 9.0)]),
    ("masked_scatter_", lambda a, m, s: a.masked_scatter_(m, s), [(T(3, 4), T(4) > 2, T(20, start=9)),
        (T(3, 4), T(3, 4) > 2, T(12, start=9))]),
    ("masked_select_out", lambda a, m, o: torch.masked_select(a, m, out=o), [(T(3, 4), T(4) > 2, T(0)),
        (T(3, 4), T(3, 4) > 2, T(9))]),
    ("add_", lambda a, b: a.add_(b, alpha=2), [(T(3, 4), T(4)), (T(4), T(3, 4)), (T(3, 4, dtype=torch.int64), T(4)),
        (T(3, 4), T(4, dtype=torch.int64)), (T(), T(1)), (T(0, 3), T(3)), (T(4, 3).t(), T(4)),
        (T(3, 4, dtype=torch.bool), T(4, dtype=torch.bool)), (T(3, 1).expand(3, 4), T(3, 4)),
        (T(3, 4, dtype=torch.bfloat16), T(4))]),
    ("mul_", lambda a, b: a.mul_(b), [(T(3, 4), T(3, 1)), (T(3, 4, dtype=torch.int32), T(4, dtype=torch.int64)),
        (T(3, 4, dtype=torch.int32), 2.5), (T(3, 4), 2 + 1j)]),
    ("div_", lambda a, b: a.div_(b, rounding_mode="floor"), [(T(3, 4), T(3, 1)),
        (T(3, 4, dtype=torch.int32), T(4, dtype=torch.int64))]),
    ("truediv_", lambda a, b: a.div_(b), [(T(3, 4, dtype=torch.int32), T(4, dtype=torch.int64))]),
    ("pow_", lambda a, b: a.pow_(b), [(T(3, 4), T(3, 1)), (T(3, 4), 2), (T(3, 4, dtype=torch.int64), -1)]),
    ("where_out", lambda m, a, b, o: torch.where(m, a, b, out=o), [(T(4) > 2, T(3, 1), T(4), T(3, 4)),
        (T(4) > 2, T(3, 1), T(4), T(0)), (T(4) > 2, T(3, 1), T(4, dtype=torch.float64), T(0, dtype=torch.float64))]),
    ("add_out", lambda a, b, o: torch.add(a, b, out=o), [(T(3, 1), T(4), T(3, 4)), (T(3, 1), T(4), T(0)),
        (T(3, 1), T(4), T(4, 3).t()), (T(3, 1), T(4), T(3, 4, dtype=torch.float64)),
        (T(3, 1), T(4), T(3, 4, dtype=torch.int64)), (T(3, 1), T(4), T(12)[::1].view(3, 4)[:, :2]),
        (T(3, 4), T(4), T(6, 4)[::2]), (T(3, 4), T(4), T(2, 2))]),
    ("mm_out", lambda a, b, o: torch.mm(a, b, out=o), [(T(3, 2), T(2, 5), T(3, 5)), (T(3, 2), T(2, 5), T(5, 3).t()),
        (T(3, 2), T(2, 5), T(0)), (T(3, 0), T(0, 5), T(3, 5)), (T(3, 2), T(2, 5), T(3, 10)[:, ::2])]),
    ("bmm_out", lambda a, b, o: torch.bmm(a, b, out=o), [(T(4, 3, 2), T(4, 2, 5), T(4, 3, 5)),
        (T(4, 3, 2), T(4, 2, 5), T(0)), (T(4, 3, 2), T(4, 2, 5), T(3, 4, 5).transpose(0, 1))]),
    ("matmul_out", lambda a, b, o: torch.matmul(a, b, out=o), [(T(4, 3, 2), T(2, 5), T(4, 3, 5)), (T(3), T(3), T()),
        (T(2, 1, 3, 2), T(4, 2, 5), T(0))]),
    ("mv_out", lambda a, b, o: torch.mv(a, b, out=o), [(T(3, 4), T(4), T(3)), (T(3, 4), T(4), T(0))]),
    ("dot_out", lambda a, b, o: torch.dot(a, b, out=o), [(T(3), T(3), T())]),
    ("cat_out", lambda a, b, o: torch.cat([a, b], out=o), [(T(2, 3), T(1, 3), T(3, 3)), (T(2, 3), T(1, 3), T(0)),
        (T(2, 3), T(1, 3), T(3, 3, dtype=torch.float64)), (T(2, 3), T(0), T(2, 3)), (T(2, 3), T(1, 3), T(6, 3)[::2]),
        (T(2, 3, dtype=torch.int64), T(1, 3), T(3, 3))]),
    ("stack_out", lambda a, b, o: torch.stack([a, b], 1, out=o), [(T(2, 3), T(2, 3), T(2, 2, 3)),
        (T(2, 3), T(2, 3), T(0)), (T(2, 3), T(2, 3), T(2, 3, 2).transpose(1, 2))]),
    ("sum_out", lambda a, o: torch.sum(a, 1, out=o), [(T(3, 4), T(3)), (T(3, 4), T(0)), (T(3, 4), T(6)[::2]),
        (T(3, 0), T(3)), (T(3, 4, dtype=torch.int32), T(3, dtype=torch.int64))]),
    ("mean_out", lambda a, o: torch.mean(a, 1, out=o), [(T(3, 4), T(3)), (T(3, 0), T(3)),
        (T(3, 4, dtype=torch.int64), T(3))]),
    ("cumsum_out", lambda a, o: torch.cumsum(a, 1, out=o), [(T(3, 4), T(3, 4)), (T(3, 4), T(0)),
        (T(3, 4), T(4, 3).t()), (T(3, 4, dtype=torch.bool), T(3, 4, dtype=torch.int64))]),
    ("cumsum_", lambda a: a.cumsum_(1), [(T(3, 4),), (T(4, 3).t(),), (T(3, 4, dtype=torch.int32),)]),
    ("cumprod_", lambda a: a.cumprod_(1), [(T(3, 4),)]),
    ("cummax", lambda a: torch.cummax(a, 1), [(T(3, 4),)]),
    ("sort_out", lambda a, o, i: torch.sort(a, 1, out=(o, i)), [(T(3, 4), T(3, 4), T(3, 4, dtype=torch.int64)),
        (T(3, 4), T(0), T(0, dtype=torch.int64)), (T(3, 4), T(4, 3).t(), T(4, 3, dtype=torch.int64).t())]),
    ("topk_out", lambda a, o, i: torch.topk(a, 2, 1, out=(o, i)), [(T(3, 4), T(3, 2), T(3, 2, dtype=torch.int64)),
        (T(3, 4), T(0), T(0, dtype=torch.int64))]),
    ("max_out", lambda a, o, i: torch.max(a, 1, out=(o, i)), [(T(3, 4), T(3), T(3, dtype=torch.int64)),
        (T(3, 4), T(0), T(0, dtype=torch.int64))]),
    ("min_out2", lambda a, b, o: torch.minimum(a, b, out=o), [(T(3, 4), T(4), T(0)),
        (T(3, 4), T(4, dtype=torch.int64), T(3, 4))]),
    ("gather_out", lambda a, i, o: torch.gather(a, 1, i, out=o), [(T(3, 4), torch.tensor([[0, 1], [2, 3]]), T(2, 2)),
        (T(3, 4), torch.tensor([[0, 1], [2, 3]]), T(0))]),
    ("index_select_out", lambda a, i, o: torch.index_select(a, 0, i, out=o), [
        (T(3, 4), torch.tensor([0, 2]), T(2, 4)), (T(3, 4), torch.tensor([0, 2]), T(0)),
        (T(3, 4), torch.tensor([0, 2]), T(4, 2).t())]),
    ("softmax_out", lambda a, o: torch.softmax(a, 1, out=o), [(T(3, 4), T(3, 4)), (T(3, 4), T(0)),
        (T(3, 4), T(4, 3).t())]),
    ("arange_out", lambda o: torch.arange(5, out=o), [(T(5),), (T(0),), (T(0, dtype=torch.int64),)]),
    ("linspace_out", lambda o: torch.linspace(0, 1, 5, out=o), [(T(5),), (T(0),)]),
    ("full_out", lambda o: torch.full((2, 2), 3, out=o), [(T(2, 2),), (T(0),)]),
    ("zeros_out", lambda o: torch.zeros(2, 2, out=o), [(T(2, 2),), (T(0),)]),
    ("eye_out", lambda o: torch.eye(3, out=o), [(T(3, 3),), (T(0),)]),
    ("clamp_", lambda a, low, high: a.clamp_(low, high), [(T(3, 4), 2, 5), (T(3, 4), T(4), T(3, 1, start=5)),
        (T(4), T(3, 4), T(3, 4)), (T(3, 4, dtype=torch.int64), 2.5, None)]),
    ("clamp_out", lambda a, o: torch.clamp(a, 2, 5, out=o), [(T(3, 4), T(3, 4)), (T(3, 4), T(0))]),
    ("tril_", lambda a: a.tril_(), [(T(3, 4),), (T(4, 3).t(),)]),
    ("fill_diag", lambda a: a.fill_diagonal_(9), [(T(3, 4),), (T(9, 3),)]),
    ("fill_t", lambda a, v: a.fill_(v), [(T(3, 4), T(start=8)), (T(3, 4), T(1))]),
    ("copy_bc", lambda a, b: a.copy_(b), [(T(3, 4), T(4)), (T(3, 4), T(3, 1)), (T(4), T(3, 4)),
        (T(3, 4, dtype=torch.int64), T(4)), (T(3, 4), T()), (T(4, 3).t(), T(3, 4)),
        (T(3, 4, dtype=torch.bfloat16), T(4)), (T(3, 4), T(4, dtype=torch.complex64))]),
    ("copy_overlap", lambda a: a[1:].copy_(a[:-1]), [(T(6),)]),
    ("add_overlap", lambda a: a[1:].add_(a[:-1]), [(T(6),)]),
    ("t_", lambda a: a.t_().add_(1), [(T(3, 4),)]),
    ("transpose_", lambda a: a.transpose_(0, 1).mul_(2), [(T(3, 4),)]),
    ("unsq_", lambda a: a.unsqueeze_(0).add_(T(3, 1).to(a.device)), [(T(3, 4),)]),
    ("asstr_", lambda a: a.as_strided_((2, 2), (1, 2)).add_(1), [(T(3, 4),)]),
    ("swapaxes_", lambda a: a.swapaxes_(0, 1), [(T(3, 4),)]),
    ("squeeze_", lambda a: a.squeeze_().add_(1), [(T(1, 3, 1),)]),
    ("detach_", lambda a: a.detach_().add_(1), [(T(3),)]),
    ("resize_add", lambda a: a.resize_(2, 2).add_(1), [(T(6),), (T(4),), (T(2, 3).t(),)]),
    ("resize_mem", lambda a: a.resize_(2, 3, 2, 2, memory_format=torch.channels_last).stride(), [(T(24),)]),
    ("set_", lambda a, b: a.set_(b), [(T(3), T(4))]),
    ("fmod_", lambda a, b: a.fmod_(b), [(T(3, 4), T(4))]),
    ("remainder_", lambda a, b: a.remainder_(b), [(T(3, 4, dtype=torch.int64), T(4, dtype=torch.int64))]),
    ("bitand_", lambda a, b: a.bitwise_and_(b), [(T(3, 4, dtype=torch.int64), T(4, dtype=torch.int32)),
        (T(3, 4), T(4))]),
    ("lshift_", lambda a, b: a.bitwise_left_shift_(b), [(T(3, 4, dtype=torch.int64), 1)]),
    ("ior", lambda a, b: a.__ior__(b), [(T(3, 4) > 2, T(4) > 3)]),
    ("logical_", lambda a, b: a.logical_and_(b), [(T(3, 4), T(4))]),
    ("eq_", lambda a, b: a.eq_(b), [(T(3, 4), T(4)), (T(3, 4), 2)]),
    ("eq_out", lambda a, b, o: torch.eq(a, b, out=o), [(T(3, 4), T(4), T(0)), (T(3, 4), T(4), T(3, 4)),
        (T(3, 4), T(4), T(0) > 1)]),
    ("relu_", lambda a: torch.relu_(a - 3), [(T(3, 4),)]),
    ("sigmoid_", lambda a: a.sigmoid_(), [(T(3, 4),), (T(3, 4, dtype=torch.int64),)]),
    ("sqrt_out", lambda a, o: torch.sqrt(a, out=o), [(T(3, 4), T(3, 4)), (T(3, 4, dtype=torch.int64), T(3, 4)),
        (T(3, 4), T(3, 4, dtype=torch.int64))]),
    ("exp_bf", lambda a: a.exp_(), [(T(3, 4, dtype=torch.bfloat16),)]),
    ("renorm_", lambda a: a.renorm_(2, 0, 1.0), [(T(3, 4),)]),
    ("nan_to_num_", lambda a: a.div_(0).nan_to_num_(), [(T(3, 4),)]),
    ("foreach_add_", lambda a, b, d: (torch._foreach_add_([a, b], [d, d], alpha=2), a, b)[1:], [(T(4), T(3, 4), T(4)),
        (T(4), T(4), T(3, 4)), (T(4, dtype=torch.int64), T(4), T(4))]),
    ("foreach_mul_s", lambda a, b: (torch._foreach_mul_([a, b], [2.0, 3.0]), a, b)[1:], [(T(4), T(3, 4))]),
    ("foreach_lerp", lambda a, b, d: (torch._foreach_lerp_([a, b], [d, d], 0.5), a, b)[1:], [(T(4), T(4), T(4))]),
    ("foreach_norm", lambda *tensors: torch._foreach_norm(tensors), [(T(4), T(3, 4))]),
    ("foreach_addcdiv", lambda a, b, d: (torch._foreach_addcdiv_([a, b], [d, d], [d, d], [1.0, 2.0]), a, b)[1:], [
        (T(4), T(4), T(4))]),
    ("foreach_zero", lambda a, b: (torch._foreach_zero_([a, b]), a, b)[1:], [(T(4), T(4))]),
    ("foreach_copy", lambda a, b, d: (torch._foreach_copy_([a, b], [d, d]), a, b)[1:], [
        (T(4), T(3, 4), T(4, start=9))]),
    ("einsum", lambda a, b: torch.einsum("ij,kj->ik", a, b), [(T(3, 4), T(2, 4))]),
    ("xlogy_", lambda a, b: a.xlogy_(b), [(T(3, 4), T(4))]),
    ("hypot_", lambda a, b: a.hypot_(b), [(T(3, 4), T(4))]),
    ("atan2_", lambda a, b: a.atan2_(b), [(T(3, 4), T(4))]),
    ("copysign_", lambda a, b: a.copysign_(b), [(T(3, 4), -T(4))]),
    ("sgn_", lambda a: a.sub_(3).sgn_(), [(T(3, 4),)]),
    ("sparse_mm_like_mul_out", lambda a, b, o: torch.mul(a, b, out=o), [(T(3, 4, dtype=torch.int64), 2.5, T(3, 4)),
        (T(3, 4, dtype=torch.int64), 2.5, T(3, 4, dtype=torch.int64))]),
    ("self_out", lambda a, b: torch.add(a, b, out=a), [(T(3, 4), T(4)), (T(4), T(3, 4))]),
    ("aminmax_out", lambda a, o, p: torch.aminmax(a, dim=1, out=(o, p)), [(T(3, 4), T(3), T(0))]),
    ("norm_out", lambda a, o: torch.linalg.vector_norm(a, dim=1, out=o), [(T(3, 4), T(3)), (T(3, 4), T(0))]),
    ("svd", torch.linalg.svdvals, [(T(3, 4),)]),
    ("var_out", lambda a, o: torch.var(a, 1, out=o), [(T(3, 4), T(3)), (T(3, 4), T(0))]),
    ("kthvalue_out", lambda a, o, i: torch.kthvalue(a, 2, 1, out=(o, i)), [(T(3, 4), T(0), T(0, dtype=torch.int64))]),
    ("argmax_out", lambda a, o: torch.argmax(a, 1, out=o), [(T(3, 4), T(0, dtype=torch.int64))]),
    ("nonzero_out", lambda a, o: torch.nonzero(a > 3, out=o), [(T(3, 4), T(0, dtype=torch.int64))]),
    ("searchsorted_out", lambda a, b, o: torch.searchsorted(a, b, out=o), [
        (torch.arange(4.0), T(3), T(0, dtype=torch.int64))]),
    ("bucketize", torch.bucketize, [(T(3), torch.arange(4.0)), (T(), torch.arange(4.0))]),
    ("tensordot_out", lambda a, b, o: torch.tensordot(a, b, 1, out=o), [(T(3, 4), T(4, 2), T(3, 2)),
        (T(3, 4), T(4, 2), T(0))]),
    ("outer_out", lambda a, b, o: torch.outer(a, b, out=o), [(T(3), T(4), T(0))]),
    ("hstack_out", lambda a, b, o: torch.hstack([a, b], out=o), [(T(3), T(4), T(0))]),
    ("triu_out", lambda a, o: torch.triu(a, out=o), [(T(3, 4), T(0)), (T(3, 4), T(4, 3).t())]),
    ("roll", lambda a: torch.roll(a, 1, 0), [(T(3, 4),)]),
    ("cross_out", lambda a, b, o: torch.linalg.cross(a, b, out=o), [(T(2, 3), T(1, 3), T(0)),
        (T(2, 3), T(1, 3), T(2, 3))]),
    ("view_dtype", lambda a: a.view(torch.int32).add_(1), [(T(3, 4),)]),
    ("real", lambda a: (a.real.add_(1), a)[1], [(T(3, dtype=torch.complex64),)]),
    ("conj",
     lambda a: (a.conj() + 1, a.conj().add_(1), torch.view_as_real(a), a.conj().resolve_conj(), a.imag.neg()), [
        (T(3, dtype=torch.complex64) * (1 + 2j),)]),
    ("conj_", torch.conj_physical_, [(T(3, dtype=torch.complex64) * (1 + 2j),)]),
    ("conj_cpu", lambda a: a.conj().cpu() + 0, [(T(3, dtype=torch.complex64) * (1 + 2j),)]),
    ("neg_cpu", lambda a: (a.conj().imag.cpu() + 0, a.conj().imag.sum()), [(T(3, dtype=torch.complex64) * (1 + 2j),)]),
    ("conj_mm", lambda a, b: (a.conj() @ b, a.mH @ b, torch.vdot(a[0], b[0])), [
        (T(2, 2, dtype=torch.complex64) * (1 + 2j), T(2, 2, dtype=torch.complex64) * (1 - 2j))]),
]
# fmt: on

CASES = [
    pytest.param(function, arguments, id=f"{name} {index}")
    for name, function, rows in OPERATORS
    for index, arguments in enumerate(rows)
]


def expanded(tensor):
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


def copied(value, device):
    """The same values in the same layout, expanded dimensions included."""
    if not isinstance(value, torch.Tensor):
        return value
    if expanded(value):
        return (
            value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())]
            .to(device)
            .expand(value.shape)
        )
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.detach().cpu().resolve_conj().resolve_neg().clone()
    return tuple(plain(item) for item in value) if isinstance(value, (tuple, list)) else value


def outcome(function, arguments, device):
    """What a call returned or raised, and what its arguments are afterwards."""
    given = [copied(value, device) for value in arguments]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of outputs that are resized
        try:
            returned = function(*given)
        except Exception as error:  # noqa: BLE001 - whatever the host raises is what the device must raise
            return "raised", type(error), plain(tensors)
        return "returned", plain(returned), plain(tensors)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a, b, equal_nan=True, rtol=1e-6)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_it_is_the_same_as_on_the_host(function, arguments):
    expected = outcome(function, arguments, "cpu")
    for schedule in ("late", "early"):
        with virtual_device(schedule) as device:
            for _ in range(2):
                assert same(outcome(function, arguments, "cuda"), expected)
            assert device.findings == []


def test_the_comparison_can_fail():
    assert not same(outcome(lambda a: a + 1, [T(3)], "cpu"), outcome(lambda a: a + 2, [T(3)], "cpu"))
    assert not same(outcome(lambda a: a.view(5), [T(3)], "cpu"), outcome(lambda a: a, [T(3)], "cpu"))


def test_an_output_that_grows_moves_and_one_that_fits_stays(late):
    room = torch.zeros(8, device="cuda")
    torch.arange(4.0, out=room[:0])
    assert room.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    small = torch.zeros(2, device="cuda")
    address = small.data_ptr()
    small.resize_(6)
    assert small.data_ptr() != address and small.tolist()[:2] == [0, 0]
    small.resize_(3)
    assert small.data_ptr() != address and small.shape == (3,) and late.findings == []


def test_a_dynamic_output_is_resized_by_what_was_found(late):
    """Its memory is nobody's meanwhile: the kernel must not move what the allocator knows."""
    x, found = torch.arange(2000.0, device="cuda"), torch.empty(1, dtype=torch.int64, device="cuda")
    for bound in (10, 1990, 0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.nonzero(x > bound, out=found)
        assert found.flatten().tolist() == list(range(bound + 1, 2000))
    assert torch.cuda.memory_allocated() >= found.numel() * 8 and late.findings == []


def test_errors_that_depend_on_values_are_those_of_the_values(late):
    one, singular = torch.eye(3, device="cuda") * 4, torch.zeros(3, 3, device="cuda")
    assert torch.linalg.cholesky(one).diagonal().tolist() == [2, 2, 2]
    assert torch.linalg.inv(one).diagonal().tolist() == [0.25] * 3 and late.findings == []
    with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
        torch.linalg.cholesky(singular)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(singular)
    assert late.findings == []


RESIZED = {
    "output": lambda room: torch.arange(4.0, out=room[:0]),
    "in place": lambda room: room[:5].addbmm_(torch.ones(4, 1, 2, device="cuda"), torch.ones(4, 2, 5, device="cuda")),
}


@pytest.mark.parametrize("write", RESIZED.values(), ids=RESIZED.keys())
@pytest.mark.parametrize("ordered", [False, True])
def test_the_detector_sees_where_a_resized_tensor_lies(vd, write, ordered):
    side, room = torch.cuda.Stream(), torch.zeros(8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        write(room)
    if ordered:
        torch.cuda.current_stream().wait_stream(side)
    room.sum()
    assert [finding.code for finding in vd.findings] == ([] if ordered else ["MRV204"])
