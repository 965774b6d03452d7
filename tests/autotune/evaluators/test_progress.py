import pytest

from autotune.evaluators.script_worker.progress import Progress
from autotune.evaluators.step_times import LEAST_TIMED_STEPS
from autotune.trials import Budget, TrialRequest


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
