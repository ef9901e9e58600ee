"""Codes MRV5xx, graphs: what a captured graph replays is not what the step needs."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV501",
        title="a graph replays an address whose memory was freed",
        soundness=Soundness.SOUND,
        rule="what a captured graph reads and writes lives for as long as the graph is replayed",
        why="addresses are baked in: the replay uses whatever the allocator has put there since",
        remedy="keep a reference to each input beside the graph, and copy new values into it before a replay",
        example=Example(
            "with torch.cuda.graph(g):\n    out = model(ids)\nids = next_ids; g.replay()",
            "with torch.cuda.graph(g):\n    out = model(static_ids)\nstatic_ids.copy_(next_ids); g.replay()",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV502",
        title="the host waits for the device in a graph capture",
        soundness=Soundness.SOUND,
        rule="between the begin and the end of a capture nothing waits for the device or asks how far it is",
        why="nothing runs during a capture, so CUDA refuses the call; most refusals lose the capture as well",
        remedy="move the call out of the capture; for an upload, use pinned memory and non_blocking=True",
        example=Example(
            "with torch.cuda.graph(g):\n    n = lengths.max().item()",
            "n = max(lengths_on_host)\nwith torch.cuda.graph(g):\n    ...",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV503",
        title="a branch of a graph capture is not joined",
        soundness=Soundness.SOUND,
        rule="each stream that a capture forked is waited for by the capturing stream before the capture ends",
        why="the work of the branch would have no place in the graph, so CUDA refuses the whole capture",
        remedy="main.wait_stream(side) after the last work on the side stream",
        example=Example(
            "side.wait_stream(main)\nwith torch.cuda.stream(side):\n    y = f(x)",
            "side.wait_stream(main)\nwith torch.cuda.stream(side):\n    y = f(x)\nmain.wait_stream(side)",
        ),
        stage="races",
    ),
)
