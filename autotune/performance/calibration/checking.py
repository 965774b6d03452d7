"""How well a calibration foretells trials that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.errors import StudyError
from autotune.performance.arrays import Array, Numbers
from autotune.performance.calibration.fitting import calibrate
from autotune.performance.calibration.observations import Observations, predict
from autotune.performance.calibration.parameters import Parameters, calibration_priors
from autotune.performance.coefficients import Prior
from autotune.performance.devices import Cluster
from autotune.performance.shape import ModelShape
from autotune.trials import Trial

FOLDS = 8
"""Fits at most; up to so many trials, each is left out by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """One figure of one trial."""

    measured: float
    before: float
    """By the priors' medians."""
    after: float
    """By a calibration to the other folds; NaN where there are none."""

    @property
    def error_before(self) -> float:
        """Of the figure measured: |predicted/measured - 1|."""
        return abs(self.before / self.measured - 1.0)

    @property
    def error_after(self) -> float:
        """The same, of the calibration."""
        return abs(self.after / self.measured - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was foretold of one measured trial."""

    trial: int
    step_time_s: Foretold
    peak_memory_bytes: Foretold | None
    """None where no memory was measured."""


def left_out(
    trials: Sequence[Trial],
    shape: ModelShape,
    cluster: Cluster,
    *,
    prior: Mapping[str, Prior] | None = None,
    **fixed: Numbers,
) -> list[Check]:
    """Fit to all trials but a fold of them, for each of up to `FOLDS` folds, and foretell those left out.

    A fold is every eighth trial, so its neighbours in time are in the fit: where the machine drifts, a later trial is
    foretold worse.

    Args:
        trials: as for `calibrate`, and so are the others.
        shape: of the model.
        cluster: what the trials ran on.
        prior: of the fits, and what `before` is foretold by.
        fixed: fields of `Configurations` that trials don't say.
    """
    told = [(trial, trial.measurement) for trial in trials if trial.measurement is not None]
    known = prior or calibration_priors(is_cpu=bool(np.all(np.asarray(cluster.device.is_cpu) > 0)))
    medians = Parameters.from_logarithms(np.log([each.mean for each in known.values()]), names=list(known))
    checks = []
    for fold in range(min(FOLDS, len(told))):
        left = told[fold::FOLDS]
        numbers = {trial.number for trial, _ in left}
        seen = Observations.of([trial for trial, _ in left], **fixed)
        before = predict(shape, cluster, seen, medians).measured
        try:
            found = calibrate(
                [t for t in trials if t.number not in numbers], shape, cluster, prior=prior, begin=None, **fixed
            )
        except StudyError:  # there is no other trial
            after: Mapping[str, Array] = {kind: np.full_like(values, np.nan) for kind, values in before.items()}
        else:
            after = predict(shape, cluster, seen, found.parameters()).measured
        for place, (trial, measurement) in enumerate(left):
            peak_bytes = max(measurement.peak_memory_bytes, default=0)
            step_time, memory = (
                Foretold(
                    measured=float(real),
                    before=float(np.exp(before[kind][place])),
                    after=float(np.exp(after[kind][place])),
                )
                for kind, real in (("step_time", measurement.step_time_s), ("memory", peak_bytes))
            )
            checks.append(
                Check(trial=trial.number, step_time_s=step_time, peak_memory_bytes=memory if peak_bytes else None)
            )
    return sorted(checks, key=lambda check: check.trial)
