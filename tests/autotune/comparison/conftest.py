"""Fixtures: runs of trials with given figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from autotune.comparison import Contender, Run
from autotune.trials import Failure, FailureKind, Measurement, Outcome, Trial, TrialState

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def trial(number: int, figures: tuple[float, float] | None, *, second_s: float = 10.0, config: str = "") -> Trial:
    """Return a trial with (samples per second, loss drop per second), or a failed one; each takes `second_s`."""
    measurement = None
    if figures is not None:
        measurement = Measurement(
            samples_per_second=figures[0],
            samples_per_second_spread=0.01,
            step_time_s=1.0,
            timed_steps=5,
            warmup_steps=1,
            samples_per_step=8,
            training_time_s=10.0,
            held_out_loss_before=figures[1],
            held_out_loss_after=0.0,
            convergence_time_s=1.0,
            training_loss_last=1.0,
        )
    failure = None if measurement else Failure(kind=FailureKind.CRASH, reason="it broke")
    return Trial(
        number=number,
        state=TrialState.COMPLETE if measurement else TrialState.FAIL,
        is_baseline=number == 0,
        point={},
        ds_config={},
        activation_checkpointing=False,
        config_hash=config or ("start" if number == 0 else str(number)),
        outcome=Outcome(measurement=measurement, failure=failure),
        started_at=BEGAN + timedelta(seconds=number * second_s),
        finished_at=BEGAN + timedelta(seconds=(number + 1) * second_s),
    )


@pytest.fixture
def run() -> Callable[..., Run]:
    """A run from ratios of a baseline of (100, 1): `run(0, [1, 1.5, None])`, None is a failed trial."""

    def make(seed: int, ratios: Sequence[float | None], *, baseline: float = 100.0) -> Run:
        figures = [None if ratio is None else (100.0 * ratio, 1.0 * ratio) for ratio in ratios]
        trials = [trial(number, figure) for number, figure in enumerate(figures)]
        if ratios and ratios[0] is not None:
            trials[0] = trial(0, (baseline, 1.0))
        return Run(seed=seed, trials=tuple(trials))

    return make


@pytest.fixture
def contender(run) -> Callable[..., Contender]:
    """A contender whose runs end at these ratios: `contender("tpe", [1.5, 1.6])`, one seed each."""

    def make(name: str, finals: Sequence[float], *, trials: int = 8) -> Contender:
        runs = [run(seed, [1.0, None, *([final] * (trials - 2))]) for seed, final in enumerate(finals)]
        return Contender(name=name, runs=tuple(runs))

    return make
