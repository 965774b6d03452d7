"""The settings of a trial in short: what differs from the user's own configuration."""

from __future__ import annotations

from autotune import ds_config as config_file
from autotune.report.summary import StudySummary
from autotune.space import ACCUMULATION, MICRO_BATCH, SearchSpace
from autotune.trials import Trial, Value

_SHORT = {
    MICRO_BATCH: "micro_batch",
    ACCUMULATION: "accumulation",
    config_file.ACTIVATION_CHECKPOINTING: "checkpointing",
    "zero_optimization.stage3_param_persistence_threshold": "persistence_threshold",
    "zero_optimization.stage3_max_live_parameters": "max_live_parameters",
}
"""For tables only; every other format has DeepSpeed's own keys."""
_LONG_NAME, _ROOMY = 40, 100
"""Names longer than that take two lines on terminals narrower than this."""
_LONG = 10_000
"""Whole numbers from here on are written with an exponent where that loses nothing."""


def settings_of(trial: Trial) -> dict[str, Value]:
    """Return all that a trial's configuration says, by the search space's names."""
    settings = config_file.settings_of(trial.ds_config)
    settings[config_file.ACTIVATION_CHECKPOINTING] = trial.activation_checkpointing
    return settings


def changes(trial: Trial, baseline: Trial | None, space: SearchSpace) -> dict[str, Value]:
    """Return the searched settings in which a trial differs from the baseline; those without effect are left out."""
    if trial.is_baseline:
        return {}
    start = settings_of(baseline) if baseline is not None else {}
    return {
        name: value
        for name, value in space.settings(trial.point).items()
        if start.get(name, space[name].default if name in space.names else None) != value
    }


def changes_in_short(trial: Trial, baseline: Trial | None, space: SearchSpace) -> str:
    """Return the changes on one line."""
    if trial.is_baseline:
        return "your configuration"
    found = changes(trial, baseline, space)
    return " ".join(f"{short(name)}={in_short(value)}" for name, value in found.items()) or "no change"


def what_happened(trial: Trial, summary: StudySummary) -> str:
    """Return a trial's changed settings, or why it failed."""
    if trial.failure is not None:
        return f"{trial.failure.kind}: {trial.failure.reason}"
    return changes_in_short(trial, summary.baseline, summary.space)


def folded(name: str, *, width: int) -> str:
    """Return a dotted name, on a narrow terminal a long one in two lines, so that it is not broken within a word."""
    section, dot, last = name.rpartition(".")
    return f"{section}.\n  {last}" if dot and len(name) > _LONG_NAME and width < _ROOMY else name


def short(name: str) -> str:
    """Return a dimension's short name."""
    return _SHORT.get(name, name.rpartition(".")[2])


def in_short(value: Value) -> str:
    """Return a setting's value as one would type it: 5e8, 0.0003, true."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= _LONG:
        first, rest = str(value)[0], str(value)[1:]
        return f"{first}e{len(rest)}" if not rest.strip("0") else str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
