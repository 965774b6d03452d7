"""Optuna's samplers hold the searcher's contract."""

import json

import numpy as np
import pytest

from autotune.errors import SearcherError
from autotune.searchers.optuna import SAMPLERS, OptunaSearcher
from autotune.space import Categorical, Integer, SearchSpace
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial


class TestRandom(SearcherContract):
    def make(self, space, seed):
        return OptunaSearcher(space, sampler="random", seed=seed)


class TestTpe(SearcherContract):
    def make(self, space, seed):
        return OptunaSearcher(space, sampler="tpe", seed=seed)


@pytest.mark.slow  # seconds a proposal while asks are open; the other samplers take the same ways
class TestGp(SearcherContract):
    def make(self, space, seed):
        return OptunaSearcher(space, sampler="gp", seed=seed)


class TestCmaEs(SearcherContract):
    def make(self, space, seed):
        return OptunaSearcher(space, sampler="cmaes", seed=seed)


def test_an_unknown_sampler_is_refused_with_the_known_ones():
    with pytest.raises(SearcherError, match="got 'bayes'; Optuna's are random, tpe, gp, cmaes"):
        OptunaSearcher(SPACE, sampler="bayes")


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"random"}))
def test_finds_more_than_chance_where_one_level_decides(sampler):
    """R depends on the micro-batch alone: after 40 trials most proposals should take the best one."""
    searcher = OptunaSearcher(SPACE, sampler=sampler, seed=0)
    points = []
    for number in range(40):
        point = searcher.ask()
        points.append(point)
        searcher.tell(finished_trial(number, point, point["train_micro_batch_size_per_gpu"] / 16))
    late = [point["train_micro_batch_size_per_gpu"] == 16 for point in points[20:]]
    assert sum(late) > 8, sampler  # chance is 1 in 5 of 20


TWENTY_FOUR = SearchSpace(
    dimensions=(
        Integer(name="number", levels=(0, 1, 2, 3, 4, 5), default=0),
        Categorical(name="category", levels=("a", "b", "c", "d"), default="a"),
    )
)


def peaked_history(count):
    """Return trials at random points, the better the nearer to one point."""
    generator = np.random.default_rng(0)
    codes = dict.fromkeys(SPACE.encode(SPACE.sample(generator)) for _ in range(2 * count))
    best = (2, 3, 2, 1, 2)
    return [
        finished_trial(number, SPACE.decode(code), 2 - 0.2 * sum(abs(a - b) for a, b in zip(code, best, strict=True)))
        for number, code in enumerate(list(codes)[:count])
    ]


def drawn(sampler, seeds, *, history, open_codes=()):
    """Return the sampler's own first proposal by seed, before known points are replaced."""
    codes = []
    for seed in seeds:
        searcher = OptunaSearcher(SPACE, sampler=sampler, seed=seed)
        state = {"proposals": "0", "told": "[]", "open": json.dumps([(code, 0) for code in open_codes])}
        searcher.restore(state, history)
        codes.append(searcher._propose()[1])
    return codes


@pytest.mark.parametrize(("sampler", "seeds"), [("tpe", 60), ("gp", 2)])
def test_what_is_open_is_shunned_where_else_the_sampler_would_go(sampler, seeds):
    """The lie matters: without it TPE lands on what is open 11 times in 60 (with it 3), and GP always (never)."""
    history = peaked_history(24)
    told = {SPACE.encode(trial.point) for trial in history}
    crowd = set(drawn(sampler, range(2000, 2000 + max(1, seeds // 4)), history=history)) - told
    assert crowd
    blind = sum(code in crowd for code in drawn(sampler, range(seeds), history=history))
    aware = sum(code in crowd for code in drawn(sampler, range(seeds), history=history, open_codes=sorted(crowd)))
    assert blind >= seeds / 10
    assert aware <= blind / 3


def test_points_that_the_sampler_may_not_repeat_are_replaced_and_open_ones_too():
    """16 open asks in a space of 24 points, round after round."""
    searcher = OptunaSearcher(TWENTY_FOUR, sampler="tpe", seed=0)
    asked = [searcher.ask() for _ in range(16)]
    for number, point in enumerate(asked):
        searcher.tell(finished_trial(number, point, 1.0))
    asked += [searcher.ask() for _ in range(8)]
    assert len({TWENTY_FOUR.encode(point) for point in asked}) == TWENTY_FOUR.count == 24


@pytest.mark.parametrize("state", [{"proposals": "3"}, {"calls": "", "networks": "", "open": "", "rollout": ""}])
def test_a_state_that_another_searcher_kept_is_refused(state):
    with pytest.raises(SearcherError, match="it must be open, proposals, told: another searcher or version kept it"):
        OptunaSearcher(SPACE).restore(state, [])


def test_a_state_of_another_form_is_refused():
    state = {"proposals": "3", "told": "[[0, 1]]", "open": "[]"}  # without the lengths of runs
    with pytest.raises(SearcherError, match="another version kept it in another form"):
        OptunaSearcher(SPACE).restore(state, [])
