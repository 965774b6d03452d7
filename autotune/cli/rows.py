"""Studies and trials as plain rows, for JSON and CSV."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from autotune.report.summary import StudySummary
from autotune.trials import Trial

INTERRUPTED = "INTERRUPTED"
"""What a trial is called on a terminal that the storage has as RUNNING while nothing runs its study."""


def trial_record(trial: Trial) -> dict[str, Any]:
    """Return a trial whole, as JSON data; `autotune.evaluators.recorded` reads it."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "is_baseline": trial.is_baseline,
        "point": dict(trial.point),
        "ds_config": dict(trial.ds_config),
        "activation_checkpointing": trial.activation_checkpointing,
        "config_hash": trial.config_hash,
        "score": trial.score,
        "throughput_ratio": trial.throughput_ratio,
        "convergence_ratio": trial.convergence_ratio,
        "outcome": trial.outcome.to_json() if trial.outcome else None,
        "started_at": _iso(trial.started_at),
        "finished_at": _iso(trial.finished_at),
        "searcher_s": trial.searcher_s,
    }


def trial_figures(trial: Trial, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a trial as one flat row: figures, failure, then a column for each dimension in `names`."""
    measurement, failure = trial.measurement, trial.failure
    return {
        "number": trial.number,
        "state": trial.state.value,
        "is_baseline": trial.is_baseline,
        "score": trial.score,
        "throughput_ratio": trial.throughput_ratio,
        "convergence_ratio": trial.convergence_ratio,
        "samples_per_second": measurement.samples_per_second if measurement else None,
        "step_time_s": measurement.step_time_s if measurement else None,
        "step_time_interval": measurement.step_time_interval if measurement else None,
        "timed_steps": measurement.timed_steps if measurement else None,
        "ended_by": measurement.ended_by if measurement else None,
        "convergence_per_second": measurement.convergence_per_second if measurement else None,
        "held_out_loss_before": measurement.held_out_loss_before if measurement else None,
        "held_out_loss_after": measurement.held_out_loss_after if measurement else None,
        "peak_memory_bytes": peak_memory_bytes(trial),
        "duration_s": trial.outcome.duration_s if trial.outcome else None,
        "failure_kind": failure.kind.value if failure else None,
        "failure_reason": failure.reason if failure else None,
        "pruned": trial.outcome.pruned if trial.outcome else None,
        "started_at": _iso(trial.started_at),
        "finished_at": _iso(trial.finished_at),
        "searcher_s": trial.searcher_s,
        **{name: trial.point.get(name) for name in names},
    }


def study_record(summary: StudySummary) -> dict[str, Any]:
    """Return how a study does, as one flat row."""
    best, finals = summary.best, summary.finals
    finalist = finals.finalist(best.number) if finals and best else None
    remeasured = finalist.score if finalist else None
    return {
        "name": summary.name,
        "state": state_of(summary),
        "searcher": summary.searcher,
        "evaluator": summary.evaluator,
        "workload": summary.workload,
        "executed_trials": summary.executed_count,
        "trial_budget": summary.trial_budget,
        "failed_trials": len(summary.failed),
        "pruned_trials": len(summary.pruned),
        "refused_configurations": summary.refusals.count if summary.refusals else 0,
        "best_trial": best.number if best else None,
        "best_score": best.score if best else None,
        "best_throughput_ratio": best.throughput_ratio if best else None,
        "best_convergence_ratio": best.convergence_ratio if best else None,
        "finals": _verdict(summary),
        "remeasured_score": remeasured.value if remeasured else None,
        "remeasured_score_low": remeasured.low if remeasured else None,
        "remeasured_score_high": remeasured.high if remeasured else None,
        "tied_trials": list(finals.tied) if finals else [],
        "alpha": summary.objective.alpha,
        "beta": summary.objective.beta,
        "started_at": _iso(summary.trials[0].started_at) if summary.trials else None,
    }


def state_of(summary: StudySummary) -> str:
    """Return 'running', 'finished', or 'unfinished' (it can be resumed)."""
    if summary.is_running:
        return "running"
    is_whole = summary.executed_count >= summary.trial_budget and not summary.finals_are_due
    return "finished" if is_whole else "unfinished"


def _verdict(summary: StudySummary) -> str | None:
    """Return what the finals came to, , 'under way' or 'stopped'; None without finals."""
    if summary.finals is None:
        return None
    if summary.finals.verdict is None:
        return "under way" if summary.is_running else "stopped"
    return summary.finals.verdict.value


def peak_memory_bytes(trial: Trial) -> int | None:
    """Return the peak of the rank that took most."""
    return max(trial.measurement.peak_memory_bytes, default=None) if trial.measurement else None


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def outcome_seconds(trial: Trial) -> float | None:
    """Return how long a trial took, by its evaluator's clock, else by the storage's."""
    if trial.outcome is not None and trial.outcome.duration_s:
        return trial.outcome.duration_s
    if trial.started_at is None or trial.finished_at is None:
        return None
    return (trial.finished_at - trial.started_at).total_seconds()
