"""Every tensor of the runner as data: owner, location, lifetime, and who writes it last on which stream.

The table of the README is made from it, and a test compares it with what the virtual device observes: a tensor that is
not here, lies elsewhere, or is written by another kernel or on another stream fails it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

DEVICE, PINNED = "device", "pinned host"
MAIN, COPY, UPLOAD, HOST = "main", "copy", "upload", "host"
#: Written when it is made, in the current stream, and never again.
CONSTANT = "nobody after its making"


@dataclass(frozen=True)
class Entry:
    """One tensor, or several of a kind.

    Attributes:
        path: where it hangs, a pattern for ``tensors_of(runner)`` or, for a result, ``tensors_of(handle)``.
        content: what it holds, in the runner's own names.
        shape: with its type. R rows, L longest sequence, B blocks a row, G KV groups, N requests and T tokens in the
            batch, N' and T' with padding, V tokens in the vocabulary.
        location: ``DEVICE`` or ``PINNED``.
        lifetime: of the values, not of the memory, which lives as long as its owner unless it says "fresh".
        writers: kernels and operators that write it in a step, the last one last; a phrase with a blank where it is no
            certain one.
        stream: that the last of them runs on.
    """

    path: str
    content: str
    shape: str
    location: str
    lifetime: str
    writers: tuple[str, ...]
    stream: str

    @property
    def owner(self) -> str:
        """Where it hangs, as the README says it."""
        return f"`{self.path.removeprefix('ModelRunner.').replace('(*)', '').replace('(*', '').removesuffix('.gpu')}`"

    def describes(self, path: str) -> bool:
        """Whether a tensor that hangs there is meant."""
        return fnmatchcase(path.replace("[", "(").replace("]", ")"), self.path)


_STAGED = "apply_staged_writes"
_ADVANCED = (_STAGED, "draw_drafts", "propose_ngrams", "post_update_verified", "post_update")
_STEP = "step; address fixed"
_BUILDER = "ModelRunner._builder"
_TABLES = f"{_BUILDER}.block_tables"
_PROPOSER = "ModelRunner._proposer"

TABLE = (
    Entry("ModelRunner._model.*", "weights, rotary table", "as the model's", DEVICE, "runner", (CONSTANT,), MAIN),
    Entry(
        "ModelRunner._states._counters.gpu",
        "`num_computed`, `total_len`, `last_sampled`, `in_place`, generations, `num_drafts`", "[6, R] i32",
        DEVICE, "request", _ADVANCED, MAIN,
    ),
    Entry(
        "ModelRunner._states._token_ids.gpu", "`token_ids`", "[R, L] i32",
        DEVICE, "request; stale beyond `total_len`, and below `in_place`", _ADVANCED, MAIN,
    ),
    Entry(
        "ModelRunner._states._tables._words", "the two tables above: one memory, one flush", "[words] i32",
        DEVICE, "request", _ADVANCED, MAIN,
    ),
    Entry(
        "ModelRunner._states._prompts.memory", "prompts that are read in place", "[R, L] i32",
        PINNED, "until the event of the row's last reader", ("the host",), HOST,
    ),
    Entry(
        "ModelRunner._sampler.tables.*.gpu", "sampling parameters", "[R, ...] i32, f32, i64",
        DEVICE, "request", (_STAGED,), MAIN,
    ),
    Entry(
        "ModelRunner._sampler.tables._tables._words", "all of them: one memory, one flush", "[words] i32",
        DEVICE, "request", (_STAGED,), MAIN,
    ),
    Entry(
        "ModelRunner._sampler._penalties.prompt_mask", "tokens of the prompt, a bit each", "[R, V / 32] i32",
        DEVICE, "request with penalties", ("count_known_tokens",), MAIN,
    ),
    Entry(
        "ModelRunner._sampler._penalties.counts", "how often each token was drawn", "[R, V] i32",
        DEVICE, "request with penalties", ("count_known_tokens", "count_emitted_tokens", "count_drawn_tokens"), MAIN,
    ),
    Entry(
        "ModelRunner._sampler.no_threshold", "the threshold that keeps all", "[max(M, chunk)] i32",
        DEVICE, "runner", (CONSTANT,), MAIN,
    ),
    Entry(
        f"{_TABLES}._table.gpu", "block tables by row", "[G * R, B] i32",
        DEVICE, "request; stale beyond its count", (_STAGED,), MAIN,
    ),
    Entry(f"{_TABLES}._windows", "sliding windows of the groups", "[G] i32", DEVICE, "runner", (CONSTANT,), MAIN),
    Entry(
        f"{_TABLES}.batch_table", "block tables by request; null block for padding", "[G, N', B] i32",
        DEVICE, _STEP, ("prepare_block_tables",), MAIN,
    ),
    Entry(
        f"{_TABLES}.slot_mapping", "`slot_mapping`; -1 for padding", "[G, T'] i64",
        DEVICE, _STEP, ("prepare_block_tables",), MAIN,
    ),
    Entry(
        f"{_BUILDER}._input_ids", "`input_ids`; stale for padding", "[T'] i32",
        DEVICE, _STEP, ("prepare_inputs",), MAIN,
    ),
    Entry(
        f"{_BUILDER}._positions", "`positions`; stale for padding", "[T'] i64",
        DEVICE, _STEP, ("prepare_inputs",), MAIN,
    ),
    Entry(
        f"{_BUILDER}._seq_lens", "`seq_lens`; 0 for padding", "[N'] i32",
        DEVICE, _STEP, ("prepare_inputs",), MAIN,
    ),
    Entry(
        f"{_BUILDER}._sample_positions", "with drafts: tokens before each row of logits", "[M] i32",
        DEVICE, _STEP, ("locate_logits",), MAIN,
    ),
    Entry(
        f"{_BUILDER}._query_start_loc", "`query_start_loc`; T for padding", "[N' + 1] i32",
        DEVICE, _STEP, ("prepare_inputs",), MAIN,
    ),
    Entry(
        "ModelRunner.batch.rows", "row of each request, as all that a step uploads: one copy", "[N] i32",
        DEVICE, "step; fresh", ("copy_",), MAIN,
    ),
    Entry(
        "ModelRunner.batch.logit_lanes", "lanes whose logits are sampled; uploaded with it", "[M] i32",
        DEVICE, "step; fresh", ("copy_",), MAIN,
    ),
    Entry(
        "ModelRunner.batch.logit_*", "row, request, drafts of each row of logits; uploaded with it", "[M], [N + 1] i32",
        DEVICE, "step; fresh", ("copy_",), MAIN,
    ),
    Entry(
        "ModelRunner._sampler.verifier.draft_logits", "what each draft was drawn from", "[R, K, V] f32",
        DEVICE, "until the next draft of the row", ("draw_drafts",), MAIN,
    ),
    Entry(
        "ModelRunner._draft.*", "weights of the draft model, its rotary table", "as the model's",
        DEVICE, "runner", (CONSTANT,), MAIN,
    ),
    Entry(
        f"{_PROPOSER}.attention.cache", "keys and values of the draft model", "[layers, 2, slots, KV heads, D]",
        DEVICE, "a block's holders", ("copy_blocks", "fill_blocks", "index_copy_", "write_keys_and_values"), MAIN,
    ),
    Entry(
        f"{_PROPOSER}._inputs._*", "ids, positions, slots, lengths, bounds of a draft pass", "[D'], [N' + 1] i32, i64",
        DEVICE, "pass; address fixed", ("prepare_draft_inputs",), MAIN,
    ),
    Entry(
        f"{_PROPOSER}._inputs.*", "lanes of the first draft pass, who enters; uploaded with all else", "[N] i32, i64",
        DEVICE, "step; fresh", ("copy_",), MAIN,
    ),
    Entry(
        f"{_PROPOSER}.kept", "the target's state of each row's last token; with a head", "[R, H]",
        DEVICE, "request", ("keep_states",), MAIN,
    ),
    Entry(
        f"{_PROPOSER}.before", "states before the lanes of a draft pass; with a head", "[D', H]",
        DEVICE, "pass; address fixed", ("states_before", "copy_"), MAIN,
    ),
    Entry(
        f"{_PROPOSER}.graphs.captured(*", "hidden states of a draft pass's graph", "[D', ...]",
        DEVICE, "until the next replay; address fixed", ("the forward pass",), MAIN,
    ),
    Entry(
        "ModelRunner._ring._slots(*).memory", "snapshot of what a step uploads", "[bytes] u8",
        PINNED, "until the event of its last reader", ("the host",), HOST,
    ),
    Entry(
        "ModelRunner._grammar._masks.memory",
        "masks of grammars, and the row of logits that each is for", "[M + M * V / 32] i32",
        DEVICE, "step; address fixed", ("copy_",), UPLOAD,
    ),
    Entry(
        "ModelRunner._grammar._masks._ring._slots(*).memory", "masks as they are made", "[bytes] u8",
        PINNED, "until the event of its last reader", ("the host",), HOST,
    ),
    Entry(
        "ModelRunner._attention.cache", "keys and values", "[layers a group, 2, slots, KV heads, D]",
        DEVICE, "a block's holders",
        ("copy_blocks", "fill_blocks", "index_copy_", "write_keys_and_values"), MAIN,
    ),
    Entry(
        "ModelRunner._attention._slots", "slots of the reference attention; block 0 for padding", "[G, T'] i64",
        DEVICE, "step; fresh", ("clamp_min",), MAIN,
    ),
    Entry(
        "ModelRunner._attention._context_slots(*", "slots of each sequence, for the reference attention", "[...] i64",
        DEVICE, "step; fresh", ("add",), MAIN,
    ),
    Entry(
        "ModelRunner._graphs.captured(*", "queries, keys, values, attended and hidden states of a graph", "[T', ...]",
        DEVICE, "until the next replay; address fixed", ("the forward pass",), MAIN,
    ),
    Entry(
        "AsyncOutput._copies(*)", "drawn tokens and log-probabilities", "[..., N] i32, f32",
        PINNED, "the handle; fresh", ("copy_",), COPY,
    ),
    Entry(
        "AsyncOutput._drafts(*", "drafts that the host makes masks for", "[N, K] i32",
        PINNED, "the handle; fresh", ("copy_",), COPY,
    ),
    Entry(
        "AsyncOutput._prompts(*", "log-probabilities of a prompt", "[chunk, ...] i32, f32",
        PINNED, "the handle; fresh", ("copy_",), COPY,
    ),
)  # fmt: skip


def entry_of(path: str) -> Entry | None:
    """What the table says of a tensor; None if it does not know it."""
    return next((entry for entry in TABLE if entry.describes(path)), None)


def as_markdown() -> str:
    """The table as the README shows it."""
    lines = ["| owner | holds | shape and type | lives in | lifetime | last writer | stream |", "|" + "---|" * 7]
    for entry in TABLE:
        writers = ", ".join(entry.writers)
        cells = (entry.owner, entry.content, entry.shape, entry.location, entry.lifetime, writers, entry.stream)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
