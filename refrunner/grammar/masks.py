"""From the host to the logits: masks in a pinned slot, uploaded on a stream of their own, applied on the main stream.

Two orders make it safe, and each is an event:

* forth: the kernel on the main stream waits for the upload;
* back: the upload waits for the kernel of the step before, which may still read the masks that it is to overwrite. For
  the first upload that is the making of the memory, which is work of the main stream, too.

The slot is free behind the upload, see :class:`~mrv2.refrunner.staging.PinnedRing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..device import Device
from ..kernels.token_mask import mask_logits
from ..sampling.blocks import block_of
from ..sampling.tables import mask_words
from ..staging import ALIGNED_WORDS, PinnedRing


def mask_bytes(most: int, vocab_size: int) -> int:
    """Bytes of device memory for the masks of one step.

    Args:
        most: M, masks in one step at most.
        vocab_size: V.
    """
    return 4 * (_first_mask(most) + most * mask_words(vocab_size))


class TokenMasks:
    """Device memory for the masks of one step, and their way there.

    Attributes:
        memory: int32 [P + M * W] on the device, for at most M masks: the row of logits of each, padded to P words; then
            the masks. Written on the upload stream, read on the main stream.
    """

    def __init__(self, device: Device, most: int, vocab_size: int) -> None:
        """Allocate.

        Args:
            most: M, masks in one step at most.
            vocab_size: V.
        """
        self._device = device
        self._vocab_size = vocab_size
        self._words = mask_words(vocab_size)
        self._first = _first_mask(most)
        self.memory = torch.zeros(mask_bytes(most, vocab_size) // 4, dtype=torch.int32, device=device.torch_device)
        self._ring = PinnedRing(device)
        self._stream = device.new_stream(self.memory)
        self._uploaded = self._read = device.record_event()
        self._count = 0

    def upload(self, places: Sequence[int], masks: NDArray[np.uint32]) -> None:
        """Enqueue the upload of a step's masks; none are sent if there are none.

        Args:
            places: row of logits that each mask is for.
            masks: uint32 [M, W]; may be modified as soon as the call returns.
        """
        self._count = len(places)
        if not places:
            return
        payload = np.zeros(self._first + masks.size, dtype=np.int32)
        payload[: len(places)] = places
        payload[self._first :] = masks.reshape(-1).view(np.int32)
        lease = self._ring.place(payload.view(np.uint8))
        with self._device.on_stream(self._stream):
            self._device.wait_for(self._read)
            self.memory[: len(payload)].copy_(lease.memory.view(torch.int32), non_blocking=True)
            self._uploaded = self._device.record_event()
            lease.end()

    def apply(self, logits: Tensor) -> None:
        """Forbid what the masks of this step forbid; one launch, or none without masks.

        Args:
            logits: float32 [N, V], unit stride in V; changed in place in the rows that have a mask.
        """
        if self._count:
            self._device.wait_for(self._uploaded)
            self._launch(logits, self._count)
            self._read = self._device.record_event()

    def warm_up(self, logits: Tensor) -> None:
        """Load the kernel: a launch over no mask, which touches nothing."""
        self._launch(logits, 0)

    def _launch(self, logits: Tensor, count: int) -> None:
        block = block_of(logits.device, self._vocab_size)
        mask_logits[(count, -(-self._vocab_size // block))](
            logits, logits.stride(0), self.memory, self.memory[self._first :], self._vocab_size, self._words,
            BLOCK=block,
        )  # fmt: skip


def _first_mask(most: int) -> int:
    """Words before the first mask, so many that it is aligned whatever the number of masks."""
    return -(-most // ALIGNED_WORDS) * ALIGNED_WORDS
