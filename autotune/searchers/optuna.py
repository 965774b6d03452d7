"""Optuna's samplers as searchers: random, TPE, GP, CMA-ES, one class for all of them.

The searcher keeps an Optuna study of its own, in memory, over level indices: equal steps of an index are alike on
the dimension's own scale, and canonical points are proposed whole. Each proposal uses a sampler seeded by (seed,
number of the proposal), so it depends on nothing but the seed and what was told: a resumed study goes on exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial
from threadpoolctl import threadpool_limits

from autotune.errors import SearcherError, SpaceExhausted
from autotune.searchers.protocol import FAILED_SCORE
from autotune.space import Dimension, SearchSpace
from autotune.trials import Point, Trial

_REPEATS_ALLOWED = 3
"""Proposals of known points in a row after which an unknown neighbour of the last one is taken instead."""
_DRAWS_PER_RADIUS = 20

optuna.logging.set_verbosity(optuna.logging.WARNING)

RANDOM = "random"
SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    RANDOM: lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed, multivariate=True),
    "gp": lambda seed: GPSampler(seed=seed),
    "cmaes": lambda seed: CmaEsSampler(seed=seed, with_margin=True),
}


class OptunaSearcher:
    """Proposes by one of Optuna's samplers; implements `autotune.searchers.Searcher`.

    A failed trial counts as `FAILED_SCORE`. What was told enters the sampler's study as the canonical point, so that
    a point has one place in it however it was proposed (but for CMA-ES, which must see its own proposals; random
    search learns nothing, and is told nothing). Where the sampler keeps to known points, an unknown neighbour of its
    proposal is taken.

    Raises:
        SearcherError: when `sampler` is unknown.
    """

    def __init__(self, space: SearchSpace, *, sampler: str = "tpe", seed: int = 0) -> None:
        if sampler not in SAMPLERS:
            raise SearcherError(f"searcher: got {sampler!r}; Optuna's are {', '.join(SAMPLERS)}")
        self._space = space
        self._sampler = sampler
        self._seed = seed
        self._proposals = 0
        self._scores: dict[tuple[int, ...], float] = {}
        self._open: dict[tuple[int, ...], optuna.Trial | None] = {}
        self._distributions = {d.name: _distribution(d, numeric=sampler == "cmaes") for d in space.dimensions}
        with _quiet():
            self._study = optuna.create_study(direction="maximize", sampler=RandomSampler(seed=seed))

    def ask(self) -> Point:
        for _ in range(_REPEATS_ALLOWED):
            trial, encoding = self._propose()
            if self._is_unknown(encoding):
                self._open[encoding] = trial
                return self._space.decode(encoding)
            if trial is not None:
                self._study.tell(trial, state=OptunaState.FAIL)
        return self._neighbour(encoding)

    def tell(self, trial: Trial) -> None:
        if set(trial.point) - set(self._space.names) or not trial.point:
            return
        encoding = self._space.encode(trial.point)
        score = FAILED_SCORE if trial.score is None else trial.score
        self._scores[encoding] = score
        asked = self._open.pop(encoding, None)
        if self._sampler == RANDOM:
            return
        if asked is not None and self._sampler == "cmaes":
            self._study.tell(asked, score)
            return
        if asked is not None:
            self._study.tell(asked, state=OptunaState.FAIL)
        self._study.add_trial(
            create_trial(params=self._parameters(encoding), distributions=self._distributions, value=score)
        )

    def state(self) -> Mapping[str, str]:
        return {"proposals": str(self._proposals)}

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up again: CMA-ES, whose state is its own proposals, is asked anew; the others only learn the history."""
        for trial in history:
            if self._sampler == "cmaes" and trial.point and not trial.is_baseline:
                self.ask()
            self.tell(trial)
        self._proposals = int(state.get("proposals", self._proposals))

    def _propose(self) -> tuple[optuna.Trial | None, tuple[int, ...]]:
        seed = int(np.random.SeedSequence([self._seed, self._proposals]).generate_state(1)[0])
        self._proposals += 1
        if self._sampler == RANDOM:
            return None, self._encoding_of(self._drawn(RandomSampler(seed)))
        # Optuna's GP is many small matrices: with a thread per core a proposal takes ten times as long.
        with _quiet(), threadpool_limits(1):
            self._study.sampler = SAMPLERS[self._sampler](seed)
            trial = self._study.ask(self._distributions)
        return trial, self._encoding_of(trial.params)

    def _drawn(self, sampler: RandomSampler) -> dict[str, Any]:
        """Return what Optuna's `Study.ask` would, which takes longer the more trials there are."""
        trial = create_trial(state=OptunaState.RUNNING)
        return {
            name: 0 if distribution.single() else sampler.sample_independent(self._study, trial, name, distribution)
            for name, distribution in self._distributions.items()
        }

    def _encoding_of(self, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        return self._space.encode(self._space.decode([int(parameters[name]) for name in self._space.names]))

    def _parameters(self, encoding: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._space.names, encoding, strict=True))

    def _neighbour(self, encoding: tuple[int, ...]) -> Point:
        """Return an unknown point as near as chance finds one: one other level, then two, ..., then any left."""
        generator = np.random.default_rng(np.random.SeedSequence([self._seed, self._proposals, 1]))
        self._proposals += 1
        for radius in range(1, len(encoding) + 1):
            for _ in range(_DRAWS_PER_RADIUS):
                indices = list(encoding)
                for position in generator.choice(len(indices), size=radius, replace=False):
                    indices[position] = self._other_level(int(position), indices[position], generator)
                neighbour = self._space.encode(self._space.decode(indices))
                if self._is_unknown(neighbour):
                    return self._opened(neighbour)
        for point in self._space.points():
            if self._is_unknown(self._space.encode(point)):
                return self._opened(self._space.encode(point))
        raise SpaceExhausted(f"all {self._space.count} points of the space have been tried; widen it to go on")

    def _other_level(self, position: int, index: int, generator: np.random.Generator) -> int:
        """Step to a neighbouring level where levels have an order, to any other where they have none."""
        size = self._space.sizes[position]
        if self._space.dimensions[position].is_ordered:
            return int(np.clip(index + generator.choice([-1, 1]), 0, size - 1))
        return int(generator.integers(size))

    def _is_unknown(self, encoding: tuple[int, ...]) -> bool:
        return encoding not in self._scores and encoding not in self._open

    def _opened(self, encoding: tuple[int, ...]) -> Point:
        self._open[encoding] = None
        if self._sampler != RANDOM:
            self._study.enqueue_trial(self._parameters(encoding))
            self._open[encoding] = self._study.ask(self._distributions)
        return self._space.decode(encoding)


def _distribution(dimension: Dimension, *, numeric: bool) -> BaseDistribution:
    """Return the distribution of a dimension's level index; CMA-ES knows numbers only."""
    if dimension.is_ordered or numeric:
        return IntDistribution(0, len(dimension.levels) - 1)
    return CategoricalDistribution(tuple(range(len(dimension.levels))))


class _quiet(warnings.catch_warnings):  # noqa: N801 (a context manager)
    """Silences Optuna's notes that a feature is experimental."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
