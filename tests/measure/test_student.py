from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.measure.student import (
    interval_of_median_ranks,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [  # Abramowitz and Stegun, table 26.10
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.995, 3, 5.841),
        (0.975, 7, 2.365),
        (0.995, 16, 2.921),
        (0.9995, 30, 3.646),
    ],
)
def test_quantiles_of_the_table(probability, degrees, expected):
    assert student_quantile(probability, degrees) == pytest.approx(expected, abs=6e-4)


@given(st.floats(0.501, 0.99999), st.integers(1, 200))
def test_quantile_inverts_the_distribution(probability, degrees):
    t = student_quantile(probability, degrees)
    assert student_cdf(t, degrees) == pytest.approx(probability, abs=1e-9)


@given(st.integers(6, 300))
def test_ranks_cover_the_median_as_often_as_asked(count):
    low, high = interval_of_median_ranks(count, 0.95)
    assert high == count - 1 - low

    def coverage(rank):
        return 1 - 2 * sum(comb(count, k) for k in range(rank + 1)) / 2**count

    assert coverage(low) >= 0.95
    assert coverage(low + 1) < 0.95


@pytest.mark.parametrize("count", range(1, 6))
def test_few_samples_give_all_there_is(count):
    assert interval_of_median_ranks(count, 0.95) == (0, count - 1)


def test_many_samples_do_not_underflow():
    low, high = interval_of_median_ranks(100_000, 0.95)
    assert low == pytest.approx(50_000 - 0.98 * 100_000**0.5, abs=2)
    assert high == 99_999 - low
