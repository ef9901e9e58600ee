"""Faults of speculative decoding planted in the reference runner, each a mistake that real runners have made."""

from __future__ import annotations

from .source import Mutation

_REJECTION = "kernels/rejection.py"

#: Those that change a distribution and no token of a greedy request.
DISTRIBUTION = (
    Mutation(
        "shared_noise",
        _REJECTION,
        "PURPOSE_RECOVER = tl.constexpr(3)",
        "PURPOSE_RECOVER = tl.constexpr(1)",
        "a rejected draft is replaced with the noise that it was drawn with",
    ),
    Mutation(
        "recovery_from_the_target",
        _REJECTION,
        "rest = weight * tl.exp(p - target_sum) - tl.where(q == q, q, 0.0)",
        "rest = weight * tl.exp(p - target_sum)",
        "a rejected draft is replaced by a draw from the target alone",
    ),
    Mutation(
        "drafts_of_another_request",
        _REJECTION,
        "        draft_ptr = draft_logits_ptr + (row * DRAFTS + offset) * vocab_size\n        target_top",
        "        draft_ptr = draft_logits_ptr + (tl.load(rows_ptr).to(tl.int64) * DRAFTS + offset) * vocab_size\n"
        "        target_top",
        "a draft is judged by what the batch's first request drew from",
    ),
    Mutation(
        "recovery_without_subtraction",
        _REJECTION,
        "rest = weight * tl.exp(p - target_sum) - tl.where(q == q, q, 0.0)",
        "rest = tl.where(weight * tl.exp(p - target_sum) > q, tl.exp(p - target_sum), 0.0)",
        "a rejected draft is replaced by one of the tokens that the target likes better, as likely as it likes them",
    ),
    Mutation(
        "always_accepted",
        _REJECTION,
        "(uniform(seed, total + place, purpose) < chance)",
        "(uniform(seed, total + place, purpose) * 0.0 < chance)",
        "the random number of the acceptance is 0, so that every draft is accepted",
    ),
)

_KERNELS, _INPUTS, _RUNNER = "kernels/speculation.py", "input_batch.py", "model_runner.py"

#: Those that change tokens, their log-probabilities, or break the bookkeeping.
ACCOUNTING = (
    Mutation(
        "parameters_by_place_in_the_batch",
        _INPUTS,
        '"logit_rows": np.repeat(rows, counts),',
        '"logit_rows": np.repeat(np.arange(len(rows), dtype=np.int32), counts),',
        "rows of logits are mapped to places in the batch, not to rows of the state table",
    ),
    Mutation(
        "drafts_judged_by_one_lane",
        _INPUTS,
        "np.repeat(ends - counts, counts) + offsets",
        "np.repeat(ends - counts, counts)",
        "all drafts of a request are judged by the logits of its newest token",
    ),
    Mutation(
        "one_position_for_all_drafts",
        _KERNELS,
        "tl.store(positions_ptr + row, length - (end - 1 - row))",
        "tl.store(positions_ptr + row, length - (end - 1 - first))",
        "the noise, stop tokens and bad words of every draft are those of the first",
    ),
    Mutation(
        "accepted_behind_a_rejection",
        _KERNELS,
        "emitted += (same & (emitted == place + 1)).to(tl.int32)",
        "emitted += same.to(tl.int32)",
        "a draft is accepted although one before it was not",
    ),
    Mutation(
        "rejected_drafts_count_as_computed",
        _KERNELS,
        "tl.store(num_computed_ptr + row, computed + length - drafts + emitted - 1)",
        "tl.store(num_computed_ptr + row, computed + length)",
        "the counter of computed tokens does not go back behind the rejected drafts",
    ),
    Mutation(
        "computed_off_by_one",
        _KERNELS,
        "tl.store(num_computed_ptr + row, computed + length - drafts + emitted - 1)",
        "tl.store(num_computed_ptr + row, computed + length - drafts + emitted)",
        "the token behind the accepted drafts counts as computed",
    ),
    Mutation(
        "newest_token_is_the_first",
        _KERNELS,
        "tl.store(last_sampled_ptr + row, tl.load(tokens_ptr + first + emitted - 1))",
        "tl.store(last_sampled_ptr + row, tl.load(tokens_ptr + first))",
        "the next step starts from the first accepted draft instead of the last token",
    ),
    Mutation(
        "penalties_without_own_drafts",
        "kernels/logits_processing.py",
        "            num_drafts = tl.load(offsets_ptr + index)\n",
        "            num_drafts = tl.load(offsets_ptr + index) * 0\n",
        "penalties do not see the request's own earlier drafts",
    ),
    Mutation(
        "penalties_count_rejected_drafts",
        _KERNELS,
        "for place in range(tl.load(num_emitted_ptr + request)):",
        "for place in range(tl.load(bounds_ptr + request + 1) - first):",
        "tokens drawn behind a rejected draft are counted as output",
    ),
    Mutation(
        "logprobs_of_other_rows",
        "async_output.py",
        "            logprobs=self._of_requests(logprobs, rows),\n",
        "            logprobs=self._of_requests(logprobs, {name: (0, e - b) for name, (b, e) in rows.items()}),\n",
        "log-probabilities are read from the first rows of the batch, whoever they belong to",
    ),
    Mutation(
        "window_follows_the_upper_bound",
        _RUNNER,
        "self._computed[request_id] - self._unverified[request_id]\n        dropped",
        "self._computed[request_id]\n        dropped",
        "blocks leave a sliding window as if every draft were accepted",
    ),
    Mutation(
        "outcomes_not_applied",
        _RUNNER,
        "            self._computed[request_id] -= rejected\n",
        "            self._computed[request_id] -= 0 * rejected\n",
        "the host's bound of computed tokens is never corrected",
    ),
)

