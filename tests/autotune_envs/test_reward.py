"""The laws of the rewards."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.testing.searchers import SPACE, finished_trial
from autotune.trials import Outcome, TrialState
from autotune_envs import Improvement, RelativeScore

POINT = SPACE.decode([0] * 5)
scores = st.lists(st.none() | st.floats(-5, 100), max_size=20)


@given(scores=scores)
def test_improvements_are_never_negative_and_sum_to_the_rise_of_the_best(scores):
    reward, best, total = Improvement(), 1.0, 0.0
    for number, score in enumerate(scores):
        gained = reward(finished_trial(number, POINT, score), best_before=best)
        assert gained >= 0
        total += gained
        best = max(best, 0.0 if score is None else score)
    assert total == pytest.approx(best - 1.0)


@given(score=st.none() | st.floats(0, 100), best=st.floats(0.01, 100))
def test_relative_score_is_minus_one_for_a_failure_and_above_zero_for_a_new_best_only(score, best):
    reward = RelativeScore()(finished_trial(1, POINT, score), best_before=best)
    assert reward >= -1
    assert (reward > 0) == (score is not None and score / best > 1)
    if score is None:
        assert reward == -1


def test_an_estimate_is_no_improvement_and_still_teaches():
    pruned = replace(finished_trial(1, POINT, 3.0), outcome=Outcome(pruned="slow"), state=TrialState.PRUNED)
    assert Improvement()(pruned, best_before=2.0) == 0
    assert RelativeScore()(pruned, best_before=4.0) == pytest.approx(-0.25)


@pytest.mark.parametrize("reward", [Improvement(), RelativeScore()])
def test_a_score_that_is_no_number_counts_as_a_failure(reward):
    broken = replace(finished_trial(1, POINT, 1.0), score=float("nan"))
    assert reward(broken, best_before=2.0) == reward(finished_trial(1, POINT, None), best_before=2.0)
    assert reward.deterministic
