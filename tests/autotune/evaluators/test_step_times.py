"""The interval of the median, against the binomial distribution and against draws."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from autotune.evaluators.step_times import LEVEL, median, relative_interval


def interval_rank(count):
    """Return which order statistics a count of times takes: the times are their own ranks."""
    half_width = relative_interval([float(rank) for rank in range(1, count + 1)])
    return None if half_width is None else round((count + 1) / 2 - half_width * (count + 1) / 2)


@pytest.mark.parametrize("count", range(1, 6))
def test_fewer_than_six_times_have_no_interval(count):
    assert relative_interval([1.0] * count) is None


@pytest.mark.parametrize("count", [6, 7, 8, 9, 10, 15, 20, 50, 100, 999, 1000])
def test_the_widest_ranks_that_hold_the_level(count):
    rank = interval_rank(count)
    assert 1 - 2 * binom.cdf(rank - 1, count, 0.5) >= LEVEL
    assert 1 - 2 * binom.cdf(rank, count, 0.5) < LEVEL


@pytest.mark.parametrize("count", [1001, 5000, 20000])
def test_many_times_take_the_normal_distribution(count):
    assert interval_rank(count) == pytest.approx(binom.ppf((1 - LEVEL) / 2, count, 0.5), abs=1)


def test_the_interval_holds_the_median_as_often_as_it_says():
    draws = np.sort(np.random.default_rng(0).lognormal(sigma=0.5, size=(4000, 20)), axis=1)
    rank = interval_rank(20)
    holds = np.mean((draws[:, rank - 1] <= 1.0) & (draws[:, -rank] >= 1.0))
    assert LEVEL - 0.01 <= holds <= 0.975


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=200))
def test_the_median_of_sorted_times(times):
    assert median(sorted(times)) == pytest.approx(statistics.median(times))
