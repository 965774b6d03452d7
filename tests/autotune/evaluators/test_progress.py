import pytest

from autotune.evaluators.length import FIRST_TRIAL_SHARE
from autotune.evaluators.script_worker.progress import Progress
from autotune.evaluators.step_times import LEAST_TIMED_STEPS
from autotune.trials import Budget, EndedBy, TrialRequest


def progress(*, warmup_steps=1, convergence_at_s=None, **budget):
    request = TrialRequest(number=0, point={}, ds_config={}, budget=Budget(**budget), convergence_at_s=convergence_at_s)
    return Progress(request, warmup_steps=warmup_steps)


def steps_to_the_end(progress, *, time_s=1.0, samples=8):
    while not progress.is_over:
        progress.add(time_s, samples=samples)
        assert progress.steps < 1000
    return progress.steps


@pytest.mark.parametrize(
    ("budget", "steps"),
    [({"steps": 10}, 11), ({"samples": 80}, 11), ({"seconds": 10.0}, 11), ({"steps": 1}, 1 + LEAST_TIMED_STEPS)],
)
def test_the_budget_begins_after_the_warm_up(budget, steps):
    assert steps_to_the_end(progress(**budget)) == steps


def test_warm_up_steps_are_charged_at_the_median():
    counted = progress(steps=10, warmup_steps=2)
    assert counted.training_time_s == 0.0
    for time_s in (50.0, 50.0):
        counted.add(time_s, samples=8)
    assert counted.training_time_s == 0.0
    for time_s in (1.0, 2.0, 3.0):
        counted.add(time_s, samples=8)
    assert counted.training_time_s == 6.0 + 2 * 2.0


def test_it_goes_on_until_convergence_can_be_compared():
    assert steps_to_the_end(progress(steps=3, convergence_at_s=20.0)) == 20


def test_it_ends_when_the_step_time_is_precise():
    counted = progress(steps=100, precision=0.03, convergence_at_s=1.0)
    assert steps_to_the_end(counted) == 1 + 6
    assert counted.ended_by is EndedBy.PRECISION
    first = progress(steps=100, precision=0.03)
    assert steps_to_the_end(first) == 1 + 100 * FIRST_TRIAL_SHARE


def test_it_tells_a_few_times_what_was_measured_so_far():
    counted = progress(steps=100, convergence_at_s=32.0)
    told = [counted.add(1.0, samples=8, loss=100.0 - step) for step in range(40)]
    course = [each for each in told if each is not None]
    assert [each.training_time_s for each in course] == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0, 36.0, 40.0]
    assert {(each.loss_before, each.samples_per_second) for each in course} == {(100.0, 8.0)}
    assert course[1].training_loss == 100.0 - (4 + 5 + 6 + 7) / 4


def test_a_script_that_ends_by_itself_is_what_ended_it():
    counted = progress(steps=100)
    counted.add(1.0, samples=8)
    assert counted.ended_by is EndedBy.SCRIPT
