"""Counts of draws that stay on the device where the draws are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def counted(draw: Callable[[Tensor], Tensor], positions: Tensor, vocab_size: int, at_once: int) -> NDArray[np.int64]:
    """Draw at each position and count the tokens; the host waits once, at the end, for the counts alone.

    Args:
        draw: from positions [n] to token ids int32 or int64 [n], on the same device, on its current stream.
        positions: int32 or int64 [N].
        vocab_size: V.
        at_once: most draws of one call.

    Returns:
        int64 [V + 1]; the last entry counts ids outside [0, V).
    """
    import torch

    # One cell below and one above the vocabulary, so that an id of either side is a clamp away.
    counts = torch.zeros(vocab_size + 2, dtype=torch.int64, device=positions.device)
    ones = torch.ones(min(at_once, positions.numel()), dtype=torch.int64, device=positions.device)
    for some in positions.split(at_once):
        cells = draw(some).clamp(-1, vocab_size) + 1
        counts.index_add_(0, cells, ones[: some.numel()])
    found: NDArray[np.int64] = counts.cpu().numpy()
    return np.append(found[1:-1], found[0] + found[-1])
