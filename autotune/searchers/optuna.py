"""Optuna's samplers as searchers: random, TPE, GP, CMA-ES, one class for all of them.

The searcher keeps an Optuna study of its own, in memory, over level indices: equal steps of an index are alike on
the dimension's own scale, and canonical points are proposed whole. Each proposal uses a sampler seeded by (seed,
number of the proposal), so it depends on nothing but the seed, what was told and what is open: a resumed study goes on
exactly.

Open asks are RUNNING trials of that study, so that the samplers reckon with them (Optuna 5):

- TPE: `constant_liar`. They count among the bad trials, wherever their score may turn out. The lie is the constant liar
  of Ginsbourger, Le Riche, Carraro (2010), "Kriging Is Well-Suited to Parallelize Optimization", section 4.2.
- GP: `qLogEI`, the expected improvement of the open points and the new one together, by Monte Carlo over the
  posterior; one new point at a time, the open ones held. Ament et al. (2023), "Unexpected Improvements to Expected
  Improvement for Bayesian Optimization", section 4.2.
- CMA-ES: a generation is drawn from one distribution, so its members don't need to know of each other. Those told after
  their generation was complete are recorded, and not learnt from.
- random: only told and open points are left out.
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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
_STATE = {"proposals", "told", "open"}
_NOT_KEPT = -1
"""Number of an ask that has no trial in the sampler's study."""

_Encoding: TypeAlias = tuple[int, ...]

optuna.logging.set_verbosity(optuna.logging.WARNING)

RANDOM = "random"
SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    RANDOM: lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed, multivariate=True, constant_liar=True),
    "gp": lambda seed: GPSampler(seed=seed),
    "cmaes": lambda seed: CmaEsSampler(seed=seed, with_margin=True),
}


@dataclass(frozen=True, slots=True)
class _Ask:
    """An open ask."""

    number: int
    """Of its trial in the sampler's study."""
    proposals: int
    """How many the searcher had made, this one included."""


