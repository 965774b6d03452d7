"""A warm start: given points are proposed first, then what another searcher proposes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from autotune.errors import SearcherError, SpaceError
from autotune.searchers.protocol import Searcher
from autotune.space import SearchSpace
from autotune.trials import Point, Trial

_OPEN = "warm_start_open"

_Encoding = tuple[int, ...]


class WarmStarted:
    """Proposes given points before another searcher's; implements `autotune.searchers.Searcher`.

    The other searcher is told of all trials, and learns from these points as from any that it never asked.

    Args:
        searcher: new, of the same space.
        space: what is searched.
        points: in order. Settings that the space does not search are left out of them, and dimensions that they don't
            name are as in the baseline. A point with a level that the space does not have is skipped, and so is one
            that comes to the same as an earlier one.
    """

    def __init__(self, searcher: Searcher, space: SearchSpace, points: Sequence[Point]) -> None:
        self._searcher = searcher
        self._space = space
        self._points = points
        self._start: Point = {}
        self._told: set[_Encoding] = set()
        self._open: list[_Encoding] = []
        self._lost: list[_Encoding] = []

    def ask(self) -> Point:
        while self._lost:
            lost = self._lost.pop(0)
            if lost in self._open:
                return self._space.decode(lost)
        for encoding in self._encodings():
            if encoding not in self._told and encoding not in self._open:
                self._open.append(encoding)
                return self._space.decode(encoding)
        while True:
            point = self._searcher.ask()
            if self._space.encode(point) not in self._open:
                return point

    def tell(self, trial: Trial) -> None:
        self._hear(trial)
        self._searcher.tell(trial)

    def state(self) -> Mapping[str, str]:
        """Return the searcher's state, and which of the given points are open."""
        return {**self._searcher.state(), _OPEN: json.dumps(self._open)}

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up where both were.

        Raises:
            SearcherError: when the state was kept without a warm start, or is another searcher's.
        """
        if state and _OPEN not in state:
            raise SearcherError("searcher state: it was kept without a warm start; start a new study")
        self._open = [tuple(encoding) for encoding in json.loads(state.get(_OPEN, "[]"))]
        for trial in history:
            self._hear(trial)
        self._lost = list(self._open)
        self._searcher.restore({name: text for name, text in state.items() if name != _OPEN}, history)

    def _hear(self, trial: Trial) -> None:
        if not trial.point or set(trial.point) - set(self._space.names):
            return
        encoding = self._space.encode(trial.point)
        if trial.is_baseline:
            self._start = trial.point
        self._told.add(encoding)
        if encoding in self._open:
            self._open.remove(encoding)

    def _encodings(self) -> list[_Encoding]:
        """Return the given points that the space has."""
        encodings = []
        for point in self._points:
            values = {d.name: point.get(d.name, self._start.get(d.name, d.default)) for d in self._space.dimensions}
            try:
                encodings.append(self._space.encode(self._space.canonical(values)))
            except SpaceError:
                continue
        return encodings
