"""The catalogue of races as programs: each is wrong as it stands, and right with the one change that ``mended`` makes.

An item of "what must not be reported" is the mended twin of its program; the wrong one differs from it by as little as
makes it a race. Each program numbers itself as step 7 of a runner.
"""

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from mrv2.checks.virtual import uva_view
from mrv2.checks.virtual.streams import active_runtime

STEP = 7
CATCH = "must be caught"
QUIET = "must not be reported"
SEEDED = "seeded case of the research note"
CORRECT = "correct program of the research note"
CONTROL = "negative control of the museum"


@dataclass(frozen=True)
class Item:
    """One line of the catalogue.

    Attributes:
        name: what it is about.
        source: the list that asks for it.
        code: of the wrong twin's only finding.
        program: takes ``mended``.
    """

    name: str
    source: str
    code: str
    program: Callable[[bool], object]

    def twin(self, mended: bool) -> Callable[[], object]:
        """The program as ``run_program`` takes it."""
        return functools.partial(_at_step, self.program, mended)


ITEMS: list[Item] = []


def _at_step(program: Callable[[bool], object], mended: bool) -> object:
    active_runtime().step = STEP
    return program(mended)


def item(source: str, code: str, name: str) -> Callable[[Callable[[bool], object]], Callable[[bool], object]]:
    """Puts a program into the catalogue; one that is on two lists is put there twice."""

    def put(program: Callable[[bool], object]) -> Callable[[bool], object]:
        ITEMS.append(Item(name, source, code, program))
        return program

    return put


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=lane < n, other=0.0) * 2, mask=lane < n)


@triton.jit
def scatter(index_ptr, out_ptr):
    program = tl.program_id(0)
    tl.store(out_ptr + tl.load(index_ptr + program), program + 1.0)


def host(*values: float) -> torch.Tensor:
    return torch.tensor(values or (1.0, 1.0, 1.0, 1.0), pin_memory=True)


def device(size: int = 4) -> torch.Tensor:
    return torch.ones(size, device="cuda")


