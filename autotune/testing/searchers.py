"""The contract of a searcher, as tests: subclass `SearcherContract` in a test module and give it your searcher.

    class TestMySearcher(SearcherContract):
        def make(self, space, seed):
            return MySearcher(space, seed=seed)

The tests run no trials: scores are made up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.errors import SpaceExhausted
from autotune.searchers.protocol import Searcher
from autotune.space import Categorical, Condition, Float, Integer, SearchSpace
from autotune.trials import Failure, FailureKind, Measurement, Outcome, Point, Trial, TrialState

SPACE = SearchSpace(
    dimensions=(
        Integer(name="zero_optimization.stage", levels=(0, 1, 2, 3), default=0),
        Integer(name="train_micro_batch_size_per_gpu", levels=(1, 2, 4, 8, 16), default=1, log=True),
        Float(name="optimizer.params.lr", levels=(1e-4, 3e-4, 1e-3, 3e-3), default=1e-3, log=True),
        Categorical(name="precision", levels=("fp32", "bf16"), default="fp32"),
        Integer(
            name="zero_optimization.stage3_max_live_parameters",
            levels=(10**7, 10**8, 10**9),
            default=10**9,
            log=True,
            conditions=(Condition(dimension="zero_optimization.stage", allowed=(3,)),),
        ),
    )
)
"""A space with each kind of dimension and a condition; 240 points."""
SMALL_SPACE = SearchSpace(
    dimensions=(
        Integer(name="zero_optimization.stage", levels=(0, 3), default=0),
        Categorical(
            name="zero_optimization.overlap_comm",
            levels=(False, True),
            default=False,
            conditions=(Condition(dimension="zero_optimization.stage", allowed=(3,)),),
        ),
    )
)
"""Three points in a grid of four encodings."""


def finished_trial(number: int, point: Point, score: float | None, *, is_baseline: bool = False) -> Trial:
    """Return a trial as a study would tell it: complete with this R, or failed where `score` is None."""
    measurement = Measurement(
        samples_per_second=100.0 * (score or 1.0),
        samples_per_second_spread=0.02,
        step_time_s=0.1,
        timed_steps=10,
        warmup_steps=2,
        samples_per_step=16,
        training_time_s=1.0,
        held_out_loss_before=5.0,
        held_out_loss_after=4.0,
        convergence_time_s=1.0,
        training_loss_last=4.0,
    )
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, reason="made up")
    outcome = Outcome(failure=failure) if score is None else Outcome(measurement=measurement)
    return Trial(
        number=number,
        state=TrialState.FAIL if score is None else TrialState.COMPLETE,
        is_baseline=is_baseline,
        point=dict(point),
        ds_config={},
        activation_checkpointing=False,
        config_hash=f"{number:016x}",
        outcome=outcome,
        throughput_ratio=score,
        convergence_ratio=score,
        score=score,
    )


def made_up_score(space: SearchSpace, point: Point) -> float | None:
    """Return an R that depends on nothing but the point; about one point in eight fails."""
    digest = hashlib.sha256(json.dumps(space.encode(point)).encode()).digest()
    return None if digest[0] < 32 else 0.5 + digest[1] / 128


class SearcherContract:
    """What every searcher must hold; see `autotune.searchers.Searcher`."""

    def make(self, space: SearchSpace, seed: int) -> Searcher:
        """Return a new searcher of `space`."""
        raise NotImplementedError

    def trials(self, searcher: Searcher, space: SearchSpace, count: int, *, first: int = 1) -> list[Trial]:
        """Let the searcher propose and learn `count` times, numbered from `first`."""
        told = []
        for number in range(first, first + count):
            point = searcher.ask()
            told.append(finished_trial(number, point, made_up_score(space, point)))
            searcher.tell(told[-1])
        return told

    def asked(self, searcher: Searcher, count: int, *, first: int = 1, space: SearchSpace = SPACE) -> list[Trial]:
        """Let the searcher propose `count` times; return the trials as they will have finished, none of them told."""
        points = [searcher.ask() for _ in range(count)]
        return [finished_trial(n, point, made_up_score(space, point)) for n, point in enumerate(points, first)]

    def in_parallel(self, searcher: Searcher, count: int, *, slots: int, first: int = 1) -> list[Trial]:
        """Let the searcher propose and learn `count` times with up to `slots` asks open; return the trials as told.

        Which of the open trials finishes next is drawn, the same at each call.
        """
        generator = np.random.default_rng(slots)
        running: list[Trial] = []
        told: list[Trial] = []
        while len(told) < count:
            free = min(slots, count - len(told)) - len(running)
            running += self.asked(searcher, free, first=first + len(told) + len(running))
            told.append(running.pop(int(generator.integers(len(running)))))
            searcher.tell(told[-1])
        return told

    def baseline(self, space: SearchSpace) -> Trial:
        """Return a baseline at the default of every dimension."""
        point = space.canonical({dimension.name: dimension.default for dimension in space.dimensions})
        return finished_trial(0, point, 1.0, is_baseline=True)

    def test_proposes_canonical_points_and_never_repeats(self) -> None:
        searcher = self.make(SPACE, 0)
        baseline = self.baseline(SPACE)
        searcher.tell(baseline)
        trials = [baseline, *self.trials(searcher, SPACE, 25)]
        for trial in trials:
            SPACE.check(trial.point)
        assert len(_distinct(trials)) == len(trials)

    def test_same_seed_same_proposals(self) -> None:
        runs = []
        for _ in range(2):
            searcher = self.make(SPACE, 7)
            searcher.tell(self.baseline(SPACE))
            runs.append([trial.point for trial in self.trials(searcher, SPACE, 12)])
        assert runs[0] == runs[1]

    def test_another_seed_other_proposals(self) -> None:
        runs = []
        for seed in (1, 2):
            searcher = self.make(SPACE, seed)
            searcher.tell(self.baseline(SPACE))
            runs.append([trial.point for trial in self.trials(searcher, SPACE, 12)])
        assert runs[0] != runs[1]

    @pytest.mark.parametrize("cut", [1, 5, 11])
    def test_restored_searcher_goes_on_exactly(self, cut: int) -> None:
        baseline = self.baseline(SPACE)
        whole = self.make(SPACE, 3)
        whole.restore({}, [baseline])
        expected = self.trials(whole, SPACE, 16)

        first = self.make(SPACE, 3)
        first.restore({}, [baseline])
        begun = self.trials(first, SPACE, cut)
        state = json.loads(json.dumps(dict(first.state())))
        second = self.make(SPACE, 3)
        second.restore(state, [baseline, *begun])
        resumed = begun + self.trials(second, SPACE, 16 - cut, first=cut + 1)
        assert [trial.point for trial in resumed] == [trial.point for trial in expected]

    def test_learns_from_trials_it_never_asked(self) -> None:
        searcher = self.make(SPACE, 0)
        points = list(SPACE.points())[:40]
        for number, point in enumerate(points):
            searcher.tell(finished_trial(number, point, made_up_score(SPACE, point)))
        asked = self.trials(searcher, SPACE, 10, first=len(points))
        assert not [trial for trial in asked if trial.point in points]

    def test_goes_on_when_every_trial_fails(self) -> None:
        searcher = self.make(SPACE, 0)
        points = []
        for number in range(15):
            points.append(searcher.ask())
            searcher.tell(finished_trial(number, points[-1], None))
        assert len({json.dumps(point, sort_keys=True) for point in points}) == 15

    def test_a_baseline_outside_the_space_does_no_harm(self) -> None:
        searcher = self.make(SPACE, 0)
        searcher.tell(finished_trial(0, {}, 1.0, is_baseline=True))
        assert len(self.trials(searcher, SPACE, 3)) == 3

    @pytest.mark.parametrize(("slots", "count"), [(2, 14), (16, 20)])
    def test_open_asks_are_distinct_and_told_in_any_order(self, slots: int, count: int) -> None:
        searcher = self.make(SPACE, 0)
        searcher.tell(self.baseline(SPACE))
        trials = [self.baseline(SPACE), *self.in_parallel(searcher, count, slots=slots)]
        for trial in trials:
            SPACE.check(trial.point)
        assert len(_distinct(trials)) == len(trials) == count + 1

    @pytest.mark.parametrize("cut", [0, 11])
    def test_restored_with_asks_open_goes_on_exactly(self, cut: int) -> None:
        def begin() -> tuple[Searcher, list[Trial], list[Trial]]:
            searcher = self.make(SPACE, 3)
            searcher.restore({}, [self.baseline(SPACE)])
            told = self.in_parallel(searcher, cut, slots=4)
            return searcher, told, self.asked(searcher, 4, first=cut + 1)

        def go_on(searcher: Searcher, open_trials: list[Trial]) -> list[Point]:
            for trial in (open_trials[i] for i in (2, 0, 3, 1)):
                searcher.tell(trial)
            return [trial.point for trial in self.in_parallel(searcher, 3, slots=3, first=cut + 5)]

        whole, _, open_trials = begin()
        expected = go_on(whole, open_trials)
        first, told, open_trials = begin()
        state = json.loads(json.dumps(dict(first.state())))
        second = self.make(SPACE, 3)
        second.restore(state, [self.baseline(SPACE), *sorted(told, key=lambda trial: trial.number)])
        assert go_on(second, open_trials) == expected

    def test_goes_on_without_repeats_where_open_asks_are_lost(self) -> None:
        """Of four open trials the last came in after the state was kept; the others ended with the controller."""
        first = self.make(SPACE, 5)
        first.restore({}, [self.baseline(SPACE)])
        told = self.in_parallel(first, 11, slots=4)
        open_trials = self.asked(first, 4, first=12)
        state = json.loads(json.dumps(dict(first.state())))
        second = self.make(SPACE, 5)
        history = [self.baseline(SPACE), *sorted(told, key=lambda trial: trial.number), open_trials[-1]]
        second.restore(state, history)
        trials = [*history, *self.in_parallel(second, 6, slots=4, first=16)]
        assert len(_distinct(trials)) == len(trials)

    def test_points_of_lost_asks_are_still_reached(self) -> None:
        first = self.make(SMALL_SPACE, 0)
        first.restore({}, [])
        (trial,) = self.trials(first, SMALL_SPACE, 1)
        first.ask()
        second = self.make(SMALL_SPACE, 0)
        second.restore(json.loads(json.dumps(dict(first.state()))), [trial])
        trials = [trial, *self.trials(second, SMALL_SPACE, 2, first=2)]
        assert len(_distinct(trials)) == SMALL_SPACE.count
        with pytest.raises(SpaceExhausted):
            second.ask()

    def test_a_small_space_is_exhausted_while_its_last_points_are_open(self) -> None:
        searcher = self.make(SMALL_SPACE, 0)
        asked = self.asked(searcher, 3, space=SMALL_SPACE)
        assert len(_distinct(asked)) == SMALL_SPACE.count
        for trial in reversed(asked):
            with pytest.raises(SpaceExhausted):
                searcher.ask()
            searcher.tell(trial)
        with pytest.raises(SpaceExhausted):
            searcher.ask()

    def test_proposes_every_point_of_a_small_space_then_says_so(self) -> None:
        searcher = self.make(SMALL_SPACE, 0)
        trials = self.trials(searcher, SMALL_SPACE, SMALL_SPACE.count)
        assert len(_distinct(trials)) == SMALL_SPACE.count == 3
        with pytest.raises(SpaceExhausted, match="3 points"):
            searcher.ask()


def _distinct(trials: Sequence[Trial]) -> set[str]:
    return {json.dumps(dict(trial.point), sort_keys=True) for trial in trials}
