"""Calls of which only a GPU can say whether they wait, beside those that the tests of the trap expect something of.

``mrv2.ci.gpu.operator_waits`` measures them; what it found is in the table that the trap is tested against.
"""

from functools import partial

import torch

from .test_virtual_trap import FREE, WAITS, Bench, put

L, F = torch.linalg, torch.nn.functional


def with_gradient(b):
    parameter = torch.nn.Parameter(b.x.clone())
    parameter.grad = b.x.clone()
    return parameter


def scaled_step(b):
    scaler, parameter = torch.amp.GradScaler("cuda"), torch.nn.Parameter(b.x.clone())
    optimizer = torch.optim.SGD([parameter], 0.1)
    scaler.scale((parameter * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def pooled(b):
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        return torch.zeros(8, device="cuda")


def log_probs(b):
    return torch.zeros(5, 1, 3, device="cuda").log_softmax(2)


def number(count):
    return torch.full((1,), count, dtype=torch.int64, device="cuda")


def layer():
    return torch.nn.TransformerEncoderLayer(4, 2, 8, device="cuda", batch_first=True)


def encoded(b):
    padding = torch.zeros(1, 4, dtype=torch.bool, device="cuda")
    with torch.inference_mode():
        return torch.nn.TransformerEncoder(layer(), 1).eval()(b.square[None], src_key_padding_mask=padding)


OPTIMIZERS = ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD"]
INSIDE = {
    "new, list": lambda b: b.x.new([1.0, 2.0]),
    "new, size": lambda b: b.x.new(3),
    "new, tensor": lambda b: b.x.new(b.x),
    "normal, two tensors": lambda b: torch.normal(b.x, b.x),
    "normal, deviations": lambda b: torch.normal(0.0, b.x),
    "normal, means": lambda b: torch.normal(b.x, 1.0),
    "histc in a range": lambda b: torch.histc(b.x, bins=4, min=0, max=1),
    "histc, empty range": lambda b: torch.histc(b.x, bins=4, min=2, max=2),
    "matrix_exp": lambda b: torch.matrix_exp(b.square),
    "matrix_exp, batch": lambda b: torch.matrix_exp(torch.stack([b.square] * 3)),
    "segment_reduce": lambda b: torch.segment_reduce(b.x, "sum", lengths=b.i),
    "segment_reduce, unsafe": lambda b: torch.segment_reduce(b.x, "sum", lengths=b.i, unsafe=True),
    "ctc_loss": lambda b: F.ctc_loss(log_probs(b), number(1)[None], number(5), number(1)),
    "ctc_loss, lengths on the host": lambda b: F.ctc_loss(log_probs(b), number(1)[None], (5,), (1,)),
    "lstsq": lambda b: L.lstsq(b.square, b.square),
    "lu": lambda b: L.lu(b.square),
    "torch.lu": lambda b: torch.lu(b.square),
    "torch.lu, infos": lambda b: torch.lu(b.square, get_infos=True),
    "lu_factor_ex": lambda b: L.lu_factor_ex(b.square),
    "lu_factor_ex, checked": lambda b: L.lu_factor_ex(b.square, check_errors=True),
    "inv_ex, checked": lambda b: L.inv_ex(b.square, check_errors=True),
    "cholesky_ex, checked": lambda b: L.cholesky_ex(b.square, check_errors=True),
    "solve_ex": lambda b: L.solve_ex(b.square, b.square),
    "solve_ex, checked": lambda b: L.solve_ex(b.square, b.square, check_errors=True),
    "ldl_factor_ex": lambda b: L.ldl_factor_ex(b.square),
    "ldl_factor_ex, checked": lambda b: L.ldl_factor_ex(b.square, check_errors=True),
    "lu_solve": lambda b: L.lu_solve(*L.lu_factor_ex(b.square)[:2], b.square),
    "cholesky_inverse": lambda b: torch.cholesky_inverse(b.square),
    "cholesky_solve": lambda b: torch.cholesky_solve(b.square, b.square),
    "torch.cholesky": lambda b: torch.cholesky(b.square),
    "pinv": lambda b: L.pinv(b.square),
    "pinv, hermitian": lambda b: L.pinv(b.square, hermitian=True),
    "pinverse": lambda b: torch.pinverse(b.square),
    "matrix_rank": lambda b: L.matrix_rank(b.square),
    "matrix_rank, tolerance": lambda b: L.matrix_rank(b.square, tol=0.1),
    "cond": lambda b: L.cond(b.square),
    "cond, 1": lambda b: L.cond(b.square, 1),
    "det": lambda b: L.det(b.square),
    "slogdet": lambda b: L.slogdet(b.square),
    "qr": lambda b: L.qr(b.square),
    "householder_product": lambda b: L.householder_product(b.square, b.square[0]),
    "solve_triangular": lambda b: L.solve_triangular(b.square, b.square, upper=True),
    "embedding, max_norm": lambda b: F.embedding(b.i, b.square.repeat(2, 1), max_norm=1.0),
    "embedding_bag": lambda b: F.embedding_bag(b.i, b.square.repeat(2, 1), b.i[:1] * 0),
    "embedding_bag, max": lambda b: F.embedding_bag(b.i, b.square.repeat(2, 1), b.i[:1] * 0, mode="max"),
    "backward of embedding": lambda b: F.embedding(b.i, b.square.repeat(2, 1).requires_grad_()).sum().backward(),
    "backward of an index": lambda b: b.x.clone().requires_grad_()[b.i].sum().backward(),
    "backward of unique-free gather": lambda b: b.x.clone().requires_grad_().gather(0, b.i).sum().backward(),
    "clip_grad_norm_": lambda b: torch.nn.utils.clip_grad_norm_([with_gradient(b)], 1.0),
    "clip_grad_value_": lambda b: torch.nn.utils.clip_grad_value_([with_gradient(b)], 1.0),
    "get_total_norm": lambda b: torch.nn.utils.get_total_norm([b.x, b.x]),
    "_foreach_mul_ by a device number": lambda b: torch._foreach_mul_([b.x.clone()], b.number),
    "_foreach_mul by a device number": lambda b: torch._foreach_mul([b.x], b.number),
    "_foreach_div by a device number": lambda b: torch._foreach_div([b.x], b.number + 1),
    "_foreach_add by a device number": lambda b: torch._foreach_add([b.x], b.number),
    "_foreach_sub by a device number": lambda b: torch._foreach_sub([b.x], b.number),
    "_foreach_clamp_max by a device number": lambda b: torch._foreach_clamp_max([b.x], b.number),
    "_foreach_norm": lambda b: torch._foreach_norm([b.x, b.x]),
    "_foreach_copy_": lambda b: torch._foreach_copy_([b.x.clone()], [b.x]),
    "cov": lambda b: torch.cov(b.square),
    "corrcoef": lambda b: torch.corrcoef(b.square),
    "GradScaler.step": scaled_step,
    "MemPool": pooled,
    "graph made and thrown away": lambda b: torch.cuda.CUDAGraph(),
    "get_rng_state": lambda b: torch.cuda.get_rng_state(),
    "set_rng_state": lambda b: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
    "manual_seed_all": lambda b: torch.cuda.manual_seed_all(1),
    "memory_snapshot": lambda b: len(torch.cuda.memory_snapshot()),
    "memory_summary": lambda b: torch.cuda.memory_summary(),
    "reset_peak_memory_stats": lambda b: torch.cuda.reset_peak_memory_stats(),
    "ipc_collect": lambda b: torch.cuda.ipc_collect(),
    "get_device_properties": lambda b: torch.cuda.get_device_properties(0),
    "stream made": lambda b: torch.cuda.Stream(),
    "event made and thrown away": lambda b: torch.cuda.Event().record(),
    "set_device": lambda b: torch.cuda.set_device(0),
    "FloatTensor": lambda b: torch.cuda.FloatTensor([1.0, 2.0]),
    "scalar_tensor": lambda b: torch.scalar_tensor(1.0, device="cuda"),
    "tensor of a device number": lambda b: torch.tensor(b.number, device="cuda"),
    "tensor of device numbers": lambda b: torch.tensor([b.number, b.number], device="cuda"),
    "Tensor of device numbers": lambda b: torch.Tensor([b.number, b.number]),
    "LongTensor of device numbers": lambda b: torch.LongTensor([b.one, b.one]),
    "asarray": lambda b: torch.asarray([1.0], device="cuda"),
    "storage fill_": lambda b: b.x.untyped_storage().fill_(0),
    "storage clone": lambda b: b.x.untyped_storage().clone(),
    "storage element": lambda b: b.x.untyped_storage()[0],
    "storage.cpu": lambda b: b.x.untyped_storage().cpu(),
    "download of another type": lambda b: b.p.view(-1)[:8].copy_(b.x.long(), non_blocking=True),
    "upload of another type, blocking rule": lambda b: b.x.long().copy_(b.p.view(-1)[:8], non_blocking=True),
    "dropout": lambda b: F.dropout(b.x, 0.5),
    "dropout with a device number": lambda b: F.dropout(b.x, b.number),
    "clamp, number and device number": lambda b: b.x.clamp(b.number, 4.0),
    "clamp, device numbers": lambda b: b.x.clamp(b.number, b.number + 1),
    "fill_ with a device number": lambda b: b.x.clone().fill_(b.number),
    "new_full with a device number": lambda b: b.x.new_full((3,), b.number),
    "full_like with a device number": lambda b: torch.full_like(b.x, b.number),
    "where with a host number": lambda b: torch.where(b.mask, b.x, torch.tensor(0.0)),
    "mask = 0-dim of the host": lambda b: put(b.x, b.mask, torch.tensor(1.0)),
    "host mask": lambda b: b.x[torch.ones(8, dtype=torch.bool)],
    "list of bools": lambda b: b.x[[True] * 8],
    "0-dim index of the host": lambda b: b.x[torch.tensor(3)],
    "0-dim bool index": lambda b: b.x[b.mask[0]],
    "0-dim bool index = number": lambda b: put(b.x, b.mask[0], 0.0),
    "element += number": lambda b: b.x[0].add_(1),
    "row = number": lambda b: put(b.square, 0, 1.0),
    "0-dim index = number": lambda b: put(b.x, b.one, 0.0),
    "0-dim index = device number": lambda b: put(b.x, b.one, b.number),
    "mask *= number": lambda b: put(b.x, b.mask, b.x[b.mask] * 2),
    "tensor_split at a device number": lambda b: torch.tensor_split(b.x, b.one),
    "repeat_interleave by a number": lambda b: b.x.repeat_interleave(2),
    "quantile at device numbers": lambda b: torch.quantile(b.x, b.x[:2] / 8),
    "nanmedian": lambda b: b.x.nanmedian(),
    "stft": lambda b: torch.stft(b.x.repeat(8), 16, return_complex=True),
    "combinations": lambda b: torch.combinations(b.i),
    "cartesian_prod": lambda b: torch.cartesian_prod(b.i, b.i),
    "tril_indices": lambda b: torch.tril_indices(3, 3, device="cuda"),
    "block_diag": lambda b: torch.block_diag(b.square, b.square),
    "Categorical": lambda b: torch.distributions.Categorical(logits=b.x, validate_args=True),
    "Categorical, unchecked": lambda b: torch.distributions.Categorical(logits=b.x, validate_args=False).sample(),
    "gumbel_softmax": lambda b: F.gumbel_softmax(b.x),
    "multinomial with replacement": lambda b: torch.multinomial(b.x, 4, replacement=True),
    "binomial": lambda b: torch.binomial(b.x, b.x / 8),
    "poisson": lambda b: torch.poisson(b.x),
    "cross_entropy": lambda b: F.cross_entropy(b.square, b.square.argmax(0)),
    "LSTM": lambda b: torch.nn.LSTM(4, 4, device="cuda")(b.square[:, None]),
    "BatchNorm in training": lambda b: torch.nn.BatchNorm1d(4, device="cuda"),
    "transformer layer": lambda b: layer().eval()(b.square[None]),
    "transformer with padding": encoded,
    "pin_memory of a part": lambda b: torch.zeros(8)[:4].pin_memory(),
    "share_memory_": lambda b: b.x.share_memory_(),
    "from_dlpack": lambda b: torch.from_dlpack(b.x),
    **{name: lambda b, name=name: getattr(torch.optim, name)([with_gradient(b)]).step() for name in OPTIMIZERS},
    "Adam, fused": lambda b: torch.optim.Adam([with_gradient(b)], fused=True).step(),
    "Adam, capturable": lambda b: torch.optim.Adam([with_gradient(b)], capturable=True).step(),
}


def calls():
    """All of them, each on tensors of its own that are there when it is made."""
    for kind, table in (("wait", {name: call for name, (_, call) in WAITS.items()}), ("free", FREE), ("?", INSIDE)):
        for name, call in table.items():
            if name != "graph":  # it stays open
                yield f"{kind}: {name}", partial(call, Bench())
