"""A trial as Optuna keeps it: the attributes that autotune adds, and the parameters that Optuna's tools show."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from autotune.objective import Score
from autotune.space import Dimension, Float, Integer, SearchSpace
from autotune.storage.tables import Parameter, TrialRow
from autotune.trials import Outcome, Trial, TrialRequest, TrialState, Value

PREFIX = "autotune:"
"""Goes before the keys of attributes that only autotune reads."""
TOKEN = f"{PREFIX}token"
"""Key of what tells whether a trial or study has been made, where the answer to its making was lost."""
_OUTCOME, _SCORE, _DS_CONFIG, _POINT = (f"{PREFIX}{name}" for name in ("outcome", "score", "ds_config", "point"))
_CHECKPOINTING, _HASH = f"{PREFIX}activation_checkpointing", f"{PREFIX}config_hash"
_IS_BASELINE, _STARTED, _FINISHED = (f"{PREFIX}{name}" for name in ("is_baseline", "started_at", "finished_at"))
_SEARCHER = f"{PREFIX}searcher_s"
READ = (_OUTCOME, _SCORE, _DS_CONFIG, _POINT, _CHECKPOINTING, _HASH, _IS_BASELINE, _STARTED, _FINISHED, _SEARCHER)
"""Keys of the attributes that make a `Trial`."""


def of_request(
    request: TrialRequest, *, is_baseline: bool, token: str, searcher_s: float | None = None
) -> dict[str, str]:
    """Return the attributes of a trial that begins, as JSON text by key."""
    return _as_text(
        {
            _POINT: dict(request.point),
            _DS_CONFIG: dict(request.ds_config),
            _CHECKPOINTING: request.activation_checkpointing,
            _HASH: request.config_hash,
            _IS_BASELINE: is_baseline,
            _STARTED: datetime.now(UTC).isoformat(),
            TOKEN: token,
            **({} if searcher_s is None else {_SEARCHER: round(searcher_s, 6)}),
        }
    )


def of_result(outcome: Outcome, score: Score | None) -> dict[str, str]:
    """Return the attributes of a trial that ends, as JSON text by key."""
    attributes: dict[str, Any] = {_FINISHED: datetime.now(UTC).isoformat(), _OUTCOME: outcome.to_json()}
    if outcome.failure is not None:
        attributes["failure"] = f"{outcome.failure.kind}: {outcome.failure.reason}"
    if outcome.pruned is not None:
        attributes["pruned"] = outcome.pruned
    if score is not None:
        attributes[_SCORE] = asdict(score)
        attributes["throughput_ratio"] = score.throughput_ratio
        attributes["convergence_ratio"] = score.convergence_ratio
    return _as_text(attributes)


def trial_of(row: TrialRow, texts: Mapping[str, str]) -> Trial | None:
    """Read a trial from its attributes; None for one that another tool put into the study."""
    return _trial(row, {key: json.loads(text) for key, text in texts.items()})


def trials_of(rows: Iterable[TrialRow], attributes: Sequence[tuple[int, str, str]]) -> list[Trial]:
    """Read trials from (trial's key, attribute's key, JSON text), leaving out those that another tool made."""
    # One document: their keys are parsed, and held in memory, once.
    values = json.loads(f"[{','.join(text for _, _, text in attributes)}]")
    by_trial: dict[int, dict[str, Any]] = defaultdict(dict)
    for (trial_id, key, _), value in zip(attributes, values, strict=True):
        by_trial[trial_id][key] = value
    trials = (_trial(row, by_trial[row.trial_id]) for row in rows if row.trial_id in by_trial)
    return [trial for trial in trials if trial is not None]


def _trial(row: TrialRow, attributes: Mapping[str, Any]) -> Trial | None:
    if _DS_CONFIG not in attributes:
        return None
    outcome, score = attributes.get(_OUTCOME), attributes.get(_SCORE) or {}
    finished = attributes.get(_FINISHED)
    return Trial(
        number=row.number,
        state=TrialState(row.state.name),
        is_baseline=attributes[_IS_BASELINE],
        point=attributes[_POINT],
        ds_config=attributes[_DS_CONFIG],
        activation_checkpointing=attributes[_CHECKPOINTING],
        config_hash=attributes[_HASH],
        outcome=Outcome.from_json(outcome) if outcome else None,
        throughput_ratio=score.get("throughput_ratio"),
        convergence_ratio=score.get("convergence_ratio"),
        score=score.get("value"),
        started_at=datetime.fromisoformat(attributes[_STARTED]),
        finished_at=datetime.fromisoformat(finished) if finished else None,
        searcher_s=attributes.get(_SEARCHER),
    )


def parameters_of(request: TrialRequest, space: SearchSpace) -> list[Parameter]:
    """Return the parameters of a trial that Optuna's tools can show."""
    fitting = [(space[name], value) for name, value in request.point.items() if _fits(space[name], value)]
    return [
        Parameter(
            name=dimension.name,
            value=_distribution(dimension).to_internal_repr(value),
            distribution_json=distribution_to_json(_distribution(dimension)),
        )
        for dimension, value in fitting
    ]


def _as_text(attributes: Mapping[str, object]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in attributes.items()}


def _fits(dimension: Dimension, value: Value) -> bool:
    """Whether Optuna can show a value under the dimension's distribution (a baseline may lie outside the space)."""
    if not dimension.is_ordered:
        return value in dimension.levels
    return not isinstance(value, bool | str) and float(dimension.levels[0]) <= value <= float(dimension.levels[-1])


def _distribution(dimension: Dimension) -> BaseDistribution:
    """Return the distribution under which Optuna's tools show a dimension."""
    if isinstance(dimension, Integer):
        return IntDistribution(int(dimension.levels[0]), int(dimension.levels[-1]), log=dimension.log)
    if isinstance(dimension, Float):
        return FloatDistribution(float(dimension.levels[0]), float(dimension.levels[-1]), log=dimension.log)
    return CategoricalDistribution(dimension.levels)
