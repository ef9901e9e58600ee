"""The likeliest tokens of a row and their log-probabilities, without a log-softmax of the row in memory.

Notation: n rows of logits, R rows in the state table, V tokens, K columns of the result. A *value* is what is reported:
a logit of the model, or one after processing, minus infinity where it is NaN or a filter dropped the token. Its
log-probability is (value - largest) - log_sum, the two *statistics* of the row; NaN if one of the model's logits is.

The tokens come by a threshold, as in ``filters``: the k-th largest value, then everything above it, then as many of
those equal to it as there is room for, lowest ids first. What that leaves unsorted is sorted by counting who comes
before whom.
"""

import triton.language as tl

from .filters import kth_largest
from .groups import line_of, list_groups, list_likeliest, load_maxima, maxima_of
from .launch import kernel
from .order import LOWEST, as_logit, kth_of_tile, ordered

_COLUMNS = tl.constexpr(64)  # entries that are sorted in one turn


@kernel
def reported_value(logits_ptr, token, inside, threshold) -> tl.tensor:
    """Values of some tokens of a row; minus infinity outside the vocabulary, and for NaN."""
    value = tl.load(logits_ptr + token, mask=inside, other=float("-inf"))
    return tl.where((value == value) & (ordered(value) >= threshold), value, float("-inf"))


