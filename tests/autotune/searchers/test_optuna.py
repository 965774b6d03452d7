"""Optuna's samplers hold the searcher's contract."""

import pytest

from autotune.errors import SearcherError
from autotune.searchers.optuna import SAMPLERS, OptunaSearcher
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial


class TestRandom(SearcherContract):
    def make(self, space, seed):
        return OptunaSearcher(space, sampler="random", seed=seed)


class TestTpe(SearcherContract):
    def make(self, space, seed):
        return OptunaSearcher(space, sampler="tpe", seed=seed)


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
