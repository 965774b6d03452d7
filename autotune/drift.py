"""Drift of the machine's speed, seen by running the user's configuration again now and then during a search.

Scores are not corrected by it: what it was during the other trials is a guess, and the finals, which run in turns,
don't depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from autotune.remeasuring import Remeasured, mean_with_interval
from autotune.storage import StoredStudy
from autotune.study import Study

_ATTRIBUTE = "baseline_readings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The user's configuration, run again."""

    after_trial: int
    """Number of the last trial that had ended."""
    executed_trials: int
    """How many had, those cancelled not counted."""
    result: Remeasured
    at: str
    """When it ended: UTC, ISO 8601."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        """Read what `dataclasses.asdict` made."""
        return cls(**{**data, "result": Remeasured(**data["result"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Trials during which the machine was faster or slower than at the start, as far as readings tell."""

    first_trial: int
    """After the reading before."""
    last_trial: int
    speed: float
    """Of the user's configuration over its first: geometric mean of the readings."""


class BaselineWatch:
    """Runs the user's configuration again after every so many trials; to be called between trials.

    Args:
        study: entered.
        stored: where readings are kept.
        every: so many executed trials; 0 never.
        before: called when a reading begins.
        after: called with each reading.
    """

    def __init__(
        self,
        study: Study,
        stored: StoredStudy,
        *,
        every: int,
        before: Callable[[], None],
        after: Callable[[Reading], None],
    ) -> None:
        self._study = study
        self._stored = stored
        self._every = every
        self._before = before
        self._after = after
        self._readings = list(readings(stored))

    def __call__(self) -> None:
        """Take a reading where one is due."""
        baseline, history = self._study.baseline, self._study.history
        last = self._readings[-1].executed_trials if self._readings else 0
        if not self._every or len(history) < last + self._every or baseline is None or baseline.measurement is None:
            return
        self._before()
        outcome = self._study.remeasure(baseline)
        if outcome is None:
            return
        reading = Reading(
            after_trial=max(trial.number for trial in history),
            executed_trials=len(history),
            result=Remeasured.of(outcome),
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        self._readings.append(reading)
        self._stored.set_attribute(_ATTRIBUTE, [asdict(each) for each in self._readings])
        self._after(reading)


def readings(stored: StoredStudy) -> tuple[Reading, ...]:
    """Return what a study's watch has read, in order."""
    return tuple(Reading.from_json(data) for data in stored.attribute(_ATTRIBUTE) or ())


def noise_ratio(noise_floor: float) -> float:
    """Return how many times faster than another one a single run may be from noise alone.

    That is two noise floors, about 2.5 standard deviations of the difference of two runs, where the floor is twice the
    coefficient of variation of one.
    """
    return (1 + noise_floor) * (1 + noise_floor)


def widest_ratio(taken: Sequence[Reading], *, samples_per_second: float, noise_floor: float) -> float:
    """Return how many times faster than another one a single run may be on this machine: by noise, and as was seen.

    Args:
        taken: the readings of a study.
        samples_per_second: of the user's configuration at the start.
        noise_floor: of the finals' rules.
    """
    speeds = [reading.result.samples_per_second for reading in taken if reading.result.samples_per_second is not None]
    seen = [max(speed / samples_per_second, samples_per_second / speed) for speed in speeds]
    return max([noise_ratio(noise_floor), *seen])


def spells(taken: Sequence[Reading], *, samples_per_second: float, noise_floor: float) -> list[Spell]:
    """Return when the machine was faster or slower than noise explains: neighbouring readings that say so are one.

    Args:
        taken: the readings of a study, in order.
        samples_per_second: of the user's configuration at the start.
        noise_floor: of the finals' rules.
    """
    limit = noise_ratio(noise_floor)
    begun, measured = 0, []
    for reading in taken:
        if reading.result.samples_per_second is not None:
            speed = reading.result.samples_per_second / samples_per_second
            measured.append((begun + 1, reading.after_trial, speed))
        begun = reading.after_trial
    found = []
    for direction, group in itertools.groupby(measured, key=lambda each: (each[2] > limit) - (each[2] * limit < 1)):
        together = list(group)
        mean = mean_with_interval([speed for _, _, speed in together]).value
        if direction and mean is not None:
            found.append(Spell(first_trial=together[0][0], last_trial=together[-1][1], speed=mean))
    return found
