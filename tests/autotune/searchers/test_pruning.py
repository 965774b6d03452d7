"""The pruner: what it ends and what it never does, on made-up courses and on trials that were really measured."""

import random
import threading
from dataclasses import replace

import optuna
import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.evaluators.length import MOMENTS
from autotune.objective import Objective, Reference
from autotune.searchers.pruning import CLEARLY, FIRST_MOMENT, STARTUP_TRIALS, TrialPruner
from autotune.testing.searchers import finished_trial
from autotune.trials import Budget, Intermediate, Outcome, TrialRequest, TrialState
from tests import recorded_trials

WHOLE_S = 8.0
"""Convergence time of the made-up trials: a moment is a second."""


def course(speed=1.0, learning=1.0, *, moments=MOMENTS):
    """Return a course with these ratios to a reference of 10 samples/s whose loss falls by 0.1 a second."""
    return tuple(
        Intermediate(
            training_time_s=float(moment),
            timed_steps=moment,
            samples_per_second=10.0 * speed,
            loss_before=5.0,
            training_loss=5.0 - 0.1 * learning * (moment - 0.5),
        )
        for moment in range(1, moments + 1)
    )


def measured(number, speed=1.0, learning=1.0):
    trial = finished_trial(number, {}, 0.5 * speed + 0.5 * learning, is_baseline=number == 0)
    measurement = replace(
        trial.measurement,
        samples_per_second=10.0 * speed,
        held_out_loss_before=5.0,
        held_out_loss_after=5.0 - 0.1 * learning * WHOLE_S,
        convergence_time_s=WHOLE_S,
    )
    outcome = Outcome(measurement=measurement, intermediates=course(speed, learning))
    return replace(trial, outcome=outcome, config_hash=f"measured {number}")


def request(**more):
    return TrialRequest(**({"number": 99, "point": {}, "ds_config": {"a": 1}, "budget": Budget(steps=5)} | more))


def pruner(*ratios):
    made = TrialPruner(Objective())
    for number, (speed, learning) in enumerate(ratios):
        made.hear(measured(number, speed, learning))
    return made


ALIKE = [(1.0, 1.0)] * STARTUP_TRIALS


def test_r_so_far_is_relative_to_the_reference_at_the_same_time():
    first = measured(0)
    reference = Reference.of(first.measurement, course=first.intermediates)
    for moments in range(1, MOMENTS + 1):
        score = Objective(alpha=0.25, beta=0.75).score_so_far(course(2.0, 1.5, moments=moments), reference)
        assert score.throughput_ratio == pytest.approx(2.0)
        assert score.convergence_ratio == pytest.approx(1.5)
        assert score.value == pytest.approx(0.25 * 2.0 + 0.75 * 1.5)


def test_nothing_can_be_told_while_the_reference_has_not_learnt():
    first = measured(0)
    flat = tuple(replace(each, training_loss=5.0) for each in first.intermediates)
    assert Objective().score_so_far(course(), Reference.of(first.measurement, course=flat)) is None


def test_a_clearly_dominated_trial_is_pruned_and_told_why():
    reason = pruner(*ALIKE).judge(request(), course(0.5, 0.5, moments=4))
    assert reason == "clearly dominated after 4 s of training: its R so far is 0.50, and the best had 1.00 there"


@pytest.mark.parametrize(("r", "pruned"), [(CLEARLY - 0.02, True), (CLEARLY + 0.02, False), (1.0, False)])
def test_how_clear_it_must_be(r, pruned):
    assert (pruner(*ALIKE).judge(request(), course(r, r, moments=4)) is not None) is pruned


def test_it_is_compared_with_the_leaders_not_with_the_single_best():
    lucky = [(1.0, 1.0)] * 20 + [(5.0, 5.0)]
    assert pruner(*lucky).judge(request(), course(0.9, 0.9, moments=4)) is None


def test_one_good_moment_is_enough_to_go_on():
    fell = (*course(1.0, 1.0, moments=2), *course(0.1, 0.1)[2:5])
    assert pruner(*ALIKE).judge(request(), fell) is None


