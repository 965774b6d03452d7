"""A study in memory over simulated trials, and the real one over SQLite."""

from dataclasses import dataclass, field, replace

import pytest

from autotune.objective import Objective
from autotune.runners import InlineRunner
from autotune.space import SearchSpace
from autotune.storage import connect
from autotune.study import Start, StopRequest, Study
from autotune.testing.searchers import SPACE, finished_trial, made_up_score
from autotune.trials import Budget, Failure, FailureKind, Outcome, Trial

START = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "train_batch_size": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}


@dataclass
class MadeUpStudy:
    """Answers by `made_up_score`, or fails by the kind in `failing`."""

    space: SearchSpace = SPACE
    trial_budget: int = 20
    failing: FailureKind | None = None
    history: list[Trial] = field(default_factory=list)
    executed: int = 0

    def measure_baseline(self):
        if not self.history:
            point = self.space.canonical({dimension.name: dimension.default for dimension in self.space.dimensions})
            self._keep(finished_trial(0, point, 1.0, is_baseline=True))
        return self.history[0]

    def evaluate_all(self, points):
        return [self._evaluate(point) for point in points]

    def _evaluate(self, point):
        self.space.check(point)
        for trial in self.history:
            if trial.point == point:
                return trial
        assert len(self.history) < self.trial_budget, "the environment ran more trials than the budget allows"
        number = len(self.history)
        if self.failing is None:
            return self._keep(finished_trial(number, point, made_up_score(self.space, point)))
        failure = Failure(kind=self.failing, reason=f"made up: {self.failing}")
        return self._keep(replace(finished_trial(number, point, None), outcome=Outcome(failure=failure)))

    def _keep(self, trial):
        self.executed += 1
        if trial.counts:
            self.history.append(trial)
        return trial


@pytest.fixture
def made_up_study():
    return MadeUpStudy


@pytest.fixture
def real_study(tmp_path):
    """Return a function that makes an `autotune.study.Study` of simulated trials."""
    from autotune.evaluators.simulated import SimulatedEvaluator

    opened = []

    def make(
        *, trial_budget=20, stop=None, name="study", slots=1, runner=None, budget=None, listener=None, **evaluator
    ):
        storage = connect(f"sqlite:///{tmp_path}/{name}.db")
        opened.append(storage)
        return Study(
            stored=storage.create("study", {}),
            space=SPACE,
            start=Start.of(START, SPACE),
            objective=Objective(),
            runner=runner or InlineRunner(SimulatedEvaluator(**evaluator), slots=slots),
            budget=budget or Budget(seconds=5.0),
            trial_budget=trial_budget,
            world_size=2,
            listener=listener,
            stop=stop or StopRequest(),
        )

    yield make
    for storage in opened:
        storage.close()
