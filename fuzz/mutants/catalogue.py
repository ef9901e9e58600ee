"""Faults planted in the reference runner, each a mistake that real runners have made."""

from __future__ import annotations

from .source import Mutation

MUTATIONS = (
    Mutation(
        "row_not_reset",
        "request_states.py",
        "        self._counters.stage_write(NUM_COMPUTED, row, [request.num_computed_tokens])\n",
        "",
        "a row given to a new request keeps the former owner's num_computed_tokens",
    ),
    Mutation(
        "block_table_off_by_one",
        "kernels/block_table.py",
        "tl.load(table_ptr + lane,",
        "tl.load(table_ptr + lane + 1,",
        "the gather of the block table reads one entry too far",
    ),
    Mutation(
        "position_off_by_one",
        "kernels/input_prep.py",
        "(computed + lane).to(tl.int64)",
        "(computed + lane + 1).to(tl.int64)",
        "positions start at 1",
    ),
    Mutation(
        "last_sampled_not_set_on_resume",
        "request_states.py",
        "        self._counters.stage_write(LAST_SAMPLED, row, [request.token_ids[-1]])\n",
        "        if len(request.token_ids) == request.prompt_len:\n"
        "            self._counters.stage_write(LAST_SAMPLED, row, [request.token_ids[-1]])\n",
        "a resumed request starts from whatever token its row held",
    ),
    Mutation(
        "temperature_ignored",
        "kernels/gumbel.py",
        "    elif temperature > 0.0:\n        value = divided(raw, temperature)\n",
        "",
        "tokens are drawn at temperature 1 whatever was asked for",
    ),
    Mutation(
        "chunk_counts_as_decode",
        "kernels/input_prep.py",
        "    if computed == total:\n",
        "    if computed <= total:\n",
        "the draw after an unfinished prefill chunk is kept",
    ),
    Mutation(
        "logits_of_first_lane",
        "input_batch.py",
        "self._logit_arrays(rows, query_start_loc[1 : len(rows) + 1], scheduled.drafts, bounds)",
        "self._logit_arrays(rows, query_start_loc[: len(rows)] + 1, scheduled.drafts, bounds)",
        "the logits of a request's first token of the step are sampled instead of its last",
    ),
    Mutation(
        "stale_seed",
        "sampling/tables.py",
        "        self._seeds.stage_write(0, row, [_as_int64(sampling.seed or 0)])\n",
        "        if not self.seeds.any():\n"
        "            self._seeds.stage_write(0, row, [_as_int64(sampling.seed or 0)])\n",
        "only the first request's seed is ever written",
    ),
    Mutation(
        "logprob_after_temperature",
        "kernels/draw.py",
        "        value = tl.load(row[0] + best).to(tl.float32)\n",
        "        value = best_score\n",
        "the reported log-probability is made from the perturbed score",
    ),
)
