"""The Pareto set: trials that no other trial beats in both throughput and convergence."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.trials import Measurement, Trial


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """Return the completed trials that are not dominated, fastest first.

    One trial dominates another when it is at least as good in samples per second and in convergence per second, and
    better in one of them. Of trials with equal figures all are kept.
    """
    measured = [(trial, trial.measurement) for trial in trials if trial.measurement is not None]
    measured.sort(key=lambda pair: _goodness(pair[1]), reverse=True)
    front: list[Trial] = []
    best: tuple[float, float] | None = None
    for trial, measurement in measured:
        figures = _goodness(measurement)
        if best is None or figures[1] > best[1] or figures == best:
            front.append(trial)
            best = figures
    return front


def _goodness(measurement: Measurement) -> tuple[float, float]:
    return measurement.samples_per_second, measurement.convergence_per_second
