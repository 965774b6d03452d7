"""How well the performance model foretells recorded trials that it was not fitted to.

Those of `tests/data/recorded` were measured on a busy machine, those of `experiments/recorded` on a quiet one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from autotune import campaign as campaigns
from autotune.campaign.calibrating import subject_of
from autotune.evaluators import recording
from autotune.hardware import Hardware
from autotune.performance import ModelShape
from autotune.performance.calibration import (
    Observations,
    Parameters,
    Predictions,
    calibrate,
    calibration_priors,
    predict,
)
from autotune.performance.machines import cluster_of
from autotune.performance.subject import Subject
from autotune.trials import Outcome, Trial
from tests import recorded_trials

HARDWARE = Hardware(
    accelerator="cpu",
    device_name="two cores",
    device_count=1,
    device_memory_bytes=8 * 2**30,
    host_memory_bytes=8 * 2**30,
    cpu_count=2,
    ranks=2,
)
"""Like the machine that recorded them; how much memory it had doesn't matter, none of the trials came near."""
BYTE_GPT = Subject(
    shape=ModelShape.from_numbers(
        layers=4, hidden=128, heads=4, sequence=64, vocabulary=256, tied=0.0, parameters=867_072
    ),
    cluster=cluster_of(HARDWARE),
    fixed={"flash_attention": 1.0},
)
"""With its defaults: 4 x (4 x 128^2 + 8 x 128^2 + 13 x 128) + (256 + 64 + 256 + 2) x 128 parameters; torch's
scaled_dot_product_attention on a CPU keeps no scores."""
RECORDED = Path(__file__).parents[1] / "experiments" / "recorded"
KINDS = ("step_time", "memory", "loss")
MEMBERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of predictions against measurements of the same trials."""

    median: float
    """Of |predicted/measured - 1|."""
    mean: float
    spearman: float
    inside: float = float("nan")
    """Share of measurements inside the central 90 % of the ensemble, noise included."""


def everything() -> list[Trial]:
    """Return the measured trials on the busy machine: one workload, several hours."""
    return [trial for name in recorded_trials.RECORDINGS for trial in recorded_trials.recorded(name).trials]


def quiet(name: str) -> tuple[Subject, list[Trial]]:
    """Return a workload of `experiments/recorded`, and each of its configurations as it was measured first."""
    rows = [row for row in recording.lines(RECORDED / f"{name}.jsonl.gz") if "outcome" in row and row["repeat"] == 0]
    trials = [
        Trial(
            number=row["number"],
            state=(outcome := Outcome.from_json(row["outcome"])).state,
            is_baseline=row["is_baseline"],
            point=row["point"],
            ds_config={},
            activation_checkpointing=bool(row["point"].get("activation_checkpointing")),
            config_hash="",
            outcome=outcome,
        )
        for row in rows
    ]
    measured = [trial for trial in trials if trial.measurement is not None]
    return subject_of(campaigns.load(RECORDED / f"{name}.yaml"), HARDWARE, measured), measured


def before(trials: Sequence[Trial], subject: Subject = BYTE_GPT) -> Mapping[str, Errors]:
    """Return the errors of the priors' medians on crude rates."""
    known = calibration_priors(is_cpu=True)
    medians = Parameters.from_logarithms(np.log([prior.mean for prior in known.values()]), names=list(known))
    seen = Observations.of(trials, **subject.fixed)
    return _errors(seen, predict(subject.shape, subject.cluster, seen, medians))


def null(trials: Sequence[Trial], count: int, seed: int) -> Errors:
    """Return the errors of a step time in proportion to the samples, the proportion learnt from `count` trials."""
    fitted, left = split(trials, count, seed)
    rate = np.median([_samples(trial) / trial.measurement.step_time_s for trial in fitted])
    measured = np.array([trial.measurement.step_time_s for trial in left])
    return _error(np.log([_samples(trial) / rate for trial in left]), np.log(measured))


def held_out(
    trials: Sequence[Trial], count: int, seed: int, subject: Subject = BYTE_GPT
) -> tuple[Mapping[str, Errors], float]:
    """Fit to `count` trials drawn by a seed; return the errors on the others, and the seconds of the fit."""
    fitted, left = split(trials, count, seed)
    begun_s = time.perf_counter()
    found = calibrate(fitted, subject.shape, subject.cluster, **subject.fixed)
    took_s = time.perf_counter() - begun_s
    seen = Observations.of(left, **subject.fixed)
    best = predict(subject.shape, found.cluster, seen, found.parameters())
    many = predict(subject.shape, found.cluster, seen, found.ensemble(MEMBERS))
    drawn = {kind: many.measured[kind] + found.drawn_noise(kind, (MEMBERS, len(seen)), seed=seed) for kind in KINDS}
    return _errors(seen, best, drawn), took_s


def split(trials: Sequence[Trial], count: int, seed: int) -> tuple[list[Trial], list[Trial]]:
    """Return so many trials in a random order, and the rest."""
    order = random.Random(seed).sample(list(trials), len(trials))
    return order[:count], order[count:]


def mean(errors: Sequence[Errors]) -> Errors:
    """Return the mean over splits."""
    names = ("median", "mean", "spearman", "inside")
    return Errors(**{name: float(np.mean([getattr(each, name) for each in errors])) for name in names})


def _samples(trial: Trial) -> int:
    return trial.measurement.samples_per_step


def _errors(
    seen: Observations, predicted: Predictions, drawn: Mapping[str, np.ndarray] | None = None
) -> Mapping[str, Errors]:
    return {
        kind: _error(predicted.measured[kind], seen.measured[kind], drawn[kind] if drawn else None) for kind in KINDS
    }


def _error(predicted: np.ndarray, measured: np.ndarray, drawn: np.ndarray | None = None) -> Errors:
    off = np.abs(np.exp(predicted - measured) - 1.0)
    inside = float("nan")
    if drawn is not None:
        low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
        inside = float(np.mean((low <= measured) & (measured <= high)))
    return Errors(
        median=float(np.median(off)),
        mean=float(np.mean(off)),
        spearman=float(spearmanr(predicted, measured).statistic),
        inside=inside,
    )
