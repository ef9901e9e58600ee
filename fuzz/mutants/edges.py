"""Faults planted in the reference runner that only show at the edge of some range, or only where nothing is read.

A runner with one of these is right on short prompts, middling temperatures, small seeds and full blocks.
"""

from __future__ import annotations

from .source import Mutation

EDGES = (
    # The runner against the oracle: long, odd and extreme requests.
    Mutation(
        "rotary_wraps",
        "models/llama.py",
        "positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)",
        "positions = torch.arange(config.max_position_embeddings, dtype=torch.float64) % 256",
        "rotary angles start again after 256 positions",
    ),
    Mutation(
        "context_is_cut",
        "attention/torch_reference.py",
        "length = int(batch.host_seq_lens[request])",
        "length = min(int(batch.host_seq_lens[request]), 240)",
        "attention sees the first 240 positions of a sequence only",
    ),
    Mutation(
        "staged_write_of_one_block",
        "kernels/staged_write.py",
        "for done in range(0, length, BLOCK):",
        "for done in range(0, 1):",
        "a staged write longer than a kernel's block is cut",
    ),
    Mutation(
        "ids_of_one_block",
        "kernels/input_prep.py",
        "            tl.store(input_ids_ptr + start + lane, token, mask=lane < length)\n",
        "            tl.store(input_ids_ptr + start + lane, token, mask=(lane < length) & (done == 0))\n",
        "a request with more lanes than a kernel's block gets token ids for the first block only",
    ),
    Mutation(
        "block_size_is_sixteen",
        "kernels/block_table.py",
        "block * BLOCK_SIZE + position % BLOCK_SIZE",
        "block * 16 + position % 16",
        "slots are computed for blocks of 16 tokens, whatever the block size",
    ),
    Mutation(
        "seed_loses_a_bit",
        "sampling/tables.py",
        "return (seed + 2**63) % 2**64 - 2**63",
        "return seed % 2**63",
        "the top bit of a seed is dropped, and two seeds give the same tokens",
    ),
    Mutation(
        "draw_position_wraps",
        "input_batch.py",
        "return parts.drawn\n",
        "return parts.drawn % 256\n",
        "the noise repeats itself after 256 positions",
    ),
    Mutation(
        "temperature_of_one_decimal",
        "sampling/tables.py",
        "        sampling.temperature,\n",
        "        round(sampling.temperature, 1),\n",
        "temperatures are rounded to one decimal",
    ),
    Mutation(
        "greedy_inherits_temperature",
        "sampling/tables.py",
        "        self.reals.stage_write(row, 0, _reals_of(sampling))\n",
        "        kept = int(not sampling.temperature)\n"
        "        self.reals.stage_write(row, kept, _reals_of(sampling)[kept:])\n",
        "a greedy request keeps the temperature of the row's former owner",
    ),
    Mutation(
        "sum_of_the_first_block",
        "kernels/draw.py",
        "float_ptr + 3 * plane + offset, mask=inside",
        "float_ptr + 3 * plane + offset, mask=offset == tl.min(offset, 0)",
        "the softmax of a row is normalised by its first block",
    ),
    # State and poison: what no output shows.
    Mutation(
        "token_table_not_updated",
        "kernels/input_prep.py",
        "        tl.store(token_ids_ptr + row * token_ids_stride + total, token, mask=total < max_model_len)\n",
        "",
        "drawn tokens never reach the token table",
    ),
    Mutation(
        "padding_keeps_its_length",
        "kernels/input_prep.py",
        "tl.store(seq_lens_ptr + request, 0)",
        "tl.store(seq_lens_ptr + request, 1)",
        "padding requests have a length, and an attention kernel would read for them",
    ),
    Mutation(
        "padding_clears_a_slot",
        "attention/torch_reference.py",
        "        keys.index_copy_(0, self._slots[group], key)\n",
        "        pad = self._batch.slot_mapping[group] < 0\n"
        "        self._slots[group] = torch.where(pad, self._block_size, self._slots[group])\n"
        "        key, value = key.masked_fill(pad[:, None, None], 0), value.masked_fill(pad[:, None, None], 0)\n"
        "        keys.index_copy_(0, self._slots[group], key)\n",
        "padding lanes write zeros to the first slot of block 1",
    ),
    # The sampler on its own.
    Mutation(
        "vocabulary_mask_off_by_one",
        "kernels/draw.py",
        "begin + part_blocks * BLOCK, vocab_size)",
        "begin + part_blocks * BLOCK, vocab_size + 1)",
        "one logit beyond the vocabulary takes part",
    ),
    Mutation(
        "greedy_below_a_half",
        "kernels/draw.py",
        "    row = (\n        logits_ptr, processed_ptr",
        "    temperature = tl.where(temperature > 0.5, temperature, 0.0)\n"
        "    row = (\n        logits_ptr, processed_ptr",
        "low temperatures are greedy",
    ),
    Mutation(
        "highest_of_ties",
        "kernels/draw.py",
        "winner = tl.min(tl.where(score == groups_score, token, _NO_TOKEN), 0)",
        "winner = tl.max(tl.where(score == groups_score, token, -1), 0)",
        "the highest id of a block wins a tie",
    ),
    Mutation(
        "noise_of_32_bits",
        "kernels/draw.py",
        "low = words_of_groups(seed, position, group, PURPOSE_TARGET, 1)",
        "low = high * 0",
        "32 random bits a token, which is too coarse from a gap of 22 nats on",
    ),
    Mutation(
        "careless_logarithm",
        "kernels/gumbel.py",
        "tl.where(exact, small, tl.log(rest) * ratio)",
        "-tl.log(tl.where(exact, 0.99999994, rest))",
        "log(1 - u) of a rounded 1 - u: large noise is wrong",
    ),
)
