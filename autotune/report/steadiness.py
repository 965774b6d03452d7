"""How steady the machine was during a study: its user's configuration, run again now and then, in words."""

from __future__ import annotations

from autotune.drift import Reading, noise_ratio, spells
from autotune.remeasuring import mean_with_interval
from autotune.report import units
from autotune.report.summary import StudySummary
from autotune.trials import Trial


def line(reading: Reading, baseline: Trial) -> str:
    """Return a reading on one line."""
    head = "yours again "
    if reading.result.failure is not None:
        return f"{head}  {reading.result.failure}"
    speed = _speed(reading, baseline)
    return f"{head}  {units.number(reading.result.samples_per_second)} samples/s, {units.times(speed)} of the start"


def sentence(summary: StudySummary) -> str | None:
    """Return how the machine did, in one sentence; None where it was not watched."""
    speeds = _speeds(summary)
    if summary.baseline is None or not speeds:
        return None
    warning = caution(summary)
    if warning is not None:
        return warning
    mean = mean_with_interval(speeds).value
    return (
        f"The machine was steady: your configuration, run again {units.count(len(speeds), 'time')} during the search, "
        f"had {units.times(min(speeds))} to {units.times(max(speeds))} of its first throughput (mean "
        f"{units.times(mean)}). Noise alone explains {_noise(summary)}."
    )


def caution(summary: StudySummary) -> str | None:
    """Return when the machine was faster or slower than noise explains; None where it was not."""
    baseline = summary.baseline
    if baseline is None or baseline.measurement is None:
        return None
    found = spells(
        summary.readings,
        samples_per_second=baseline.measurement.samples_per_second,
        noise_floor=summary.rules.noise_floor,
    )
    if not found:
        return None
    parts = [
        f"{units.percent(abs(spell.speed - 1))} {'faster' if spell.speed > 1 else 'slower'} in "
        f"{_trials(spell.first_trial, spell.last_trial)}"
        for spell in found
    ]
    return (
        f"The machine was {units.listed(parts)} than at the start, by your own configuration run again now and then "
        f"(noise alone explains {_noise(summary)}). R of those trials is not corrected for it."
    )


def _noise(summary: StudySummary) -> str:
    ratio = noise_ratio(summary.rules.noise_floor)
    return f"{units.times(1 / ratio)} to {units.times(ratio)}"


def _trials(first: int, last: int) -> str:
    return f"trial {last}" if first >= last else f"trials {first} to {last}"


def _speeds(summary: StudySummary) -> list[float]:
    baseline = summary.baseline
    if baseline is None or baseline.measurement is None:
        return []
    speeds = [_speed(reading, baseline) for reading in summary.readings]
    return [speed for speed in speeds if speed is not None]


def _speed(reading: Reading, baseline: Trial) -> float | None:
    again, first = reading.result.samples_per_second, baseline.measurement
    return None if again is None or first is None else again / first.samples_per_second
