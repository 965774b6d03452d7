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
from autotune.trials import Budget, Failure, FailureKind, Outcome
from autotune_envs import Improvement
from autotune_envs.training import PpoSearcher, PpoSettings
from autotune_envs.training.array_text import from_text, to_text
from autotune_envs.training.transition import unstack

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


def test_lost_asks_are_proposed_again_first_and_learnt_from_as_if_nothing_had_happened():
    def begin():
        searcher = new()
        searcher.restore({}, [BASELINE])
        return searcher, go(searcher, 6), [searcher.ask() for _ in range(3)]

    def go_on(searcher, points):
        for number in (9, 7, 8):
            point = points[number - 7]
            searcher.tell(finished_trial(number, point, made_up_score(SPACE, point)))
        go(searcher, 3, first=10)
        return searcher.state()

    whole, _, points = begin()
    lost, trials, _ = begin()
    resumed = new()
    resumed.restore(lost.state(), [BASELINE, *trials])
    assert [resumed.ask() for _ in range(3)] == points
    assert go_on(resumed, points) == go_on(whole, points)


class Value:
    """A reward that doesn't depend on other trials, nor so on the order of results."""

    deterministic = True

    def __call__(self, trial, *, best_before):
        return trial.score or 0.0


EIGHT = PpoSettings(n_steps=8, batch_size=8)


def told_in(order):
    searcher = new(settings=EIGHT, reward=Value())
    searcher.restore({}, [BASELINE])
    points = [searcher.ask() for _ in range(8)]
    for n in order:
        searcher.tell(finished_trial(n + 1, points[n], made_up_score(SPACE, points[n])))
    return searcher, points


def test_the_order_of_results_does_not_matter_to_the_update():
    (ordered, points), (shuffled, same) = told_in(range(8)), told_in([5, 0, 7, 2, 1, 6, 4, 3])
    assert points == same
    assert shuffled.state()["networks"] == ordered.state()["networks"]


def test_each_reward_goes_to_the_proposal_it_came_of():
    searcher, points = told_in([6, 3, 0, 5])
    rollout = unstack(from_text(searcher.state()["rollout"]))
    assert [transition.ask for transition in rollout] == [6, 3, 0, 5]
    for transition in rollout:
        point = points[transition.ask]
        assert SPACE.decode(transition.action.tolist()) == point
        assert transition.reward == (made_up_score(SPACE, point) or 0.0)
    assert [t.ask for t in unstack(from_text(searcher.state()["open"]))] == [1, 2, 4, 7]


def test_a_result_that_comes_after_an_update_is_learnt_with_the_policy_that_drew_it():
    searcher = new()
    searcher.restore({}, [BASELINE])
    slow = searcher.ask()
    drawn = unstack(from_text(searcher.state()["open"]))[0]
    go(searcher, 4)  # an update
    assert json.loads(searcher.state()["calls"])["updates"] == 1
    searcher.tell(finished_trial(9, slow, 2.5))
    (late,) = unstack(from_text(searcher.state()["rollout"]))
    assert (late.log_prob, late.value, late.ask) == (drawn.log_prob, drawn.value, 0)
    assert late.reward > 0
    go(searcher, 3, first=10)
    assert json.loads(searcher.state()["calls"])["updates"] == 2


@pytest.mark.parametrize("slots", [4, 16])
def test_a_study_with_several_trials_under_way_is_exact_and_the_same_by_seed(real_study, slots):
    records = []
    for name in ("one", "two"):
        with real_study(trial_budget=20, slots=slots, budget=Budget(steps=20), name=name) as study:
            searcher = PpoSearcher(study.space, trial_budget=20, seed=2, settings=FOUR)
            study.run(searcher)
            assert len(study.history) == len({trial.config_hash for trial in study.history}) == 20
            assert [trial.number for trial in study.history] != list(range(20))
            calls = json.loads(searcher.state()["calls"])
            assert (calls["asks"], calls["updates"]) == (19, 4)
            records.append([(trial.number, trial.point, trial.score) for trial in study.history])
    assert records[0] == records[1]


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
    arrays = {name: array for name, array in from_text(searcher.state()["rollout"]).items() if name != "asks"}
    with pytest.raises(SearcherError, match="got transitions of actions, numbers, observations; start a new study"):
        new().restore({**searcher.state(), "rollout": to_text(arrays)}, [])


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
