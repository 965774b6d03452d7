"""The searcher: calibrate, condition, climb, propose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.errors import ResourceError, SearcherError, SpaceExhausted, StudyError
from autotune.objective import Objective, Reference
from autotune.performance.arrays import Array
from autotune.performance.calibration import (
    Calibration,
    Parameters,
    Solution,
    calibrate,
    calibration_priors,
    configurations_of,
)
from autotune.performance.expected_scores import Expectation
from autotune.performance.subject import Subject
from autotune.searchers.calibrated.acquisition import History, Judge
from autotune.searchers.calibrated.climbing import Climber, Pool, climb
from autotune.searchers.calibrated.encodings import EncodedSpace
from autotune.searchers.knowledge import ADVICE, StudyKnowledge
from autotune.space import SearchSpace
from autotune.trials import Point, Trial

MEMBERS = 8
"""Of the ensemble, at each proposal."""
ROBUST_MEMBERS = 32
"""Of the ensemble that the first proposal is chosen by."""
SAMPLES = 256
"""Random points among which climbers begin."""
CLIMBERS = 4
"""That climb the expected improvement."""
THOMPSON_CLIMBERS = 4
"""That climb what single members take R to be: their optima are alternatives (Thompson 1933)."""
TRAINING_S = 10.0
"""Training time at which losses are compared, where nothing was measured and the campaign doesn't say it."""

_Encoding = tuple[int, ...]


