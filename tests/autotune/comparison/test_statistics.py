"""The statistics of a comparison."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, permutation_test, trim_mean

from autotune.comparison.statistics import (
    holm,
    interquartile_mean,
    interquartile_means,
    paired_p_value,
    pairs_needed,
    probability_of_improvement,
)

figures = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


def generator():
    return np.random.default_rng(0)


@given(figures)
@settings(deadline=None, max_examples=40)
def test_an_interval_holds_its_estimate(figures):
    (estimate,) = interquartile_means(np.asarray(figures)[:, None], generator())
    assert min(figures) - 1e-9 <= estimate.value <= max(figures) + 1e-9
    if len(figures) < 2:
        assert estimate.low is None
        assert estimate.high is None
    else:
        assert estimate.low <= estimate.value <= estimate.high


def test_the_interquartile_mean_drops_the_outer_quarters():
    assert interquartile_mean(np.asarray([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0])) == pytest.approx(3.5)
    assert interquartile_mean(np.asarray([1.0, 2.0, 6.0])) == pytest.approx(3.0)
    assert trim_mean([0, 1, 2, 3], 0.25) == pytest.approx(1.5)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    draws = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        (estimate,) = interquartile_means(draws.normal(size=(20, 1)), generator())
        hits += estimate.low <= 0.0 <= estimate.high
    assert 86 <= hits <= 100


def test_probability_of_improvement():
    low, high = np.asarray([1.0, 2.0, 3.0]), np.asarray([4.0, 5.0])
    assert probability_of_improvement(high, low, generator()).value == 1
    assert probability_of_improvement(low, high, generator()).value == 0
    assert probability_of_improvement(low, low, generator()).value == 0.5
    assert probability_of_improvement(low[:1], high, generator()).low is None


@given(figures, figures)
@settings(deadline=None, max_examples=25)
def test_two_probabilities_make_one(one, other):
    there = probability_of_improvement(np.asarray(one), np.asarray(other), generator()).value
    back = probability_of_improvement(np.asarray(other), np.asarray(one), generator()).value
    assert there + back == pytest.approx(1)


# Sixteenths add up exactly: the two have tolerances of their own for sums that are equal but for rounding.
@given(st.lists(st.integers(-80, 80).map(lambda sixteenths: sixteenths / 16), min_size=2, max_size=8))
@settings(deadline=None, max_examples=25)
def test_the_paired_test_is_scipys(differences):
    expected = permutation_test(
        (np.asarray(differences),),
        lambda d, axis: np.mean(d, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
    ).pvalue
    assert paired_p_value(np.asarray(differences), generator()) == pytest.approx(min(1.0, expected))


def test_the_paired_test_with_few_and_many_pairs():
    assert paired_p_value(np.ones(5), generator()) == pytest.approx(2 / 2**5)
    assert paired_p_value(np.zeros(5), generator()) == 1
    assert paired_p_value(np.empty(0), generator()) == 1
    assert 0 < paired_p_value(np.ones(30), generator()) < 0.001
    assert pairs_needed(1) == 6
    assert pairs_needed(3) == 7
    assert pairs_needed(9) == 9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_between_nothing_and_bonferroni(p_values):
    corrected = holm(p_values)
    for before, after in zip(p_values, corrected, strict=True):
        assert before <= after <= min(1.0, before * len(p_values)) + 1e-12 or after >= max(
            min(1.0, p * (len(p_values) - rank)) for rank, p in enumerate(sorted(p_values)) if p <= before
        )
    order = np.argsort(p_values, kind="stable")
    assert list(np.asarray(corrected)[order]) == sorted(corrected)
    assert np.all(np.asarray(corrected) >= false_discovery_control(p_values) - 1e-12)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
