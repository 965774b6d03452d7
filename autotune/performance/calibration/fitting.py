"""The fit: most probable coefficients of trials, robust against outlying ones, and how sure they are."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares
from scipy.special import log_ndtr

from autotune.errors import StudyError
from autotune.performance.arrays import Array, Numbers
from autotune.performance.calibration.observations import LEVELS, SMALLEST_DROP, Observations, Predictions, predict
from autotune.performance.calibration.parameters import Parameters, calibration_priors
from autotune.performance.calibration.value import TAILS, Calibration, Fitted, Solution
from autotune.performance.coefficients import Prior
from autotune.performance.devices import Cluster
from autotune.performance.shape import ModelShape
from autotune.trials import Trial

ROUNDS = 5
"""Times that coefficients and noise are fitted in turns."""
EXPECTED_WEIGHT = 2.0
"""How many observations the expected noise of a kind counts for."""
MEMORY_NOISE = 0.05
"""Of the logarithm of memory needed, where a trial ran out of it or did not: what the formulas leave open."""
TOLERANCE = 1e-4
"""Of a fit, relative: 1e-8 takes twice the time and moves no logarithm by more than .03 of its spread."""
MOST_TRIALS = 512
"""That a fit takes, spread evenly over all of them: its time grows with them (4 s for 1,000), its worth hardly."""
STEP = 1e-3
"""Of a logarithm, for differences."""
ROUGH_TOLERANCE = 1e-3
"""The same of a fit that begins at another's solution, and will itself be the beginning of the next."""


def calibrate(
    trials: Sequence[Trial],
    shape: ModelShape,
    cluster: Cluster,
    *,
    prior: Mapping[str, Prior] | None = None,
    begin: Solution | None = None,
    **fixed: Numbers,
) -> Calibration:
    """Fit the coefficients to trials of one workload on one kind of hardware.

    Each measured kind (`LEVELS`) counts with its own noise, which is fitted too; a trial that ran out of memory says
    that more was needed than there is, any other that less was; likewise divergence. Fitted are logarithms, by
    Gauss-Newton on t-distributed residuals.

    Args:
        trials: finished; those that failed for another reason are passed over, and with GPUs so are those that were
            killed for the host's memory: they say nothing of the device's. At most `MOST_TRIALS` are taken.
        shape: of the model.
        cluster: what the trials ran on, as known beforehand (`machines.cluster_of`).
        prior: by default the table's (`calibration_priors`); `Calibration.as_prior()` of an earlier study.
        begin: the solution of fewer trials of the same study, with the same prior; one round is enough from
            there.
        fixed: fields of `Configurations` that trials don't say, such as `flash_attention=1.0`.

    Raises:
        StudyError: when no trial tells anything.
    """
    is_cpu = bool(np.all(np.asarray(cluster.device.is_cpu) > 0))
    telling = [trial for trial in trials if is_cpu or not _was_killed(trial)]
    places = np.linspace(0, len(telling) - 1, min(len(telling), MOST_TRIALS)).round().astype(int)
    observations = Observations.of([telling[place] for place in places], **fixed)
    if not len(observations):
        raise StudyError(
            f"calibration: got {len(trials)} trials, none of them measured, out of memory or diverged; run some first"
        )
    known = prior or calibration_priors(is_cpu=is_cpu)
    names = tuple(known)
    problem = _Problem(shape, cluster, observations, known)
    noise = dict(LEVELS if begin is None else begin.noise)
    logarithms = problem.prior_mean if begin is None else np.array(begin.mean)
    for _ in range(ROUNDS if begin is None else 1):
        logarithms = problem.fit(logarithms, noise, tolerance=TOLERANCE if begin is None else ROUGH_TOLERANCE)
        noise = problem.noise(logarithms, noise)
    return Calibration(
        names=names,
        mean=tuple(map(float, logarithms)),
        covariance=tuple(tuple(map(float, row)) for row in problem.covariance(logarithms, noise)),
        noise=noise,
        cluster=cluster,
        fitted=_fitted(trials, observations, cluster),
    )


