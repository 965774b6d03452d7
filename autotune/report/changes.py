"""What two configurations set differently, by the search space's names."""

from __future__ import annotations

from dataclasses import dataclass

from autotune import ds_config as config_file
from autotune.report import units
from autotune.space import SearchSpace
from autotune.trials import Trial, Value

_COMPOSED = ("fp16.enabled", "bf16.enabled", "bfloat16.enabled", "zero_optimization.offload_")
"""Keys that `precision` and `zero_optimization.offload` stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting in two configurations, as text."""

    name: str
    before: str
    after: str

    @property
    def is_change(self) -> bool:
        return self.before != self.after


def changes(before: Trial, after: Trial, space: SearchSpace) -> list[Change]:
    """Return every searched, fixed or otherwise different setting of two trials, in the order of the space."""
    old, new = _settings(before), _settings(after)
    others = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    names = dict.fromkeys((*space.names, *space.fixed, *others))
    return [
        Change(name=name, before=_text(name, old, space), after=_text(name, new, space))
        for name in names
        if not name.startswith(_COMPOSED)
    ]


def changed(before: Trial, after: Trial, space: SearchSpace) -> list[Change]:
    """Return only what differs."""
    return [change for change in changes(before, after, space) if change.is_change]


def change_count(start: Trial, trial: Trial, space: SearchSpace) -> int:
    """Return in how many settings of the space a trial differs from the user's configuration.

    Those without an effect in it, and batch sizes that follow from others, are not counted.
    """
    if trial.is_baseline:
        return 0
    before, defaults = _settings(start), {dimension.name: dimension.default for dimension in space.dimensions}
    return sum(before.get(name, defaults.get(name)) != value for name, value in space.settings(trial.point).items())


def _settings(trial: Trial) -> dict[str, Value]:
    settings = config_file.settings_of(trial.ds_config)
    settings[config_file.ACTIVATION_CHECKPOINTING] = trial.activation_checkpointing
    return settings


def _text(name: str, settings: dict[str, Value], space: SearchSpace) -> str:
    dimension = next((dimension for dimension in space.dimensions if dimension.name == name), None)
    if dimension is not None and not all(condition.holds(settings) for condition in dimension.conditions):
        return "no effect"
    if name not in settings:
        return "not set" if dimension is None else f"default {units.setting(dimension.default)}"
    return units.setting(settings[name])