def test_what_is_never_pruned():
    hopeless = course(0.01, 0.01)
    judge = pruner(*ALIKE)
    assert judge.judge(request(), hopeless)
    assert judge.judge(request(repeat=1), hopeless) is None
    assert judge.judge(request(), hopeless[: FIRST_MOMENT - 1]) is None
    assert pruner(*ALIKE[1:]).judge(request(), hopeless) is None
    assert pruner().judge(request(), hopeless) is None
    same = TrialPruner(Objective())
    for number in range(STARTUP_TRIALS):
        same.hear(replace(measured(number), config_hash=request().config_hash))
    assert same.judge(request(), hopeless) is None


def test_failed_pruned_and_old_trials_teach_nothing():
    judge = pruner(*ALIKE[1:])
    judge.hear(finished_trial(50, {}, None))
    judge.hear(finished_trial(51, {}, 1.0))  # of a version that kept nothing of the way
    pruned = Outcome(pruned="slow", intermediates=course())
    judge.hear(replace(finished_trial(52, {}, 1.0), outcome=pruned, state=TrialState.PRUNED))
    assert judge.judge(request(), course(0.01, 0.01)) is None


def test_many_threads_may_judge_while_the_study_tells():
    judge, reasons, told = pruner(*ALIKE), [], threading.Event()

    def many():
        while not told.is_set():
            reasons.append(judge.judge(request(), course(0.3, 0.3, moments=4)))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(50):
        judge.hear(measured(100 + number))
    told.set()
    for thread in threads:
        thread.join()
    assert reasons
    assert None not in reasons


@pytest.mark.parametrize("recording", recorded_trials.RECORDINGS)
def test_of_recorded_trials_the_winner_stays_in_any_order_and_time_is_saved(recording):
    whole = recorded_trials.recorded(recording)
    measured = [trial for trial in whole.trials if trial.measurement is not None]
    good = {trial.number for trial in sorted(measured, key=lambda trial: -trial.score)[: len(measured) // 4]}
    saved = []
    for seed in range(12):
        order = random.Random(seed).sample(whole.trials[1:], len(whole.trials) - 1)
        replayed = recorded_trials.replay([whole.trials[0], *order], recording)
        assert replayed.best.number == whole.best.number
        assert not good & set(replayed.pruned)
        assert whole.trials[0].number not in replayed.pruned
        saved.append(1 - replayed.training_s / whole.training_s)
    assert sum(saved) / len(saved) > 0.05


def test_a_study_records_and_tells_pruned_trials(tmp_path):
    opened = storages.connect(f"sqlite:///{tmp_path}/replay.db")
    recording, settings = "quickstart", {"searcher": "cmaes", "seed": 1, "trial_budget": 12}
    with_pruner = recorded_trials.study(opened, recording, pruner="percentile", **settings)
    without = recorded_trials.study(opened, recording, pruner="none", **settings)
    assert with_pruner.pruned
    assert not without.pruned
    assert with_pruner.best.measurement == without.best.measurement
    assert with_pruner.duration_s < without.duration_s
    study = optuna.load_study(study_name="quickstart-cmaes-1-percentile", storage=opened.url)
    assert study.best_trial.number == with_pruner.best.number
    for number in with_pruner.pruned:
        trial, seen = with_pruner.trials[number], study.trials[number]
        assert trial.counts
        assert trial.measurement is None
        assert trial.failure is None
        assert trial.score == pytest.approx(0.5 * trial.throughput_ratio + 0.5 * trial.convergence_ratio)
        assert trial.outcome.pruned.startswith("clearly dominated after ")
        assert (seen.state, seen.value) == (optuna.trial.TrialState.PRUNED, trial.score)
        assert seen.user_attrs["pruned"] == trial.outcome.pruned
    summary = campaigns.summary(opened.open("quickstart-cmaes-1-percentile"))
    assert [trial.number for trial in summary.pruned] == with_pruner.pruned
    assert summary.best.number == with_pruner.best.number
    assert summary.executed_count == summary.trial_budget == 12
    opened.close()
