"""The expected R of a workload whose coefficients are known is what its trials measure."""

import numpy as np
import pytest

from autotune.evaluators.simulated_workload import drawn
from autotune.objective import Objective, Reference
from autotune.performance import Configurations
from autotune.performance.calibration import Parameters
from autotune.performance.expected_scores import ExpectedScores, expected_scores
from autotune.performance.subject import Subject
from autotune.trials import FailureKind, Trial
from tests.filtered_trials import RANKS, ran

SEED, POINTS = 3, 120
OBJECTIVE = Objective(alpha=0.3, beta=0.7)


@pytest.fixture(scope="module")
def trials() -> tuple[Trial, ...]:
    return ran(SEED, POINTS, noise=0.0)


@pytest.fixture(scope="module")
def expected(trials) -> ExpectedScores:
    workload = drawn(SEED, RANKS)
    subject = Subject(
        shape=workload.shape, cluster=workload.cluster, fixed={"flash_attention": workload.flash_attention}
    )
    truth = Parameters(
        coefficients=workload.coefficients,
        half_rate=1.0,
        memory_rate=1.0,
        process_memory=1.0,
        curve_reach=workload.curve_reach,
        curve_tokens=workload.curve_tokens,
        curve_power=workload.curve_power,
    )
    rows = [{"activation_checkpointing": each.activation_checkpointing, **each.ds_config} for each in trials]
    return expected_scores(
        subject,
        truth,
        Configurations.from_points(rows, **subject.fixed),
        reference=Configurations.from_points(rows[:1], **subject.fixed),
        convergence_at_s=10.0,
        objective=OBJECTIVE,
    )


def test_it_is_the_score_that_trials_get(trials, expected):
    start = Reference.of(trials[0].measurement)
    measured = [place for place, trial in enumerate(trials) if trial.measurement]
    scores = [OBJECTIVE.score(trials[place].measurement, start) for place in measured]
    assert len(measured) > POINTS / 3
    np.testing.assert_allclose(expected.throughput_ratio[measured], [each.throughput_ratio for each in scores])
    np.testing.assert_allclose(
        expected.convergence_ratio[measured], [each.convergence_ratio for each in scores], rtol=1e-6
    )
    np.testing.assert_allclose(expected.score[measured], [each.value for each in scores], rtol=1e-6)


def test_failures_are_foretold(trials, expected):
    out = [t.failure is not None and t.failure.kind is FailureKind.OUT_OF_MEMORY for t in trials]
    assert sum(out) > 5
    assert np.all(expected.failure_probability[out] >= 0.5)
    assert np.all(expected.value <= expected.score)
    measured = [trial.measurement is not None for trial in trials]
    assert np.mean(expected.failure_probability[measured]) < 0.25
