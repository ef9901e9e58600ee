"""Faults of order planted in the reference runner: each drops, misplaces or weakens one edge between host and device.

On an idle device none of them shows in the tokens. On the virtual device each is a race in every schedule.
"""

from __future__ import annotations

from .source import Mutation

_DOWNLOAD = """        with torch.cuda.stream(self.copy_stream):
            copies = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)
            for copy, source in zip(copies, sources, strict=True):
                copy.copy_(source, non_blocking=True)
            return copies, self.record_event()
"""

ORDERING = (
    Mutation(
        "slot_not_asked",
        "staging.py",
        "            if slot.last_reader.query():\n",
        "            if slot.last_reader:\n",
        "a pinned slot is rewritten whether or not its last upload is over",
    ),
    Mutation(
        "slot_event_too_early",
        "staging.py",
        "        target.copy_(slot.memory[: len(payload)], non_blocking=True)\n"
        "        slot.last_reader = self._device.record_event()\n",
        "        slot.last_reader = self._device.record_event()\n"
        "        target.copy_(slot.memory[: len(payload)], non_blocking=True)\n",
        "the event of a pinned slot is recorded before the copy that it is to cover",
    ),
    Mutation(
        "download_does_not_wait",
        "device.py",
        "        self.copy_stream.wait_stream(torch.cuda.current_stream(self.torch_device))\n",
        "",
        "the copy stream downloads tokens without waiting for the stream that draws them",
    ),
    Mutation(
        "download_event_on_main_stream",
        "device.py",
        _DOWNLOAD,
        _DOWNLOAD.replace("            return copies", "        return copies"),
        "the event of a download is recorded on the main stream, not behind the copies",
    ),
    Mutation(
        "download_event_too_early",
        "device.py",
        _DOWNLOAD,
        """        with torch.cuda.stream(self.copy_stream):
            done = self.record_event()
            copies = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)
            for copy, source in zip(copies, sources, strict=True):
                copy.copy_(source, non_blocking=True)
            return copies, done
""",
        "the event of a download is recorded before its copies",
    ),
    Mutation(
        "one_download_buffer",
        "device.py",
        "            copies = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)\n",
        "            fresh = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)\n"
        "            copies = vars(self).setdefault(f'host{len(sources[0])}', fresh)\n",
        "all steps of one batch size download into the same host memory",
    ),
    Mutation(
        "result_does_not_wait",
        "async_output.py",
        "                self._done.synchronize()\n",
        "                pass\n",
        "result() reads the downloaded tokens without waiting for the download",
    ),
    Mutation(
        "sources_dropped_early",
        "device.py",
        "            source.record_stream(self.copy_stream)\n",
        "            pass\n",
        "the drawn tokens are freed while the copy stream may still read them",
    ),
)
