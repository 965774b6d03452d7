"""How well predicted step times fit measured ones: relative error, null model, rank correlation, regret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from autotune.performance.arrays import Array
from autotune.performance.coefficients import Coefficients
from autotune.performance.model import Estimate, estimate
from autotune.performance.validation.rows import Measure, Table

FEWEST_TO_RANK = 4
"""Rows below which a rank correlation says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One group of rows: a source, or a part of it that must not be mixed with the rest."""

    group: str
    rows: int
    assumed: int
    """Rows in which a rule filled in what the source leaves out."""
    relative: bool
    """Only the order and ratios count: errors are after one fitted factor."""
    error: float
    """Mean absolute relative error of the step time."""
    null_error: float
    """The same of one fitted hardware utilisation for the group."""
    scaled_error: float
    """The same after one fitted factor: what is left when the framework's level is known."""
    level: float
    """Median of predicted over measured."""
    rank: float
    """Spearman's correlation of step times over the group; NaN below four rows."""
    rank_alike: float
    """The same among rows of one model, batch and set of machines, mean weighted by rows."""
    regret: float
    """Of the best predicted row among such rows: its measured throughput's shortfall from the best."""


def predicted(table: Table, coefficients: Coefficients) -> Estimate:
    """Return the model's estimate of every row."""
    return estimate(table.shape, table.cluster, table.configurations, coefficients)


def null_times(table: Table) -> Array:
    """Return step times at one hardware utilisation per group: the median of the measured."""
    shape, configurations = table.shape, table.configurations
    flops = shape.model_flops + shape.recomputed_flops(configurations.checkpointing)
    ranks = configurations.tensor_parallel * configurations.pipeline_parallel * configurations.sequence_parallel
    samples = configurations.micro_batch * configurations.accumulation * np.maximum(table.cluster.devices / ranks, 1.0)
    work = flops * samples / table.cluster.devices / table.cluster.device.half_flops
    times = np.empty(len(table))
    for _, chosen in by_group(table):
        times[chosen] = work[chosen] * np.median(table.step_time_s[chosen] / work[chosen])
    return times


def by_group(table: Table) -> Iterator[tuple[str, Array]]:
    """Yield each group with the places of its rows, in the table's order."""
    for group in dict.fromkeys(table.groups.tolist()):
        yield group, np.flatnonzero(table.groups == group)


def scores(table: Table, times: Array, throughput: Array) -> list[Score]:
    """Return the score of each group.

    Args:
        table: measured rows.
        times: predicted seconds per step, shape (rows,).
        throughput: predicted samples per second, shape (rows,).
    """
    null = null_times(table)
    return [_score(table, group, chosen, times, throughput, null) for group, chosen in by_group(table)]


def row_errors(table: Table, times: Array) -> Array:
    """Return each row's absolute relative error, shape (rows,); of relative groups after one factor for the group."""
    ratio = times / table.step_time_s
    for _, chosen in by_group(table):
        if is_relative(table, chosen):
            ratio[chosen] /= np.median(ratio[chosen])
    return np.asarray(np.abs(ratio - 1.0))


def is_relative(table: Table, chosen: Array) -> bool:
    """Return whether only the order and the ratios of a group's rows count."""
    return all(table.rows[place].measure is Measure.RELATIVE for place in chosen)


def mean_over_sources(found: Sequence[Score], *, field: str = "error") -> float:
    """Return the unweighted mean over sources of rows whose convention is known; a source's groups count together."""
    per_source: dict[str, list[tuple[float, int]]] = {}
    for score in found:
        if not score.relative:
            per_source.setdefault(source_of(score.group), []).append((getattr(score, field), score.rows))
    means = [
        np.average([value for value, _ in parts], weights=[rows for _, rows in parts]) for parts in per_source.values()
    ]
    return float(np.mean(means)) if means else float("nan")


def source_of(group: str) -> str:
    """Return a group's source, without the part in brackets that keeps it from being mixed."""
    return group.partition(" [")[0]


def _score(table: Table, group: str, chosen: Array, times: Array, throughput: Array, null: Array) -> Score:
    measured = table.step_time_s[chosen]
    ratio = times[chosen] / measured
    relative = is_relative(table, chosen)
    scaled = float(np.mean(np.abs(ratio / np.median(ratio) - 1.0)))
    rank = _rank(times[chosen], measured)
    alike, regrets = [], []
    for places in _alike(table, chosen):
        speeds = throughput[places]
        real = _samples(table, places) / table.step_time_s[places]
        regrets.append((1.0 - real[int(np.argmax(speeds))] / real.max(), len(places)))
        found = _rank(-speeds, -real)
        if np.isfinite(found):
            alike.append((found, len(places)))
    return Score(
        group=group,
        rows=len(chosen),
        assumed=sum(bool(table.rows[place].assumed) for place in chosen),
        relative=relative,
        error=scaled if relative else float(np.mean(np.abs(ratio - 1.0))),
        null_error=float(np.mean(np.abs(null[chosen] / measured - 1.0))),
        scaled_error=scaled,
        level=float(np.median(ratio)),
        rank=rank,
        rank_alike=_weighted(alike),
        regret=_weighted(regrets),
    )


def _weighted(parts: Sequence[tuple[float, int]]) -> float:
    if not parts:
        return float("nan")
    return float(np.average([value for value, _ in parts], weights=[rows for _, rows in parts]))


def _rank(one: Array, other: Array) -> float:
    if len(one) < FEWEST_TO_RANK or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(spearmanr(one, other)[0])


def _samples(table: Table, places: Array) -> Array:
    configurations, cluster = table.configurations, table.cluster
    ranks = configurations.tensor_parallel * configurations.pipeline_parallel * configurations.sequence_parallel
    data = np.maximum(cluster.devices / ranks, 1.0)
    samples = np.asarray(configurations.micro_batch * configurations.accumulation * data)
    return np.asarray(samples[places])


def _alike(table: Table, chosen: Array) -> list[Array]:
    """Return the places of rows that differ in their configuration only: choices that a tuner could have had."""
    sets: dict[tuple[float, ...], list[int]] = {}
    for place in chosen.tolist():
        key = tuple(
            float(column[place])
            for column in (
                np.asarray(table.shape.layers),
                np.asarray(table.shape.hidden),
                np.asarray(table.shape.heads),
                np.asarray(table.shape.sequence),
                np.asarray(table.cluster.devices),
                np.asarray(table.cluster.device.half_flops),
                np.asarray(table.configurations.precision),
            )
        )
        sets.setdefault(key, []).append(place)
    return [np.array(places) for places in sets.values() if len(places) > 1]


def effects_applied(table: Table, times: Array, effects: Mapping[str, float]) -> Array:
    """Return step times with each source's own fitted factor."""
    return times * np.exp([effects.get(group, 0.0) for group in table.groups.tolist()])
