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

    def test_two_asks_may_be_open(self) -> None:
        searcher = self.make(SPACE, 0)
        searcher.tell(self.baseline(SPACE))
        for number in range(1, 9, 2):
            one, two = searcher.ask(), searcher.ask()
            assert one != two
            searcher.tell(finished_trial(number, two, made_up_score(SPACE, two)))
            searcher.tell(finished_trial(number + 1, one, made_up_score(SPACE, one)))

    def test_proposes_every_point_of_a_small_space_then_says_so(self) -> None:
        searcher = self.make(SMALL_SPACE, 0)
        trials = self.trials(searcher, SMALL_SPACE, SMALL_SPACE.count)
        assert len(_distinct(trials)) == SMALL_SPACE.count == 3
        with pytest.raises(SpaceExhausted, match="3 points"):
            searcher.ask()


def _distinct(trials: Sequence[Trial]) -> set[str]:
    return {json.dumps(dict(trial.point), sort_keys=True) for trial in trials}
