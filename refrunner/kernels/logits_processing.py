"""Processed logits: what a request's parameters make of the model's logits, before the filters and the draw.

Notation: N rows of logits in the step, R rows in the state table, V tokens in the vocabulary, W = ceil(V / 32) words of
a bit mask, L longest sequence. A row's *stages* say which parameters it uses; one without any is not touched, and
nothing is written for it. Within a row the order is: allowed ids, bias, minimum of tokens, penalties, bad words,
temperature. Each operation rounds once, in float32; a multiplication and a subtraction are never fused, so that the
result is the same on every device.

A row that has filters and nothing else is not copied either, nor touched here; see `maxima`.
"""

import triton.language as tl

from .groups import maxima_of
from .launch import kernel
from .order import LOWEST, divided, ordered

# Bits of a row's stages.
ALLOWED = tl.constexpr(1)
BIAS = tl.constexpr(2)
MIN_TOKENS = tl.constexpr(4)
PENALTIES = tl.constexpr(8)
BAD_WORDS = tl.constexpr(16)
MIN_P = tl.constexpr(32)
TOP_K = tl.constexpr(64)
TOP_P = tl.constexpr(128)
FILTERS = tl.constexpr(32 + 64 + 128)
REPORTED = tl.constexpr(256)  # processed values are reported, so the row needs a processed copy
# Any of these needs one. Filters do not: whoever reads the logits divides them by the temperature.
STORED = tl.constexpr(1 + 2 + 4 + 8 + 16 + 256)
FILTERED_ONLY = tl.constexpr(512)  # for the host, which knows the bits of all rows together: a filter, and no copy

# Columns of `numbers`, int32 [R, NUMBERS].
STAGES = tl.constexpr(0)
COLUMN_TOP_K = tl.constexpr(1)
PROMPT_LEN = tl.constexpr(2)
MIN_LEN = tl.constexpr(3)  # stop tokens are forbidden while the sequence is shorter
NUM_BIASES = tl.constexpr(4)
NUM_STOPS = tl.constexpr(5)
TOP_LOGPROBS = tl.constexpr(6)  # 1 + how many are asked for; 0 if none
TOP_PROMPT_LOGPROBS = tl.constexpr(7)  # likewise; aligned likewise, or kernels would be compiled for each of the two
NUM_BAD_WORDS = tl.constexpr(8)
NUM_LOGPROB_IDS = tl.constexpr(9)
NUMBERS = tl.constexpr(10)

# Columns of `reals`, float32 [R, REALS].
TEMPERATURE = tl.constexpr(0)
COLUMN_TOP_P = tl.constexpr(1)
LOG_MIN_P = tl.constexpr(2)
REPETITION = tl.constexpr(3)
FREQUENCY = tl.constexpr(4)
PRESENCE = tl.constexpr(5)
REALS = tl.constexpr(6)

_HISTORY = tl.constexpr(32)


@kernel
def source_of(
    logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
) -> tuple[tl.tensor, tl.tensor]:
    """Where a row of logits is to be read, and what each must be divided by to be what is drawn from."""
    row = tl.load(rows_ptr + index).to(tl.int64)
    source_ptr = logits_ptr + index * logits_stride
    divisor = tl.load(reals_ptr + row * REALS + TEMPERATURE)
    if (tl.load(numbers_ptr + row * NUMBERS + STAGES) & STORED) != 0:
        source_ptr = processed_ptr + index * vocab_size
        divisor = divisor * 0.0
    return source_ptr, tl.where(divisor > 0.0, divisor, 1.0)


