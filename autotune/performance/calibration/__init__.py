"""Calibration of the performance model: trials of one study in, coefficients with their uncertainty out.

`calibrate(trials, shape, cluster_of(hardware))` gives a `Calibration`. For `estimate` take its `coefficients()` on its
`on_cluster()`; of an ensemble, `members = found.ensemble(64)`, take `members.coefficients` on `members.on(cluster)`.
`found.as_prior()` starts the calibration of another workload on the same hardware.
"""

from autotune.performance.calibration.checking import Check, Foretold, left_out
from autotune.performance.calibration.fitting import calibrate
from autotune.performance.calibration.observations import Observations, Predictions, configurations_of, predict
from autotune.performance.calibration.parameters import WORKLOAD, Parameters, calibration_priors
from autotune.performance.calibration.value import Calibration, Fitted, Solution

__all__ = [
    "WORKLOAD",
    "Calibration",
    "Check",
    "Fitted",
    "Foretold",
    "Observations",
    "Parameters",
    "Predictions",
    "Solution",
    "calibrate",
    "calibration_priors",
    "configurations_of",
    "left_out",
    "predict",
]
