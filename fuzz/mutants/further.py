"""Missing edges and hidden waits where only drafts and grammars go; no run without them meets one of these."""

from __future__ import annotations

from .source import Mutation

_STAGE, _OUTPUT, _RUNNER = "grammar/stage.py", "async_output.py", "model_runner.py"
_PROPOSE = "                self._proposer.propose(self.batch, sampled.num_emitted, hidden, self._states, upload)\n"

#: Missing edges; those of the masks alone are in ``grammar``.
FURTHER_EDGES = (
    Mutation(
        "drafts_read_before_they_arrive",
        _OUTPUT,
        "        done.synchronize()\n",
        "",
        "the host reads drafts of a request with a grammar without waiting for their download",
    ),
    Mutation(
        "drafts_downloaded_before_they_are_listed",
        _OUTPUT,
        "        (copy,), done = device.download((drafts,))\n",
        "        drafts.record_stream(device.copy_stream)\n"
        "        with device.on_stream(device.copy_stream):\n"
        "            copy = device.pinned_empty(drafts.numel(), drafts.dtype).view(drafts.shape)\n"
        "            copy.copy_(drafts, non_blocking=True)\n"
        "            done = device.record_event()\n",
        "the copy stream downloads drafts without waiting for the stream that lists them",
    ),
    Mutation(
        "proposals_on_a_stream_of_their_own",
        _RUNNER,
        _PROPOSE,
        "                with self._device.on_stream(self._device.copy_stream):\n    " + _PROPOSE,
        "drafts are proposed beside the state update that they follow from",
    ),
)

#: Hidden waits.
FURTHER_WAITS = (
    Mutation(
        "acceptance_read_in_the_step",
        _RUNNER,
        _PROPOSE,
        "                self.last_accepted = sampled.num_emitted.tolist()\n" + _PROPOSE,
        "the counts of accepted drafts are read back in every step",
    ),
    Mutation(
        "masks_wait_for_their_upload",
        "grammar/masks.py",
        "            lease.end()\n",
        "            self._uploaded.synchronize()\n            lease.end()\n",
        "the host waits until the masks of a step are uploaded",
    ),
    Mutation(
        "drafts_downloaded_at_once",
        _STAGE,
        "        drafts = self._list_drafts(batch.rows, states)\n",
        "        drafts = self._list_drafts(batch.rows, states)\n        logger.debug('drafts: %s', drafts.cpu())\n",
        "drafts of requests with a grammar are copied to the host for a message",
    ),
)
