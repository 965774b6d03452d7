"""A search space for thousands of points at once: encodings made canonical, and what the performance model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np

from autotune import dotted
from autotune import ds_config as config_file
from autotune.performance.arrays import Array, Numbers
from autotune.performance.configurations import Configurations
from autotune.space import ACCUMULATION, MICRO_BATCH, Condition, Dimension, SearchSpace
from autotune.trials import Value

_OVERLAP = "zero_optimization.overlap_comm"
_FIELDS = tuple(field.name for field in fields(Configurations))


class EncodedSpace:
    """Encodings are rows of level indices, shape (points, dimensions), dtype int16.

    A trial's configuration is the start's with the point's settings laid over it (`Study.request`). Each setting
    decides some fields of `Configurations` by itself, so one table of them by level serves all points.

    Args:
        space: what is searched.
        ds_config: the starting configuration, whole and concrete.
        activation_checkpointing: whether the training recomputes activations at the start.
        world_size: data-parallel ranks of one trial.
        fixed: fields of `Configurations` that no setting says (`Subject.fixed`).
    """

    def __init__(
        self,
        space: SearchSpace,
        ds_config: Mapping[str, Any],
        *,
        activation_checkpointing: bool,
        world_size: int,
        fixed: Mapping[str, Numbers],
    ) -> None:
        self._space = space
        self._start = ds_config
        self._checkpointing = activation_checkpointing
        self._world_size = world_size
        self._fixed = fixed
        self._defaults = np.array([each.index(each.default) for each in space.dimensions], dtype=np.int16)
        self._changes = np.array(
            [(place, level) for place, size in enumerate(space.sizes) for level in range(size)], dtype=np.int16
        )
        self._places = {name: place for place, name in enumerate(space.names)}
        self._tables = [self._table(dimension) for dimension in space.dimensions]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._space.sizes

    def encode(self, point: Mapping[str, Value]) -> Array:
        """Return the encoding of one point, shape (dimensions,)."""
        return np.array(self._space.encode(point), dtype=np.int16)

    def canonical(self, encodings: Array) -> Array:
        """Return the canonical encodings that level indices stand for, as `SearchSpace.decode` and `encode` do."""
        return self._canonical(encodings)[0]

    def sample(self, generator: np.random.Generator, count: int) -> Array:
        """Return the canonical encodings of level indices drawn uniformly."""
        drawn = generator.integers(self._space.sizes, size=(count, len(self._space.sizes)))
        return self.canonical(drawn.astype(np.int16))

    def neighbours(self, encodings: Array) -> Array:
        """Return all that differs from one of the encodings by one level, and the encodings; rows may repeat."""
        count = len(self._changes)
        rows = np.repeat(encodings, count, axis=0)
        changes = np.tile(self._changes, (len(encodings), 1))
        rows[np.arange(len(rows)), changes[:, 0]] = changes[:, 1]
        return self.canonical(rows)

    def indicators(self, encodings: Array) -> Array:
        """Return a column for each level of each dimension, 1 where it is taken, else 0; shape (points, levels)."""
        sizes = self._space.sizes
        found = np.zeros((len(encodings), sum(sizes)))
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        found[np.arange(len(encodings))[:, None], begins + encodings] = 1.0
        return found

    @cached_property
    def distances(self) -> tuple[Array, ...]:
        """By dimension, how far apart two levels are, shape (levels, levels).

        From end to end an ordered dimension is 1 long; any two levels of one without order are 1 apart.
        """
        found = []
        for dimension in self._space.dimensions:
            places = np.arange(len(dimension.levels))
            apart = np.abs(places[:, None] - places[None, :]) / max(len(places) - 1, 1)
            found.append(apart if dimension.is_ordered else np.where(apart > 0, 1.0, 0.0))
        return tuple(found)

    def configurations(self, encodings: Array) -> Configurations:
        """Return what the performance model reads of canonical or any other encodings."""
        encodings, active = self._canonical(encodings)
        columns: dict[str, Array] = {}
        for place, table in enumerate(self._tables):
            for name, by_level in table.items():
                before = columns[name] if name in columns else self._unset(name, columns, len(encodings))
                columns[name] = np.where(active[:, place], by_level[encodings[:, place]], before)
        if "overlap_comm" not in columns:
            columns["overlap_comm"] = self._unset("overlap_comm", columns, len(encodings))
        constant = {name: getattr(self.start, name)[0] for name in _FIELDS if name not in columns}
        return Configurations(**constant, **columns)

    def _unset(self, name: str, columns: Mapping[str, Array], count: int) -> Array:
        """Return a field of the start. Where nobody says whether to overlap, DeepSpeed does at stage 3."""
        if name == "overlap_comm" and dotted.get(self._laid_over({}), _OVERLAP) in (None, config_file.AUTO):
            stage = columns.get("stage", self.start.stage)
            return np.broadcast_to(np.where(stage == 3, 1.0, 0.0), count)
        return np.broadcast_to(getattr(self.start, name), count)

    @cached_property
    def start(self) -> Configurations:
        """Return the start with the fixed settings, one row."""
        flat = {**dotted.leaves(self._laid_over({})), config_file.ACTIVATION_CHECKPOINTING: self._checkpoints({})}
        found = Configurations.from_points([flat], **self._fixed)
        return Configurations(**{name: np.reshape(getattr(found, name), -1)[:1] for name in _FIELDS})

    def _laid_over(self, point: Mapping[str, Value]) -> dict[str, Any]:
        return config_file.build(self._start, self._space.settings(point), world_size=self._world_size)

    def _checkpoints(self, point: Mapping[str, Value]) -> bool:
        return bool(self._space.settings(point).get(config_file.ACTIVATION_CHECKPOINTING, self._checkpointing))

    def _table(self, dimension: Dimension) -> dict[str, Array]:
        """Return the fields that a dimension decides, each with one number per level.

        Only the dimension's own keys are read over a background of NaN: what stays NaN at every level is not decided;
        at some, its key is gone from the configuration, and DeepSpeed's default holds. What a stage means for
        overlapping depends on the other settings: see `_unset`.
        """
        keys = {dimension.name, *config_file.keys_of(dimension.name)}
        if dimension.name == MICRO_BATCH and self._space.global_batch is not None:
            keys.add(ACCUMULATION)
        rows = []
        for level in dimension.levels:
            point = {dimension.name: level}
            flat = dotted.leaves(self._laid_over(point))
            flat[config_file.ACTIVATION_CHECKPOINTING] = self._checkpoints(point)
            rows.append({key: value for key, value in flat.items() if key in keys})
        found = Configurations.from_points(rows, **dict.fromkeys(_FIELDS, np.nan))
        columns = {name: np.broadcast_to(getattr(found, name), len(rows)) for name in _FIELDS}
        defaults = Configurations()
        return {
            name: np.where(np.isnan(column), getattr(defaults, name), column)
            for name, column in columns.items()
            if not np.all(np.isnan(column)) and (name != "overlap_comm" or dimension.name == _OVERLAP)
        }

    def _canonical(self, encodings: Array) -> tuple[Array, Array]:
        """Return canonical encodings, and which dimensions have an effect: boolean, of the same shape."""
        found = np.array(encodings, dtype=np.int16)
        active = np.ones(found.shape, dtype=bool)
        for place, dimension in enumerate(self._space.dimensions):
            for condition in dimension.conditions:
                active[:, place] &= self._holds(condition, found, active)
            if dimension.level_conditions:
                # The last level up to the one given that has an effect; the first always counts.
                allowed = np.zeros(len(found), dtype=np.int16)
                for index, level in enumerate(dimension.levels):
                    holds = index <= found[:, place]
                    for condition in dimension.level_conditions.get(level, ()):
                        holds &= self._holds(condition, found, active)
                    allowed[holds] = index
                found[:, place] = allowed
            found[:, place] = np.where(active[:, place], found[:, place], self._defaults[place])
        return found, active

    def _holds(self, condition: Condition, encodings: Array, active: Array) -> Array:
        place = self._places.get(condition.dimension)
        if place is None:
            holds = condition.holds({**self._space.given, **self._space.fixed})
            return np.full(len(encodings), holds)
        levels = self._space.dimensions[place].levels
        allowed = np.array([level in condition.allowed for level in levels])
        return np.asarray(allowed[encodings[:, place]] & active[:, place])
