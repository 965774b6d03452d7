import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.evaluators.length import FIRST_TRIAL_SHARE, MOMENTS
from autotune.evaluators.rank_worker.schedule import Schedule, interpolate
from autotune.evaluators.step_times import relative_interval
from autotune.trials import KEPT_STEPS, Budget, EndedBy

times = st.lists(st.floats(0.01, 2.0), min_size=400, max_size=400)


def schedule(budget, *, convergence_at_s=None, warmup_steps=2, settling_steps=1, samples_per_step=4):
    return Schedule(
        budget=budget,
        convergence_at_s=convergence_at_s,
        warmup_steps=warmup_steps,
        settling_steps=settling_steps,
        samples_per_step=samples_per_step,
    )


def follow(plan, step_times, loss=lambda steps: 10.0 - steps):
    """Run a schedule to its end; return (is timed, time) of each step."""
    steps = []
    plan.record_held_out(loss(0))
    for time_s in step_times:
        if plan.is_over:
            return steps
        steps.append((plan.next_step_is_timed, time_s))
        plan.record_step(time_s)
        if plan.evaluation_is_due:
            plan.record_held_out(loss(plan.steps))
    assert plan.is_over
    return steps


def test_steps_are_counted_after_the_warm_up():
    plan = schedule(Budget(steps=5))
    steps = follow(plan, [9.0, 5.0] + [1.0, 3.0] * 10)
    assert [timed for timed, _ in steps] == [False, False] + [True] * 5
    assert plan.timed_steps == 5
    assert plan.step_time_s == 1.0
    assert plan.training_time_s == 9.0 + 2 * 1.0
    assert plan.steps_s == 9.0 + 9.0 + 5.0
    assert plan.convergence_time_s == plan.training_time_s
    assert plan.loss_before == 10.0
    assert plan.loss_at_convergence_time == 10.0 - 7


