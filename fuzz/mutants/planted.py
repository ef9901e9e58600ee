"""Thirty faults for a campaign that is not told which one it is looking for, by the part of the runner that is wrong.

All but the last three are wrong on any device; those are wrong in the order of host and device, and show as races.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import catalogue, edges, grammar, ordering, speculation
from .source import Mutation

_FROM = (*catalogue.MUTATIONS, *edges.EDGES, *ordering.ORDERING, *grammar.MASKS, *speculation.ACCOUNTING)
_NAMED: Mapping[str, Mutation] = MappingProxyType({mutation.name: mutation for mutation in _FROM})
_STATE = "kernels/penalty_state.py"

PENALTIES = (
    Mutation(
        "counts_of_the_former_owner",
        _STATE,
        "    tl.store(counts_ptr + row * vocab_size + token, 0, mask=token < vocab_size)\n",
        "",
        "a row given to a new request keeps the counts of the former owner's output",
    ),
    Mutation(
        "prompt_counts_as_output",
        _STATE,
        "mask=known & ~prompt",
        "mask=known",
        "tokens of the prompt are counted as if they had been generated",
    ),
    Mutation(
        "draws_are_not_counted",
        _STATE,
        "        tl.store(count_ptr, tl.load(count_ptr) + 1)\n",
        "        tl.store(count_ptr, tl.load(count_ptr))\n",
        "the penalties never see what was drawn since the request entered",
    ),
    Mutation(
        "repetition_favours_the_unlikely",
        "kernels/logits_processing.py",
        "divided, logit * repetition",
        "divided, divided",
        "a negative logit is divided by the repetition penalty, too, which makes it likelier",
    ),
)
BLOCKS = (
    Mutation(
        "padding_keeps_its_slots",
        "kernels/block_table.py",
        "        tl.store(slots_ptr + lane, PAD_SLOT, mask=lane < capacity)\n",
        "        tl.store(slots_ptr + lane, PAD_SLOT, mask=lane < first)\n",
        "padding lanes write their keys to the slots of an earlier step",
    ),
    Mutation(
        "copies_forgotten",
        "model_runner.py",
        "        self._upkeep.copied(step.block_copies)\n",
        "",
        "a block that goes on inside a shared one is not copied",
    ),
)
POSITIONS = (
    Mutation(
        "minimum_counts_the_prompt",
        "sampling/tables.py",
        "request.prompt_len + sampling.min_tokens",
        "sampling.min_tokens",
        "the prompt counts towards the smallest number of tokens to generate",
    ),
)
GRAPHS = (
    Mutation(
        "every_piece_is_the_first_layer",
        "graphs/captured.py",
        "attend(piece.layer, *piece.inputs)",
        "attend(0, *piece.inputs)",
        "between the pieces of a graph, attention is always the first layer's",
    ),
    Mutation(
        "graph_returns_lanes_backwards",
        "graphs/captured.py",
        "        self._graph.replay()\n        return self._hidden\n",
        "        self._graph.replay()\n        return self._hidden.flip(0)\n",
        "the hidden states of a full graph are in another order",
    ),
    Mutation(
        "padding_is_sampled",
        "model_runner.py",
        "            return self._graphs.captured[graph].replay(self._attention.forward)\n",
        "            hidden = self._graphs.captured[graph].replay(self._attention.forward)\n"
        "            return hidden.roll(hidden.shape[0] - batch.num_tokens, 0)\n",
        "the real lanes are looked for behind the padding of a graph",
    ),
    Mutation(
        "attention_of_an_earlier_step",
        "graphs/captured.py",
        "            self._attended.copy_(attend(piece.layer, *piece.inputs))\n",
        "            attended = attend(piece.layer, *piece.inputs)\n"
        "            if self._pieces[0] is piece:\n"
        "                self._attended.copy_(attended)\n",
        "only the first piece's attention is copied to where the next piece looks for it",
    ),
)
STAGING = (
    Mutation(
        "prompt_not_asked",
        "prompt_rows.py",
        "        if not self._last_reader[row].query():\n",
        "        if not self._last_reader[row]:\n",
        "a prompt is written to its pinned row whether or not a step that reads the row is in flight",
    ),
)


def _known(*names: str) -> tuple[Mutation, ...]:
    return tuple(_NAMED[name] for name in names)


#: By part of the runner.
PLANTED: Mapping[str, tuple[Mutation, ...]] = MappingProxyType(
    {
        "rows": _known(
            "row_not_reset", "last_sampled_not_set_on_resume", "stale_seed", "greedy_inherits_temperature"
        ),
        "block tables": (*_known("block_table_off_by_one", "block_size_is_sixteen"), *BLOCKS),
        "penalties": PENALTIES,
        "positions": (
            *_known("position_off_by_one", "chunk_counts_as_decode", "logits_of_first_lane"), *POSITIONS,
        ),
        "graphs": GRAPHS,
        "drafts": _known(
            "rejected_drafts_count_as_computed", "accepted_behind_a_rejection", "newest_token_is_the_first",
        ),
        "grammar": _known(
            "mask_row_off_by_one", "masks_in_order_of_arrival", "grammar_starts_again_on_resume",
            "drafts_not_rolled_back",
        ),
        "staging": (*STAGING, *_known("slot_event_too_early", "download_does_not_wait")),
    }
)  # fmt: skip
ADDED = (*PENALTIES, *BLOCKS, *POSITIONS, *GRAPHS, *STAGING)
