"""The memory filter holds the searcher's contract in front of any searcher, and refuses what can't fit."""

import json
from dataclasses import replace

import pytest

from autotune.errors import SpaceExhausted
from autotune.performance import ModelShape
from autotune.performance.devices import cluster
from autotune.performance.memory_filter import MemoryFilter
from autotune.searchers.deepspeed_autotuner import DeepSpeedAutotuner
from autotune.searchers.memory_filtered import PATIENCE, MemoryFiltered
from autotune.searchers.optuna import OptunaSearcher
from autotune.searchers.warm_start import WarmStarted
from autotune.space import MICRO_BATCH
from autotune.testing.searchers import SMALL_SPACE, SPACE, SearcherContract, finished_trial
from autotune_envs.training import PpoSearcher

STAGE = "zero_optimization.stage"
SHAPE = ModelShape.from_numbers(layers=24, hidden=2048, heads=16, sequence=1024, vocabulary=50257)
"""GPT-3 XL, 1.3e9 parameters: 21 GB of states in mixed precision at stage 0, and 2.3 GB of activations a sample."""
MACHINES = cluster("A100-SXM-80GB", devices=8)


def judging(memory_bytes):
    """A filter of the priors for devices of so much memory."""
    device = replace(MACHINES.device, memory_bytes=memory_bytes)
    return MemoryFilter.uncalibrated(SHAPE, replace(MACHINES, device=device))


LARGE, SMALL, TINY = judging(80e9), judging(40e9), judging(1e9)


def filtered(searcher, space, judge=SMALL, **more):
    return MemoryFiltered(searcher, space, configured=dict, calibrated=lambda trials: judge, **more)


BASELINE = finished_trial(0, {}, 1.0, is_baseline=True)
"""Outside the space; before any trial nothing is refused."""


def begun(searcher):
    searcher.restore({}, [BASELINE])
    return searcher


def refused(point, judge=SMALL):
    return bool(judge.judge([point]).refused[0])


def test_about_a_third_of_the_space_is_refused_by_the_filter_of_these_tests():
    share = sum(map(refused, SPACE.points())) / SPACE.count
    assert 0.2 < share < 0.5
    assert not any(map(refused, SMALL_SPACE.points()))


class TestFilteredTpe(SearcherContract):
    def make(self, space, seed):
        return filtered(OptunaSearcher(space, sampler="tpe", seed=seed), space)


class TestFilteredRandom(SearcherContract):
    def make(self, space, seed):
        return filtered(OptunaSearcher(space, sampler="random", seed=seed), space)


class TestFilteredCmaEs(SearcherContract):
    def make(self, space, seed):
        return filtered(OptunaSearcher(space, sampler="cmaes", seed=seed), space)


@pytest.mark.slow
class TestFilteredPpo(SearcherContract):
    def make(self, space, seed):
        return filtered(PpoSearcher(space, seed=seed, trial_budget=32), space)


class TestFilteredWarmStart(SearcherContract):
    def make(self, space, seed):
        points = ({STAGE: 0, MICRO_BATCH: 16, "precision": "fp32"}, {STAGE: 3, MICRO_BATCH: 2, "precision": "bf16"})
        return filtered(WarmStarted(OptunaSearcher(space, sampler="tpe", seed=seed), space, points), space)


class TestFilteredDeepSpeedAutotuner:
    """Its own contract's tests choose a seed; here: what is refused goes down as a failure, and it goes on."""

    def test_it_goes_on(self):
        searcher = begun(filtered(DeepSpeedAutotuner(SPACE), SPACE))
        asked = []
        for number in range(1, 20):
            asked.append(searcher.ask())
            searcher.tell(finished_trial(number, asked[-1], 1.0))
        assert not any(map(refused, asked))
        assert len({json.dumps(point, sort_keys=True) for point in asked}) == len(asked)


