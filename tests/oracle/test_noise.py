"""The noise contract: published vectors of the cipher, the layout of key and counter, and exact arithmetic."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from mrv2.refrunner.errors import RequestError
from mrv2.refrunner.oracle.noise import Purpose, exponential, gumbel, philox4x32, words

ONES = 0xFFFFFFFF
# Known answers of philox4x32-10 that Random123, the authors' own library, is tested with.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
EDGES = [0, 1, 2, 3, 2**24, 2**52 - 1, 2**52, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1]
WORDS = EDGES + [2**64 - 1 - word for word in EDGES] + [0x9E3779B97F4A7C15, 0x0123456789ABCDEF]


def philox(counter, key):
    return [int(word) for word in philox4x32(np.array(counter, dtype=np.uint64), key)]


def exact_exponential(word):
    """-log(1 - u) in 60 decimal digits."""
    return -(1 - (Decimal(word) + Decimal(1) / 2) / 2**64).ln()


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert philox(counter, key) == list(expected)


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("token", [0, 1, 2, 3, 4, 49_151, 2**34 - 1])
def test_word_comes_from_its_counter_and_lane(token, purpose):
    seed, position = 0x0123456789ABCDEF, 77
    high, low = (
        philox((token >> 2, position, int(purpose), part), (0x89ABCDEF, 0x01234567))[token & 3] for part in (0, 1)
    )
    assert words(seed, position, np.array([token]), purpose).tolist() == [high * 2**32 + low]


def test_purposes_have_the_numbers_of_the_contract():
    assert [int(p) for p in (Purpose.TARGET, Purpose.DRAFT, Purpose.ACCEPT, Purpose.RECOVER)] == [0, 1, 2, 3]


def test_every_part_of_the_key_matters():
    tokens = np.arange(64)
    keys = [(5, 9, 0), (5 + 2**32, 9, 0), (6, 9, 0), (5, 10, 0), (5, 9, 1), (9, 5, 0)]
    vectors = [tuple(words(seed, position, tokens, Purpose(purpose))) for seed, position, purpose in keys]
    assert len(set(vectors)) == len(keys)
    assert len({word for vector in vectors for word in vector}) == 64 * len(keys)


@pytest.mark.parametrize("seed", [-1, -(2**63), 0, 12])
def test_seed_counts_modulo_two_to_the_64(seed):
    np.testing.assert_array_equal(gumbel(seed, 3, 8), gumbel(seed + 2**64, 3, 8))


def test_noise_of_a_token_does_not_depend_on_the_vocabulary():
    np.testing.assert_array_equal(gumbel(1, 2, 7), gumbel(1, 2, 1000)[:7])
    tokens = np.array([[5, 3], [900, 5]])
    assert words(1, 2, tokens, Purpose.TARGET).shape == (2, 2)
    np.testing.assert_array_equal(
        words(1, 2, tokens, Purpose.TARGET), words(1, 2, np.arange(1000), Purpose.TARGET)[tokens]
    )


@pytest.mark.parametrize("word", WORDS)
def test_exponential_is_exact_to_a_few_units_over_the_whole_range(word):
    with localcontext(prec=60):
        exact = exact_exponential(word)
        computed = Decimal(float(exponential(np.array([word], dtype=np.uint64))[0]))
        assert abs(computed - exact) <= exact * Decimal(2) ** -51


def test_naive_formula_fails_where_the_complement_is_used():
    word = 2**64 - 1 - 2**8
    u = (word + 0.5) / 2**64
    assert u == 1.0  # so -log(1 - u) would be infinite
    assert np.isfinite(exponential(np.array([word], dtype=np.uint64))).all()


def test_exponential_never_falls_as_the_word_grows():
    values = exponential(np.array(sorted(WORDS), dtype=np.uint64))
    assert (np.diff(values) >= 0).all()


def test_gumbel_is_minus_the_logarithm():
    noise = gumbel(42, 5, 64)
    with localcontext(prec=60):
        for value, word in zip(noise, words(42, 5, np.arange(64), Purpose.TARGET), strict=True):
            assert float(value) == pytest.approx(float(-exact_exponential(int(word)).ln()), rel=1e-14, abs=1e-15)


def test_range_of_the_noise():
    ends = -np.log(exponential(np.array([0, 2**64 - 1], dtype=np.uint64)))
    assert ends.tolist() == pytest.approx([65 * np.log(2), -np.log(65 * np.log(2))], rel=1e-15)


@pytest.mark.parametrize(("position", "token"), [(-1, 0), (2**32, 0), (0, -1), (0, 2**34)])
def test_what_does_not_fit_the_counter_is_refused(position, token):
    with pytest.raises(RequestError) as caught:
        words(0, position, np.array([0, token]), Purpose.TARGET)
    assert caught.value.subject in (f"position {position}", f"token id {token}")


def test_no_tokens_need_no_noise():
    assert words(0, 0, np.array([], dtype=np.int64), Purpose.TARGET).shape == (0,)
