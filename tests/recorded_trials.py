"""Trials that were measured in real campaigns, and what a pruner would have made of them (`tests/data/recorded`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune import campaign as campaigns
from autotune.evaluators.recorded import RecordedEvaluator
from autotune.objective import Objective
from autotune.searchers.optuna import OptunaSearcher
from autotune.searchers.pruning import TrialPruner
from autotune.storage import Storage
from autotune.trials import Budget, Outcome, Stage, Trial, TrialRequest, TrialState

FOLDER = Path(__file__).parent / "data" / "recorded"
CAMPAIGN = Path(__file__).parents[1] / "experiments" / "quickstart" / "campaign.yaml"
RECORDINGS = sorted(path.stem for path in FOLDER.glob("*.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of trials."""

    trials: tuple[Trial, ...]

    @property
    def pruned(self) -> list[int]:
        """Numbers of the pruned trials."""
        return [trial.number for trial in self.trials if trial.state is TrialState.PRUNED]

    @property
    def best(self) -> Trial:
        """The completed trial with the highest R."""
        return max((trial for trial in self.trials if trial.state is TrialState.COMPLETE), key=_score)

    @property
    def duration_s(self) -> float:
        """Wall time of all trials, start-up included."""
        return sum(trial.outcome.duration_s for trial in self.trials if trial.outcome)

    @property
    def training_s(self) -> float:
        """Wall time of all trials after their first step, held-out losses included."""
        return sum(trial.outcome.stage_s.get(Stage.RUN.value, 0.0) for trial in self.trials if trial.outcome)


@functools.cache
def recorded(recording: str) -> Replayed:
    """Return a recording as it was measured, without a pruner."""
    return Replayed(trials=tuple(_trial(row) for row in json.loads((FOLDER / f"{recording}.json").read_text())))


def replay(order: Sequence[Trial], recording: str) -> Replayed:
    """Let a new pruner judge recorded trials in this order, the baseline first."""
    pruner, evaluator = TrialPruner(Objective()), RecordedEvaluator(path=str(FOLDER / f"{recording}.json"))
    ended = []
    for trial in order:
        request = TrialRequest(number=trial.number, point=trial.point, ds_config={}, budget=Budget(steps=1))
        request = replace(request, ds_config={"recorded": trial.number})
        outcome = evaluator.evaluate(
            request,
            hosts=[],
            progress=lambda _: None,
            cancelled=lambda: False,
            should_prune=functools.partial(pruner.judge, request),
        )
        after = replace(trial, outcome=outcome, state=outcome.state, config_hash=request.config_hash)
        pruner.hear(after)
        ended.append(after)
    return Replayed(trials=tuple(ended))


def study(
    storage: Storage,
    recording: str,
    *,
    searcher: str,
    seed: int,
    pruner: str,
    trial_budget: int = 20,
    name: str | None = None,
) -> Replayed:
    """Run the quickstart's campaign with its trials answered from a recording."""
    overrides = ("evaluator=recorded", f"recorded.path={FOLDER / recording}.json", f"pruner={pruner}")
    campaign = campaigns.load(CAMPAIGN, [*overrides, f"trials={trial_budget}"])
    stored = campaigns.create(campaign, storage, name=name or f"{recording}-{searcher}-{seed}-{pruner}")
    with campaigns.study(stored) as opened:
        opened.run(OptunaSearcher(opened.space, sampler=searcher, seed=seed))
    return Replayed(trials=tuple(stored.trials()))


def _trial(row: dict) -> Trial:
    return Trial(
        number=row["number"],
        state=TrialState(row["state"]),
        is_baseline=row["is_baseline"],
        point=row["point"],
        ds_config={},
        activation_checkpointing=False,
        config_hash="",
        outcome=Outcome.from_json(row["outcome"]),
        score=row["score"],
    )


def _score(trial: Trial) -> float:
    return trial.score if trial.score is not None else 0.0