@kernel
def mask_bit(words_ptr, token, inside) -> tl.tensor:
    """Whether each token's bit is set in a bit mask of the vocabulary; not for tokens outside it."""
    word = tl.load(words_ptr + token // 32, mask=inside, other=0)
    return ((word >> (token % 32)) & 1) != 0


@kernel
def entries_of_block(
    tokens_ptr, count, first_token, BLOCK: tl.constexpr, ENTRIES: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Begin and end of the entries of a sorted list of token ids that lie in this block of the vocabulary."""
    entry = tl.arange(0, ENTRIES)
    token = tl.load(tokens_ptr + entry, mask=entry < count, other=2147483647)
    before = tl.sum((token < first_token).to(tl.int32), 0)
    return before, before + tl.sum(((token >= first_token) & (token < first_token + BLOCK)).to(tl.int32), 0)


@kernel
def add_biases(
    logit, token, tokens_ptr, values_ptr, count, first_token, BLOCK: tl.constexpr, ENTRIES: tl.constexpr
) -> tl.tensor:
    """Add the value of each listed token to its logit."""
    begin, end = entries_of_block(tokens_ptr, count, first_token, BLOCK, ENTRIES)
    for entry in range(begin, end):
        biased = token == tl.load(tokens_ptr + entry)
        logit = tl.where(biased, logit + tl.load(values_ptr + entry), logit)
    return logit


@kernel
def forbid_listed(
    logit, token, tokens_ptr, count, first_token, BLOCK: tl.constexpr, ENTRIES: tl.constexpr
) -> tl.tensor:
    """Forbid each listed token."""
    begin, end = entries_of_block(tokens_ptr, count, first_token, BLOCK, ENTRIES)
    for entry in range(begin, end):
        logit = tl.where(token == tl.load(tokens_ptr + entry), float("-inf"), logit)
    return logit


@kernel
def penalize(logit, token, inside, mask_ptr, counts_ptr, reals_ptr, drafts_ptr, num_drafts) -> tl.tensor:
    """Repetition (tokens of prompt and output), frequency and presence (tokens of the output).

    The request's own drafts before this token count as output.
    """
    count = tl.load(counts_ptr + token, mask=inside, other=0)
    for place in range(num_drafts):
        count += (token == tl.load(drafts_ptr + place)).to(tl.int32)
    produced = count > 0
    repetition = tl.load(reals_ptr + REPETITION)
    divided = tl.div_rn(logit, repetition + tl.zeros_like(logit))
    repeated = tl.where(logit > 0.0, divided, logit * repetition)
    logit = tl.where(produced | mask_bit(mask_ptr, token, inside), repeated, logit)
    logit = logit - count.to(tl.float32) * tl.load(reals_ptr + FREQUENCY)
    return logit - tl.where(produced, tl.load(reals_ptr + PRESENCE), 0.0)


@kernel
def forbid_bad_words(
    logit, token, last_ptr, offsets_ptr, prefixes_ptr, count, history_ptr, length, first_token, BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Forbid the last token of each word whose other tokens are the end of the sequence.

    Words are sorted by their last token, so exactly one block looks at each of them.
    """
    begin, end = entries_of_block(last_ptr, count, first_token, BLOCK, ENTRIES)
    for entry in range(begin, end):
        start = tl.load(offsets_ptr + entry)
        size = tl.load(offsets_ptr + entry + 1) - start
        fitting = tl.where(size <= length, size, 0)
        differences = size - fitting
        for done in range(0, size, _HISTORY):
            lane = done + tl.arange(0, _HISTORY)
            compared = lane < fitting
            wanted = tl.load(prefixes_ptr + start + lane, mask=compared, other=0)
            found = tl.load(history_ptr + length - size + lane, mask=compared, other=0)
            differences += tl.sum((wanted != found).to(tl.int32), 0)
        hit = (token == tl.load(last_ptr + entry)) & (differences == 0)
        logit = tl.where(hit, float("-inf"), logit)
    return logit


@kernel
def process_logits(
    logits_ptr,  # [N, V] float32
    logits_stride,
    rows_ptr,  # [N] int32, row of the tables that each row of logits belongs to
    positions_ptr,  # [N] int32: number of tokens before the one drawn
    offsets_ptr,  # [N] int32: how many of those tokens, the last ones, are drafts; read with DRAFTS only
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    allowed_ptr,  # [R, W] int32 bit mask
    bias_tokens_ptr,  # [R, BIASES] int32, each row sorted
    bias_values_ptr,  # [R, BIASES] float32
    stops_ptr,  # [R, STOPS] int32, each row sorted
    bad_words_ptr,  # [R, 2 * WORDS + 1 + WORD_TOKENS] int32: last tokens, sorted; offsets into the rest; other tokens
    prompt_mask_ptr,  # [R, W] int32 bit mask
    counts_ptr,  # [R, V] int32
    token_ids_ptr,  # [R, L] int32, drafts included
    token_ids_stride,
    out_ptr,  # [N, V] float32, out: rows with a stage of STORED
    maxima_ptr,  # [N, groups] int32, out: largest integer, by `ordered`, of each group; of those with a filter
    vocab_size,
    mask_words,  # W
    num_groups,
    BIASES: tl.constexpr,
    STOPS: tl.constexpr,
    WORDS: tl.constexpr,
    WORD_TOKENS: tl.constexpr,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """One program per row of logits and block of the vocabulary; nothing is done for rows without a stage of STORED."""
    index = tl.program_id(0).to(tl.int64)
    first_token = tl.program_id(1) * BLOCK
    row = tl.load(rows_ptr + index).to(tl.int64)
    numbers_ptr += row * NUMBERS
    reals_ptr += row * REALS
    stages = tl.load(numbers_ptr + STAGES)
    if (stages & STORED) == 0:
        return
    token = first_token + tl.arange(0, BLOCK)
    inside = token < vocab_size
    logit = tl.load(logits_ptr + index * logits_stride + token, mask=inside, other=float("-inf"))
    length = tl.load(positions_ptr + index)
    if (stages & ALLOWED) != 0:
        logit = tl.where(mask_bit(allowed_ptr + row * mask_words, token, inside), logit, float("-inf"))
    if (stages & BIAS) != 0:
        count = tl.load(numbers_ptr + NUM_BIASES)
        logit = add_biases(
            logit, token, bias_tokens_ptr + row * BIASES, bias_values_ptr + row * BIASES, count, first_token, BLOCK,
            BIASES,
        )  # fmt: skip
    if ((stages & MIN_TOKENS) != 0) & (length < tl.load(numbers_ptr + MIN_LEN)):
        count = tl.load(numbers_ptr + NUM_STOPS)
        logit = forbid_listed(logit, token, stops_ptr + row * STOPS, count, first_token, BLOCK, STOPS)
    if (stages & PENALTIES) != 0:
        num_drafts = 0
        if DRAFTS:
            num_drafts = tl.load(offsets_ptr + index)
        logit = penalize(
            logit, token, inside, prompt_mask_ptr + row * mask_words, counts_ptr + row * vocab_size, reals_ptr,
            token_ids_ptr + row * token_ids_stride + length - num_drafts, num_drafts,
        )  # fmt: skip
    if (stages & BAD_WORDS) != 0:
        words_ptr = bad_words_ptr + row * (2 * WORDS + 1 + WORD_TOKENS)
        logit = forbid_bad_words(
            logit, token, words_ptr, words_ptr + WORDS, words_ptr + 2 * WORDS + 1,
            tl.load(numbers_ptr + NUM_BAD_WORDS), token_ids_ptr + row * token_ids_stride, length, first_token, BLOCK,
            WORDS,
        )  # fmt: skip
    temperature = tl.load(reals_ptr + TEMPERATURE)
    if temperature > 0.0:
        logit = divided(logit, temperature)
    tl.store(out_ptr + index * vocab_size + token, logit, mask=inside)
    if (stages & FILTERS) != 0:
        group = first_token // GROUP + tl.arange(0, BLOCK // GROUP)
        maxima = maxima_of(tl.where(inside, ordered(logit), LOWEST), BLOCK, GROUP)
        tl.store(maxima_ptr + index * num_groups + group, maxima, mask=group < num_groups)
