"""A warm start holds the searcher's contract around any searcher, and the portfolio suits every space."""

import json

import pytest

from autotune.cli import searchers
from autotune.errors import SearcherError
from autotune.hardware import Hardware
from autotune.searchers.optuna import OptunaSearcher
from autotune.searchers.portfolio import portfolio
from autotune.searchers.warm_start import WarmStarted
from autotune.space import ACCUMULATION, LEARNING_RATE, MICRO_BATCH
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial
from autotune_spaces import SpaceChanges, build

STAGE = "zero_optimization.stage"
LIVE = "zero_optimization.stage3_max_live_parameters"
MUCH = (
    STAGE,
    MICRO_BATCH,
    ACCUMULATION,
    LEARNING_RATE,
    "precision",
    "activation_checkpointing",
    "zero_optimization.offload",
)
"""Settings that matter much."""
POINTS = (
    {STAGE: 3, MICRO_BATCH: 8, LEARNING_RATE: 3e-4, "precision": "bf16", LIVE: 10**8},
    {STAGE: 3},
    {STAGE: 0, MICRO_BATCH: 16, LEARNING_RATE: 1e-3, "precision": "fp32", LIVE: 10**8},
)


class TestWarmStartedTpe(SearcherContract):
    def make(self, space, seed):
        return WarmStarted(OptunaSearcher(space, sampler="tpe", seed=seed), space, POINTS)


class TestWarmStartedCmaEs(SearcherContract):
    def make(self, space, seed):
        return WarmStarted(OptunaSearcher(space, sampler="cmaes", seed=seed), space, POINTS)


def warm(points, space=SPACE):
    return WarmStarted(OptunaSearcher(space, sampler="random", seed=0), space, points)


def test_points_come_in_order_canonical_and_complete_from_the_baseline():
    searcher = warm(POINTS)
    start = {STAGE: 1, MICRO_BATCH: 2, LEARNING_RATE: 3e-3, "precision": "fp32"}
    searcher.tell(finished_trial(0, start, 1.0, is_baseline=True))
    assert [searcher.ask() for _ in range(3)] == [
        POINTS[0],
        {STAGE: 3, MICRO_BATCH: 2, LEARNING_RATE: 3e-3, "precision": "fp32", LIVE: 10**9},
        {STAGE: 0, MICRO_BATCH: 16, LEARNING_RATE: 1e-3, "precision": "fp32"},
    ]


def test_what_a_narrowed_space_does_not_have_is_skipped_and_what_it_does_not_search_is_left_out():
    narrowed = SPACE[MICRO_BATCH].restrict((1, 8))
    space = type(SPACE)(dimensions=(SPACE[STAGE], narrowed, SPACE[LEARNING_RATE], SPACE[LIVE]))
    searcher = warm((POINTS[2], POINTS[0]), space)
    assert searcher.ask() == {STAGE: 3, MICRO_BATCH: 8, LEARNING_RATE: 3e-4, LIVE: 10**8}


def test_the_baseline_is_not_tried_again_nor_what_comes_to_the_same():
    searcher = warm(POINTS)
    searcher.tell(finished_trial(0, POINTS[0], 1.0, is_baseline=True))
    assert searcher.ask() == SPACE.canonical(POINTS[2])


def test_a_point_whose_trial_was_lost_is_tried_first():
    first = warm(POINTS)
    first.restore({}, [])
    lost, done = first.ask(), first.ask()
    first.tell(finished_trial(1, done, 1.0))
    second = warm(POINTS)
    second.restore(json.loads(json.dumps(dict(first.state()))), [finished_trial(1, done, 1.0)])
    assert [second.ask() for _ in range(2)] == [lost, SPACE.canonical(POINTS[2])]


def test_a_state_that_was_kept_without_a_warm_start_is_refused():
    with pytest.raises(SearcherError, match="kept without a warm start"):
        warm(POINTS).restore({"proposals": "1", "told": "[]", "open": "[]"}, [])


def hardware(accelerator):
    return Hardware(
        accelerator=accelerator,
        device_name="made up",
        device_count=1,
        device_memory_bytes=16 * 10**9,
        host_memory_bytes=64 * 10**9,
        cpu_count=8,
        ranks=2,
        compute_capability=8.0 if accelerator == "cuda" else None,
    )


@pytest.mark.parametrize(("accelerator", "least"), [("cuda", 6), ("cpu", 3)])
def test_the_portfolio_s_points_are_canonical_in_the_default_space_where_the_hardware_can_run_them(accelerator, least):
    space = build(SpaceChanges(), hardware(accelerator), start={})
    runnable = [
        point for point in portfolio() if all(point[d.name] in d.levels for d in space.dimensions if d.name in point)
    ]
    assert len(runnable) >= least
    for point in runnable:
        space.check(point)
    assert len({space.encode(point) for point in runnable}) == len(runnable)


def test_it_is_diverse():
    """Any two differ in a setting that matters much; such as differ in buckets alone would be the same trial twice."""
    for number, one in enumerate(portfolio()):
        for other in portfolio()[:number]:
            assert any(one.get(name) != other.get(name) for name in MUCH)


def test_a_campaign_s_warm_start_goes_before_any_searcher():
    space = build(SpaceChanges(), hardware("cuda"), start={})
    for name in ("random", "ppo", "ppo-scratch", "deepspeed-autotuner"):
        searcher = searchers.create(
            name, space, seed=0, trial_budget=16, hardware=hardware("cuda"), warm_start="portfolio"
        )
        assert searcher.ask() == portfolio()[0]
    assert ACCUMULATION in portfolio()[0]