def test_spread_is_half_the_interquartile_range_over_the_median():
    plan = schedule(Budget(steps=5), warmup_steps=0)
    follow(plan, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert plan.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    single = schedule(Budget(steps=1), warmup_steps=0)
    follow(single, [1.0])
    assert single.spread == 0.0


def test_samples_are_those_of_all_ranks():
    plan = schedule(Budget(samples=41))
    follow(plan, [1.0] * 40)
    assert plan.timed_steps == 11


@pytest.mark.parametrize("budget", [Budget(samples=1), Budget(seconds=0.001)])
def test_a_short_budget_still_times_three_steps(budget):
    plan = schedule(budget)
    follow(plan, [1.0] * 40)
    assert plan.timed_steps >= 3


def test_the_loss_is_taken_at_exactly_the_convergence_time():
    plan = schedule(Budget(seconds=10.0))
    follow(plan, [1.0] * 40)
    assert plan.convergence_time_s == 10.0
    assert plan.loss_at_convergence_time == pytest.approx(0.0)
    halfway = schedule(Budget(steps=3), convergence_at_s=20.5, samples_per_step=1)
    follow(halfway, [1.0] * 40)
    assert halfway.loss_at_convergence_time == pytest.approx(10.0 - 20.5)
    assert halfway.training_time_s == 21.0


def test_a_step_after_a_held_out_evaluation_is_not_timed():
    plan = schedule(Budget(seconds=10.0), convergence_at_s=5.0, settling_steps=2)
    steps = follow(plan, [1.0] * 40)
    # evaluated after steps 4 (less than 1.5 steps before 5 s) and 5: the two steps that follow each settle
    assert [index for index, (timed, _) in enumerate(steps, start=1) if not timed] == [1, 2, 5, 6, 7]


@settings(deadline=None)
@given(times=times, seconds=st.floats(0.1, 20.0), at_s=st.none() | st.floats(0.1, 20.0), settling=st.integers(0, 3))
def test_law_of_the_end(times, seconds, at_s, settling):
    plan = schedule(Budget(seconds=seconds), convergence_at_s=at_s, settling_steps=settling)
    steps = follow(plan, times, loss=lambda steps: 5.0 / (1 + steps))
    timed = [time_s for is_timed, time_s in steps if is_timed]
    median = statistics.median(timed)
    assert plan.step_time_s == pytest.approx(median)
    assert plan.training_time_s == pytest.approx(sum(timed) + (len(steps) - len(timed)) * median)
    assert plan.training_time_s - 2 * median >= seconds * (1 - 1e-9)
    assert plan.training_time_s >= plan.convergence_time_s * (1 - 1e-9)
    assert plan.loss_before > plan.loss_at_convergence_time > 0


def test_a_precise_trial_ends_before_its_budget():
    plan = schedule(Budget(steps=100, precision=0.03), convergence_at_s=1.0)
    assert len(follow(plan, [1.0] * 120)) == 2 + 6  # an interval takes six timed steps
    assert (plan.timed_steps, plan.interval, plan.ended_by) == (6, 0.0, EndedBy.PRECISION)
    fixed = schedule(Budget(steps=100), convergence_at_s=1.0)
    follow(fixed, [1.0] * 120)
    assert (fixed.timed_steps, fixed.ended_by) == (100, EndedBy.BUDGET)


def test_a_noisy_trial_ends_with_its_budget_and_says_how_precise_it_is():
    plan = schedule(Budget(steps=10, precision=0.03), convergence_at_s=1.0)
    follow(plan, [1.0, 2.0] * 20)
    assert (plan.timed_steps, plan.ended_by) == (10, EndedBy.BUDGET)
    assert plan.interval == pytest.approx((2.0 - 1.0) / 2 / 1.5)


@pytest.mark.parametrize("budget", [{"steps": 40}, {"samples": 160}, {"seconds": 40.0}])
def test_the_first_trial_trains_half_of_the_budget_however_precise_it_is(budget):
    plan = schedule(Budget(**budget, precision=0.03))
    follow(plan, [1.0] * 60)
    assert plan.timed_steps == FIRST_TRIAL_SHARE * 40
    assert plan.convergence_time_s == plan.training_time_s == 22.0
    assert plan.ended_by is EndedBy.PRECISION
    assert plan.loss_at_convergence_time == 10.0 - 22


def test_a_precise_trial_goes_on_to_the_convergence_time():
    plan = schedule(Budget(steps=100, precision=0.03), convergence_at_s=20.5)
    follow(plan, [1.0] * 120)
    assert plan.training_time_s == 21.0
    assert plan.loss_at_convergence_time == pytest.approx(10.0 - 20.5)
    assert plan.ended_by is EndedBy.PRECISION


@settings(deadline=None)
@given(
    times=times, seconds=st.floats(0.5, 20.0), at_s=st.none() | st.floats(0.1, 20.0), precision=st.floats(0.001, 0.9)
)
def test_law_of_the_end_of_an_adaptive_trial(times, seconds, at_s, precision):
    plan = schedule(Budget(seconds=seconds, precision=precision), convergence_at_s=at_s)
    steps = follow(plan, times, loss=lambda steps: 5.0 / (1 + steps))
    timed = [time_s for is_timed, time_s in steps if is_timed]
    spent = plan.training_time_s - 2 * plan.step_time_s >= seconds * (1 - 1e-9)
    assert plan.interval == relative_interval(sorted(timed))
    precise = plan.interval is not None and plan.interval <= precision
    assert plan.ended_by is (EndedBy.PRECISION if precise else EndedBy.BUDGET)
    assert precise or spent
    assert plan.training_time_s >= plan.convergence_time_s * (1 - 1e-9)
    if at_s is None:
        assert plan.training_time_s - 2 * plan.step_time_s >= FIRST_TRIAL_SHARE * seconds * (1 - 1e-9)
    assert plan.step_times_s == tuple(timed[:KEPT_STEPS])


def test_reports_are_due_at_a_few_moments_up_to_the_convergence_time_and_beyond():
    plan = schedule(Budget(steps=200), convergence_at_s=80.0)
    reported = []
    plan.record_held_out(10.0)
    while not plan.is_over:
        plan.record_step(1.0)
        if plan.report_is_due:
            plan.record_report()
            reported.append(plan.training_time_s)
            assert not plan.report_is_due
        if plan.evaluation_is_due:
            plan.record_held_out(5.0)
    assert reported[:MOMENTS] == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    assert len(reported) == int(plan.training_time_s / 10)


@settings(deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(0, 100), st.floats(-10, 10)), min_size=2, max_size=9, unique_by=lambda p: p[0]),
    share=st.floats(0, 1),
)
def test_interpolation_stays_between_its_points(points, share):
    points.sort()
    at = points[0][0] + share * (points[-1][0] - points[0][0])
    at = min(max(at, points[0][0]), points[-1][0])
    values = [value for _, value in points]
    assert min(values) - 1e-6 <= interpolate(points, at) <= max(values) + 1e-6
    assert interpolate(points, points[0][0]) == pytest.approx(values[0])


def test_interpolation_outside_its_points_is_refused():
    with pytest.raises(ValueError, match=r"must lie between 0\.0 and 1\.0"):
        interpolate([(0.0, 1.0), (1.0, 2.0)], 1.5)
