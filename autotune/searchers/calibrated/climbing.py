"""Local search for several objectives at once: each climber moves to its best neighbour, all share what they see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.performance.arrays import Array
from autotune.searchers.calibrated.encodings import EncodedSpace

ROUNDS = 24
"""Moves of a climber at most, twice as many as the default space has dimensions."""


class Pool:
    """Points judged so far, each once.

    Args:
        judge: returns, for encodings, one row of values per objective: shape (objectives, points), higher is better.
    """

    def __init__(self, judge: Callable[[Array], Array]) -> None:
        self._judge = judge
        self._places: dict[bytes, int] = {}
        self._encodings: list[Array] = []
        self._values: list[Array] = []

    def add(self, encodings: Array) -> Array:
        """Judge what is new, and return each encoding's place in the pool."""
        keys = [row.tobytes() for row in np.ascontiguousarray(encodings)]
        new = []
        for row, key in enumerate(keys):
            if key not in self._places:
                self._places[key] = len(self._places)
                new.append(row)
        if new:
            self._encodings.append(encodings[new])
            self._values.append(self._judge(encodings[new]))
        return np.array([self._places[key] for key in keys])

    @property
    def encodings(self) -> Array:
        """Shape (points, dimensions)."""
        self._encodings = [np.concatenate(self._encodings)]
        return self._encodings[0]

    @property
    def values(self) -> Array:
        """Shape (objectives, points)."""
        self._values = [np.concatenate(self._values, axis=1)]
        return self._values[0]


@dataclass(frozen=True, slots=True)
class Climber:
    """Where it is in the pool, and which objective it climbs."""

    place: int
    objective: int


def climb(space: EncodedSpace, pool: Pool, climbers: Sequence[Climber]) -> list[Climber]:
    """Return the climbers at their local optima; all that was looked at on the way is in the pool."""
    done: list[Climber] = []
    going = list(dict.fromkeys(climbers))
    for _ in range(ROUNDS):
        if not going:
            break
        encodings = pool.encodings[[each.place for each in going]]
        neighbours = pool.add(space.neighbours(encodings)).reshape(len(going), -1)
        values, moved = pool.values, []
        for climber, places in zip(going, neighbours, strict=True):
            at = values[climber.objective]
            best = int(places[np.argmax(at[places])])
            if at[best] > at[climber.place]:
                moved.append(Climber(best, climber.objective))
            else:
                done.append(climber)
        going = list(dict.fromkeys(moved))
    return done + going
