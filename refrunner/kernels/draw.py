"""Gumbel-max sampling and the log-probability of the drawn token, in two launches and one pass over the logits.

Exact noise costs several times what reading a logit does, and almost no token needs it. Of each token only the high
word is made, and `coarse_logarithm` gives a bound of its score from above. A lane looks at four neighbouring tokens of
each block, and keeps the largest bound that it saw. Then the exact scores of all tokens of the lane with the largest
bound are computed. If the bound of another lane reaches the best of them, which it does once in ten parts, the first
launch leaves the bounds to the second one, and that computes exact scores of further lanes only where they reach the
best exact score of the whole row, which is rarer. Where something is not an ordinary number, or many lanes are as good,
the exact score of every token of the part decides, in the first launch. So a bound says only who need not be asked, and
the token is always that of the exact scores.

Bounds are compared in units of the logit. With temperature T and the noise's high word h, a token of logit x has

    score <= x / T + 32 log(2) - log(h) + rounding,   T * score <= x - T * log(2) * coarse(h) / 2**17 + T * 96 log(2)

so it cannot beat an exact score E if x - T * log(2) * coarse(h) / 2**17 < T * E - T * (96 log(2) + slack). The noise's
own error is below 1e-5. Rounding of the quotient, the sum, the product and the constants is, for a token whose score
reaches E, below 2**-21 * (abs(E) + 112), since its noise is between -4 and 46; the slack is larger than both, by more
than the rounding of the quotient by T in `reach`, which says of a part's other lanes what they reach at most.
"""

import triton.language as tl

from .gumbel import PURPOSE_TARGET, coarse_logarithm, gumbel_noise, philox, processed_logit, words_of_groups
from .lanes import add_exponentials, larger_or_nan, quarters
from .launch import kernel
from .logits_processing import FILTERS, STORED
from .maxima import is_filtered_only, list_part, load_listed, store_shares, tokens_at
from .order import as_logit, divided, ordered

_UNIT = tl.constexpr(5.288293308715403e-06)  # log(2) / 2**17
_OFFSET = tl.constexpr(66.54232933375474)  # 96 * log(2) + 2e-4
_RELATIVE = tl.constexpr(9.5367431640625e-07)  # 2**-20
_LARGEST_SCALE = tl.constexpr(1e20)  # temperatures beyond it, or below its inverse, could leave the range of float32
_NO_TOKEN = tl.constexpr(2147483647)


