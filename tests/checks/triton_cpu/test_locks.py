"""Locks and forks, and builds that fail once."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.triton_cpu import InterpretedKernel, build, enabled
from mrv2.checks.triton_cpu.cache import Cache
from mrv2.checks.triton_cpu.compiler import Compiler
from mrv2.checks.triton_cpu.launcher import language_lock
from mrv2.checks.triton_cpu.locks import ForkSafeLock
from mrv2.checks.triton_cpu.prepared import prepared

from .test_enable import annotated


@triton.jit
def fill(out):
    tl.store(out, 3)


def filled(kernel) -> list[int]:
    out = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](out)
    return out.tolist()


def in_child(work) -> int:
    """Runs it in a forked child; 0 if it came to its end in time."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode


class Holder:
    """A thread that holds locks until it is told to let go."""

    def __init__(self, *locks):
        self._held, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(locks,))

    def _hold(self, locks):
        for lock in locks:
            lock.__enter__()
        self._held.set()
        self._go.wait()
        for lock in locks:
            lock.__exit__(None, None, None)

    def __enter__(self):
        self._thread.start()
        self._held.wait()

    def __exit__(self, *error):
        self._go.set()
        self._thread.join()


def test_a_child_builds_though_a_thread_of_its_parent_was_building(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    kernel = annotated(fill)

    def work():
        with enabled():
            assert filled(kernel) == [3]

    with enabled(), Holder(language_lock, prepared(kernel)._lock):
        assert in_child(work) == 0


def test_a_lock_of_the_forking_thread_stays_its_own():
    lock = ForkSafeLock()

    def work():
        with lock:  # it is held below, by the thread that forks
            pass

    with lock:
        assert in_child(work) == 0
    with lock:
        pass


def test_a_lock_still_excludes_other_threads():
    lock, entered = ForkSafeLock(), threading.Event()

    def work():
        with lock:
            entered.set()

    thread = threading.Thread(target=work)
    with lock:
        thread.start()
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()


def test_a_compiler_that_failed_is_asked_again_when_another_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    kernel = annotated(fill)
    with enabled():
        monkeypatch.setenv("CC", "false")
        with pytest.warns(InterpretedKernel):
            assert filled(kernel) == [3]
        monkeypatch.delenv("CC")
        assert filled(kernel) == [3]
        call = prepared(kernel).bind((torch.zeros(1, dtype=torch.int32),), {})
        assert prepared(kernel).kernel(call, audit=True).name == "fill"


def test_a_compiler_that_always_fails_is_asked_three_times(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    asked, stock = [], Compiler.build
    monkeypatch.setattr(Compiler, "build", lambda self, *args: (asked.append(1), stock(self, *args)))
    kernel = annotated(fill)
    with enabled(), pytest.warns(InterpretedKernel):
        assert [filled(kernel) for _ in range(5)] == [[3]] * 5
    assert len(asked) == 3


def test_an_entry_that_is_taken_away_before_it_is_loaded_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    with enabled():
        assert filled(annotated(fill)) == [3]
    for method in ("find", "add"):
        stock = getattr(Cache, method)

        def then_gone(self, *args, stock=stock):
            entry = stock(self, *args)
            if entry is not None:
                entry.library.unlink()
            return entry

        with monkeypatch.context() as patch:
            patch.setattr(build.Cache, method, then_gone)
            with enabled():
                assert filled(annotated(fill)) == [3]
