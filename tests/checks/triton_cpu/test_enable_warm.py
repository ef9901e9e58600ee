"""Kernels that were built before: what a process finds on the disk, and what it does not trust."""

from __future__ import annotations

import pytest
import torch

from mrv2.checks.errors import CheckError
from mrv2.checks.triton_cpu import build, enabled
from mrv2.checks.triton_cpu.compiler import Compiler
from mrv2.checks.triton_cpu.prepared import prepared as prepared_of

from .test_enable import add, annotated, last_program_wins, numbers


def test_a_warm_start_runs_neither_triton_nor_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    x, y, out = numbers()
    with enabled():
        annotated(add)[(2,)](x, y, out, 100, BLOCK=64)

    def refuse(*args, **kwargs):
        raise AssertionError("it was built again")

    monkeypatch.setattr(Compiler, "build", refuse)
    monkeypatch.setattr("mrv2.checks.triton_cpu.frontend.ttir", refuse)
    out.zero_()
    with enabled() as session:
        annotated(add)[(2,)](x, y, out, 100, BLOCK=64)
        add_kernel = annotated(add)
        add_kernel[(4,)](x, y, out, 100, BLOCK=64)
    assert torch.equal(out, x + y)
    assert not session.findings
    with enabled(), pytest.raises(AssertionError, match="built again"):
        annotated(add)[(2,)](x, y, out, 100, BLOCK=128)


def test_facts_survive_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    kernels = []
    for _ in range(2):
        kernel = prepared_of(annotated(add))
        kernels.append(kernel.kernel(kernel.bind((*numbers(), 100, 64), {}), audit=True).source)
    cold, warm = kernels
    assert warm.sites == cold.sites
    assert len(warm.sites) == 3
    assert (warm.parameters, warm.loops, warm.from_memory, warm.scratch) == (
        cold.parameters,
        cold.loops,
        cold.from_memory,
        cold.scratch,
    )


def test_a_cache_that_others_may_write_to_is_refused(tmp_path, monkeypatch):
    (tmp_path / "triton_cpu").mkdir(mode=0o700)
    (tmp_path / "triton_cpu").chmod(0o777)
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    with enabled(), pytest.raises(CheckError, match="writable by others"):
        annotated(last_program_wins)[(1,)](torch.zeros(1, dtype=torch.int32))


def test_a_damaged_cache_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    x, y, out = numbers()
    with enabled():
        annotated(add)[(2,)](x, y, out, 100, BLOCK=64)
        build._cache.cache_clear()
        for file in (tmp_path / "triton_cpu").iterdir():
            content = file.read_bytes()
            file.unlink()  # the process still runs the old file's code
            file.write_bytes(content[:-9])
        out.zero_()
        annotated(add)[(2,)](x, y, out, 100, BLOCK=64)
    assert torch.equal(out, x + y)
