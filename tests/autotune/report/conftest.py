"""Fixtures: the summary of a simulated study, and ways to change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.report import StudySummary
from autotune.searchers.optuna import OptunaSearcher
from autotune.trials import Failure, FailureKind, Measurement, Outcome, Trial, TrialState

Alter = Callable[[Callable[[Trial], Trial]], StudySummary]


@pytest.fixture(scope="session")
def summary(tmp_path_factory: pytest.TempPathFactory) -> StudySummary:
    """A finished simulated study of 24 trials, some of them failed."""
    folder = tmp_path_factory.mktemp("report")
    start = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "steps": 7}
    campaign = campaigns.parse(
        {
            "name": "sim",
            "ds_config": start,
            "evaluator": "simulated",
            "trials": 24,
            "hardware": {"accelerator": "cpu", "ranks": 2},
            "run_directory": str(folder),
            "finals": {"candidates": 0},
        },
        where="test",
    )
    storage = storages.connect(f"sqlite:///{folder}/autotune.db")
    try:
        stored = campaigns.create(campaign, storage, name="sim")
        with campaigns.study(stored) as study:
            study.run(OptunaSearcher(study.space, sampler="random", seed=0))
        return campaigns.summary(stored)
    finally:
        storage.close()


@pytest.fixture
def altered(summary: StudySummary) -> Alter:
    """The summary with every trial passed through a function."""
    return lambda change: replace(summary, trials=tuple(change(trial) for trial in summary.trials))


@pytest.fixture
def remeasured(summary: StudySummary) -> Callable[..., Trial]:
    """A trial with other figures in its measurement: `remeasured(trial, forward_s=0.1)`."""

    def change(trial: Trial, **figures: object) -> Trial:
        if trial.measurement is None:
            return trial
        measurement: Measurement = replace(trial.measurement, **figures)
        return replace(trial, outcome=replace(trial.outcome, measurement=measurement))

    return change


def failed(trial: Trial, reason: str = "no memory left", kind: FailureKind = FailureKind.OUT_OF_MEMORY) -> Trial:
    """Return the trial as if it had failed."""
    return replace(
        trial,
        state=TrialState.FAIL,
        outcome=Outcome(failure=Failure(kind=kind, reason=reason)),
        score=None,
        throughput_ratio=None,
        convergence_ratio=None,
    )


@pytest.fixture
def as_failed() -> Callable[..., Trial]:
    return failed
