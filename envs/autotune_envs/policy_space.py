"""The policy's own space: it knows the levels of the default space, and any like space is mapped onto them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SearcherError
from autotune.hardware import Hardware
from autotune.space import ACCUMULATION, Dimension, SearchSpace
from autotune.trials import Point, Value
from autotune_envs.observation import Encoding
from autotune_spaces import SpaceChanges, build


@functools.cache
def policy_space() -> SearchSpace:
    """Return the default space with all of its levels: what a policy is trained on and speaks of."""
    everything = Hardware(
        accelerator="cuda",
        device_name="any",
        device_count=1,
        device_memory_bytes=0,
        host_memory_bytes=0,
        cpu_count=1,
        ranks=1,
    )
    return build(SpaceChanges(), everything, start={})


class SpaceMapping:
    """Maps a study's space onto the policy's, level by level and by value.

    A level that the policy does not know stands at the nearest one that it knows; a level of the policy's that no level
    of the study's space stands at is masked. A dimension that the study does not search has its fixed or given value.

    Args:
        space: of the study.

    Raises:
        SearcherError: when it has a dimension, or an unordered level, that the policy does not know.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._own = policy_space()
        unknown = [name for name in space.names if name not in self._own.names]
        if unknown:
            raise SearcherError(
                f"searcher ppo: its policy does not know the dimension {unknown[0]}; it was trained on "
                f"{', '.join(self._own.names)}; use ppo-scratch, which takes any space"
            )
        self._places = {d.name: [_place(self._own[d.name], level) for level in d.levels] for d in space.dimensions}

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which levels of the policy's may be proposed, in the order of its logits; shape (levels,)."""
        elsewhere = {**self._space.given, **self._space.fixed}
        if self._space.global_batch is not None:  # accumulation follows from the micro-batch
            elsewhere.pop(ACCUMULATION, None)
        parts = []
        for dimension in self._own.dimensions:
            allowed = np.ones(len(dimension.levels), dtype=np.bool_)
            if dimension.name in self._places:
                allowed[:] = False
                allowed[self._places[dimension.name]] = True
            elif dimension.name in elsewhere:
                allowed[:] = False
                allowed[_place_or_default(dimension, elsewhere[dimension.name])] = True
            parts.append(allowed)
        return np.concatenate(parts)

    def encoding_of(self, point: Point) -> Encoding:
        """Return the policy's encoding of a point of the study's space."""
        settings = {**self._space.given, **self._space.settings(point)}
        indices = [
            _place_or_default(dimension, settings.get(dimension.name, dimension.default))
            for dimension in self._own.dimensions
        ]
        return self._own.encode(self._own.decode(indices))

    def point_of(self, action: Sequence[int], generator: np.random.Generator | None = None) -> dict[str, Value]:
        """Return the canonical point of the study's space that an action of the policy stands for.

        Args:
            action: level indices of the policy's space, none of them masked; shape (dimensions,).
            generator: chooses where several levels stand at one of the policy's; without, the nearest is taken.
        """
        values: dict[str, Value] = {}
        for dimension, index in zip(self._own.dimensions, action, strict=True):
            if dimension.name not in self._places:
                continue
            levels = self._space[dimension.name].levels
            there = [n for n, place in enumerate(self._places[dimension.name]) if place == index]
            if generator is None:
                wanted = dimension.levels[int(index)]
                values[dimension.name] = min((levels[n] for n in there), key=lambda level: _distance(level, wanted))
            else:
                values[dimension.name] = levels[there[int(generator.integers(len(there)))]]
        return self._space.canonical(values)


def _place_or_default(dimension: Dimension, value: Value) -> int:
    try:
        return _place(dimension, value)
    except SearcherError:
        return dimension.index(dimension.default)


def _place(dimension: Dimension, value: Value) -> int:
    """Return the index of the nearest level: equal, or by ratio where both are above 0, else by difference."""
    same = [
        n
        for n, level in enumerate(dimension.levels)
        if level == value and isinstance(level, bool) == isinstance(value, bool)
    ]
    if same:
        return same[0]
    if not dimension.is_ordered or isinstance(value, bool | str):
        raise SearcherError(
            f"searcher ppo: its policy does not know {dimension.name} = {value!r}; it was trained on "
            f"{list(dimension.levels)}; use ppo-scratch, which takes any space"
        )
    distances = [_distance(level, value) for level in dimension.levels]
    return distances.index(min(distances))


def _distance(level: Value, wanted: Value) -> float:
    if level == wanted:
        return 0.0
    if isinstance(level, bool | str) or isinstance(wanted, bool | str):
        return math.inf
    if level > 0 and wanted > 0:
        return abs(math.log(level / wanted))
    return math.inf
