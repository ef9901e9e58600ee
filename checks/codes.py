"""The registry of finding codes: what each one means, how far to trust it, and what to do about it.

``mrv2 explain CODE`` prints an entry. A detector names its code in each :class:`~mrv2.checks.findings.Finding`;
what is measured goes into the finding, what is always true of the code stands here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .findings import Soundness

RANGES: Mapping[str, str] = MappingProxyType(
    {
        "MRV1xx": "sync: the host waits for the device where it must not",
        "MRV2xx": "race: two accesses to one memory without an order between them",
        "MRV3xx": "state or differential: wrong bookkeeping, or an output that differs from the reference's",
        "MRV4xx": "statistics: a distribution or a draw that differs from the one asked for",
        "MRV5xx": "graphs: what a captured graph replays is not what the step needs",
        "MRV6xx": "memory: a leak, a growing pool, or a use after the memory was given back",
        "MRV7xx": "startup: a configuration that is refused before anything runs",
    }
)


@dataclass(frozen=True)
class Example:
    """A fault and its repair, a few lines of code each."""

    before: str
    after: str


@dataclass(frozen=True)
class CodeInfo:
    """What is always true of one code.

    Attributes:
        code: e.g. ``"MRV302"``.
        title: one line, without the measured values.
        soundness: what the detectors of this code promise.
        rule: the rule that was broken.
        why: why the rule matters.
        remedy: what to do, in general.
        example: a fault that gives this code, and its repair.
        stage: the stage of ``mrv2 verify`` that reports it; for a code that every stage can report, ``"any"``.
    """

    code: str
    title: str
    soundness: Soundness
    rule: str
    why: str
    remedy: str
    example: Example
    stage: str


class UnknownCodeError(LookupError):
    """No such code; carries the four parts (``subject``, ``rule``, ``reason``, ``remedy``) that the command renders."""

    def __init__(self, code: str, close: tuple[str, ...]) -> None:
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        self.subject = f"code {code!r}"
        self.rule = "a code must be one of the registry's"
        self.reason = "an explanation for a code that no detector reports would be made up"
        self.remedy = f"{hint}mrv2 explain --list shows them all"
        super().__init__(f"{self.subject}: {self.rule}. Why: {self.reason}. Instead: {self.remedy}.")


_ENTRIES = (
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
        rule="if two streams or branches of a graph touch the same bytes and one writes, an event orders them",
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
        why="the host allocator waits only for copies made through tensors of its own; all others find the next "
        "owner's bytes there, or destroy them",
        remedy="keep a reference until an event recorded after the last use has completed",
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
        title="uninitialised device memory reaches a result",
        soundness=Soundness.SOUND,
        rule="what a program returns is the same whatever fresh memory held",
        why="on a GPU fresh memory holds what its last owner left: a right answer in a test, another request's data or "
        "NaN in production",
        remedy="write all of the memory before it is read, or mask what was not written where it is read. Missed: what "
        "comes out the same for the three bytes tried, and pageable host memory",
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
    CodeInfo(
        code="MRV301",
        title="the oracle differs from transformers",
        soundness=Soundness.SOUND,
        rule="on the same weights and tokens the oracle's logits stay within the rounding bound of transformers'",
        why="every later comparison trusts the oracle; if it is wrong, agreement with it proves nothing",
        remedy="compare layer by layer and start at the first that differs; usual suspects are rotary layout, norm "
        "epsilon, tied embeddings and the order of the query, key and value rows in the file",
        example=Example(
            "angles = torch.cat([freqs, freqs], -1)   # halves, but the GGUF file stores interleaved pairs",
            "angles = freqs.repeat_interleave(2, -1)  # or permute the rows once, when the file is loaded",
        ),
        stage="oracle against transformers",
    ),
    CodeInfo(
        code="MRV302",
        title="the runner's token differs from the oracle's",
        soundness=Soundness.SOUND,
        rule="the same request gives the same tokens as the oracle, however it was batched, chunked or preempted",
        why="this is what a user sees: text that depends on who else is in the batch",
        remedy="look at the first wrong token of the request only; later ones follow from it. An MRV304 of the same "
        "step names the input that was wrong already",
        example=Example(
            "state.last_token[row] = 0                          # on resume: the drawn token is lost",
            "state.last_token[row] = request.token_ids[-1]      # on resume: continue from what was drawn",
        ),
        stage="runner against oracle",
    ),
    CodeInfo(
        code="MRV303",
        title="a logprob lies outside the bound",
        soundness=Soundness.SOUND,
        rule="the log-probability of each token is the oracle's, within the rounding bound derived for the model",
        why="a wrong logprob with the right token is a fault that greedy text never shows: stale keys in the cache, a "
        "temperature applied before the softmax, a padded lane that leaked in",
        remedy="check which lanes and cache slots attention read at this position; take logprobs from the raw logits",
        example=Example(
            "logprob = (logits / temperature).log_softmax(-1)[token]",
            "logprob = logits.log_softmax(-1)[token]  # the model's own distribution, before temperature",
        ),
        stage="runner against oracle",
    ),
    CodeInfo(
        code="MRV304",
        title="an input of the step differs from the step model",
        soundness=Soundness.SOUND,
        rule="positions, input_ids, slot mapping, block tables, seq_lens and rows are functions of the step history",
        why="a wrong input is the cause; wrong tokens, some steps later and only for some requests, are the symptom",
        remedy="go to the place named: the code that computes this field. The evidence has the lane, the value "
        "expected and the value found",
        example=Example(
            "slot = table[row, pos // block_size + 1] * block_size + pos % block_size",
            "slot = table[row, pos // block_size] * block_size + pos % block_size",
        ),
        stage="state and poison",
    ),
    CodeInfo(
        code="MRV305",
        title="output changed when dead memory was poisoned",
        soundness=Soundness.SOUND,
        rule="freed rows, unused KV blocks and padded lanes are never read: whatever they hold, outputs stay the same",
        why="dead memory holds another request's data; reading it is a wrong token today and a leak of text tomorrow",
        remedy="mask by the true length where the memory is read, or write the row in full when it is taken again",
        example=Example(
            "scores = q @ keys.T                                       # all slots of the last block",
            "scores = (q @ keys.T).masked_fill(slots >= seq_len, -inf)  # only what was written",
        ),
        stage="state and poison",
    ),
    CodeInfo(
        code="MRV306",
        title="a bookkeeping invariant is broken",
        soundness=Soundness.SOUND,
        rule="rows and KV blocks have exactly one owner each, and free plus used is all of them",
        why="a row with two owners mixes two requests; a row with none is lost until the process restarts",
        remedy="pair each place that takes a row or block with the one that gives it back, for finish, abort and "
        "preemption alike",
        example=Example(
            "for r in step.finished: free_row(r)",
            "for r in (*step.finished, *step.preempted): free_row(r)",
        ),
        stage="state and poison",
    ),
    CodeInfo(
        code="MRV307",
        title="the runner crashed or returned malformed output",
        soundness=Soundness.SOUND,
        rule="a runner executes every legal step and answers with the tokens and logprobs of its requests",
        why="what comes after a crash was not checked, so nothing can be said about it",
        remedy="start at the first place named, the innermost of the target's own frames; --debug shows the traceback",
        example=Example(
            "return StepOutput({r: int(t) for ...}, {})                        # a bare int, no logprobs",
            "return StepOutput({r: (int(t),) for ...}, {r: (float(p),) for ...})",
        ),
        stage="any",
    ),
    CodeInfo(
        code="MRV308",
        title="a knob that must not change output changed it",
        soundness=Soundness.SOUND,
        rule="settings such as chunk size, ring depth or padding change speed, never tokens",
        why="a result that depends on a speed setting cannot be reproduced on another machine",
        remedy="find which stage of the step reads the setting; most often padding or a chunk border leaks into a sum",
        example=Example(
            "mean = hidden.sum(0) / padded_tokens",
            "mean = hidden[:tokens].sum(0) / tokens",
        ),
        stage="runner against oracle",
    ),
    CodeInfo(
        code="MRV309",
        title="the output depends on when the device runs what",
        soundness=Soundness.SOUND,
        rule="tokens are the same in every schedule of the device that the program allows",
        why="the schedule is the load of the machine: right on an idle device, wrong on a busy one, and never again",
        remedy="repair the races that are reported with it; mrv2 explain tells of each what to write instead",
        example=Example(
            "host.copy_(tokens, non_blocking=True)\nreturn host.tolist()",
            "host.copy_(tokens, non_blocking=True); event.record()\nevent.synchronize()\nreturn host.tolist()",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV401",
        title="the sampler's distribution differs from the one asked for",
        soundness=Soundness.MAY,
        rule="over many seeds, tokens come with the probabilities softmax(logits / temperature)",
        why="a skewed sampler writes fluent text of a different model; no single output shows it",
        remedy="the evidence names the test, its p-value and its false-alarm rate; run again with another --seed: a "
        "real defect comes back, a chance alarm does not",
        example=Example(
            "noise = -torch.log(-torch.log(u16))         # 16 bits: the tail is cut off",
            "noise = -torch.log(-torch.log(u))           # enough bits for the rarest token that matters",
        ),
        stage="sampler distribution",
    ),
    CodeInfo(
        code="MRV402",
        title="a draw differs from its exact replay",
        soundness=Soundness.SOUND,
        rule="each draw is a pure function of (seed, position, token id, purpose)",
        why="a draw that depends on row, batch or padding changes when the neighbours do, and no run can be replayed",
        remedy="key the noise by the request's own seed and the token's position; never by row, lane or step",
        example=Example(
            "noise = philox(step_seed, row)",
            "noise = philox(request_seed, position, token_id)",
        ),
        stage="sampler distribution",
    ),
    CodeInfo(
        code="MRV403",
        title="a token lies outside the support or the vocabulary",
        soundness=Soundness.SOUND,
        rule="a token of probability zero is never drawn, and each token id is in [0, V)",
        why="an id beyond the vocabulary crashes the detokeniser or reads foreign memory in the embedding",
        remedy="mask padded vocabulary lanes with -inf before the argmax, and check the width of the last tile",
        example=Example(
            "logits = tl.load(ptr + offs, mask=offs < V, other=0.0)",
            "logits = tl.load(ptr + offs, mask=offs < V, other=float('-inf'))",
        ),
        stage="sampler distribution",
    ),
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
    CodeInfo(
        code="MRV701",
        title="a configuration was refused at startup",
        soundness=Soundness.SOUND,
        rule="features that do not combine, and values that cannot work, are refused before anything runs",
        why="a silent fallback gives a measurement of something else, under the name of what was asked for",
        remedy="the message names the object, the rule and what to write instead",
        example=Example(
            "target.build({'num_kv_blocks': 2, 'block_size': 16, 'max_model_len': 4096})",
            "target.build({'num_kv_blocks': 256, 'block_size': 16, 'max_model_len': 4096})",
        ),
        stage="any",
    ),
)

CODES: Mapping[str, CodeInfo] = MappingProxyType({entry.code: entry for entry in _ENTRIES})


def explain(code: str) -> CodeInfo:
    """The entry of a code, in upper or lower case.

    Raises:
        UnknownCodeError: there is no such code; names the closest ones.
    """
    wanted = code.strip().upper()
    if wanted not in CODES:
        raise UnknownCodeError(code, tuple(difflib.get_close_matches(wanted, CODES, n=3, cutoff=0.6)))
    return CODES[wanted]


def range_of(code: str) -> str:
    """What the hundred that a code belongs to is about, e.g. ``"sync: ..."`` for ``"MRV103"``."""
    return RANGES[f"{code[:4].upper()}xx"]