class CalibratedSearcher:
    """Proposes by the performance model, calibrated to all trials; implements `autotune.searchers.Searcher`.

    First the robust optimum, the point of the best mean R over the ensemble; then the point of the highest expected
    improvement, found by local search.

    Args:
        space: what is searched.
        knowledge: of the study; its `subject` is asked at each `ask` after new trials.
        seed: of the ensembles and of the points at which local search begins.
    """

    def __init__(self, space: SearchSpace, knowledge: StudyKnowledge, *, seed: int = 0) -> None:
        self._space = space
        self._knowledge = knowledge
        self._seed = seed
        self._trials: dict[int, Trial] = {}
        self._open: list[_Encoding] = []
        self._lost: list[_Encoding] = []
        self._solution: Solution | None = None
        self._fit: _Fit | None = None
        self._encoded: EncodedSpace | None = None

    def ask(self) -> Point:
        while self._lost:
            lost = self._lost.pop(0)
            if lost in self._open:
                return self._space.decode(lost)
        known = {*self._open, *(self._space.encode(trial.point) for trial in self._inside())}
        if len(known) >= self._space.count:
            raise SpaceExhausted(f"all {self._space.count} points of the space have been tried; widen it to go on")
        encoding = self._next(known)
        self._open.append(encoding)
        return self._space.decode(encoding)

    def tell(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        self._fit = None
        if _is_inside(trial, self._space):
            encoding = self._space.encode(trial.point)
            if encoding in self._open:
                self._open.remove(encoding)

    def state(self) -> Mapping[str, str]:
        """Return the open asks, and where the last calibration ended, for the next to begin there."""
        solution = self._solution
        ended = None if solution is None else {"mean": solution.mean, "noise": dict(solution.noise)}
        return {"open": json.dumps(self._open), "solution": json.dumps(ended)}

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up the open asks and the last calibration, and hear of the trials.

        Raises:
            SearcherError: when another searcher kept the state.
        """
        if state and set(state) != {"open", "solution"}:
            raise SearcherError(
                f"searcher state: got {', '.join(sorted(state))}; it must be open and solution: another searcher kept "
                f"it; start a new study"
            )
        self._open = [tuple(encoding) for encoding in json.loads(state.get("open", "[]"))]
        ended = json.loads(state.get("solution", "null"))
        if ended is not None and len(ended["mean"]) == len(calibration_priors(is_cpu=False)):  # else another version's
            self._solution = Solution(mean=tuple(ended["mean"]), noise=ended["noise"])
        for trial in history:
            self.tell(trial)
        self._lost = list(self._open)

    def _run(self) -> list[Trial]:
        """Return the trials told that ran, by number: a refusal of the memory filter is the model's own word."""
        return [trial for number, trial in sorted(self._trials.items()) if number >= 0]

    def _inside(self) -> list[Trial]:
        """Return the trials told whose points are the space's, by number."""
        return [trial for _, trial in sorted(self._trials.items()) if _is_inside(trial, self._space)]

    def _next(self, known: set[_Encoding]) -> _Encoding:
        fit = self._fitted()
        space = fit.space
        generator = np.random.default_rng(np.random.SeedSequence([self._seed, len(known)]))
        history = self._history(space)
        is_first = not len(history.open) and all(trial.is_baseline for trial in self._run())
        members = ROBUST_MEMBERS if is_first else MEMBERS
        judge = Judge(space, fit.expectation(members, generator), fit.objective, history)
        pool = Pool(judge.robust if is_first else judge.improvement)
        pool.add(space.sample(generator, SAMPLES))
        if len(history.scored):
            best = history.scored[np.argsort(-history.scores, kind="stable")[:2]]
            pool.add(space.neighbours(best))
        values = pool.values
        tops = np.argsort(-values[-1], kind="stable")[:CLIMBERS]
        climbers = [Climber(int(place), members) for place in tops]
        climbers += [Climber(int(np.argmax(values[member])), member) for member in range(THOMPSON_CLIMBERS)]
        ends = climb(space, pool, climbers)
        climb(space, pool, [replace(each, objective=members) for each in ends])
        order = np.lexsort((-pool.values[:-1].mean(axis=0), -pool.values[-1]))
        candidates = pool.encodings
        for place in order:
            encoding = tuple(int(level) for level in candidates[place])
            if encoding not in known:
                return encoding
        return next(code for code in map(self._space.encode, self._space.points()) if code not in known)

    def _fitted(self) -> _Fit:
        """Return what all trials told come to; made anew once one was told."""
        if self._fit is not None:
            return self._fit
        trials = self._run()
        try:
            subject = self._knowledge.subject(trials)
        except (StudyError, ResourceError) as error:
            raise SearcherError(f"searcher: calibrated needs the performance model: {error}; {ADVICE}") from error
        space = self._encoded or EncodedSpace(
            self._space,
            self._knowledge.ds_config,
            activation_checkpointing=self._knowledge.activation_checkpointing,
            world_size=self._knowledge.world_size,
            fixed=subject.fixed,
        )
        self._encoded = space
        calibration: Calibration | None = None
        try:
            calibration = calibrate(
                trials,
                subject.shape,
                subject.cluster,
                prior=self._knowledge.prior,
                begin=self._solution,
                **subject.fixed,
            )
            self._solution = calibration.solution
        except StudyError:
            pass  # no trial tells anything yet: the priors alone
        first = next((trial for trial in trials if trial.measurement is not None), None)
        self._fit = _Fit(subject, space, calibration, self._knowledge, first)
        return self._fit

    def _history(self, space: EncodedSpace) -> History:
        inside = [trial for trial in self._run() if _is_inside(trial, self._space)]
        scored = [trial for trial in inside if trial.score is not None]
        failed = [trial for trial in inside if trial.failure is not None]

        def rows(encodings: Sequence[_Encoding]) -> Array:
            return np.array(encodings, dtype=np.int16).reshape(len(encodings), len(self._space.dimensions))

        return History(
            scored=rows([self._space.encode(trial.point) for trial in scored]),
            scores=np.array([float(trial.score or 0.0) for trial in scored]),
            ratios=np.array(
                [[trial.throughput_ratio or 0.0, trial.convergence_ratio or 0.0] for trial in scored]
            ).T.reshape(2, len(scored)),
            failed=rows([self._space.encode(trial.point) for trial in failed]),
            open=rows(self._open),
        )


class _Fit:
    """What all trials told come to: the calibration, and what R is relative to."""

    def __init__(
        self,
        subject: Subject,
        space: EncodedSpace,
        calibration: Calibration | None,
        knowledge: StudyKnowledge,
        first: Trial | None,
    ) -> None:
        self.space = space
        self._subject = subject
        self._calibration = calibration
        self._prior = knowledge.prior
        self.objective = knowledge.objective
        self._convergence_at_s = knowledge.training_s or TRAINING_S
        self._reference = space.start
        if first is not None and first.measurement is not None:
            self._convergence_at_s = first.measurement.convergence_time_s
            self._reference = configurations_of([first], **subject.fixed)
            learnt = Reference.of(first.measurement).convergence_per_second is not None
            if not learnt and self.objective.alpha > 0:  # `Objective.score` leaves the term out then
                self.objective = Objective(alpha=self.objective.alpha, beta=0.0)

    def expectation(self, members: int, generator: np.random.Generator) -> Expectation:
        """Return what an ensemble drawn from the posterior expects."""
        seed = int(generator.integers(2**32))
        if self._calibration is not None:
            parameters = self._calibration.ensemble(members, seed=seed)
        else:
            is_cpu = bool(np.all(np.asarray(self._subject.cluster.device.is_cpu) > 0))
            prior = self._prior or calibration_priors(is_cpu=is_cpu)
            parameters = Parameters.sample(prior, members, seed=seed)
        return Expectation(
            self._subject,
            parameters,
            reference=self._reference,
            convergence_at_s=self._convergence_at_s,
            objective=self.objective,
        )


def _is_inside(trial: Trial, space: SearchSpace) -> bool:
    return bool(trial.point) and not set(trial.point) - set(space.names)