@kernel
def number_from(logits_ptr, size, threshold, least, BLOCK: tl.constexpr) -> tl.tensor:
    """How many values of a row are ``least``, an integer of `ordered`, or more."""
    number = tl.full([], 0, tl.int32)
    for start in range(0, size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        key = ordered(reported_value(logits_ptr, token, token < size, threshold)).to(tl.int64)
        number += tl.sum(((token < size) & (key >= least)).to(tl.int32), 0)
    return number


@kernel
def survey(
    logits_ptr,  # [n, V] float32
    logits_stride,
    threshold_ptr,  # [n] int32, lowest integer of `ordered` that a filter keeps
    rows_ptr,  # [n] int32, row of the tables
    wanted_ptr,  # [R] int32: 1 + number of tokens wanted, 0 for no report
    wanted_stride,
    tokens_ptr,  # [n] int32, the tokens that are there
    maxima_ptr,  # [n, groups] int32, out: largest integer of each group's values
    above_ptr,  # [n, parts] int32, out: number of values above the token's own
    vocab_size,
    num_groups,
    num_parts,
    part_blocks,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """One pass over each row that a report is wanted of. One program per row and part of the vocabulary."""
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if tl.load(wanted_ptr + tl.load(rows_ptr + index).to(tl.int64) * wanted_stride) == 0:
        return
    logits_ptr += index * logits_stride
    threshold = tl.load(threshold_ptr + index)
    own = tl.load(tokens_ptr + index) + tl.arange(0, 1)
    own_key = tl.max(ordered(reported_value(logits_ptr, own, own < vocab_size, threshold)), 0)
    above = tl.zeros([BLOCK], tl.int32)
    for start in range(part * part_blocks * BLOCK, tl.minimum((part + 1) * part_blocks * BLOCK, vocab_size), BLOCK):
        token = start + tl.arange(0, BLOCK)
        key = ordered(reported_value(logits_ptr, token, token < vocab_size, threshold))
        key = tl.where(token < vocab_size, key, LOWEST)
        above += (key > own_key).to(tl.int32)
        group = start // GROUP + tl.arange(0, BLOCK // GROUP)
        tl.store(maxima_ptr + index * num_groups + group, maxima_of(key, BLOCK, GROUP), mask=group < num_groups)
    tl.store(above_ptr + index * num_parts + part, tl.sum(above, 0))


@kernel
def select_anyway(logits_ptr, threshold, id_ptr, value_ptr, vocab_size, wanted, BLOCK: tl.constexpr) -> None:
    """The wanted number of largest values of a row, in as many passes over it as that takes."""
    kth = kth_largest(logits_ptr, 1.0, vocab_size, threshold, wanted, BLOCK)
    above_end = tl.full([], 0, tl.int32)
    equal_end = number_from(logits_ptr, vocab_size, threshold, kth + 1, BLOCK)
    for start in range(0, vocab_size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = reported_value(logits_ptr, token, token < vocab_size, threshold)
        key = ordered(value).to(tl.int64)
        above = ((token < vocab_size) & (key > kth)).to(tl.int32)
        equal = ((token < vocab_size) & (key == kth)).to(tl.int32)
        place = tl.where(above != 0, above_end + tl.cumsum(above, 0), equal_end + tl.cumsum(equal, 0)) - 1
        chosen = (above + equal != 0) & (place < wanted)
        tl.store(id_ptr + place, token, mask=chosen)
        tl.store(value_ptr + place, value, mask=chosen)
        above_end += tl.sum(above, 0)
        equal_end += tl.sum(equal, 0)


@kernel
def select_top(
    logits_ptr,  # [n, V] float32
    logits_stride,
    threshold_ptr,  # [n] int32
    rows_ptr,  # [n] int32
    wanted_ptr,  # [R] int32
    wanted_stride,
    maxima_ptr,  # [n, groups] int32, see `survey`
    above_ptr,  # [n, parts] int32, likewise
    list_ptr,  # [n, groups] int32, for itself
    found_ptr,  # [2, n, LIST] int32, likewise
    equal_ptr,  # [n, K] int32, likewise
    id_ptr,  # [n, K] int32, out, unsorted
    value_ptr,  # [n, K] float32, out, likewise
    rank_ptr,  # [n] int32, out: 1 + number of values above the token's own
    vocab_size,
    num_groups,
    num_parts,
    count,  # n
    columns,  # K
    MOST: tl.constexpr,
    LIST: tl.constexpr,
    PARTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The wanted number of largest values of each row, and the rank of its token. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    wanted = tl.load(wanted_ptr + tl.load(rows_ptr + index).to(tl.int64) * wanted_stride) - 1
    if wanted < 0:
        return
    part = tl.arange(0, PARTS)
    above = tl.load(above_ptr + index * num_parts + part, mask=part < num_parts, other=0)
    tl.store(rank_ptr + index, 1 + tl.sum(above, 0))
    if wanted == 0:
        return
    logits_ptr += index * logits_stride
    id_ptr += index * columns
    value_ptr += index * columns
    threshold = tl.load(threshold_ptr + index)
    found = tl.full([], LIST + 1, tl.int32)
    if (wanted <= MOST) & (wanted <= num_groups):
        keys_ptr = found_ptr + index * LIST
        ids_ptr = keys_ptr + count.to(tl.int64) * LIST
        equal_ptr += index * columns
        maxima = load_maxima(maxima_ptr + index * num_groups, num_groups, GROUPS)
        line = line_of(maxima, num_groups, wanted, GROUPS)
        number = list_groups(maxima, list_ptr + index * num_groups, num_groups, line, GROUPS)
        found = list_likeliest(
            logits_ptr, threshold, list_ptr + index * num_groups, number, keys_ptr, ids_ptr, equal_ptr, vocab_size,
            line, wanted, LIST, TILE, GROUP,
        )  # fmt: skip
        if found <= LIST:
            place = tl.arange(0, LIST)
            keys = tl.load(keys_ptr + place, mask=place < found, other=LOWEST)
            ids = tl.load(ids_ptr + place, mask=place < found, other=0)
            if found < wanted:
                tl.store(id_ptr + place, ids, mask=place < found)
                tl.store(value_ptr + place, as_logit(keys), mask=place < found)
                on_line = (place >= found) & (place < wanted)
                token = tl.load(equal_ptr + place - found, mask=on_line, other=0)
                tl.store(id_ptr + place, token, mask=on_line)
                tl.store(value_ptr + place, as_logit(line) + tl.zeros([LIST], tl.float32), mask=on_line)
            else:
                kth = kth_of_tile(keys, line + 1, wanted)
                larger = (keys > kth).to(tl.int32)
                same = (keys == kth).to(tl.int32)
                place = tl.where(larger != 0, tl.cumsum(larger, 0), tl.sum(larger, 0) + tl.cumsum(same, 0)) - 1
                chosen = (larger + same != 0) & (place < wanted)
                tl.store(id_ptr + place, ids, mask=chosen)
                tl.store(value_ptr + place, as_logit(keys), mask=chosen)
    if found > LIST:
        select_anyway(logits_ptr, threshold, id_ptr, value_ptr, vocab_size, wanted, BLOCK)


@kernel
def number_before(values_ptr, ids_ptr, size, value, token) -> tl.tensor:
    """How many of ``size`` entries come before each of the given ones: a larger value, or the same and a lower id."""
    number = tl.zeros_like(token)
    for other in range(size):
        key = ordered(tl.load(values_ptr + other))
        before = (key > ordered(value)) | ((key == ordered(value)) & (tl.load(ids_ptr + other) < token))
        number += before.to(tl.int32)
    return number


@kernel
def report_top(
    logits_ptr,  # [n, V] float32
    logits_stride,
    threshold_ptr,  # [n] int32
    statistics_ptr,  # [2, n] float32: largest, log_sum
    rows_ptr,  # [n] int32
    wanted_ptr,  # [R] int32
    wanted_stride,
    fixed_ptr,  # [R, FIXED] int32, ids to report in any case
    num_fixed_ptr,  # [R] int32
    num_fixed_stride,
    tokens_ptr,  # [n] int32
    id_ptr,  # [n, K] int32, see `select_top`
    value_ptr,  # [n, K] float32, likewise
    sorted_id_ptr,  # [n, K] int32, out: largest value first, lowest id first among equals
    sorted_value_ptr,  # [n, 1 + FIXED + K] float32, out: the token's own, the fixed ones', the largest
    vocab_size,
    count,  # n
    columns,  # K
    LOGARITHM: tl.constexpr,  # report log-probabilities, not the values
    FIXED: tl.constexpr,
) -> None:
    """Sort what `select_top` found and turn values into log-probabilities. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index).to(tl.int64)
    wanted = tl.load(wanted_ptr + row * wanted_stride) - 1
    if wanted < 0:
        return
    wanted = tl.minimum(wanted, vocab_size)
    logits_ptr += index * logits_stride
    threshold = tl.load(threshold_ptr + index)
    largest = tl.load(statistics_ptr + index)
    log_sum = tl.load(statistics_ptr + count + index)
    fixed = tl.arange(0, FIXED)
    listed = fixed < tl.load(num_fixed_ptr + row * num_fixed_stride)
    fixed_token = tl.load(fixed_ptr + row * FIXED + fixed, mask=listed, other=0)
    fixed_value = reported_value(logits_ptr, fixed_token, listed, threshold)
    own = tl.load(tokens_ptr + index) + tl.arange(0, 1)
    own_value = reported_value(logits_ptr, own, own < vocab_size, threshold)
    if LOGARITHM:
        fixed_value = (fixed_value - largest) - log_sum
        own_value = (own_value - largest) - log_sum
    out_ptr = sorted_value_ptr + index * (1 + FIXED + columns)
    tl.store(out_ptr + tl.arange(0, 1), own_value)
    tl.store(out_ptr + 1 + fixed, fixed_value, mask=listed)
    for start in range(0, wanted, _COLUMNS):
        column = start + tl.arange(0, _COLUMNS)
        value = tl.load(value_ptr + index * columns + column, mask=column < wanted, other=0.0)
        token = tl.load(id_ptr + index * columns + column, mask=column < wanted, other=0)
        place = number_before(value_ptr + index * columns, id_ptr + index * columns, wanted, value, token)
        if LOGARITHM:
            value = (value - largest) - log_sum
        tl.store(out_ptr + 1 + FIXED + place, value, mask=column < wanted)
        tl.store(sorted_id_ptr + index * columns + place, token, mask=column < wanted)


@kernel
def report_all(
    logits_ptr,  # [n, V] float32
    logits_stride,
    threshold_ptr,  # [n] int32
    statistics_ptr,  # [2, n] float32
    out_ptr,  # [m, V] float32, out
    first,  # row of logits of the first program
    place,  # row of the result of the first program
    count,  # n
    vocab_size,
    LOGARITHM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Values or log-probabilities of the whole vocabulary. One program per row, of neighbours, and block."""
    index = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = first + index
    value = reported_value(logits_ptr + row * logits_stride, token, token < vocab_size, tl.load(threshold_ptr + row))
    if LOGARITHM:
        value = (value - tl.load(statistics_ptr + row)) - tl.load(statistics_ptr + count + row)
    tl.store(out_ptr + (place + index) * vocab_size + token, value, mask=token < vocab_size)


@kernel
def sum_exponentials(
    logits_ptr,  # [n, V] float32, dense
    share_ptr,  # [2, n, blocks] float32, out: largest logit, sum of exp below it
    vocab_size,
    num_blocks,
    plane,  # n * blocks
    BLOCK: tl.constexpr,
) -> None:
    """One block's share of a row's statistics, for logits that nothing is drawn from. One program per row and block."""
    index = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + index * vocab_size + token, mask=token < vocab_size, other=float("-inf"))
    largest = tl.max(logit, 0)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    out = index * num_blocks + tl.program_id(1)
    tl.store(share_ptr + out, largest)
    tl.store(share_ptr + plane + out, tl.sum(tl.exp(logit - finite), 0))


@kernel
def combine_sums(
    share_ptr,  # [2, n, blocks] float32, see `sum_exponentials`
    statistics_ptr,  # [2, n] float32, out: largest, log_sum
    count,  # n
    num_blocks,
    BLOCKS: tl.constexpr,
) -> None:
    """Statistics of a row over its blocks, whose sums are added as a tree. One program per row."""
    index = tl.program_id(0)
    lane = tl.arange(0, BLOCKS)
    offset = index * num_blocks + lane
    maximum = tl.load(share_ptr + offset, mask=lane < num_blocks, other=float("-inf"))
    largest = tl.max(maximum, 0)
    sums = tl.load(share_ptr + count * num_blocks + offset, mask=lane < num_blocks, other=0.0)
    tl.store(statistics_ptr + index, largest)
    tl.store(statistics_ptr + count + index, tl.log(tl.sum(sums * tl.exp(maximum - largest), 0)))
