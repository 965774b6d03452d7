"""DeepSpeed's autotuner as a searcher: the contract, and its order worked out by hand from its source."""

from dataclasses import replace

import pytest

from autotune.errors import SearcherError
from autotune.searchers.deepspeed_autotuner import DeepSpeedAutotuner
from autotune.space import Categorical, Condition, Float, Integer, SearchSpace
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial
from autotune.trials import Failure, FailureKind, Intermediate, Outcome

STAGE, MICRO, ACCUMULATION = "zero_optimization.stage", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
REDUCE, GATHER, OVERLAP = (
    f"zero_optimization.{name}" for name in ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm")
)


class TestDeepSpeedAutotuner(SearcherContract):
    def make(self, space, seed):
        return DeepSpeedAutotuner(space, seed=seed)


def space(*stages, sizes=(1, 2, 4, 8, 16), accumulations=(1, 2, 4)):
    buckets = {"levels": (20_000_000, 50_000_000, 500_000_000), "default": 500_000_000, "log": True}
    return SearchSpace(
        dimensions=(
            Integer(name=STAGE, levels=stages, default=stages[0]),
            Integer(name=MICRO, levels=sizes, default=1, log=True),
            Integer(name=ACCUMULATION, levels=accumulations, default=1, log=True),
            Float(name="optimizer.params.lr", levels=(1e-4, 1e-3), default=1e-3, log=True),
            Integer(name=REDUCE, conditions=(Condition(dimension=STAGE, allowed=(1, 2, 3)),), **buckets),
            Integer(name=GATHER, conditions=(Condition(dimension=STAGE, allowed=(1, 2)),), **buckets),
            Categorical(
                name=OVERLAP,
                levels=(False, True),
                default=False,
                conditions=(Condition(dimension=STAGE, allowed=(1, 2, 3)),),
            ),
        )
    )


def told(searcher, searched, start, throughput, count):
    """Tell a start, then ask and tell; `throughput` of a point is None where it runs out of memory."""
    start = searched.canonical({d.name: start.get(d.name, d.default) for d in searched.dimensions})
    searcher.tell(finished_trial(0, start, throughput(start), is_baseline=True))
    points = []
    for number in range(1, count + 1):
        points.append(searcher.ask())
        searcher.tell(finished_trial(number, points[-1], throughput(points[-1])))
    return points


def batches(points):
    return [(point[STAGE], point[MICRO], point[ACCUMULATION]) for point in points]


def test_the_search_for_the_largest_micro_batch_is_its_binary_search():
    """From 2, which was measured as the start: 16 fails, (3 + 15) // 2 = 9 is nearest to 8, fails; 5 to 4, which runs.

    Then the sizes at one batch per rank, 4 x 1: 2 with accumulation 2, and 4, which is known.
    """
    searched = space(0)
    points = told(
        DeepSpeedAutotuner(searched), searched, {MICRO: 2}, lambda p: None if p[MICRO] > 4 else 1.0 * p[MICRO], 4
    )
    assert batches(points) == [(0, 16, 1), (0, 8, 1), (0, 4, 1), (0, 2, 2)]
    assert {point["optimizer.params.lr"] for point in points} == {1e-3}


def test_where_throughput_is_flat_the_search_ends_before_what_would_run():
    """From 1: 16 fails; 8 runs, and is less than 5 % faster: the end (`performance plateaus`), though 12 might run.

    Of 8 samples 4 x 2 and 8 x 1 are tried.
    """
    searched = space(0, sizes=(1, 4, 8, 12, 16))
    points = told(DeepSpeedAutotuner(searched), searched, {}, lambda p: None if p[MICRO] == 16 else 1.0, 3)
    assert batches(points) == [(0, 16, 1), (0, 8, 1), (0, 4, 2)]


