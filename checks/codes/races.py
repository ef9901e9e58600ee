"""Codes MRV2xx, races: two accesses to one memory without an order between them."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV201",
        title="a pinned source is overwritten before its copy has read it",
        soundness=Soundness.SOUND,
        rule="the source of a non-blocking copy stays as it is until the host has waited for the copy",
        why="the copy reads what is there when it runs: a busy device gets the next step's bytes every time",
        remedy="record an event after the copy and synchronise it before the source is written again, or write into "
        "another slot of a ring whose event has completed",
        example=Example(
            "dev.copy_(pinned, non_blocking=True)\npinned.add_(1)",
            "dev.copy_(pinned, non_blocking=True); event.record()\nevent.synchronize()\npinned.add_(1)",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV202",
        title="the host touches memory that a kernel may still use in place",
        soundness=Soundness.SOUND,
        rule="pinned memory that a kernel uses in place is the kernel's until the host has waited for it",
        why="the kernel sees half of the old and half of the new values; no tool that watches copies can see it",
        remedy="give each step in flight a slot of its own, and take a slot again only when an event recorded after "
        "its last reader has completed",
        example=Example(
            "kernel[grid](pinned, out)\npinned[:n] = next_rows",
            "kernel[grid](ring[slot], out); events[slot].record()\n"
            "slot = (slot + 1) % depth; events[slot].synchronize()\nring[slot][:n] = next_rows",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV203",
        title="the target of a download is touched before the copy has ended",
        soundness=Soundness.SOUND,
        rule="the target of a non-blocking download is the device's until the host has waited for the copy",
        why="the host reads whatever the memory held before: often the last step's tokens, which look right",
        remedy="record an event after the copy, and synchronise it, or poll it until true, before the result is read",
        example=Example(
            "tokens = out.to('cpu', non_blocking=True)\nreturn tokens.tolist()",
            "tokens = out.to('cpu', non_blocking=True); event.record()\nevent.synchronize()\nreturn tokens.tolist()",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV204",
        title="two streams use the same memory without an order",
        soundness=Soundness.SOUND,
        rule="if two streams or branches of a graph touch the same bytes and one writes, an event orders them; "
        "launches that use atomics only are told too, though a GPU gives a defined sum: which comes first decides what "
        "each atomic returns, and how sums round",
        why="streams run side by side; which one comes first changes with the load",
        remedy="record an event on the one stream after its work, and let the other stream wait for it before its own",
        example=Example(
            "with torch.cuda.stream(side):\n    out.copy_(logits)  # logits come from the main stream",
            "side.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n    out.copy_(logits)",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV205",
        title="device memory is freed while another stream may still use it",
        soundness=Soundness.SOUND,
        rule="when the last reference goes, the stream that owns the memory comes after everyone who uses it",
        why="the allocator hands the bytes to the owner's next allocation at once, under the feet of the other stream",
        remedy="call tensor.record_stream(stream) for each other stream, or let the owning stream wait for them first",
        example=Example(
            "with torch.cuda.stream(side):\n    use(x)\ndel x",
            "with torch.cuda.stream(side):\n    use(x)\nx.record_stream(side)\ndel x",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV206",
        title="a pinned block is dropped while it is in use",
        soundness=Soundness.SOUND,
        rule="a pinned tensor lives until all that read or write it in place, or through an interior alias, has ended",
        why="the host allocator waits only for streams that it has seen copy the block, through a tensor of its own; "
        "the work of all others finds the next owner's bytes there, or destroys them",
        remedy="keep a reference until an event recorded after the last use has completed, or copy an element of the "
        "block once on the stream that reads it in place",
        example=Example(
            "kernel[grid](torch.tensor(rows, pin_memory=True), out)",
            "rows = torch.tensor(rows, pin_memory=True)\nkernel[grid](rows, out); event.record()\n"
            "in_flight.append((event, rows))  # dropped when the event has completed",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV207",
        title="a pinned source was changed by a write that no hook saw",
        soundness=Soundness.BEST_EFFORT,
        rule="the source of a copy that reads it later stays as it is until the host has waited for the copy",
        why="the copy takes whatever is there when it runs; that the write went through a memoryview, struct or C code "
        "only hides it from the other checks",
        remedy="wait for the copy's event before the write, or write into another slot; locate_writer in "
        "mrv2.checks.hooks.watchpoint repeats the run and names the line",
        example=Example(
            "dev.copy_(pinned, non_blocking=True)\nstruct.pack_into('i', memoryview(pinned.numpy()), 0, 7)",
            "dev.copy_(pinned, non_blocking=True)\nevent.record(); ...; event.synchronize()\nstruct.pack_into(...)",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV208",
        title="two host threads use the same memory without an order",
        soundness=Soundness.SOUND,
        rule="if two threads touch the same pinned bytes and one writes, a hand-over orders them",
        why="the interpreter may switch threads between any two bytes; an output thread then reads half of a step",
        remedy="hand the memory over through a queue, a lock, an Event, a join or a future",
        example=Example(
            "threading.Thread(target=write, args=(pinned,)).start()\nread(pinned)",
            "worker = threading.Thread(target=write, args=(pinned,)); worker.start()\nworker.join()\nread(pinned)",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV210",
        title="a fence waits for an event that was never recorded",
        soundness=Soundness.MAY,
        rule="an event is recorded before anyone waits for it, at least once at each place in the program that waits",
        why="waiting for an event without a record returns at once: the order that the reader of the code sees is not "
        "there. It can be harmless, if nothing needed the order",
        remedy="record the event on the stream whose work is meant, before the wait; or remove the wait",
        example=Example(
            "done = torch.cuda.Event()\ndev.copy_(pinned, non_blocking=True)\ndone.synchronize()",
            "done = torch.cuda.Event()\ndev.copy_(pinned, non_blocking=True)\ndone.record()\ndone.synchronize()",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV211",
        title="two programs of one launch conflict",
        soundness=Soundness.SOUND,
        rule="programs of one launch run in any order and at once, so no program may write what another one touches, "
        "unless both do so atomically or an atomic orders them",
        why="which value is left, or read, changes from run to run; with two programs it often looks right",
        remedy="give each program bytes of its own; resolve duplicate indices before the launch; or use atomics",
        example=Example(
            "tl.store(out_ptr + tl.load(rows_ptr + pid), value)  # rows may hold one row twice",
            "# on the host, before the launch: keep the last write to each row only",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV212",
        title="a kernel touches memory outside of every tensor",
        soundness=Soundness.SOUND,
        rule="each lane that is not masked off has its address inside memory that is allocated",
        why="a load brings in another tensor's bytes and a store destroys them; neither fails at once on a GPU",
        remedy="mask the lanes beyond the end; if the index was read from memory, look first at races on that memory",
        example=Example(
            "x = tl.load(x_ptr + lane)",
            "x = tl.load(x_ptr + lane, mask=lane < n, other=0.0)",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV213",
        title="uninitialised memory, or a masked-off lane, reaches a result",
        soundness=Soundness.SOUND,
        rule="what a program returns is the same whatever fresh memory held, and lanes that a load masks off without "
        "`other`",
        why="on a GPU fresh memory holds what its last owner left: a right answer in a test, another request's data or "
        "NaN in production; masked-off lanes hold anything, too",
        remedy="write all of the memory before it is read, or mask what was not written where it is read; give a "
        "masked load an other=. Missed: what comes out the same for the three bytes tried, and pageable host memory",
        example=Example(
            "out = torch.empty(padded, device='cuda')\nkernel[grid](x, out, n)  # writes the first n\nout.sum()",
            "out = torch.empty(padded, device='cuda')\nkernel[grid](x, out, n)\nout[:n].sum()",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV214",
        title="an operation failed on the device",
        soundness=Soundness.SOUND,
        rule="deferred work ends without an error; a real device stops every later call once an assertion has failed",
        why="the error shows at an innocent call, and is often the consequence of data that a race corrupted",
        remedy="if a race on one of its inputs is reported as well, repair that first; else look at the values that it "
        "got, an index above all",
        example=Example(
            "rows = table.index_select(0, index)  # index holds 9, table has 4 rows",
            "assert index_cpu.max() < table.shape[0]  # on the host, before the upload",
        ),
        stage="races",
    ),
)
