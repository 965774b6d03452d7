"""PPO as a searcher: the contract, exact resumption, isolation from global randomness, and that it learns."""

import json
import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from autotune.errors import SearcherError, SpaceExhausted
from autotune.space import Categorical, Integer, SearchSpace
from autotune.testing.searchers import SMALL_SPACE, SPACE, SearcherContract, finished_trial, made_up_score
from autotune.trials import Failure, FailureKind, Outcome
from autotune_envs import Improvement
from autotune_envs.training import PpoSearcher, PpoSettings

FOUR = PpoSettings(n_steps=4, batch_size=4, n_epochs=3)


class TestPpo(SearcherContract):
    def make(self, space, seed):
        return PpoSearcher(space, trial_budget=16, seed=seed)


class TestPpoWithManyUpdates(SearcherContract):
    def make(self, space, seed):
        return PpoSearcher(space, trial_budget=16, seed=seed, reward=Improvement(), settings=FOUR)


def new(seed=0, budget=20, **arguments):
    return PpoSearcher(SPACE, trial_budget=budget, seed=seed, **{"settings": FOUR, **arguments})


def go(searcher, count, *, first=1):
    trials = []
    for number in range(first, first + count):
        point = searcher.ask()
        trials.append(finished_trial(number, point, made_up_score(SPACE, point)))
        searcher.tell(trials[-1])
    return trials


BASELINE = finished_trial(0, SPACE.decode([0, 0, 0, 0, 2]), 1.0, is_baseline=True)


@pytest.mark.parametrize("cut", [4, 5, 6])  # at an update, and in the middle of a rollout
def test_five_and_five_trials_are_ten_in_points_and_weights(cut):
    whole = new()
    whole.restore({}, [BASELINE])
    expected = go(whole, 10)
    first = new()
    first.restore({}, [BASELINE])
    begun = go(first, cut)
    second = new()
    second.restore(json.loads(json.dumps(dict(first.state()))), [BASELINE, *begun])
    resumed = begun + go(second, 10 - cut, first=cut + 1)
    assert [trial.point for trial in resumed] == [trial.point for trial in expected]
    assert second.state() == whole.state()


def test_open_asks_and_the_order_of_tells_survive_a_resume():
    def begin():
        searcher = new()
        searcher.restore({}, [BASELINE])
        points = [searcher.ask() for _ in range(3)]
        trials = [finished_trial(n, point, made_up_score(SPACE, point)) for n, point in enumerate(points, 1)]
        searcher.tell(trials[2])
        searcher.tell(trials[0])
        return searcher, trials

    whole, trials = begin()
    cut, _ = begin()
    resumed = new()
    resumed.restore(cut.state(), [BASELINE, trials[0], trials[2]])
    for searcher in (whole, resumed):
        searcher.tell(trials[1])
        go(searcher, 5, first=4)
    assert resumed.state() == whole.state()


def test_a_trial_that_finished_after_the_state_was_kept_is_learnt_by_restore():
    whole = new()
    whole.tell(BASELINE)
    trials = go(whole, 5)
    late = new()
    late.tell(BASELINE)
    go(late, 4)
    state = late.state()
    assert late.ask() == trials[-1].point
    resumed = new()
    resumed.restore(state, [BASELINE, *trials])
    assert json.loads(resumed.state()["calls"])["told"] == json.loads(whole.state()["calls"])["told"]
    assert resumed.ask() not in [BASELINE.point, *(trial.point for trial in trials)]


def test_telling_a_trial_again_changes_nothing():
    searcher = new()
    trials = go(searcher, 3)
    before = searcher.state()
    searcher.tell(trials[1])
    assert searcher.state() == before


def test_a_cancelled_trial_is_neither_learnt_nor_counted():
    searcher = new()
    go(searcher, 3)
    cancelled = Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason="stopped"))
    before = searcher.state()
    searcher.tell(replace(finished_trial(4, searcher.ask(), None), outcome=cancelled))
    assert searcher.state()["rollout"] == before["rollout"]


def test_seeded_proposals_neither_touch_nor_hear_global_randomness():
    alone = new(seed=5)
    expected = [trial.point for trial in go(alone, 9)]
    draws = []
    for searching in (False, True):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        threads = torch.get_num_threads()
        if searching:
            assert [trial.point for trial in go(new(seed=5), 9)] == expected
        draws.append((random.random(), np.random.rand(), float(torch.rand(1)), threads))  # noqa: NPY002
        assert torch.get_num_threads() == threads
    assert draws[0] == draws[1]


@pytest.mark.parametrize("budget", [3, 7, 13])
def test_the_budget_is_exact_whatever_n_steps_is(real_study, budget):
    with real_study(trial_budget=budget) as study:
        searcher = PpoSearcher(study.space, trial_budget=budget, settings=FOUR)
        study.run(searcher)
        assert len(study.history) == budget
        assert json.loads(searcher.state()["calls"])["asks"] == budget - 1


def test_a_study_that_is_resumed_goes_on_exactly(real_study):
    def points(parts, name):
        with real_study(trial_budget=12, name=name) as study:
            for part in parts:
                study.trial_budget = part
                study.run(PpoSearcher(study.space, trial_budget=12, seed=3, settings=FOUR))
            return [trial.point for trial in study.history]

    assert points([12], "whole") == points([4, 7, 12], "parts")


