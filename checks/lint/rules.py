"""The rules: what each kind of observation is called, which code it has, and what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..findings import JSON, Finding, Site, Soundness, Verdict
from .search import Observation
from .staging import Effect
from .symbols import FunctionInfo
from .values import Sure

#: Longer expressions are cut in titles.
_LONGEST = 80


@dataclass(frozen=True)
class Rule:
    """One kind of observation.

    Attributes:
        code: e.g. ``"MRV101"``.
        what: what the expression does, after it in the title.
        remedy: what to write instead.
    """

    code: str
    what: str
    remedy: str


_LATER = (
    "copy it with .to('cpu', non_blocking=True) on a side stream, record an event, "
    "and read it after the event, a step later"
)
_ON_DEVICE = (
    "keep the decision on the device (torch.where, masked_fill_, a kernel argument), or decide by what the host knows"
)
_PINNED = "write into pinned memory that the object owns, and copy that with non_blocking=True"

KINDS: Mapping[str, Rule] = MappingProxyType(
    {
        "pull": Rule("MRV101", "pulls a value of the device to the host", _LATER),
        "number": Rule("MRV101", "turns a device tensor into a number on the host", _LATER),
        "index": Rule("MRV101", "uses a device tensor as an index of the host", _LATER),
        "slice": Rule(
            "MRV101",
            "is a bound of a slice, and on the device",
            "keep the length on the host, or mask instead of slicing: a slice needs its bounds at once",
        ),
        "branch": Rule("MRV101", "is a device tensor that decides which way the host goes", _ON_DEVICE),
        "assert": Rule(
            "MRV101",
            "is a device tensor that an assertion asks",
            "torch._assert_async(condition), which is checked on the device; or check in tests only",
        ),
        "contains": Rule("MRV101", "compares device tensors one by one on the host", _ON_DEVICE),
        "format": Rule("MRV101", "formats a device tensor as text", f"leave it out of the message, or {_LATER}"),
        "host_result": Rule("MRV101", "answers with a value of the host", "(a == b).all() stays on the device"),
        "constructor": Rule(
            "MRV102",
            "uploads data of the host and waits for the copy",
            "torch.tensor(data, pin_memory=True).to(device, non_blocking=True), or a kernel that makes the values",
        ),
        "upload_blocking": Rule(
            "MRV102", "uploads and waits for the copy", "pinned memory as the source, and non_blocking=True"
        ),
        "upload_pageable": Rule(
            "MRV102",
            "uploads from pageable memory, which waits as soon as the shared staging memory of the driver is full",
            _PINNED,
        ),
        "setitem": Rule(
            "MRV102",
            "writes a value of the host into a device tensor, which uploads it and waits",
            "x[i : i + 1] = number or fill_ (a kernel fills a slice); for many values, one copy from pinned memory",
        ),
        "index_upload": Rule(
            "MRV102",
            "indexes a device tensor with data of the host, which is uploaded and waited for",
            "upload the index from pinned memory with non_blocking=True, and index with the tensor on the device",
        ),
        "download_blocking": Rule(
            "MRV103",
            "copies from the device to the host and waits",
            "a pinned destination, non_blocking=True, an event",
        ),
        "download_pageable": Rule(
            "MRV103",
            "copies into pageable memory, which waits whatever non_blocking says",
            "a destination made with pin_memory=True, and an event before it is read",
        ),
        "synchronize": Rule(
            "MRV104",
            "makes the host wait for the device",
            "let a stream wait instead (stream.wait_event, wait_stream); poll event.query() for memory to reuse",
        ),
        "shape": Rule(
            "MRV105",
            "has a shape that depends on data, so that the host waits for it",
            "an operation of fixed size (nonzero_static, topk, scatter, cumsum of the mask), and the mask itself",
        ),
        "mask": Rule(
            "MRV105",
            "indexes with a mask, whose result has a shape that depends on data",
            "torch.where or masked_fill_, which keep the shape; or indices of fixed size",
        ),
        "repeat_interleave": Rule("MRV105", "asks the device for the size of its result", "give output_size="),
        "empty_cache": Rule(
            "MRV106",
            "gives memory back to the driver, which waits for the device",
            "leave the cache alone while serving",
        ),
        "inside": Rule(
            "MRV109",
            "waits for the device inside",
            "the variant that does not check (inv_ex, solve_ex, cholesky_ex); for isin, (x[:, None] == y).any(1)",
        ),
        "stream": Rule(
            "MRV130",
            "is used on a stream that nothing orders after the stream that made it",
            "stream.wait_stream(the stream that made it), or an event recorded there and stream.wait_event(event)",
        ),
        "staging": Rule(
            "MRV131",
            "is written again without a wait for the copy that reads it",
            "record an event after the copy, and wait for it or poll it before the next write; or write elsewhere",
        ),
    }
)

#: Codes that the search can report.
CODES = frozenset(rule.code for rule in KINDS.values())


def finding_of(observation: Observation) -> Finding:
    """An observation as a finding."""
    rule = KINDS[observation.kind]
    certain = observation.sure is Sure.CERTAIN and observation.straight
    node = observation.node
    line = int(getattr(node, "lineno", 0))
    chain: list[JSON] = [_step(function, at) for function, at in observation.chain]
    evidence: dict[str, JSON] = {"confidence": observation.sure.name.lower(), "chain": chain, **dict(observation.facts)}
    return Finding(
        code=rule.code,
        verdict=Verdict.VIOLATION if certain else Verdict.SUSPECT,
        soundness=Soundness.MAY,
        title=f"{_shown(node)} {rule.what}",
        where=(
            Site(observation.source.label, line, observation.function),
            *_callers(observation.chain),
        ),
        evidence=evidence,
        remedy=rule.remedy,
    )


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return f"`{text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}`"


def _memory(effect: Effect) -> str:
    """The attribute, or the function if it is memory without one; a line would change from version to version."""
    buffer = str(effect.buffer)
    return f"pinned memory of `{effect.function}`" if ":" in buffer else f"`{buffer}`"


def _step(function: FunctionInfo, line: int) -> str:
    return f"{function.identity}, line {line}"


def _callers(chain: Iterable[tuple[FunctionInfo, int]]) -> tuple[Site, ...]:
    """The root, if it is another function: the fingerprint must not depend on the way from there."""
    steps = list(chain)
    if len(steps) < 2:
        return ()
    root, line = steps[0]
    return (Site(root.source.label, line, root.qualified),)


def staging_finding(copied: Effect, written: Effect, file: str, other: str) -> Finding:
    """A pinned buffer that is written again too early."""
    rule = KINDS["staging"]
    return Finding(
        code=rule.code,
        verdict=Verdict.SUSPECT,
        soundness=Soundness.MAY,
        title=f"{_memory(written)} {rule.what}",
        where=(Site(file, written.line, written.function),),
        other=(Site(other, copied.line, copied.function),),
        evidence={"confidence": "possible" if written.branched or copied.branched else "likely"},
        remedy=rule.remedy,
    )
