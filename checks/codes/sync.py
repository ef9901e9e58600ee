"""Codes MRV1xx, sync: the host waits for the device where it must not."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV101",
        title="a device value is pulled to the host in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path the host reads no device value: no item, tolist, cpu, numpy, bool, int, float, print",
        why="the host waits until all work on the stream is over, so it cannot prepare the next step meanwhile",
        remedy="keep the value on the device, or copy it to pinned memory without waiting and read it a step later, "
        "behind its event",
        example=Example(
            "if done.any().item():\n    finish()",
            "done_on_host.copy_(done.any(), non_blocking=True); event.record()\n"
            "...  # a step later\nevent.synchronize()\nif done_on_host.item():\n    finish()",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV102",
        title="an upload waits for the device in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path uploads come from dense pinned memory and do not block",
        why="from pageable memory, or out of a gapped view, the driver copies on the host first and waits when its "
        "staging memory is full; a blocking copy always waits",
        remedy="write into a slot of a pinned ring, then copy_(..., non_blocking=True), then record the slot's event",
        example=Example(
            "lengths = torch.tensor(values, device='cuda')",
            "slot = ring.next(); slot[:n] = values\nlengths.copy_(slot, non_blocking=True); ring.record(slot)",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV103",
        title="a download waits for the device in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path downloads go to dense pinned memory, do not block, and are read behind their event",
        why="into pageable memory or a gapped view even a non-blocking copy waits, without any warning",
        remedy="pin the target once (pin_memory=True), then copy_(device, non_blocking=True) and event.record()",
        example=Example(
            "host.copy_(tokens, non_blocking=True)  # host is pageable",
            "pinned.copy_(tokens, non_blocking=True); event.record()",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV104",
        title="the host waits for an event, a stream or the device in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path host and device are ordered by events that are polled, or waited for a step later",
        why="the wait costs the whole overlap of host and device, and no tool of torch warns of events and devices",
        remedy="let the other stream wait (wait_event), poll event.query(), or wait where the result is needed, one "
        "step later and outside of the hot path",
        example=Example("torch.cuda.synchronize()", "consumer.wait_event(event)"),
        stage="sync",
    ),
    CodeInfo(
        code="MRV105",
        title="a shape depends on device data in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path all shapes are known on the host",
        why="to allocate the result the host must learn how many elements there are, and waits for that",
        remedy="a mask in the place of a selection (torch.where), output_size=..., a static form (nonzero_static), or "
        "a length that the host knows anyway",
        example=Example("rows = mask.nonzero()", "rows = torch.nonzero_static(mask, size=num_rows_on_host)"),
        stage="sync",
    ),
    CodeInfo(
        code="MRV106",
        title="an allocator waits for the device in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path no memory is given back to the driver",
        why="cudaFree, cudaFreeHost and empty_cache wait for the whole device, all streams included",
        remedy="keep buffers for the life of the runner; call empty_cache outside of the hot path",
        example=Example("torch.cuda.empty_cache()", "...  # once, after warm-up, outside of the hot path"),
        stage="sync",
    ),
    CodeInfo(
        code="MRV107",
        title="a kernel is loaded in a hot path",
        soundness=Soundness.SOUND,
        rule="each kernel that a hot path launches has been launched before, in a warm-up",
        why="the first use of a kernel that is not loaded waits until the whole device is idle",
        remedy="launch every variant once before the hot path is judged; CUDA_MODULE_LOADING=EAGER for torch's own",
        example=Example("serve()  # the first request loads the kernels", "warm_up(all_batch_sizes); serve()"),
        stage="any",
    ),
    CodeInfo(
        code="MRV108",
        title="the launch queue is full in a hot path",
        soundness=Soundness.MAY,
        rule="the host is never further ahead of the device than the launch queue is long",
        why="behind about a thousand pending launches the next one waits, and other threads' launches with it",
        remedy="bound the steps in flight, capture the step in a graph (a replay is one entry), or fuse launches",
        example=Example(
            "while requests:\n    execute(step)  # never asks how far the device is",
            "while requests:\n    execute(step); collect(step - 2)  # two steps in flight",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV109",
        title="an operator waits for the device inside, in a hot path",
        soundness=Soundness.SOUND,
        rule="in a hot path no operator waits inside, whoever wrote it",
        why="a wait inside of a C++ operator warns on stderr at most, and looks like a slow kernel",
        remedy="an operator without that wait (inv_ex for inv), or move the call out of the hot path",
        example=Example("x = torch.linalg.solve(a, b)", "x, info = torch.linalg.solve_ex(a, b)"),
        stage="sync",
    ),
    CodeInfo(
        code="MRV121",
        title="an allowed wait happens more often than its budget",
        soundness=Soundness.SOUND,
        rule="one entry of a hot path does at most as many waits of an allowance as its budget says",
        why="an allowance was given for a known cost; what grows beyond it is a new cost that nobody accepted",
        remedy="find what made the waits more, or raise the budget with a reason",
        example=Example(
            "with allow_sync('MRV101', 'finish check', budget=1):\n    flags = [flag.item() for flag in done]",
            "with allow_sync('MRV101', 'finish check', budget=1):\n    flags = done.tolist()",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV122",
        title="an allowance was never used",
        soundness=Soundness.MAY,
        rule="every allowance covers a wait that happens",
        why="what is allowed and does not happen today hides the wait that comes back tomorrow",
        remedy="take the allowance out, or run what needs it",
        example=Example(
            "[[tool.mrv2.allow]]\nsite = 'engine:collect'  # collects behind an event since spring",
            "# no allowance",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV123",
        title="a step gives the device other work than was recorded",
        soundness=Soundness.SOUND,
        rule="a step asks for the launches, copies, bytes, events and waits of its record, no more and no fewer",
        why="each launch costs the host some 5 µs and each copy more, in every step, and no test of tokens shows it",
        remedy="take the new work out; or, if the step needs it or has become cheaper, record its counts anew",
        example=Example(
            "logits = logits.float()  # float32 already\nlogits = logits / 1.0",
            "# the sampler divides by the temperature itself",
        ),
        stage="sync",
    ),
    CodeInfo(
        code="MRV130",
        title="work on a stream uses what another stream made, without an order between them",
        soundness=Soundness.MAY,
        rule="before a stream uses what another stream made, it waits for that stream or for an event recorded there",
        why="streams run at once: the work may read the memory before, while or after it is written",
        remedy="side.wait_stream(main) before its work, and main.wait_stream(side) before its results are used",
        example=Example(
            "y = f(x)\nwith torch.cuda.stream(side):\n    z = g(y)",
            "y = f(x)\nside.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n    z = g(y)",
        ),
        stage="any",
    ),
    CodeInfo(
        code="MRV131",
        title="a staging buffer is written again before the copy that reads it is known to be over",
        soundness=Soundness.MAY,
        rule="between an upload out of pinned memory and the next write of that memory the host waits for the upload's "
        "event, or sees that it is over",
        why="the copy reads the memory when it runs, not when it is called: a step can get the next step's data",
        remedy="record an event after the upload, and wait for it or poll it before the next write; or write elsewhere",
        example=Example(
            "staging[:n] = rows\ndev.copy_(staging, non_blocking=True)",
            "copied.synchronize()\nstaging[:n] = rows\ndev.copy_(staging, non_blocking=True); copied.record()",
        ),
        stage="any",
    ),
)
