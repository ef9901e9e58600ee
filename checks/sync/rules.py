"""The table of rules: for each way to make the host wait its code, how a program says it, and what to write instead.

A row is found by why the host waits and by what was called, first by the name that the program used, then by the name
of the operator inside; if neither has a row of its own, by the kind alone. So an operator that nobody thought of has a
rule as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..events import Stack
from .waits import Cause, Wait, WaitKind


@dataclass(frozen=True)
class Rule:
    """What one kind of wait is.

    Attributes:
        code: of the finding that it makes in a hot path.
        says: how a program says it.
        instead: the cheaper thing to write.
    """

    code: str
    says: str
    instead: str


_LATER = "copy it to pinned memory with non_blocking=True, record an event, and read it a step later behind the event"
_PINNED = "fill a slot of a pinned ring, copy_(slot, non_blocking=True), and record the slot's event"

#: Rules of whole kinds.
KINDS: Mapping[WaitKind, Rule] = MappingProxyType(
    {
        WaitKind.VALUE: Rule(
            "MRV101", "Tensor.item, or bool, int, float, an index or a branch",
            f"keep the value on the device, or {_LATER}",
        ),
        WaitKind.DOWNLOAD: Rule("MRV101", "Tensor.cpu, to, tolist or repr", _LATER),
        WaitKind.UPLOAD: Rule("MRV102", "a tensor made on the device from data of the host", _PINNED),
        WaitKind.DOWNLOAD_INTO: Rule(
            "MRV103", "Tensor.copy_ into memory of the host",
            "let the target be dense pinned memory (pin_memory=True, no gaps), copy with non_blocking=True, and record "
            "an event to read it behind",
        ),
        WaitKind.EVENT: Rule(
            "MRV104", "Event.synchronize",
            "stream.wait_event(event) if a stream needs the order; event.query() to poll; or wait a step later, "
            "outside of the hot path",
        ),
        WaitKind.STREAM: Rule(
            "MRV104", "Stream.synchronize", "other.wait_stream(stream) if another stream needs the order, or an event "
            "that is recorded here and polled later",
        ),
        WaitKind.DEVICE: Rule(
            "MRV104", "torch.cuda.synchronize",
            "an event of the one stream that matters, waited for by the stream that needs it (wait_event), or polled a "
            "step later",
        ),
        WaitKind.SHAPE: Rule(
            "MRV105", "an operator whose result is as long as the data say",
            "a form with a known shape: a mask in the place of a selection (torch.where, masked_fill), or padding to a "
            "length that the host knows",
        ),
        WaitKind.FREE_DEVICE: Rule(
            "MRV106", "torch.cuda.empty_cache", "nothing: cached memory is used again; empty_cache belongs after the "
            "warm-up, outside of the hot path",
        ),
        WaitKind.FREE_HOST: Rule(
            "MRV106", "torch.accelerator.empty_host_cache", "nothing: cached pinned memory is used again; give it back "
            "outside of the hot path",
        ),
        WaitKind.MODULE: Rule(
            "MRV107", "the first launch of a kernel", "launch every variant once in a warm-up, before the hot path"
        ),
        WaitKind.QUEUE: Rule(
            "MRV108", "a launch behind a full launch queue",
            "bound the steps in flight, or capture the step in a graph: a replay takes one entry",
        ),
        WaitKind.INSIDE: Rule(
            "MRV109", "an operator that waits inside",
            "a form that does not check on the host, or the call moved out of the hot path",
        ),
        WaitKind.CUSTOM: Rule(
            "MRV109", "an operator of an extension that waits inside",
            "let the operator take the sizes it needs from the host, or leave its result on the device",
        ),
    }
)  # fmt: skip

_VALUE, _SHAPE, _INSIDE = KINDS[WaitKind.VALUE], KINDS[WaitKind.SHAPE], KINDS[WaitKind.INSIDE]
_COMPARED = "torch.isclose(a, b).all() stays on the device; torch._assert_async(...) checks it there"
_PRINTED = "log shape and dtype, which the host knows, or the values of the step before, which are on the host by now"
_SAVED = "download to pinned memory behind an event, and save that outside of the hot path"
_NONE = "none that does not check: move it out of the hot path"

#: Rows by why the host waits, and by names without what stands before them: ``"item"`` for ``Tensor.item``.
_ROWS: tuple[tuple[WaitKind, str, Rule], ...] = (
    (WaitKind.VALUE, "__bool__ is_nonzero",
     Rule("MRV101", "bool() of a tensor, or a branch on it",
          "torch.where(condition, a, b) on the device, or " + _LATER)),
    (WaitKind.VALUE, "__getitem__ __index__ select narrow",
     Rule("MRV101", "a device number as an index, a length or the end of a slice",
          "index_select or gather with an index on the device, or a length that the host keeps itself")),
    (WaitKind.VALUE, "__setitem__ masked_fill masked_fill_ index_fill index_fill_",
     Rule("MRV101", "a device number assigned under a mask or an index", "torch.where(mask, value, x); index_copy_")),
    (WaitKind.VALUE, "equal allclose __contains__", Rule("MRV101", "a comparison that the host gets", _COMPARED)),
    (WaitKind.VALUE, "__format__ __repr__ __str__", Rule("MRV101", "a number of the device, formatted", _PRINTED)),
    (WaitKind.DOWNLOAD, "__repr__ __format__ __str__", Rule("MRV101", "repr, print or format of a tensor", _PRINTED)),
    (WaitKind.DOWNLOAD, "__reduce_ex__ __reduce__ save dumps", Rule("MRV101", "pickle, or torch.save", _SAVED)),
    (WaitKind.VALUE, "one_hot",
     Rule("MRV105", "torch.nn.functional.one_hot without num_classes", "one_hot(x, num_classes=n)")),
    (WaitKind.SHAPE, "nonzero argwhere",
     Rule("MRV105", "Tensor.nonzero, torch.where(mask) or torch.argwhere",
          "torch.nonzero_static(x, size=n) with a size that the host knows")),
    (WaitKind.SHAPE, "where", Rule("MRV105", "torch.where with one argument", "torch.where(mask, a, b), or "
                                   "torch.nonzero_static(mask, size=n) with a size that the host knows")),
    (WaitKind.SHAPE, "index __getitem__ masked_select",
     Rule("MRV105", "indexing with a mask", "torch.where(mask, x, 0), or an index with a length that the host knows")),
    (WaitKind.SHAPE, "index_put index_put_ _index_put_impl_ __setitem__",
     Rule("MRV105", "assigning a tensor under a mask",
          "torch.where(mask, values, x), or masked_scatter_ with the values in order")),
    (WaitKind.SHAPE, "repeat_interleave",
     Rule("MRV105", "torch.repeat_interleave with lengths on the device", "repeat_interleave(..., output_size=n)")),
    (WaitKind.SHAPE, "bincount",
     Rule("MRV105", "torch.bincount, also with minlength", "torch.zeros(n, ...).scatter_add_(0, x, ones)")),
    (WaitKind.SHAPE, "unique _unique _unique2 unique_dim unique_consecutive",
     Rule("MRV105", "torch.unique", "sort on the device and mark the first of equals: length stays that of the input")),
    (WaitKind.SHAPE, "ctc_loss _ctc_loss",
     Rule("MRV109", "torch.nn.functional.ctc_loss", "none that leaves the lengths alone: move it out of the hot path")),
    (WaitKind.SHAPE, "lstsq linalg_lstsq",
     Rule("MRV109", "torch.linalg.lstsq", "torch.linalg.qr and solve_triangular, which do not check")),
    (WaitKind.INSIDE, "histc",
     Rule("MRV109", "torch.histc without a range", "torch.histc(x, bins, min, max) with a range that the host knows, "
                                                   "or torch.bucketize(x, edges), then scatter_add_ into n bins")),
    (WaitKind.INSIDE, "normal normal_",
     Rule("MRV109", "torch.normal with deviations on the device", "mean + std * torch.randn_like(std)")),
    (WaitKind.INSIDE, "segment_reduce",
     Rule("MRV109", "torch.segment_reduce that looks at its lengths", "unsafe=True, where the lengths are right")),
    (WaitKind.INSIDE, "lu _lu_with_info lu_factor_ex linalg_lu linalg_lu_factor_ex",
     Rule("MRV109", "an LU decomposition that is checked, or of a matrix that is not square",
          "torch.linalg.lu_factor_ex of square matrices, with check_errors=False")),
    (WaitKind.INSIDE, "inv_ex solve_ex cholesky_ex linalg_inv_ex linalg_solve_ex _linalg_solve_ex linalg_cholesky_ex",
     Rule("MRV109", "a function of torch.linalg with check_errors=True", "check_errors=False; look at info later")),
    (WaitKind.INSIDE, "isin",
     Rule("MRV109", "torch.isin with many values to test for",
          "torch.searchsorted in sorted values, or a table of flags that is indexed")),
    (WaitKind.INSIDE, "inv inverse", Rule("MRV109", "torch.linalg.inv", "torch.linalg.inv_ex, which does not check")),
    (WaitKind.INSIDE, "solve", Rule("MRV109", "torch.linalg.solve", "torch.linalg.solve_ex, which does not check")),
    (WaitKind.INSIDE, "cholesky", Rule("MRV109", "torch.linalg.cholesky", "torch.linalg.cholesky_ex")),
    (WaitKind.INSIDE, "_linalg_eigh eigh eigvalsh _linalg_svd svd svdvals linalg_eig eig eigvals pinv matrix_rank",
     Rule("MRV109", "a decomposition of torch.linalg", _NONE)),
    (WaitKind.INSIDE, "linalg_pinv pinverse matrix_exp linalg_matrix_exp", Rule("MRV109", "a matrix function", _NONE)),
    (WaitKind.INSIDE, "ldl_factor_ex linalg_ldl_factor_ex ldl_solve linalg_ldl_solve",
     Rule("MRV109", "an LDL decomposition", _NONE)),
    (WaitKind.INSIDE, "_linalg_check_errors",
     Rule("MRV109", "a function of torch.linalg that checks for errors", "its form that ends in _ex")),
    (WaitKind.UPLOAD, "where",
     Rule("MRV102", "torch.where with a 0-dim tensor of the host", "a Python number, or a tensor on the device")),
    (WaitKind.UPLOAD, "index __getitem__",
     Rule("MRV102", "indexing with a list, an array or a tensor of the host",
          f"an index that is on the device already; if the host makes it, {_PINNED}")),
    (WaitKind.UPLOAD, "index_put index_put_ _index_put_impl_ __setitem__",
     Rule("MRV102", "assigning values of the host to elements",
          "index_fill_, fill_ or a number under a mask, which need no upload; or a value that is on the device")),
)  # fmt: skip
_TABLE = {(kind, name): rule for kind, names, rule in _ROWS for name in names.split()}

#: How people write what torch calls by these names.
_SPOKEN = {
    "Tensor.__bool__": "bool() of a tensor",
    "Tensor.__int__": "int() of a tensor",
    "Tensor.__float__": "float() of a tensor",
    "Tensor.__complex__": "complex() of a tensor",
    "Tensor.__index__": "a tensor as an index",
    "Tensor.__getitem__": "indexing a tensor",
    "Tensor.__setitem__": "assigning to elements of a tensor",
    "Tensor.__contains__": "'in' of a tensor",
    "Tensor.__repr__": "repr() of a tensor",
    "Tensor.__format__": "format() of a tensor",
    "Tensor.__reduce_ex__": "pickling a tensor",
}


def rule_of(cause: Cause, called: str | None) -> Rule:
    """The rule that a wait falls under.

    Args:
        cause: what the device knows of it.
        called: what the program called, if that is known.
    """
    for name in _short(called, cause.name):
        found = _TABLE.get((cause.kind, name))
        if found is not None:
            return found
    return KINDS[cause.kind]


def operation_of(cause: Cause, called: str | None, rule: Rule) -> str:
    """What a finding calls the operation: as the program says it."""
    if cause.kind in _NAMED_BY_THEMSELVES:
        return cause.name
    if cause.kind is WaitKind.QUEUE or called is None:
        return rule.says
    return _SPOKEN.get(called, called)


def wait_of(cause: Cause, called: str | None, stack: Stack, step: int | None = None) -> Wait:
    """What a watch is told of a wait.

    Args:
        cause: what the device knows of it.
        called: what the program called, if that is known.
        stack: where it called that, innermost frame first.
        step: of the runner, if known.
    """
    if cause.kind in ASKED_FOR:
        called = None
    rule = rule_of(cause, called)
    return Wait(
        operation_of(cause, called, rule), rule.code, stack, rule.instead, cause.certainty, cause.kind.direction,
        cause.size, step,
    )  # fmt: skip


def kinds_named(name: str) -> frozenset[WaitKind]:
    """The kinds of wait for which the table has a row of this name, e.g. of ``"nonzero"``."""
    return frozenset(kind for kind, row in _TABLE if row == name)


#: The program asks for these by name; which function of torch it is in, if any, says nothing.
ASKED_FOR = frozenset({WaitKind.EVENT, WaitKind.STREAM, WaitKind.DEVICE, WaitKind.FREE_DEVICE, WaitKind.FREE_HOST})
_NAMED_BY_THEMSELVES = ASKED_FOR | {WaitKind.CUSTOM, WaitKind.MODULE}


def _short(*names: str | None) -> Iterator[str]:
    for name in names:
        if name is not None:
            yield name.replace("::", ".").rpartition(".")[2]
