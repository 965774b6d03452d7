"""R, its components, and the reference they are relative to."""

from dataclasses import replace

import pytest

from autotune.errors import CampaignError
from autotune.objective import Objective, Reference
from autotune.testing.searchers import finished_trial

BASELINE = finished_trial(0, {}, 1.0).measurement
TWICE_AS_FAST = replace(BASELINE, samples_per_second=200.0)
HALF_THE_DROP = replace(BASELINE, held_out_loss_after=4.5)


def test_the_baseline_scores_one():
    score = Objective().score(BASELINE, Reference.of(BASELINE))
    assert (score.value, score.throughput_ratio, score.convergence_ratio) == (1.0, 1.0, 1.0)


def test_components_are_weighed():
    reference = Reference.of(BASELINE)
    assert Objective(alpha=0.25, beta=0.75).score(TWICE_AS_FAST, reference).value == pytest.approx(1.25)
    assert Objective(alpha=0.25, beta=0.75).score(HALF_THE_DROP, reference).value == pytest.approx(0.625)


def test_convergence_compares_drops_per_second():
    slower = replace(BASELINE, convergence_time_s=2.0)
    assert Objective(alpha=0, beta=1).score(slower, Reference.of(BASELINE)).value == pytest.approx(0.5)


def test_a_reference_that_did_not_learn_gives_no_convergence_ratio():
    flat = replace(BASELINE, held_out_loss_after=5.5)
    score = Objective().score(TWICE_AS_FAST, Reference.of(flat))
    assert score.convergence_ratio is None
    assert score.value == 1.0


def test_getting_worse_counts_against():
    worse = replace(BASELINE, held_out_loss_after=5.5)
    assert Objective().score(worse, Reference.of(BASELINE)).value == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"alpha": -1}, "objective.alpha: got -1"),
        ({"beta": float("nan")}, "objective.beta: got nan"),
        ({"alpha": 0, "beta": 0}, "both 0"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights, complaint):
    with pytest.raises(CampaignError, match=complaint):
        Objective(**weights)
