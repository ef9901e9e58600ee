"""Judges mutants in processes of their own, forked once all modules are loaded, so that nothing of one is left."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from .battery import Kill
from .judge import Battery, Outcome, Verdict
from .sites import OrderingMutant

#: Of the processor. All runs of a mutant that lives take a tenth; one that uses them up does not come to its end.
MOST_SECONDS = 900


def judge_all(battery: Battery, mutants: Sequence[OrderingMutant], workers: int) -> Iterator[Verdict]:
    """The verdict on each mutant, in the order in which they come.

    This process must not have computed with several threads: they would be missing in its children.

    Args:
        workers: how many are judged at once.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(mutants), dict[Connection, tuple[OrderingMutant, ForkProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                mutant = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_judge, args=(battery, mutant, sender), daemon=True)
                process.start()
                sender.close()
                running[receiver] = mutant, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                mutant, process = running.pop(ready)
                yield _received(ready, mutant, process)
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def one_thread() -> None:
    """Let torch compute in the calling thread alone, in this process, for as long as it lives."""
    torch.set_num_threads(1)


def _judge(battery: Battery, mutant: OrderingMutant, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    sender.send(battery.judge(mutant))


def _received(
    receiver: Connection, mutant: OrderingMutant, process: ForkProcess
) -> Verdict:  # fmt: skip
    """What a process found out; one that died without a word was killed by what the mutant did."""
    with receiver:
        try:
            verdict: Verdict = receiver.recv()
        except EOFError:
            process.join()
            kill = Kill("MRV307", f"its process ended with {process.exitcode}", "", "")
            return Verdict(mutant, Outcome.KILLED, kill, "", ())
    process.join()
    return verdict
