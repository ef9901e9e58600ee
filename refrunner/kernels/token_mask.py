"""The mask of a grammar on the logits of a step, and the drafts for which the next step's masks are made.

Notation: N rows of logits, M masks, V tokens in the vocabulary, W = ceil(V / 32) words of a mask. A request has one row
of logits for each draft and one for the token after them, and a mask for each of these rows, or no mask at all. Which
row a mask is for is a table of its own, so requests without a grammar take no space, no time and no bandwidth.
"""

import triton.language as tl

from .launch import kernel
from .logits_processing import mask_bit


@kernel
def mask_logits(
    logits_ptr,  # [N, V] float32, in place
    logits_stride,
    places_ptr,  # [M] int32: row of logits that each mask is for
    masks_ptr,  # [M, W] int32 bit masks
    vocab_size,
    mask_words,  # W
    BLOCK: tl.constexpr,
) -> None:
    """One program per mask and block of the vocabulary: minus infinity where a bit is 0. No logit is read."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(places_ptr + index).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    allowed = mask_bit(masks_ptr + index * mask_words, token, inside)
    forbidden = tl.zeros([BLOCK], tl.float32) + float("-inf")
    tl.store(logits_ptr + row * logits_stride + token, forbidden, mask=inside & (allowed == 0))


@kernel
def list_drafts(
    rows_ptr,  # [N] int32
    total_len_ptr,  # [R] int32
    num_drafts_ptr,  # [R] int32
    token_ids_ptr,  # [R, L] int32: known tokens, then the drafts
    token_ids_stride,
    drafts_ptr,  # [N, K] int32, out: the drafts of each request; -1 behind the last one
    most,  # K
    DRAFTS: tl.constexpr,  # K, rounded up to a power of two
) -> None:
    """Drafts by request, for a host that makes masks for them. One program per request."""
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    place = tl.arange(0, DRAFTS)
    proposed = place < tl.load(num_drafts_ptr + row)
    first_ptr = token_ids_ptr + row * token_ids_stride + tl.load(total_len_ptr + row)
    draft = tl.load(first_ptr + place, mask=proposed, other=-1)
    tl.store(drafts_ptr + request * most + place, draft, mask=place < most)