class OptunaSearcher:
    """Proposes by one of Optuna's samplers; implements `autotune.searchers.Searcher`.

    A failed trial counts as `FAILED_SCORE`. What was told enters the sampler's study as the canonical point, so that
    a point has one place in it however it was proposed (but for CMA-ES, which must see its own proposals). Where
    the sampler keeps to known points, an unknown neighbour of its proposal is taken. Random search looks at nothing
    that was told, so nothing of it enters the sampler's study, and a proposal takes the same time after any number.

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
        self._scores: dict[_Encoding, float] = {}
        self._told: list[list[int]] = []
        self._open: dict[_Encoding, _Ask] = {}
        self._lost: deque[_Encoding] = deque()
        self._distributions = {d.name: _distribution(d, numeric=sampler == "cmaes") for d in space.dimensions}
        with _quiet():
            self._study = optuna.create_study(direction="maximize", sampler=RandomSampler(seed=seed))

    def ask(self) -> Point:
        while self._lost:
            lost = self._lost.popleft()
            if lost in self._open:
                return self._space.decode(lost)
        if len(self._scores) + len(self._open) >= self._space.count:
            raise SpaceExhausted(f"all {self._space.count} points of the space have been tried; widen it to go on")
        for _ in range(_REPEATS_ALLOWED):
            number, encoding = self._propose()
            if self._is_unknown(encoding):
                if self._sampler != "cmaes":
                    self._discard(number)
                    number = self._add(encoding, state=OptunaState.RUNNING)
                self._open[encoding] = _Ask(number, self._proposals)
                return self._space.decode(encoding)
            self._discard(number)
        return self._neighbour(encoding)

    def tell(self, trial: Trial) -> None:
        encoding = self._encoding(trial)
        if encoding is None:
            return
        score = FAILED_SCORE if trial.score is None else trial.score
        self._scores[encoding] = score
        if self._sampler != RANDOM:
            _note(self._told, trial.number, self._proposals)
        asked = self._open.pop(encoding, None)
        if asked is not None and self._sampler == "cmaes":
            self._study.tell(asked.number, score)
            return
        if asked is not None:
            self._discard(asked.number)
        self._add(encoding, state=OptunaState.COMPLETE, value=score)

    def state(self) -> Mapping[str, str]:
        """Return the number of proposals, the told trials, and the open asks, each with the proposals before it."""
        return {
            "proposals": str(self._proposals),
            "told": json.dumps(self._told),
            "open": json.dumps([(encoding, ask.proposals) for encoding, ask in self._open.items()]),
        }

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Repeat asks and tells in the order they were in: CMA-ES is asked anew, the others are given what they asked.

        Raises:
            SearcherError: when another searcher, or an earlier version of this one, kept the state.
        """
        if state and set(state) != _STATE:
            raise SearcherError(
                f"searcher state: got {', '.join(sorted(state))}; it must be {', '.join(sorted(_STATE))}: another "
                f"searcher or version kept it; start a new study"
            )
        opened = deque((tuple(encoding), made) for encoding, made in json.loads(state.get("open", "[]")))
        trials = {trial.number: trial for trial in history}
        told = [(number, made) for number, made in _unpacked(json.loads(state.get("told", "[]"))) if number in trials]
        for number, made in told:
            self._advance(made, opened)
            self.tell(trials[number])
        self._advance(int(state.get("proposals", 0)), opened)
        known = {number for number, _ in told}
        for trial in (trial for trial in history if trial.number not in known):
            if self._sampler == "cmaes" and not trial.is_baseline and self._encoding(trial) not in self._open:
                self.ask()
            self.tell(trial)
        self._lost.extend(self._open)

    def _advance(self, proposals: int, opened: deque[tuple[_Encoding, int]]) -> None:
        """Go on to where so many proposals had been made; `opened` holds the asks that are open still."""
        while self._sampler == "cmaes" and self._proposals < proposals:
            self.ask()
        while self._sampler != "cmaes" and opened and opened[0][1] <= proposals:
            encoding, made = opened.popleft()
            self._open[encoding] = _Ask(self._add(encoding, state=OptunaState.RUNNING), made)
        self._proposals = proposals

    def _propose(self) -> tuple[int, _Encoding]:
        seed = int(np.random.SeedSequence([self._seed, self._proposals]).generate_state(1)[0])
        self._proposals += 1
        if self._sampler == RANDOM:
            return _NOT_KEPT, self._encoding_of(self._drawn(RandomSampler(seed)))
        # Optuna's GP is many small matrices: with a thread per core a proposal takes ten times as long.
        with _quiet(), threadpool_limits(1):
            self._study.sampler = SAMPLERS[self._sampler](seed)
            trial = self._study.ask(self._distributions)
        return trial.number, self._encoding_of(trial.params)

    def _drawn(self, sampler: RandomSampler) -> dict[str, Any]:
        """Return what Optuna's `Study.ask` would, which takes longer the more trials there are."""
        trial = create_trial(state=OptunaState.RUNNING)
        return {
            name: 0 if distribution.single() else sampler.sample_independent(self._study, trial, name, distribution)
            for name, distribution in self._distributions.items()
        }

    def _encoding_of(self, parameters: Mapping[str, Any]) -> _Encoding:
        return self._space.encode(self._space.decode([int(parameters[name]) for name in self._space.names]))

    def _parameters(self, encoding: _Encoding) -> dict[str, int]:
        return dict(zip(self._space.names, encoding, strict=True))

    def _add(self, encoding: _Encoding, *, state: OptunaState, value: float | None = None) -> int:
        """Add a trial to the sampler's study; return its number."""
        if self._sampler == RANDOM:
            return _NOT_KEPT
        parameters, distributions = self._parameters(encoding), self._distributions
        self._study.add_trial(create_trial(params=parameters, distributions=distributions, state=state, value=value))
        return self._study.get_trials(deepcopy=False)[-1].number

    def _discard(self, number: int) -> None:
        """End a trial of the sampler's study that is not to be learnt from."""
        if number != _NOT_KEPT:
            self._study.tell(number, state=OptunaState.FAIL)

    def _neighbour(self, encoding: _Encoding) -> Point:
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
        return self._opened(
            next(code for code in map(self._space.encode, self._space.points()) if self._is_unknown(code))
        )

    def _other_level(self, position: int, index: int, generator: np.random.Generator) -> int:
        """Step to a neighbouring level where levels have an order, to any other where they have none."""
        size = self._space.sizes[position]
        if self._space.dimensions[position].is_ordered:
            return int(np.clip(index + generator.choice([-1, 1]), 0, size - 1))
        return int(generator.integers(size))

    def _is_unknown(self, encoding: _Encoding) -> bool:
        return encoding not in self._scores and encoding not in self._open

    def _encoding(self, trial: Trial) -> _Encoding | None:
        """Return the level indices of a trial; None where its configuration lies outside the space."""
        if set(trial.point) - set(self._space.names) or not trial.point:
            return None
        return self._space.encode(trial.point)

    def _opened(self, encoding: _Encoding) -> Point:
        if self._sampler == "cmaes":
            self._study.enqueue_trial(self._parameters(encoding))
            number = self._study.ask(self._distributions).number
        else:
            number = self._add(encoding, state=OptunaState.RUNNING)
        self._open[encoding] = _Ask(number, self._proposals)
        return self._space.decode(encoding)


def _note(runs: list[list[int]], number: int, proposals: int) -> None:
    """Add a told trial to runs of [number, proposals, length], in which both go up by one.

    They are kept after every trial, so they must not grow with each: told in order, ten thousand trials are one run.
    """
    if runs and [number, proposals] == [runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]]:
        runs[-1][2] += 1
    else:
        runs.append([number, proposals, 1])


def _unpacked(runs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [(number + step, proposals + step) for number, proposals, length in runs for step in range(length)]


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