def test_what_cannot_fit_is_never_proposed_and_told_as_a_failure():
    heard = []
    searcher = begun(filtered(OptunaSearcher(SPACE, sampler="random", seed=0), SPACE, refused=heard.append))
    plain = OptunaSearcher(SPACE, sampler="random", seed=0)
    drawn = [plain.ask() for _ in range(40)]
    asked = [searcher.ask() for _ in range(20)]
    assert asked == [point for point in drawn if not refused(point)][:20]
    assert [each.point for each in heard[-1]] == [point for point in drawn[: drawn.index(asked[-1])] if refused(point)]
    assert heard[-1][0].needed_bytes > 1.1 * heard[-1][0].capacity_bytes == pytest.approx(1.1 * 40e9)


def test_where_all_is_refused_the_least_likely_to_run_out_is_tried():
    searcher = begun(filtered(OptunaSearcher(SPACE, sampler="random", seed=0), SPACE, TINY))
    plain = OptunaSearcher(SPACE, sampler="random", seed=0)
    row = [plain.ask() for _ in range(PATIENCE)]
    needs = TINY.judge(row).optimistic_bytes
    assert searcher.ask() == row[int(needs.argmin())]


def test_a_space_of_which_nothing_fits_is_exhausted():
    searcher = begun(filtered(OptunaSearcher(SMALL_SPACE, sampler="random", seed=0), SMALL_SPACE, TINY))
    with pytest.raises(SpaceExhausted, match=r"3 points .* can't fit in memory"):
        searcher.ask()


def test_it_is_calibrated_after_the_baseline_then_at_half_as_many_more_and_where_a_trial_ran_out():
    made = []

    def calibrated(trials):
        made.append([trial.number for trial in trials])
        return LARGE

    searcher = MemoryFiltered(
        OptunaSearcher(SPACE, sampler="random", seed=0), SPACE, configured=lambda _: AT_RISK, calibrated=calibrated
    )
    for number in range(1, 8):
        searcher.tell(finished_trial(number, {}, 1.0, is_baseline=number == 1))
        searcher.ask()
    assert [len(numbers) for numbers in made] == [1, 2, 3, 5]  # the next at 7.5
    searcher.tell(finished_trial(8, {}, None))
    searcher.ask()
    assert made[-1] == [1, 2, 3, 4, 5, 6, 7, 8]


AT_RISK = {STAGE: 0, MICRO_BATCH: 16, "precision": "bf16"}
"""Of `LARGE`'s 80 GB: in doubt, so that a filter that is not up to date is made anew."""


def test_a_filter_that_sees_no_risk_is_not_made_anew():
    made = []
    searcher = MemoryFiltered(
        OptunaSearcher(SPACE, sampler="random", seed=0),
        SPACE,
        configured=lambda _: {STAGE: 3, MICRO_BATCH: 1, "precision": "bf16"},
        calibrated=lambda trials: made.append(1) or LARGE,
    )
    for number in range(8):
        searcher.tell(finished_trial(number, {}, 1.0))
        searcher.ask()
    assert len(made) == 1


def test_what_was_let_through_and_lost_is_let_through_again():
    first = filtered(OptunaSearcher(SPACE, sampler="tpe", seed=0), SPACE, LARGE)
    first.restore({}, [])
    done, lost = first.ask(), first.ask()
    first.tell(finished_trial(0, done, 1.0))
    second = filtered(OptunaSearcher(SPACE, sampler="tpe", seed=0), SPACE, TINY)
    second.restore(json.loads(json.dumps(dict(first.state()))), [finished_trial(0, done, 1.0)])
    assert refused(lost, TINY)
    assert second.ask() == lost


def test_a_state_that_was_kept_without_the_filter_goes_on_with_it():
    plain = OptunaSearcher(SPACE, sampler="tpe", seed=0)
    done = plain.ask()
    plain.tell(finished_trial(0, done, 1.0))
    searcher = filtered(OptunaSearcher(SPACE, sampler="tpe", seed=0), SPACE)
    searcher.restore(json.loads(json.dumps(dict(plain.state()))), [finished_trial(0, done, 1.0)])
    assert searcher.ask() != done
