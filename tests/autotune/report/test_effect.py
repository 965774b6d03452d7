"""The effect of a dimension."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report import effects
from autotune.report.effect import explained_variance

groups = st.lists(st.lists(st.floats(-10, 10), max_size=6), max_size=5)


@given(groups)
def test_a_share_lies_between_nothing_and_all(groups):
    share = explained_variance(groups)
    assert share is None or 0 <= share <= 1


def test_groups_that_explain_all_and_nothing():
    assert explained_variance([[1.0] * 5, [2.0] * 5]) == pytest.approx(1)
    assert explained_variance([[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]]) == 0


def test_chance_is_not_taken_for_an_effect():
    generator = np.random.default_rng(0)
    shares = [explained_variance(generator.normal(size=(6, 4)).tolist()) for _ in range(200)]
    assert np.mean(shares) < 0.12  # plain eta-squared: 5 / 23 = 0.22


def test_too_few_figures_explain_nothing():
    assert explained_variance([[0.5], [2.2, 2.4]]) is None
    assert explained_variance([[1.0] * 20]) is None
    assert explained_variance([[1.0] * 9, [1.0] * 9]) is None


def test_effects_of_a_study_count_every_trial(summary):
    found = {effect.dimension.name: effect for effect in effects(summary)}
    assert set(found) == set(summary.space.names)
    micro = found["train_micro_batch_size_per_gpu"]
    tried = [trial for trial in summary.finished if trial.point]
    assert micro.completed_count + sum(level.failed_count for level in micro.levels) == len(tried)
    shares = [effect.explained for effect in effects(summary)]
    known = [share for share in shares if share is not None]
    assert known == sorted(known, reverse=True)
    assert shares[: len(known)] == known
