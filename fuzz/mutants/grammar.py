"""Faults planted in the grammar stage of the reference runner: masks for the wrong row, step or text; missing edges.

They need a workload whose requests have grammars, see ``fuzz.grammars``.
"""

from __future__ import annotations

from .source import Mutation

MASKS = (
    Mutation(
        "mask_row_off_by_one",
        "grammar/stage.py",
        "        self._masks.upload(places, masks)\n",
        "        rows = [row for _, row in drawing]\n"
        "        later = dict(zip(rows, [*rows[1:], rows[0]], strict=True))\n"
        "        self._masks.upload([later.get(row, row) for row in places], masks)\n",
        "each mask is applied to the next request's row of logits",
    ),
    Mutation(
        "masks_of_an_earlier_batch",
        "grammar/masks.py",
        "        payload[self._first :] = masks.reshape(-1).view(np.int32)\n",
        "        sent = vars(self).setdefault('sent', {})\n"
        "        payload[self._first :] = sent.setdefault(len(places), masks.reshape(-1).view(np.int32).copy())\n",
        "a batch gets the masks that were made for the first batch with as many of them",
    ),
    Mutation(
        "masks_in_order_of_arrival",
        "grammar/stage.py",
        "        mine = [(name, row, drafts.get(name, ())) for name, row in drawing if name in self._matchers]\n",
        "        row_of = dict(drawing)\n"
        "        mine = [(name, row, drafts.get(name, ())) for name, (_, row) in\n"
        "                zip((n for n in self._matchers if n in row_of), drawing, strict=False)]\n",
        "masks are counted through from the first row, as if every request had one",
    ),
    Mutation(
        "masks_counted_by_trimmed_drafts",
        "grammar/stage.py",
        "            first += 1 + len(tokens)\n",
        "            first += 1 + self._matchers[name].fitting(tokens)\n",
        "masks are laid down by the drafts that fit a grammar, and read by those that were scheduled",
    ),
    Mutation(
        "mask_of_the_first_draft_for_all",
        "grammar/compiler.py",
        "            ahead.consume_token(drafts[place])\n",
        "",
        "every draft is judged by the mask of the first one",
    ),
    Mutation(
        "drafts_not_rolled_back",
        "grammar/compiler.py",
        "        fitting, ahead = self.fitting(drafts), self._state.deep_copy()\n",
        "        fitting, ahead = self.fitting(drafts), self._state\n",
        "a matcher stays behind the drafts, whether or not they are accepted",
    ),
    Mutation(
        "vocabulary_of_the_first_words",
        "kernels/token_mask.py",
        "    inside = token < vocab_size\n",
        "    inside = token < (vocab_size // 2)\n",
        "the upper half of the vocabulary is never masked",
    ),
    Mutation(
        "end_wherever_the_library_allows_it",
        "grammar/compiler.py",
        "        if complete:\n",
        "        if complete or self.num_tokens:\n",
        "a stop token may be drawn although the text is not complete",
    ),
    Mutation(
        "stop_token_is_never_opened",
        "grammar/compiler.py",
        "            out |= self._stop_bits\n",
        "            pass\n",
        "a complete text cannot end, and a draw from nothing follows",
    ),
    Mutation(
        "matcher_moves_on_too_late",
        "grammar/stage.py",
        "            self._matchers[name].advance(tokens)\n",
        "            late = vars(self).setdefault('late', {})\n"
        "            self._matchers[name]._state.consume_tokens(list(late.pop((name, id(self._matchers[name])), ())))\n"
        "            self._matchers[name].num_tokens += len(tokens)\n"
        "            late[(name, id(self._matchers[name]))] = tokens\n",
        "a mask is made before the newest token is taken into account",
    ),
    Mutation(
        "grammar_starts_again_on_resume",
        "grammar/stage.py",
        "            matcher.advance(output)\n",
        "            matcher.num_tokens += len(output)\n",
        "a request that was preempted starts its text anew",
    ),
)

EDGES = (
    Mutation(
        "mask_read_before_its_upload",
        "grammar/masks.py",
        "            self._device.wait_for(self._uploaded)\n",
        "",
        "the kernel on the main stream does not wait for the upload of the masks",
    ),
    Mutation(
        "mask_overwritten_while_it_is_read",
        "grammar/masks.py",
        "            self._device.wait_for(self._read)\n",
        "            if vars(self).setdefault('first', self._read) is self._read:\n"
        "                self._device.wait_for(self._read)\n",
        "the upload does not wait for the kernel that reads the masks of the step before",
    ),
    Mutation(
        "mask_uploaded_before_its_memory_is_made",
        "grammar/masks.py",
        "            self._device.wait_for(self._read)\n",
        "            if vars(self).setdefault('first', self._read) is not self._read:\n"
        "                self._device.wait_for(self._read)\n",
        "the first upload does not wait for the stream on which the memory was filled with zeros",
    ),
    Mutation(
        "mask_slot_free_before_its_upload",
        "grammar/masks.py",
        "            lease.end()\n",
        "            pass\n"
        "        lease.end()\n",
        "the pinned slot is taken for free once the main stream has come so far, not the upload",
    ),
)  # fmt: skip
