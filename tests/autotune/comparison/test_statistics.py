"""The statistics of a comparison."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, mannwhitneyu, norm, permutation_test, trim_mean

from autotune.comparison.statistics import (
    interquartile_mean,
    interquartile_means,
    paired_p_values,
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
    if len(figures) < 6:
        assert estimate.low is None
        assert estimate.high is None
    else:
        assert estimate.low <= estimate.value <= estimate.high


def test_with_many_runs_the_interval_is_scipys():
    drawn = np.random.default_rng(2).normal(size=200)
    (estimate,) = interquartile_means(drawn[:, None], generator())
    theirs = bootstrap((drawn,), lambda x, axis: trim_mean(x, 0.25, axis=axis), method="percentile", rng=generator())
    assert estimate.value == trim_mean(drawn, 0.25)
    assert estimate.low == pytest.approx(theirs.confidence_interval.low, abs=0.02)
    assert estimate.high == pytest.approx(theirs.confidence_interval.high, abs=0.02)


def test_runs_are_drawn_within_their_workload():
    # Each workload's runs are alike, so drawing within them changes nothing; drawing across them would.
    figures = np.repeat([0.0, 1.0, 2.0], 3)[:, None]
    workloads = [name for name in "abc" for _ in range(3)]
    (within,) = interquartile_means(figures, generator(), strata=workloads)
    (across,) = interquartile_means(figures, generator())
    assert (within.low, within.value, within.high) == pytest.approx((1.0, 1.0, 1.0))
    assert across.low < 0.7
    assert across.high > 1.3


def test_the_interquartile_mean_drops_the_outer_quarters():
    assert interquartile_mean(np.asarray([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0])) == pytest.approx(3.5)
    assert interquartile_mean(np.asarray([1.0, 2.0, 6.0])) == pytest.approx(3.0)
    assert trim_mean([0, 1, 2, 3], 0.25) == pytest.approx(1.5)


@pytest.mark.parametrize(("runs", "draw"), [(6, "normal"), (12, "normal"), (8, "lognormal"), (20, "standard_t")])
def test_an_interval_covers_the_truth_as_often_as_it_says(runs, draw):
    """Of 400 synthetic contenders: 95 % is 380, and 371 is two deviations less."""
    draws = np.random.default_rng(1)
    arguments = {"normal": {}, "lognormal": {"sigma": 0.5}, "standard_t": {"df": 3}}[draw]
    truth = interquartile_mean(getattr(draws, draw)(size=1_000_000, **arguments))
    hits = 0
    for _ in range(400):
        (estimate,) = interquartile_means(getattr(draws, draw)(size=(runs, 1), **arguments), draws)
        hits += estimate.low <= truth <= estimate.high
    assert 371 <= hits <= 396


def test_an_interval_over_workloads_covers_the_truth():
    """Three workloads of eight runs, apart by one deviation."""
    draws = np.random.default_rng(4)
    where = np.repeat([0.0, 1.0, 2.0], 8)
    truth = interquartile_mean(draws.normal(size=3_000_000) + np.repeat([0.0, 1.0, 2.0], 1_000_000))
    workloads = [str(place) for place in where]
    hits = 0
    for _ in range(400):
        (estimate,) = interquartile_means((where + draws.normal(size=24))[:, None], draws, strata=workloads)
        hits += estimate.low <= truth <= estimate.high
    assert 371 <= hits <= 396


def chance(one, other):
    return probability_of_improvement([(np.asarray(one, dtype=float), np.asarray(other, dtype=float))])


def test_probability_of_improvement():
    low, high = [1.0, 2.0, 3.0], [4.0, 5.0]
    assert chance(high, low).value == 1
    assert chance(low, high).value == 0
    assert chance(low, low).value == 0.5
    assert chance([1, 2, 3], [2, 0]).value == pytest.approx((1 + 1.5 + 2) / 6)
    assert chance([1.0], [2.0]).low is None
    assert chance(low, low).value == mannwhitneyu(low, low).statistic / 9
    both = probability_of_improvement(
        [(np.asarray([2.0, 3.0]), np.asarray([1.0])), (np.asarray([1.0]), np.asarray([2.0]))]
    )
    assert both.value == 0.5


def test_the_interval_of_one_run_against_one_on_many_workloads_is_wilsons():
    # With one run each the method's variance is the binomial one, and its interval the score interval.
    pairs = [(np.asarray([float(win)]), np.asarray([0.5])) for win in (1, 1, 1, 1, 1, 1, 1, 0, 0, 0)]
    estimate = probability_of_improvement(pairs)
    theirs = binomtest(7, 10).proportion_ci(method="wilson")
    assert estimate.low == pytest.approx(theirs.low, abs=1e-3)
    assert estimate.high == pytest.approx(theirs.high, abs=1e-3)


@pytest.mark.parametrize(("runs", "lead"), [(4, 0.0), (4, 1.0), (8, 1.0), (8, 2.5)])
def test_the_chance_to_be_better_is_covered(runs, lead):
    draws = np.random.default_rng(7)
    truth = norm.cdf(lead / 2**0.5)
    hits = 0
    for _ in range(400):
        estimate = chance(draws.normal(size=runs) + lead, draws.normal(size=runs))
        hits += estimate.low <= truth <= estimate.high
    assert hits >= 371


@given(figures, figures)
@settings(deadline=None, max_examples=25)
def test_two_probabilities_make_one(one, other):
    there, back = chance(one, other), chance(other, one)
    assert there.value + back.value == pytest.approx(1)
    if there.low is not None:
        assert there.low + back.high == pytest.approx(1, abs=1e-3)
        assert there.low <= there.value <= there.high


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
    assert p_value(differences) == pytest.approx(min(1.0, expected))


def p_value(differences):
    return paired_p_values(np.asarray(differences, dtype=float)[:, None], generator())[0]


def test_the_paired_test_with_few_and_many_pairs():
    assert p_value(np.ones(5)) == pytest.approx(2 / 2**5)
    assert p_value(np.zeros(5)) == 1
    assert p_value(np.empty(0)) == 1
    assert 0 < p_value(np.ones(30)) < 0.001
    assert pairs_needed(1) == 6
    assert pairs_needed(3) == 7
    assert pairs_needed(9) == 9


def test_one_figure_at_several_marks_costs_nothing():
    # The same differences twice are one test, and Bonferroni or Holm would double the p-value.
    same = np.asarray([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0], [-0.5, -0.5], [0.5, 0.5]])
    alone = p_value(same[:, 0])
    # As extreme as the sum of 10: all one way (11), all but the one 0.5 or the other (10), and these mirrored.
    assert alone == pytest.approx(6 / 2**6)
    assert paired_p_values(same, generator()) == pytest.approx([alone, alone])
    assert paired_p_values(np.column_stack([same[:, 0], np.zeros(6)]), generator()) == pytest.approx([alone, 1.0])


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=7))
@settings(deadline=None, max_examples=40)
def test_a_corrected_p_value_is_never_below_the_plain_one(differences):
    columns = np.asarray(differences, dtype=float)
    for column, corrected in enumerate(paired_p_values(columns, generator())):
        assert p_value(columns[:, column]) - 1e-12 <= corrected <= 1


def test_step_down_by_hand():
    # Of 8 signs +++ and --- give the first column its sum of 3; ++- and --+ give it to the second. So 4 of 8 come up to
    # the first; and all 8 come up to the second's 1, the first set aside.
    assert paired_p_values(np.asarray([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0]]), generator()) == [0.5, 1.0]
    # The scale of a column is nothing: its sum over the root of its sum of squares counts.
    assert paired_p_values(np.asarray([[1.0, 99.0], [1.0, 99.0], [1.0, -99.0]]), generator()) == [0.5, 1.0]
