"""Hidden waits planted in the reference runner: each makes the host wait for the device in the middle of a step.

Not one of them changes a token, and on a CPU not one of them costs anything. On a GPU each costs the overlap of host
and device.
"""

from __future__ import annotations

from .source import Mutation

_BUILT = "            self.batch = self._builder.build(layout, self._states, upload)\n"
_DRAWN = "        sampled = self._sample(self.batch, hidden)\n"
_LEAVES = "        del self._computed[request_id], self._total[request_id], self._prefill_len[request_id]\n"

WAITING = (
    Mutation(
        "item_in_execute",
        "model_runner.py",
        _DRAWN,
        _DRAWN + "        assert sampled.token_ids.min().item() >= 0\n",
        "the smallest token drawn is read back in every step, for an assertion",
    ),
    Mutation(
        "branch_on_the_device",
        "model_runner.py",
        _BUILT,
        _BUILT + "            if (self.batch.input_ids < -1).any():\n"
        "                raise ValueError('token ids below zero')\n",
        "the input ids are checked on the host in every step",
    ),
    Mutation(
        "logits_are_logged",
        "model_runner.py",
        _DRAWN,
        _DRAWN + "        self.last_drawn = f'drew {sampled.token_ids}'\n",
        "a message with the drawn tokens is made in every step, whether or not anybody logs it",
    ),
    Mutation(
        "blocking_upload",
        "staging.py",
        "        target.copy_(slot.memory[: len(payload)], non_blocking=True)\n",
        "        target.copy_(slot.memory[: len(payload)])\n",
        "the packed upload of the step blocks",
    ),
    Mutation(
        "pageable_upload",
        "staging.py",
        "        target.copy_(slot.memory[: len(payload)], non_blocking=True)\n",
        "        target.copy_(torch.from_numpy(payload.copy()))\n",
        "the packed upload of the step comes from pageable memory",
    ),
    Mutation(
        "pageable_download",
        "device.py",
        "            copies = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)\n",
        "            copies = tuple(torch.empty(s.shape, dtype=s.dtype) for s in sources)\n",
        "drawn tokens are downloaded to pageable memory, where a copy that is not to block does",
    ),
    Mutation(
        "ring_waits",
        "staging.py",
        "            if slot.last_reader.query():\n",
        "            slot.last_reader.synchronize()\n            if slot.memory is not None:\n",
        "the pinned ring has one slot, and waits for its last reader instead of growing",
    ),
    Mutation(
        "device_synchronise",
        "model_runner.py",
        _LEAVES,
        "        self._device.synchronize()\n" + _LEAVES,
        "the whole device is waited for when a request leaves",
    ),
    Mutation(
        "stream_synchronise",
        "device.py",
        "        self.copy_stream.wait_stream(torch.cuda.current_stream(self.torch_device))\n",
        "        torch.cuda.current_stream(self.torch_device).synchronize()\n",
        "the host waits for the main stream where the copy stream should",
    ),
    Mutation(
        "padding_found_by_nonzero",
        "attention/torch_reference.py",
        "        self._slots = batch.slot_mapping.clamp_min(NULL_BLOCK)\n",
        "        self._slots = batch.slot_mapping.clone()\n"
        "        padding = (batch.slot_mapping[0] < 0).nonzero()[:, 0]\n"
        "        self._slots.index_fill_(1, padding, NULL_BLOCK)\n",
        "padding lanes are looked for with nonzero",
    ),
    Mutation(
        "padding_removed_by_mask",
        "attention/torch_reference.py",
        "        keys.index_copy_(0, self._slots[group], key)\n",
        "        real = self._batch.slot_mapping[group] >= 0\n"
        "        keys.index_copy_(0, self._batch.slot_mapping[group][real], key[real])\n",
        "keys of padding lanes are left out with a mask",
    ),
    Mutation(
        "cache_emptied",
        "model_runner.py",
        "        blocks = self._builder.block_tables.clear(row)\n",
        "        blocks = self._builder.block_tables.clear(row)\n        torch.cuda.empty_cache()\n",
        "cached memory is given back to the driver when a request leaves",
    ),
)