def side_stream() -> torch.cuda.Stream:
    """A stream that comes after what is there so far."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return side


def recorded() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


# What it must catch


@item(CATCH, "MRV201", "pinned source overwritten before its copy ran")
def pinned_source_overwritten(mended):
    dev, pinned = device(), host()
    dev.copy_(pinned, non_blocking=True)
    if mended:
        recorded().synchronize()
    pinned.add_(1)
    return dev


@item(CATCH, "MRV202", "UVA memory written while a kernel may read it")
@item(SEEDED, "MRV202", "UVA buffer written by host")
def uva_memory_written(mended):
    pinned, out = host(), device()
    double[(1,)](uva_view(pinned), out, 4, BLOCK=4)
    if mended:
        recorded().synchronize()
    pinned.numpy()[:2] = 5
    torch.cuda.synchronize()  # before the pinned memory is dropped
    return out


@item(CATCH, "MRV203", "destination of a non-blocking download read before its event")
@item(SEEDED, "MRV203", "pending D2H read on host")
def download_read_early(mended):
    result = device().to("cpu", non_blocking=True)
    event = recorded()
    if mended:
        event.synchronize()
    return result.numpy().tolist()


@item(CATCH, "MRV204", "two streams without an edge")
def two_streams(mended):
    x, side = device(), side_stream()
    x.add_(1)
    if mended:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    return y


@item(CATCH, "MRV205", "memory freed and re-used on another stream without record_stream")
@item(SEEDED, "MRV205", "freed without record_stream")
def freed_without_record_stream(mended):
    x, side = device(), side_stream()
    with torch.cuda.stream(side):
        y = x * 2
    if mended:
        x.record_stream(side)
    del x
    torch.zeros(4, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    return y


@item(CATCH, "MRV206", "pinned block dropped while a kernel reads it in place")
def pinned_block_dropped(mended):
    pinned, out = host(), device()
    double[(1,)](pinned, out, 4, BLOCK=4)
    if mended:
        recorded().synchronize()
    del pinned
    torch.cuda.synchronize()
    return out


@item(CATCH, "MRV206", "pinned block dropped while a copy through an interior numpy alias is pending")
def interior_alias_dropped(mended):
    pinned, dev = host(), device(3)
    dev.copy_(torch.from_numpy(pinned.numpy()[1:]), non_blocking=True)
    if mended:
        recorded().synchronize()
    del pinned
    return dev


@item(CATCH, "MRV204", "graph replay against the outside")
@item(SEEDED, "MRV204", "graph replay vs side stream")
def replay_against_side_stream(mended):
    x, y = device(), device()
    graph, side = torch.cuda.CUDAGraph(), side_stream()
    with torch.cuda.graph(graph):
        y.copy_(x)
    graph.replay()
    if mended:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.fill_(3)
    torch.cuda.synchronize()
    return y


@item(CATCH, "MRV501", "graph input freed after capture")
def graph_input_freed(mended):
    x, y, graph = device(), device(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x)
    if not mended:
        del x
    graph.replay()
    return y


@item(CATCH, "MRV502", "host sync during capture")
def sync_in_capture(mended):
    x, graph = device(), torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError), torch.cuda.graph(graph):
        x.add_(1)
        if not mended:
            x.max().item()


@item(CATCH, "MRV503", "unjoined branch of a capture")
def unjoined_branch(mended):
    x, graph = device(), torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError), torch.cuda.graph(graph):
        side = side_stream()
        with torch.cuda.stream(side):
            x.add_(1)
        if mended:
            torch.cuda.current_stream().wait_stream(side)


@item(CATCH, "MRV210", "a wait on an event never recorded")
def vacuous_fence(mended):
    event, x = torch.cuda.Event(), device()
    y = x * 2
    if mended:
        event.record()
    event.synchronize()
    return y


@item(CATCH, "MRV211", "write-write conflict between programs of one launch")
def programs_conflict(mended):
    rows, out = torch.tensor([0, 1 if mended else 0], device="cuda"), device()
    scatter[(2,)](rows, out)
    return out


@item(CATCH, "MRV212", "out-of-bounds lanes of a kernel")
def lanes_out_of_bounds(mended):
    x, out = device(4), device(1 << 16)
    double[(1,)](x, out, 4 if mended else 1 << 16, BLOCK=1 << 16)
    return out[:4]


# What must not be reported


@item(QUIET, "MRV201", "disjoint byte ranges of one buffer")
def disjoint_ranges(mended):
    pinned, dev = host(), device(2)
    dev.copy_(pinned[:2], non_blocking=True)
    pinned.numpy()[2 if mended else 1 :] = 9
    return dev


@item(QUIET, "MRV203", "polling event.query() until true")
@item(CORRECT, "MRV203", "polled event.query()")
def polled(mended):
    result, event = device().to("cpu", non_blocking=True), recorded()
    while mended and not event.query():
        pass
    return result.tolist()


@item(QUIET, "MRV206", "the host allocator protects a dropped pinned tensor against a pending torch copy")
def allocator_protects(mended):
    pinned, dev = host(), device()
    source = pinned if mended else uva_view(pinned)
    dev.copy_(source, non_blocking=True)
    del pinned, source
    torch.zeros(1, device="cuda")
    return dev


@item(QUIET, "MRV206", "the host allocator waits for all that a stream has been given which it saw copy from the block")
def allocator_waits_for_the_stream(mended):
    pinned, out, dev = host(), device(), device()
    with contextlib.nullcontext() if mended else torch.cuda.stream(side_stream()):
        dev.copy_(pinned, non_blocking=True)
    double[(1,)](pinned, out, 4, BLOCK=4)
    del pinned
    torch.cuda.synchronize()
    return out


@item(QUIET, "MRV203", "a view, a shape or may_share_memory without reading")
def looking_is_no_read(mended):
    result, event = device().to("cpu", non_blocking=True), recorded()
    alias, view = result.numpy(), result[1:].view(-1)
    seen = np.may_share_memory(alias, result.numpy()), alias.shape, alias[1:].strides, view.shape, len(alias)
    if not mended:
        alias[0].item()
    event.synchronize()
    return [*map(str, seen)]


@item(QUIET, "MRV204", "two pieces of work ordered by a third")
def ordered_by_a_third(mended):
    x, first, second = device(), side_stream(), side_stream()
    with torch.cuda.stream(first):
        x.add_(1)
        if mended:
            torch.cuda.default_stream().wait_event(recorded())
    second.wait_event(recorded())
    with torch.cuda.stream(second):
        x.mul_(2)
    torch.cuda.synchronize()
    return x


class Handover:
    """What a worker gives and the main thread waits for."""

    def __init__(self, make, give, take):
        self.make, self.give, self.take = make, give, take


def _wait_in(condition):
    with condition:
        condition.wait_for(lambda: condition.given)


def _notify(condition):
    with condition:
        condition.given = True
        condition.notify()


def _condition():
    condition = threading.Condition()
    condition.given = False
    return condition


def _held_lock():
    lock = threading.Lock()
    lock.acquire()
    return lock


HANDOVERS = {
    "queue": Handover(queue.Queue, lambda q: q.put(1), lambda q: q.get()),
    "Event": Handover(threading.Event, lambda e: e.set(), lambda e: e.wait()),
    "Condition": Handover(_condition, _notify, _wait_in),
    "Lock": Handover(_held_lock, lambda lock: lock.release(), lambda lock: lock.acquire()),
}


def hands_over(how, mended):
    """The worker waits for the copy and then hands over; wrong is to hand over first."""
    dev, pinned = device(), host()
    dev.copy_(pinned, non_blocking=True)
    event, token = recorded(), how.make()

    def work():
        if mended:
            event.synchronize()
        how.give(token)
        if not mended:
            event.synchronize()

    worker = threading.Thread(target=work)
    worker.start()
    how.take(token)
    pinned.add_(1)
    worker.join()


for _name, _how in HANDOVERS.items():
    item(QUIET, "MRV201", f"a worker synchronises and hands over: {_name}")(functools.partial(hands_over, _how))


@item(QUIET, "MRV201", "a worker synchronises and hands over: start and join")
def start_and_join(mended):
    dev, pinned = device(), host()
    dev.copy_(pinned, non_blocking=True)
    worker = threading.Thread(target=recorded().synchronize)
    worker.start()
    if mended:
        worker.join()
    pinned.add_(1)
    worker.join()


@item(QUIET, "MRV201", "a worker synchronises and hands over: concurrent.futures")
def future(mended):
    dev, pinned = device(), host()
    dev.copy_(pinned, non_blocking=True)
    event = recorded()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(event.synchronize)
        if mended:
            waiting.result()
        pinned.add_(1)


# The eight seeded cases and three correct programs, where they are not on the lists above


@item(SEEDED, "MRV204", "plain cross-stream write/write")
def write_write(mended):
    x, side = device(), side_stream()
    x.fill_(1)
    if mended:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.fill_(2)
    torch.cuda.synchronize()
    return x


@item(SEEDED, "MRV204", "overlapping views, different data_ptr")
def overlapping_views(mended):
    x, side = device(8), side_stream()
    x[:5].fill_(1)
    if mended:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x[4:].fill_(2)
    torch.cuda.synchronize()
    return x


@item(SEEDED, "MRV201", "pinned source overwritten")
def pinned_source_overwritten_through_numpy(mended):
    dev, pinned = device(), host()
    staging = pinned.numpy()
    dev.copy_(pinned, non_blocking=True)
    if mended:
        torch.cuda.current_stream().synchronize()
    staging[0] = 7
    return dev


@item(SEEDED, "MRV204", "Triton kernel on side stream")
def kernel_on_side_stream(mended):
    x, out, side = device(), device(), side_stream()
    x.fill_(3)
    if mended:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        double[(2,)](x, out, 4, BLOCK=2)
    torch.cuda.synchronize()
    return out


@item(CORRECT, "MRV204", "disjoint parts of one tensor: two streams")
def disjoint_parts_two_streams(mended):
    x, side = device(8), side_stream()
    x[:4].fill_(1)
    with torch.cuda.stream(side):
        x[4 if mended else 3 :].fill_(2)
    torch.cuda.synchronize()
    return x


@item(CORRECT, "MRV202", "disjoint parts of one tensor: host and kernel")
def disjoint_parts_host_and_kernel(mended):
    pinned, out = host(), device()
    double[(1,)](pinned, out, 2 if mended else 3, BLOCK=4)
    pinned.numpy()[2:] = 9
    torch.cuda.synchronize()
    return out


# The negative controls


@item(CONTROL, "MRV203", "N01: views of a host tensor taken before the event, read after")
def views_before_the_event(mended):
    result, event = torch.ones(2, 4, device="cuda").to("cpu", non_blocking=True), recorded()
    rows = [row.numpy() for row in result.unbind(0)]
    if mended:
        event.synchronize()
    return [row.tolist() for row in rows]


@item(CONTROL, "MRV203", "N03: one stream, and later reads synchronise")
def later_reads_synchronise(mended):
    caches = [device().to("cpu", non_blocking=True) for _ in range(3)]
    if mended:
        device().sum().item()
    return [cache.tolist() for cache in caches]
