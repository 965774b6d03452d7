"""The policy's space as arrays: canonical encodings and the performance model's configurations, many rows at once."""

from __future__ import annotations

import functools
import itertools
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from autotune.performance import Configurations
from autotune.space import Condition, SearchSpace
from autotune_envs.policy_space import policy_space

Rows = NDArray[np.int64]


@functools.cache
def offsets() -> Rows:
    """Return where each dimension's levels begin among all levels; shape (dimensions,)."""
    return np.array([0, *itertools.accumulate(policy_space().sizes)][:-1], dtype=np.int64)


def canonical(encodings: Rows) -> Rows:
    """Return the canonical encodings of level indices, shape (rows, dimensions), as `SearchSpace` has each."""
    space = policy_space()
    found = encodings.copy()
    active = np.ones(found.shape, dtype=np.bool_)
    for place, dimension in enumerate(space.dimensions):
        for condition in dimension.conditions:
            active[:, place] &= _holds(space, condition, found, active)
        for level in reversed(range(1, len(dimension.levels))):  # a level without an effect is the one before it
            for condition in dimension.level_conditions.get(dimension.levels[level], ()):
                falls = (found[:, place] == level) & ~_holds(space, condition, found, active)
                found[falls, place] = level - 1
        found[~active[:, place], place] = dimension.index(dimension.default)
    return found


def configurations(encodings: Rows, *, flash_attention: NDArray[np.float64]) -> Configurations:
    """Return what the performance model judges; encodings have shape (rows, dimensions)."""
    columns = {name: values[encodings[:, place]] for place, name, values in _columns()}
    return Configurations(flash_attention=flash_attention, **columns)


def _holds(space: SearchSpace, condition: Condition, found: Rows, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    other = space.names.index(condition.dimension)
    allowed = np.array([level in condition.allowed for level in space.dimensions[other].levels])
    return np.asarray(allowed[found[:, other]] & active[:, other])


@functools.cache
def _columns() -> tuple[tuple[int, str, NDArray[np.float64]], ...]:
    """Return (place of a dimension, field of `Configurations` that it sets, the field's value at each level)."""
    found = []
    for place, dimension in enumerate(policy_space().dimensions):
        read = Configurations.from_columns({dimension.name: list(dimension.levels)})
        found += [
            (place, field.name, np.asarray(getattr(read, field.name)))
            for field in fields(Configurations)
            if np.ndim(getattr(read, field.name))
        ]
    return tuple(found)