def test_a_stage_begins_at_the_largest_of_the_one_before_and_its_keys_are_tuned_only_where_it_goes_further():
    """Stage 0 holds 4, stage 1 holds 16 and is as fast a sample: so its buckets are tuned, four combinations by two
    sizes, 8 x 2 and 16 x 1; stage 2 goes no further than 16, and gets its first trial only."""
    searched = space(0, 1, 2)

    def throughput(point):
        most = {0: 4, 1: 16, 2: 16}[point[STAGE]]
        return None if point[MICRO] > most else 1.0 * point[MICRO]

    points = told(DeepSpeedAutotuner(searched), searched, {}, throughput, 14)
    # 1 was the start; 16 and 8 (of 1..16) fail, 4 (of 2..7) runs, then 6 is nearest to nothing of 5..7
    assert batches(points)[:4] == [(0, 16, 1), (0, 8, 1), (0, 4, 1), (0, 2, 2)]
    assert batches(points)[4:7] == [(1, 4, 1), (1, 16, 1), (1, 8, 2)]
    grid = [
        point
        for point in points[7:]
        if point[STAGE] == 1 and point["optimizer.params.lr"] == 1e-3 and not point[OVERLAP]
    ]
    assert {(point[REDUCE], point[GATHER]) for point in grid} <= {
        (reduce, gather) for reduce in (50_000_000, 500_000_000) for gather in (50_000_000, 500_000_000)
    }
    assert set(batches(grid)) <= {(1, 16, 1), (1, 8, 2)}
    assert (2, 16, 1) in batches(points)


def test_a_grid_ends_five_trials_after_its_best():
    """At stage 1 alone the grid has 8 points, of which 16 x 1 and 8 x 2 with 500 M are known. All of 16 are alike, so
    the first of them in the order is the best: no more than six of the grid are tried from the first."""
    searched = space(1, accumulations=(1, 2))
    fast = lambda point: 1.0 * point[MICRO]  # noqa: E731
    orders = []
    for seed in range(6):
        points = told(DeepSpeedAutotuner(searched, seed=seed), searched, {}, fast, 8)
        assert batches(points)[:2] == [(1, 16, 1), (1, 8, 2)]
        orders.append(
            [
                (point[MICRO], point[REDUCE], point[GATHER])
                for point in points[2:]
                if (point[MICRO] * point[ACCUMULATION], point["optimizer.params.lr"], point[OVERLAP])
                == (16, 1e-3, False)
                and 20_000_000 not in (point[REDUCE], point[GATHER])
            ]
        )
    assert all(2 <= len(order) <= 6 for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_where_the_first_micro_batch_of_all_fails_the_smallest_is_tried_then_the_next_stage():
    searched = space(0, 3)
    points = told(
        DeepSpeedAutotuner(searched), searched, {MICRO: 4}, lambda p: None if p[STAGE] == 0 else 1.0 * p[MICRO], 3
    )
    assert batches(points) == [(0, 1, 1), (3, 4, 1), (3, 16, 1)]


def test_a_pruned_trial_counts_as_far_as_it_came_so_the_largest_micro_batch_runs():
    """Had it failed, 2 would be next, of the levels from 2 to 15; so the plan is through, 8 x 2 not being there."""
    searched = space(0, sizes=(1, 2, 16))
    cut = Intermediate(training_time_s=1.0, timed_steps=3, samples_per_second=50.0, loss_before=5.0, training_loss=5.0)
    for outcome, following in (
        (Outcome(pruned="made up", intermediates=(cut,)), None),
        (Outcome(failure=Failure(kind=FailureKind.OUT_OF_MEMORY, reason="made up")), (0, 2, 1)),
    ):
        searcher = DeepSpeedAutotuner(searched)
        told(searcher, searched, {}, lambda point: 1.0, 0)
        largest = searcher.ask()
        assert largest[MICRO] == 16
        searcher.tell(replace(finished_trial(1, largest, 0.5), outcome=outcome, state=outcome.state))
        encoding = searcher._next()
        assert (encoding and batches([searched.decode(encoding)])[0]) == following


def test_a_state_that_another_searcher_kept_is_refused():
    with pytest.raises(SearcherError, match="got proposals; it must be open"):
        DeepSpeedAutotuner(SPACE).restore({"proposals": "3"}, [])