def test_exhausts_a_tiny_space_exactly():
    searcher = PpoSearcher(SMALL_SPACE, trial_budget=10, settings=PpoSettings(candidates=1))
    points = [searcher.ask() for _ in range(3)]
    assert {json.dumps(point) for point in points} == {json.dumps(point) for point in SMALL_SPACE.points()}
    with pytest.raises(SpaceExhausted, match="all 3 points"):
        searcher.ask()


def test_proposes_unknown_points_of_a_nearly_known_space():
    searcher = PpoSearcher(SPACE, trial_budget=300, settings=FOUR)
    points = list(SPACE.points())
    for number, point in enumerate(points[:-2]):
        searcher.tell(finished_trial(number, point, 1.0))
    assert sorted(map(json.dumps, (searcher.ask(), searcher.ask()))) == sorted(map(json.dumps, points[-2:]))
    with pytest.raises(SpaceExhausted):
        searcher.ask()


def test_a_state_with_python_objects_in_it_is_refused_and_runs_nothing():
    class Trap:
        def __reduce__(self):
            return (exec, ("raise RuntimeError('ran')",))

    from autotune_envs.training.array_text import from_text, to_text

    with pytest.raises(ValueError, match="Object arrays"):
        to_text({"trap": np.array([Trap()], dtype=object)})
    for text in ("", "not base64!", "AAAA"):
        with pytest.raises(SearcherError, match="can't be read"):
            from_text(text)


def test_a_state_of_other_settings_is_refused():
    searcher = new()
    go(searcher, 5)
    other = new(settings=PpoSettings(pi_arch=(8,)))
    with pytest.raises(SearcherError, match="don't fit"):
        other.restore(searcher.state(), [])
    with pytest.raises(SearcherError, match="got proposals; another searcher kept it"):
        new().restore({"proposals": "3"}, [])


def test_restoring_a_used_searcher_is_refused():
    searcher = new()
    go(searcher, 1)
    with pytest.raises(SearcherError, match="restore a new one"):
        searcher.restore({}, [])


def test_a_told_trial_that_is_gone_is_reported(caplog):
    searcher = new()
    trials = go(searcher, 3)
    with caplog.at_level(logging.WARNING):
        new().restore(searcher.state(), trials[1:])
    assert "trial 1, of which the searcher had learnt, is gone" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_steps": 1}, "n_steps: got 1"),
        ({"n_steps": 8, "batch_size": 3}, "must divide n_steps"),
        ({"gate_init": 0.0}, "gate_init: got 0.0"),
        ({"activation": "gelu2"}, "one of tanh"),
        ({"candidates": 0}, "candidates: got 0"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(SearcherError, match=message):
        PpoSettings(**wrong)


EASY = SearchSpace(
    dimensions=tuple(
        Integer(name=f"number{n}", levels=(0, 1, 2, 3, 4), default=0)
        if n % 2
        else Categorical(name=f"category{n}", levels=("a", "b", "c", "d", "e"), default="a")
        for n in range(8)
    )
)
"""390,625 points."""


def easy_score(point):
    """Return an R to which every dimension adds on its own: 'c' of a category, 4 of a number; at most 4."""
    parts = [
        1 - abs(EASY[name].index(value) - (4 if EASY[name].is_ordered else 2)) / 4 for name, value in point.items()
    ]
    return None if parts[0] == 0.5 and parts[1] < 0.25 else 4 * float(np.mean(parts)) ** 2


def late_scores(searcher, count=160):
    """Return the mean score of the last quarter of `count` proposals, and the best of all."""
    start = EASY.decode([0] * 8)
    searcher.tell(finished_trial(0, start, easy_score(start), is_baseline=True))
    scores = []
    for number in range(1, count + 1):
        point = searcher.ask()
        scores.append(easy_score(point) or 0.0)
        searcher.tell(finished_trial(number, point, easy_score(point)))
    return float(np.mean(scores[-count // 4 :])), max(scores)


def easy_runs(seeds, **settings):
    """Return (late mean score, best score) by seed, shape (seeds, 2)."""
    chosen = PpoSettings(candidates=16, **settings)
    return np.array([late_scores(PpoSearcher(EASY, trial_budget=161, seed=s, settings=chosen)) for s in range(seeds)])


@pytest.fixture(scope="module")
def random_scores():
    """The same of uniform proposals."""
    generator = np.random.default_rng(0)
    scores = np.array([[easy_score(EASY.sample(generator)) or 0.0 for _ in range(160)] for _ in range(20)])
    return scores.mean(), scores.max(axis=1).mean()


def test_learns_an_easy_objective_and_its_updates_add_to_the_copy_gate(random_scores):
    """The gate pulls to the best so far; PPO's updates must add to that."""
    learnt, gate_alone = easy_runs(3), easy_runs(3, learn=False)
    assert learnt[:, 0].mean() > 1.5 * random_scores[0]
    assert learnt[:, 1].mean() > random_scores[1]
    assert learnt[:, 0].mean() > gate_alone[:, 0].mean()


def test_ppo_learns_without_the_copy_gate_too(random_scores):
    assert easy_runs(2, copy_gate=False, learning_rate=1e-2)[:, 0].mean() > 1.3 * random_scores[0]
