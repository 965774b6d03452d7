"""Trials between recorded ones: a recording's surrogate for speed and learning, its nearest point for all else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.evaluators.recording import LeaveOneOut, Recording, median_error
from autotune.evaluators.surrogate import Kernel, Surrogate
from autotune.trials import Measurement, Outcome, Point, TrialRequest

THROUGHPUT, LOSS_DROP = "log_samples_per_second", "loss_drop"
REMARK = "interpolated between recorded configurations"


class Interpolation:
    """Answers for configurations that were never recorded.

    A trial fails where its nearest recorded point does. Others get samples per second (fitted as a logarithm) and the
    fall of the held-out loss from Gaussian processes, with noise as large as the recording's own, the same for the same
    point and repeat.

    Args:
        recording: its measured trials trained for the same time; kernels fitted to it before are used again.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._points = [point for point in recording.points if recording.exact(point)[0].measurement is not None]
        means = {
            THROUGHPUT: [self._mean(point, _log_speed) for point in self._points],
            LOSS_DROP: [self._mean(point, _drop) for point in self._points],
        }
        self._surrogates = {
            figure: Surrogate(self._points, np.array(values), self._kernel(figure)) for figure, values in means.items()
        }
        self._means = means

    def kernels(self) -> dict[str, Any]:
        """Return what was fitted, for a line of the recording's file."""
        return {figure: surrogate.kernel.to_json() for figure, surrogate in self._surrogates.items()}

    def outcome(self, request: TrialRequest) -> Outcome:
        """Return what a trial of a configuration that was not recorded would come to."""
        _, outcomes = self._recording.nearest(request.point)
        nearest = outcomes[request.repeat % len(outcomes)]
        if nearest.measurement is None:
            return nearest
        generator = _generator(request)
        expected = {
            figure: surrogate.value(request.point) + surrogate.noise * float(generator.standard_normal())
            for figure, surrogate in self._surrogates.items()
        }
        samples = int(request.ds_config["train_batch_size"])
        measurement = _measured(nearest.measurement, samples, expected)
        return replace(nearest, measurement=measurement, intermediates=())

    def left_out(self) -> LeaveOneOut | None:
        """Return how far it is to be believed; None of a single point."""
        nearest = self._recording.leave_one_out()
        if nearest is None:
            return None
        pairs = {
            figure: list(zip(self._means[figure], surrogate.left_out(), strict=True))
            for figure, surrogate in self._surrogates.items()
        }
        return replace(
            nearest,
            by="the surrogate",
            throughput_error=median_error([(float(np.exp(own)), float(np.exp(by))) for own, by in pairs[THROUGHPUT]]),
            convergence_error=median_error([(own, float(by)) for own, by in pairs[LOSS_DROP]]),
        )

    def _mean(self, point: Point, figure: Any) -> float:
        measured = [outcome.measurement for outcome in self._recording.exact(point) if outcome.measurement]
        return float(np.mean([figure(measurement) for measurement in measured]))

    def _kernel(self, figure: str) -> Kernel | None:
        kept: Mapping[str, Any] | None = self._recording.kernels.get(figure)
        return Kernel.from_json(kept) if kept is not None else None


def _log_speed(measurement: Measurement) -> float:
    return float(np.log(measurement.samples_per_second))


def _drop(measurement: Measurement) -> float:
    return measurement.held_out_loss_before - measurement.held_out_loss_after


def _measured(nearest: Measurement, samples: int, expected: Mapping[str, float]) -> Measurement:
    """Return the nearest's measurement with the figures expected here; what depends on single steps is left out."""
    speed = float(np.exp(expected[THROUGHPUT]))
    tokens = nearest.tokens_per_second
    return replace(
        nearest,
        samples_per_second=speed,
        step_time_s=samples / speed,
        samples_per_step=samples,
        held_out_loss_after=nearest.held_out_loss_before - expected[LOSS_DROP],
        tokens_per_second=None if tokens is None else tokens / nearest.samples_per_second * speed,
        forward_s=None,
        backward_s=None,
        optimizer_s=None,
        communication_s=None,
        step_times_s=(),
        training_losses=(),
        remarks=(*nearest.remarks, REMARK),
    )


def _generator(request: TrialRequest) -> np.random.Generator:
    name = json.dumps([sorted(request.point.items()), request.repeat])
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
