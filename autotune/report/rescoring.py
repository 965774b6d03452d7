"""A study under other weights of the objective: no trial runs again, only R is computed anew."""

from __future__ import annotations

from dataclasses import replace

from autotune.objective import Objective, Reference
from autotune.report.summary import StudySummary
from autotune.trials import Trial, TrialState


def rescored(summary: StudySummary, objective: Objective) -> StudySummary:
    """Return the summary with every R under `objective`, relative to the first measured trial, as in the study.

    Its finals are left out: they were held among the leaders, and to a winner, under the study's own weights.

    Args:
        summary: of any study.
        objective: the weights to see it under.
    """
    first = next((trial for trial in summary.finished if trial.measurement is not None), None)
    if first is None or first.measurement is None:
        return replace(summary, objective=objective, finals=None)
    reference = Reference.of(first.measurement)
    trials = tuple(_rescored(trial, objective, reference) for trial in summary.trials)
    return replace(summary, trials=trials, objective=objective, finals=None)


def _rescored(trial: Trial, objective: Objective, reference: Reference) -> Trial:
    if trial.state is TrialState.PRUNED and trial.throughput_ratio is not None:
        return replace(trial, score=objective.value(trial.throughput_ratio, trial.convergence_ratio))
    if trial.measurement is None:
        return trial
    score = objective.score(trial.measurement, reference)
    return replace(
        trial,
        score=score.value,
        throughput_ratio=score.throughput_ratio,
        convergence_ratio=score.convergence_ratio,
    )
