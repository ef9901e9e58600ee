"""Unions, gaps and innermost ranges, against counting every moment."""

import random

from mrv2.checks.timeline.intervals import Innermost, clipped, gaps, length, union


def drawn(seed, count=30):
    draw = random.Random(seed)
    return [(start, start + draw.randrange(0, 20)) for start in (draw.randrange(200) for _ in range(count))]


def moments(intervals):
    return {time for start, end in intervals for time in range(start, end)}


def test_union_gaps_and_clipping_hold_the_same_moments():
    for seed in range(50):
        intervals = drawn(seed)
        covered, window = union(intervals), (30, 170)
        assert moments(covered) == moments(intervals)
        assert length(covered) == len(moments(covered))
        inside = set(range(*window))
        assert moments(clipped(covered, window)) == moments(covered) & inside
        assert moments(gaps(covered, window)) == inside - moments(covered)


def nested(draw, low, high, depth):
    """Ranges that nest, as those of one thread do."""
    while low < high and depth:
        start = draw.randrange(low, high)
        end = draw.randrange(start, high + 1)
        yield start, end, f"{depth}.{start}"
        yield from nested(draw, start, end, depth - 1)
        low = max(end, low + 1)


def test_the_innermost_range_of_every_moment():
    for seed in range(50):
        ranges = list(nested(random.Random(seed), 0, 200, 3))
        innermost = Innermost(ranges)
        for time in range(210):
            around = [one for one in ranges if one[0] <= time < one[1]]
            expected = min(around, key=lambda one: one[1] - one[0], default=None)
            assert innermost.at(time) == (expected[2] if expected else None) or _twins(around, innermost.at(time))
        shares = innermost.shares((20, 120))
        assert sum(shares.values()) == 100
        assert all(time == sum(innermost.at(at) == label for at in range(20, 120)) for label, time in shares.items())


def _twins(around, label):
    """Of two ranges with the same ends either may count as the inner one."""
    shortest = min(one[1] - one[0] for one in around) if around else None
    return any(one[2] == label and one[1] - one[0] == shortest for one in around)