class _Problem:
    """Residuals of observations and priors, and their derivatives, at any logarithms."""

    def __init__(
        self, shape: ModelShape, cluster: Cluster, observations: Observations, prior: Mapping[str, Prior]
    ) -> None:
        self._shape, self._cluster, self._observations = shape, cluster, observations
        self._names = tuple(prior)
        self.prior_mean = np.log([each.mean for each in prior.values()])
        self._spread = np.array([each.spread for each in prior.values()])
        self._seen = {kind: np.isfinite(values) for kind, values in observations.measured.items()}

    def fit(self, start: Array, noise: Mapping[str, float], *, tolerance: float) -> Array:
        """Return the most probable logarithms for a given noise."""
        found = least_squares(
            lambda at: self._residuals(at[None], noise)[0],
            start,
            jac=lambda at: self._jacobian(at, noise),
            loss=self._loss(),
            x_scale=self._spread,
            ftol=tolerance,
            xtol=tolerance,
            gtol=tolerance,
            max_nfev=60,
        )
        return np.asarray(found.x)

    def noise(self, at: Array, before: Mapping[str, float]) -> dict[str, float]:
        """Return the scale of each kind's residuals, by one step of the t distribution's EM, drawn to the expected.

        What the fit spent on a kind's own residuals (the trace of its part of the hat matrix) doesn't count as seen.
        """
        predicted = self._predicted(at[None])
        jacobian, covariance = self._jacobian(at, before), self.covariance(at, before)
        spent = np.einsum("ij,jk,ik->i", jacobian, covariance, jacobian)
        found, begin = {}, 0
        for kind, expected in LEVELS.items():
            seen = self._seen[kind]
            residuals = self._off(kind, predicted.measured[kind][0])[seen]
            weights = (TAILS + 1.0) / (TAILS + (residuals / before[kind]) ** 2)
            count = len(residuals)
            free = max(count - float(np.sum(weights * spent[begin : begin + count])), 0.25 * count)
            squares = float(np.sum(weights * residuals**2)) + EXPECTED_WEIGHT * expected**2
            found[kind] = float(np.sqrt(squares / (free + EXPECTED_WEIGHT)))
            begin += count
        return found

    def covariance(self, at: Array, noise: Mapping[str, float]) -> Array:
        """Return the inverse of the Gauss-Newton matrix: (J' W J + prior)^-1, observations weighted by their tails."""
        residuals, jacobian = self._residuals(at[None], noise)[0], self._jacobian(at, noise)
        weights = self._loss()(residuals**2)[1]
        return np.asarray(np.linalg.inv(jacobian.T @ (weights[:, None] * jacobian)))

    def _loss(self) -> Callable[[Array], Array]:
        """Return scipy's rho and its derivatives: the t distribution's for what is measured, plain squares else."""
        count = sum(int(seen.sum()) for seen in self._seen.values())

        def loss(squares: Array) -> Array:
            rho = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
            measured = squares[:count]
            rho[0, :count] = (TAILS + 1.0) * np.log1p(measured / TAILS)
            rho[1, :count] = (TAILS + 1.0) / (TAILS + measured)
            rho[2, :count] = -(TAILS + 1.0) / (TAILS + measured) ** 2
            return rho

        return loss

    def _jacobian(self, at: Array, noise: Mapping[str, float]) -> Array:
        steps = STEP * np.eye(len(at))
        both = self._residuals(np.concatenate([at + steps, at - steps]), noise)
        return np.asarray((both[: len(at)] - both[len(at) :]).T / (2.0 * STEP))

    def _predicted(self, logarithms: Array) -> Predictions:
        parameters = Parameters.from_logarithms(logarithms, names=self._names)
        return predict(self._shape, self._cluster, self._observations, parameters)

    def _off(self, kind: str, predicted: Array) -> Array:
        """Return predicted minus measured; of a loss that fell too little to tell, what was expected above that."""
        measured = self._observations.measured[kind]
        off = predicted - measured
        if kind != "loss":
            return np.asarray(off)
        return np.where(measured <= np.log(SMALLEST_DROP), np.maximum(off, 0.0), off)

    def _residuals(self, logarithms: Array, noise: Mapping[str, float]) -> Array:
        """Return residuals over their noise, shape (members, residuals): measured, one-sided, prior."""
        observations, predicted = self._observations, self._predicted(logarithms)
        parts = [
            self._off(kind, np.broadcast_to(predicted.measured[kind], (len(logarithms), len(observations))))[:, seen]
            / noise[kind]
            for kind, seen in self._seen.items()
        ]
        over = np.log(predicted.needed_bytes / predicted.capacity_bytes) / MEMORY_NOISE
        parts.append(_one_sided(log_ndtr(over), log_ndtr(-over), observations.ran_out_of_memory, len(logarithms)))
        diverges = np.clip(predicted.divergence_probability, 1e-12, 1.0 - 1e-12)
        parts.append(_one_sided(np.log(diverges), np.log1p(-diverges), observations.diverged, len(logarithms)))
        parts.append((logarithms - self.prior_mean) / self._spread)
        return np.concatenate(parts, axis=1)


def _one_sided(log_yes: Array, log_no: Array, happened: Array, members: int) -> Array:
    """Return sqrt(-2 log p) of what happened, so that half its square is the negative log-likelihood."""
    likelihood = np.where(happened > 0, log_yes, log_no)
    likelihood = np.where(np.isnan(happened), 0.0, likelihood)
    return np.broadcast_to(np.sqrt(np.maximum(-2.0 * likelihood, 1e-12)), (members, len(happened)))


def _was_killed(trial: Trial) -> bool:
    """Whether a rank's process was ended by SIGKILL: by the kernel's out-of-memory killer, or at a memory limit."""
    return trial.failure is not None and trial.failure.exit_code == -signal.SIGKILL


def _fitted(trials: Sequence[Trial], observations: Observations, cluster: Cluster) -> Fitted:
    versions = [trial.measurement.versions for trial in trials if trial.measurement]
    counts = {kind: int(np.isfinite(values).sum()) for kind, values in observations.measured.items()}
    counts["out_of_memory"] = int(np.nansum(observations.ran_out_of_memory))
    counts["diverged"] = int(np.nansum(observations.diverged))
    return Fitted(
        trials=len(observations),
        observations=counts,
        device_name=cluster.device.name,
        ranks=int(np.max(cluster.devices)),
        versions=dict(versions[-1]) if versions else {},
    )