@kernel
def best_of_groups(
    row, first_place, stride, end, best_score, best, GROUPS: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Best exact score of groups of four tokens, a stride apart, and of what came before; its token; the logits.

    A NaN logit loses against every number; the lowest id wins ties.

    Args:
        row: where its logits, its processed ones and its threshold are; stages, temperature, seed and position; where
            its list of groups is, whether the part is listed, and the size of the vocabulary. See `maxima` for lists.
        first_place: where they begin, as ``end`` a place, which is a token where the part is not listed.
    """
    logits_ptr, processed_ptr, threshold_ptr, stages, temperature, seed, position, _, _, _ = row
    lane = tl.arange(0, 4 * GROUPS)
    token, inside = tokens_at(row, first_place + lane // 4 * stride + lane % 4, end, GROUP)
    logit = tl.load(logits_ptr + token, mask=inside, other=float("-inf")).to(tl.float32)
    score = processed_logit(logit, processed_ptr, token, inside, stages, threshold_ptr, temperature)
    if temperature > 0.0:
        first, _inside = tokens_at(row, first_place + tl.arange(0, GROUPS) * stride, end, GROUP)
        group = first // 4
        high = words_of_groups(seed, position, group, PURPOSE_TARGET, 0)
        low = words_of_groups(seed, position, group, PURPOSE_TARGET, 1)
        score += gumbel_noise(high, low)
    groups_score = tl.max(score, 0)
    winner = tl.min(tl.where(score == groups_score, token, _NO_TOKEN), 0)
    better = (groups_score > best_score) | ((groups_score == best_score) & (winner < best))
    return tl.maximum(groups_score, best_score), tl.where(better, winner, best), logit


@kernel
def search_all(
    row, begin, end, GROUPS: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Best exact score of all places of a part, its token, the number of NaN logits and, unless listed, the first."""
    best_score = tl.full([], float("-inf"), tl.float32)
    best = tl.full([], _NO_TOKEN, tl.int32)
    missing = tl.full([], 0, tl.int32)
    first_missing = tl.full([], _NO_TOKEN, tl.int32)
    for first_token in range(begin, end, 4 * GROUPS):
        best_score, best, logit = best_of_groups(row, first_token, 4, end, best_score, best, GROUPS, GROUP)
        spoiled = logit != logit
        token = first_token + tl.arange(0, 4 * GROUPS)
        missing += tl.sum(spoiled.to(tl.int32), 0)
        first_missing = tl.minimum(first_missing, tl.min(tl.where(spoiled, token, _NO_TOKEN), 0))
    return best_score, best, missing, first_missing


@kernel
def largest_bounds(drawn, first_token, row, spread, LANES: tl.constexpr) -> tl.tensor:
    """Largest bound of each four tokens, less a constant; NaN where a logit is NaN.

    Args:
        first_token: of each four, int32 [LANES].
    """
    temperature, seed, position = row[4], row[5], row[6]
    x0, x1, x2, x3 = quarters(drawn, LANES)
    if temperature > 0.0:
        group = first_token // 4
        high0, high1, high2, high3 = philox(seed, group, position, PURPOSE_TARGET, 0)
        x0 = tl.fma(coarse_logarithm(high0), spread, x0)
        x1 = tl.fma(coarse_logarithm(high1), spread, x1)
        x2 = tl.fma(coarse_logarithm(high2), spread, x2)
        x3 = tl.fma(coarse_logarithm(high3), spread, x3)
    return larger_or_nan(larger_or_nan(x0, x1), larger_or_nan(x2, x3))


@kernel
def staged_values(row, logit, token, end, cut) -> tl.tensor:
    """What is drawn from in a row with stages; NaN where the model's logit is."""
    value = tl.load(row[1] + token, mask=token < end, other=float("-inf")).to(tl.float32)
    return tl.where(logit == logit, tl.where(value >= cut, value, float("-inf")), logit)


@kernel
def screen(
    row, ahead, cut, spread, begin, end, STAGED: tl.constexpr, FILTERED: tl.constexpr, STATISTICS: tl.constexpr,
    PROCESSED: tl.constexpr, BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The pass over a part's logits, of which ``ahead`` are the first block: a block is loaded while one is judged.

    Returns, for each lane: largest bound, largest value to report, sum of exp.
    """
    LANES: tl.constexpr = BLOCK // 4
    logits_ptr, processed_ptr, threshold_ptr, stages, temperature, _, _, _, _, _ = row
    top = tl.full([LANES], float("-inf"), tl.float32)
    largest = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for first_token in range(begin, end, BLOCK):
        token = first_token + tl.arange(0, BLOCK)
        logit = ahead
        ahead = tl.load(logits_ptr + token + BLOCK, mask=token + BLOCK < end, other=float("-inf")).to(tl.float32)
        drawn = logit
        if STAGED:
            drawn = staged_values(row, logit, token, end, cut)
        elif FILTERED:
            drawn = tl.where(logit < cut, float("-inf"), logit)
        four = first_token + 4 * tl.arange(0, LANES)
        top = larger_or_nan(top, largest_bounds(drawn, four, row, spread, LANES))
        if STATISTICS:
            reported = logit
            if PROCESSED:
                reported = processed_logit(
                    logit, processed_ptr, token, token < end, stages, threshold_ptr, temperature
                )  # fmt: skip
            largest, total = add_exponentials(reported, largest, total, LANES)
    return top, largest, total


@kernel
def screen_listed(row, cut, spread, begin, end, GROUP: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """`screen` of the listed groups of a part, whose sums of exp are known: the largest bound of each lane."""
    LANES: tl.constexpr = BLOCK // 4
    top = tl.full([LANES], float("-inf"), tl.float32)
    ahead, four_ahead = load_listed(row, begin, end, GROUP, BLOCK)
    for place in range(begin, end, BLOCK):
        logit, four = ahead, four_ahead
        ahead, four_ahead = load_listed(row, place + BLOCK, end, GROUP, BLOCK)
        drawn = tl.where(logit < cut, float("-inf"), logit)
        top = larger_or_nan(top, largest_bounds(drawn, four, row, spread, LANES))
    return top


@kernel
def ask_best_lane(
    row, bound, best_score, best, begin, end, GROUPS: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Best exact score of the lane with the largest bound and of what came before; its token; the other lanes' bounds.

    A lane has every ``LANES``-th group of four tokens.
    """
    lane = tl.arange(0, LANES)
    chosen = tl.min(tl.where(bound == tl.max(bound, 0), lane, LANES), 0)
    for first in range(begin + 4 * chosen, end, GROUPS * LANES * 4):
        best_score, best, _logits = best_of_groups(row, first, LANES * 4, end, best_score, best, GROUPS, GROUP)
    return best_score, best, tl.where(lane == chosen, float("-inf"), bound)


@kernel
def lowest_rival(score, temperature, scale) -> tl.tensor:
    """The bound below which no lane has a token that beats a score."""
    line = score
    if temperature > 0.0:
        line = (score - _OFFSET - tl.abs(score) * _RELATIVE) * scale
    return line


@kernel
def reach(bound, temperature, scale) -> tl.tensor:
    """The score that no token below a bound exceeds."""
    score = bound
    if temperature > 0.0:
        score = bound / scale + _OFFSET
        score += tl.abs(score) * _RELATIVE
    return score


@kernel
def scale_of(temperature, stages) -> tl.tensor:
    """Units of the logit in one of the score: 1 where the temperature is already in the processed logits."""
    return tl.where((stages & STORED) != 0, 1.0, temperature)


@kernel
def settle(
    row, top, scale, begin, end, bound_ptr, RIVALS: tl.constexpr, GROUPS: tl.constexpr, SEARCH: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Best exact score of the lane that bounds recommend, or of all, and what `sample_blocks` writes beside it.

    Returns: score, its token, what other lanes reach, number of NaN logits, the first of them.
    """
    temperature = row[4]
    best_score = tl.full([], float("-inf"), tl.float32)
    best = tl.full([], _NO_TOKEN, tl.int32)
    best_score, best, top = ask_best_lane(row, top, best_score, best, begin, end, GROUPS, BLOCK // 4, GROUP)
    line = lowest_rival(best_score, temperature, scale)
    rivals = tl.sum((~(top < line)).to(tl.int32), 0)
    ordinary = (temperature == 0.0) | ((scale > 1.0 / _LARGEST_SCALE) & (scale < _LARGEST_SCALE))
    ordinary = ordinary & (RIVALS > 0)
    known = tl.abs(line) < float("inf")
    missing = tl.full([], 0, tl.int32)
    first_missing = tl.full([], _NO_TOKEN, tl.int32)
    others = tl.full([], float("-inf"), tl.float32)
    if (rivals > 0) | ~ordinary | ~known:
        ordinary = ordinary & (tl.sum((top != top).to(tl.int32), 0) == 0)
        # A part without a token that may be drawn, as most are behind a mask or a filter, needs no exact scores.
        nothing = (best_score == float("-inf")) & (tl.max(top, 0) == float("-inf"))
        if ordinary & known & (rivals <= RIVALS):
            bound = tl.max(tl.reshape(top, [BLOCK // 4 // LANES, LANES]), 0)
            tl.store(bound_ptr + tl.arange(0, LANES), bound)
            others = reach(tl.max(top, 0), temperature, scale)
        elif ~(ordinary & nothing):
            best_score, best, missing, first_missing = search_all(row, begin, end, SEARCH, GROUP)
    return best_score, best, others, missing, first_missing


@kernel
def lowest_kept(threshold_ptr, stages) -> tl.tensor:
    """The filters' threshold, an integer of `ordered`, as a logit."""
    cut = tl.full([], float("-inf"), tl.float32)
    if (stages & FILTERS) != 0:
        cut = as_logit(tl.load(threshold_ptr))
    return cut


@kernel
def undivided(cut, temperature) -> tl.tensor:
    """The smallest number whose quotient by a positive temperature is ``cut`` or more; infinity if none is.

    It is a few numbers around their product, or anywhere where that or the quotients leave the range of float32.
    """
    lowest, highest = ordered(tl.full([], float("-inf"), tl.float32)), ordered(tl.full([], float("inf"), tl.float32))
    guess = ordered(cut * temperature)
    low, high = tl.maximum(guess, lowest + 8) - 8, tl.minimum(guess, highest - 8) + 8
    if (divided(as_logit(low), temperature) >= cut) | (divided(as_logit(high), temperature) < cut):
        low, high = lowest, highest
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)
        reaches = divided(as_logit(middle), temperature) >= cut
        low = tl.where(reaches, low, middle + 1)
        high = tl.where(reaches, middle, high)
    return as_logit(low)


@kernel
def screen_part(
    row, ahead, places, begin, end, STATISTICS: tl.constexpr, PROCESSED: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """`screen` of a part, in a loop of its own for each kind of row: to ask in every block which it is would cost more.

    Where `find_maxima` has been, rows with filters only get no sums.
    """
    stages, temperature = row[3], row[4]
    spread = -_UNIT * scale_of(temperature, stages)
    cut = lowest_kept(row[2], stages)
    if (stages & STORED) != 0:
        top, largest, total = screen(row, ahead, cut, spread, begin, end, True, False, STATISTICS, PROCESSED, BLOCK)
    elif (stages & FILTERS) != 0:
        if temperature > 0.0:
            cut = undivided(cut, temperature)
        if GROUP == 0:
            top, largest, total = screen(row, ahead, cut, spread, begin, end, False, True, STATISTICS, PROCESSED, BLOCK)
        else:
            largest = tl.full([BLOCK // 4], float("-inf"), tl.float32)
            total = tl.zeros([BLOCK // 4], tl.float32)
            if places >= 0:
                top = screen_listed(row, cut, spread, begin, begin + places, GROUP, BLOCK)
            else:
                top, _, _ = screen(row, ahead, cut, spread, begin, end, False, True, False, PROCESSED, BLOCK)
    else:
        top, largest, total = screen(row, ahead, cut, spread, begin, end, False, False, STATISTICS, PROCESSED, BLOCK)
    return top, largest, total


@kernel
def sample_blocks(
    logits_ptr,  # [N, V] float32, float16 or bfloat16
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED only
    threshold_ptr,  # [N] int32; read for rows with a filter only
    rows_ptr,  # [N] int32
    positions_ptr,  # [N] int32: number of tokens before the one drawn
    stages_ptr,  # [R] int32
    stages_stride,
    temperature_ptr,  # [R] float32
    temperature_stride,
    seed_ptr,  # [R] int64
    float_ptr,  # [4, N, parts] float32, out: best score, what other lanes reach, largest reported value, sum of exp
    int_ptr,  # [4, N, parts] int32, out: best token, number of NaN logits, first of them, places or -1; see `maxima`
    bound_ptr,  # [N, parts, LANES] float32, out: bounds of the other lanes, of parts where they may matter
    list_ptr,  # [N, groups] int32, out: groups of tokens of which one may be drawn, of parts that are listed
    maxima_ptr,  # [N, groups] int32: largest integer of each group, read for rows with filters only; see `find_maxima`
    vocab_size,
    num_groups,
    num_parts,
    part_blocks,  # blocks of each part
    plane,  # N * parts
    PROCESSED: tl.constexpr,  # report processed values, not the model's
    STATISTICS: tl.constexpr,  # report anything but the token
    RIVALS: tl.constexpr,  # how many lanes are left to the second launch before all exact scores are computed
    GROUPS: tl.constexpr,  # of four tokens, whose exact scores are computed at a time, of a lane
    SEARCH: tl.constexpr,  # and of a part
    LANES: tl.constexpr,  # in which bounds are handed on, which have those of the block in turns
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,  # blocks of a part that is not worth a list
    CHUNK: tl.constexpr,  # groups that are looked at at a time
    GROUP: tl.constexpr,  # tokens of a group; 0 without `find_maxima`: the last plane of `int_ptr` is not there then
) -> None:
    """Winner of one part of one row, unless another lane of it may win, and the part's share of the denominator.

    Temperature 0 takes the largest logit; the lowest id wins ties. In rows with filters only, of which `find_maxima`
    has left all that takes every token, the groups that reach the threshold are listed and read, unless they are many.
    """
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    logits_ptr += index * logits_stride
    begin = part * part_blocks * BLOCK
    end = tl.minimum(begin + part_blocks * BLOCK, vocab_size)
    token = begin + tl.arange(0, BLOCK)
    ahead = tl.load(logits_ptr + token, mask=token < end, other=float("-inf")).to(tl.float32)
    table_row = tl.load(rows_ptr + index).to(tl.int64)
    temperature = tl.load(temperature_ptr + table_row * temperature_stride)
    stages = tl.load(stages_ptr + table_row * stages_stride)
    out = index * num_parts + part
    places = tl.full([], -1, tl.int32)
    list_ptr += index * num_groups
    if GROUP > 0:
        if is_filtered_only(stages) & (part_blocks > FEW):
            places = list_part(
                maxima_ptr + index * num_groups, list_ptr, threshold_ptr + index, int_ptr + 3 * plane + out, begin, end,
                GROUP, CHUNK,
            )  # fmt: skip
        tl.store(int_ptr + 3 * plane + out, places)
    row = (
        logits_ptr, processed_ptr + index * vocab_size, threshold_ptr + index, stages, temperature,
        tl.load(seed_ptr + table_row), tl.load(positions_ptr + index), list_ptr, places >= 0, vocab_size,
    )  # fmt: skip
    scale = scale_of(temperature, stages)
    top, largest, total = screen_part(row, ahead, places, begin, end, STATISTICS, PROCESSED, GROUP, BLOCK)
    if GROUP > 0:  # after the loops above, whose loads of four logits this end would part
        end = tl.where(places >= 0, begin + places, end)
    best_score, best, others, missing, first_missing = settle(
        row, top, scale, begin, end, bound_ptr + out * LANES, RIVALS, GROUPS, SEARCH, LANES, BLOCK, GROUP
    )  # fmt: skip
    if GROUP > 0:  # where nothing is left, the first token of all stands for it, listed or not
        best = tl.where((places >= 0) & (best_score == float("-inf")), begin, best)
    tl.store(float_ptr + out, best_score)
    tl.store(float_ptr + plane + out, others)
    tl.store(int_ptr + out, best)
    tl.store(int_ptr + plane + out, missing)
    tl.store(int_ptr + 2 * plane + out, first_missing)
    if STATISTICS:
        known = (GROUP > 0) & is_filtered_only(stages)  # from `find_maxima`
        if ~known:
            store_shares(float_ptr + out, plane, largest, total)


@kernel
def ask_other_lanes(
    row, others, bound_ptr, places_ptr, scale, best_score, best, part_tokens, GROUPS: tl.constexpr,
    LANES: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Best exact score of a row and its token, after those lanes that reach the best one of the first launch.

    Args:
        row: see `best_of_groups`.
        others: [PARTS], what each part's other lanes reach.
        bound_ptr: their bounds, [parts, LANES].
        places_ptr: how many places each part has, [parts], -1 if it is not listed.
    """
    logits_ptr, processed_ptr, threshold_ptr, stages, temperature, seed, position, list_ptr, listed, vocab_size = row
    lane, part = tl.arange(0, LANES), tl.arange(0, PARTS)
    while tl.max(others, 0) >= best_score:
        chosen = tl.min(tl.where(others == tl.max(others, 0), part, PARTS), 0)
        others = tl.where(part == chosen, float("-inf"), others)
        begin = chosen * part_tokens
        end = tl.minimum(begin + part_tokens, vocab_size)
        if GROUP > 0:
            places = tl.load(places_ptr + chosen)
            listed = places >= 0
            end = tl.where(listed, begin + places, end)
        asked = (
            logits_ptr, processed_ptr, threshold_ptr, stages, temperature, seed, position, list_ptr, listed, vocab_size
        )  # fmt: skip
        bound = tl.load(bound_ptr + chosen * LANES + lane)
        largest = tl.max(bound, 0)
        while (largest > float("-inf")) & ~(largest < lowest_rival(best_score, temperature, scale)):
            best_score, best, bound = ask_best_lane(asked, bound, best_score, best, begin, end, GROUPS, LANES, GROUP)
            largest = tl.max(bound, 0)
    return best_score, best


@kernel
def combined_shares(float_ptr, plane, offset, inside) -> tuple[tl.tensor, tl.tensor]:
    """Largest value of a row, and the logarithm of the sum of exp below it, from those of its parts.

    The sums are added as a tree, not one after another, which keeps the rounding error near log2(parts)
    units instead of parts.
    """
    maximum = tl.load(float_ptr + 2 * plane + offset, mask=inside, other=float("-inf"))
    largest = tl.max(maximum, 0)
    share = tl.load(float_ptr + 3 * plane + offset, mask=inside, other=0.0) * tl.exp(maximum - largest)
    return largest, tl.log(tl.sum(share, 0))


@kernel
def combine_blocks(
    logits_ptr,  # see `sample_blocks`, as what follows
    logits_stride,
    processed_ptr,
    threshold_ptr,
    rows_ptr,
    positions_ptr,
    stages_ptr,
    stages_stride,
    temperature_ptr,
    temperature_stride,
    seed_ptr,
    float_ptr,
    int_ptr,
    bound_ptr,
    list_ptr,
    result_ptr,  # [4, N] int32, out: token, number of NaN logits, first of them, whether no token was left
    value_ptr,  # [N] float32, out: value of the token
    statistics_ptr,  # [2, N] float32, out: largest value, log of the sum of exp below it
    vocab_size,
    num_groups,
    count,  # N
    num_parts,
    part_blocks,
    PROCESSED: tl.constexpr,
    STATISTICS: tl.constexpr,
    LOGARITHM: tl.constexpr,  # report log-probabilities, not logits
    GROUPS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,  # no less than any number of parts
    GROUP: tl.constexpr,
) -> None:
    """Winner of a row over its parts, and its log-probability."""
    index = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PARTS)
    inside = lane < num_parts
    offset = index * num_parts + lane
    plane = count * num_parts
    score = tl.load(float_ptr + offset, mask=inside, other=float("-inf"))
    others = tl.load(float_ptr + plane + offset, mask=inside, other=float("-inf"))
    token = tl.load(int_ptr + offset, mask=inside, other=2147483647)
    best_score = tl.max(score, 0)
    best = tl.min(tl.where(score == best_score, token, 2147483647), 0)
    missing = tl.sum(tl.load(int_ptr + plane + offset, mask=inside, other=0), 0)
    first = tl.min(tl.load(int_ptr + 2 * plane + offset, mask=inside, other=2147483647), 0)
    table_row = tl.load(rows_ptr + index).to(tl.int64)
    temperature = tl.load(temperature_ptr + table_row * temperature_stride)
    stages = tl.load(stages_ptr + table_row * stages_stride)
    row = (
        logits_ptr + index * logits_stride, processed_ptr + index * vocab_size, threshold_ptr + index, stages,
        temperature, tl.load(seed_ptr + table_row), tl.load(positions_ptr + index), list_ptr + index * num_groups,
        stages < 0, vocab_size,
    )  # fmt: skip
    if (tl.max(others, 0) >= best_score) & (best_score > float("-inf")):
        best_score, best = ask_other_lanes(
            row, others, bound_ptr + index * num_parts * LANES, int_ptr + 3 * plane + index * num_parts,
            scale_of(temperature, stages), best_score, best, part_blocks * BLOCK, GROUPS, LANES, PARTS, GROUP,
        )  # fmt: skip
    tl.store(result_ptr + index, best)
    tl.store(result_ptr + count + index, missing)
    tl.store(result_ptr + 2 * count + index, first)
    tl.store(result_ptr + 3 * count + index, (best_score == float("-inf")).to(tl.int32))
    if STATISTICS:
        value = tl.load(row[0] + best).to(tl.float32)
        if PROCESSED:
            value = processed_logit(value, row[1], best, best < vocab_size, stages, row[2], temperature)
        value = tl.where(value == value, value, float("-inf"))
        largest, log_sum = combined_shares(float_ptr, plane, offset, inside)
        if LOGARITHM:
            value = (value - largest) - log_sum
        tl.store(value_ptr + index, value)
        tl.store(statistics_ptr + index, largest)
        tl.store(statistics_ptr + count + index, log_sum)
