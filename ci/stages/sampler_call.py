"""One call of a sampler under test, which gets copies and whose answer is checked before anything relies on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.codes import explain
from mrv2.checks.findings import JSON, Finding, Site, Verdict
from mrv2.fuzz.workload import stack
from mrv2.stats.targets import SamplerTarget

ARGUMENTS = ("logits", "temperature", "seeds", "positions")


def ask(
    sampler: SamplerTarget,
    logits: NDArray[np.float32],
    temperatures: NDArray[np.float32],
    seeds: NDArray[np.uint64],
    positions: NDArray[np.int64],
) -> NDArray[np.int64] | Finding:
    """Tokens of one batch, int64 [N], or what is wrong with the call.

    A sampler that changes its arguments would be judged by what it made of them, so it works on copies.
    """
    given = (logits.copy(), temperatures.copy(), seeds.copy(), positions.copy())
    try:
        answer = sampler.sample(*given)
    except Exception as error:  # noqa: BLE001 - a target raises anything
        return _raised(sampler.name, error)
    before = (logits.tobytes(), temperatures.tobytes(), seeds.tobytes(), positions.tobytes())
    after = tuple(argument.tobytes() for argument in given)
    changed = [name for name, left, right in zip(ARGUMENTS, before, after, strict=True) if left != right]
    if changed:
        return violation(
            "MRV403",
            f"{sampler.name} changes its arguments: {', '.join(changed)}",
            {"rows": int(seeds.size), "changed": changed},
            "write to buffers of the sampler's own; the caller reads its own again",
        )
    return _checked(sampler.name, answer, seeds.shape)


def violation(
    code: str, title: str, evidence: Mapping[str, JSON], remedy: str, where: tuple[Site, ...] = ()
) -> Finding:
    """A violation as sure as its code is."""
    return Finding(code, Verdict.VIOLATION, explain(code).soundness, title, where, evidence=evidence, remedy=remedy)


def _checked(name: str, answer: object, shape: tuple[int, ...]) -> NDArray[np.int64] | Finding:
    try:
        tokens = np.asarray(answer)
    except Exception as error:  # noqa: BLE001 - rows of several lengths, or an object whose conversion raises
        return _wrong_form(name, shape, {"error": f"{type(error).__name__}: {error}"})
    if tokens.shape != shape or tokens.dtype.kind not in "iu":
        return _wrong_form(name, shape, {"shape": list(tokens.shape), "dtype": str(tokens.dtype)})
    return tokens.astype(np.int64)


def _wrong_form(name: str, shape: tuple[int, ...], evidence: Mapping[str, JSON]) -> Finding:
    return violation(
        "MRV403",
        f"{name} does not return one token id per row",
        {"rows": shape[0], **evidence},
        "return an int64 array with one id per row of logits",
    )


def _raised(name: str, error: Exception) -> Finding:
    title = f"{name} failed: {type(error).__name__}: {error}"
    return violation("MRV307", title, {}, "a sampler must answer for any logits and keys", stack(error))
