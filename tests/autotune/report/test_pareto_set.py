"""The Pareto set."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.report import pareto

figures = st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 6)), max_size=12)


def dominates(one, other):
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@given(figures)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exactly_the_undominated(summary, figures):
    measured = summary.best.measurement
    trials = [
        replace(
            summary.best,
            number=number,
            outcome=replace(
                summary.best.outcome,
                measurement=replace(
                    measured,
                    samples_per_second=float(speed),
                    held_out_loss_before=float(drop),
                    held_out_loss_after=0.0,
                    convergence_time_s=1.0,
                ),
            ),
        )
        for number, (speed, drop) in enumerate(figures)
    ]
    expected = {n for n, own in enumerate(figures) if not any(dominates(other, own) for other in figures)}
    front = pareto(trials)
    assert {trial.number for trial in front} == expected
    speeds = [trial.measurement.samples_per_second for trial in front]
    assert speeds == sorted(speeds, reverse=True)


def test_failed_trials_are_passed_over(summary):
    assert summary.failed
    assert all(trial.measurement is not None for trial in pareto(summary.trials))
    assert pareto([]) == []