#: Those that change no token of the target, only how often drafts are right.
PROPOSALS = (
    Mutation(
        "drafts_continue_an_older_token",
        "kernels/drafting.py",
        "position = length - (end - start) + lane",
        "position = length - (end - start) + lane - (ahead == 0).to(tl.int32)",
        "the draft model's first pass ends before the newest token",
    ),
    Mutation(
        "draft_keys_in_the_slots_of_another_request",
        "kernels/drafting.py",
        "batch_table_ptr + request.to(tl.int64) * batch_table_stride + place",
        "batch_table_ptr + place",
        "draft keys of every request go to the blocks of the batch's first one",
    ),
    Mutation(
        "accepted_draft_without_keys",
        _RUNNER,
        "DECODE_LANES = 2\n",
        "DECODE_LANES = 1\n",
        "the draft model never computes the last of its drafts, though all were accepted",
    ),
)

_DRAFTING = "kernels/drafting.py"

#: Those of a head alone. Drafts are judged by what they were drawn from: whatever it was, the tokens of a request keep
#: their distribution, and only who computes what a head expects can tell.
HEADS = (
    Mutation(
        "head_continues_an_older_state",
        _DRAFTING,
        "before = computed - count + lane - 1\n",
        "before = computed - count + lane - 2\n",
        "each token of the head's first pass is computed with the target's state of two tokens before",
    ),
    Mutation(
        "head_continues_another_requests_state",
        "speculation/model_proposer.py",
        "self.before[:count].copy_(last)\n",
        "self.before[:count].copy_(last.roll(1, 0))\n",
        "behind the first draft, a draft's distribution comes from the state of another row of the batch",
    ),
    Mutation(
        "state_of_a_rejected_draft_is_kept",
        _DRAFTING,
        "        last = last - drafts + emitted - 1\n",
        "        last = last - 0 * drafts\n",
        "the state that the next step begins with is that of the last draft, accepted or not",
    ),
    Mutation(
        "state_of_the_rows_former_owner",
        _DRAFTING,
        "known = tl.where((before < 0) & (enters == 0), width, 0)\n",
        "known = tl.where(before < 0, width, 0)\n",
        "a request that enters begins with the state that the former owner of its row has left",
    ),
)
