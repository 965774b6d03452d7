"""Runs: what counts, the common reference, the best so far, and time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.comparison import Run
from autotune.comparison.runs import (
    best_so_far,
    common_reference,
    duplicate_count,
    elapsed_s,
    failed_count,
    failed_s,
    pruned_count,
    searcher_s,
)
from autotune.errors import StudyError
from autotune.objective import Objective, Reference
from autotune.trials import Failure, FailureKind, Outcome, TrialState
from tests.autotune.comparison.conftest import trial

REFERENCE = Reference(samples_per_second=100.0, convergence_per_second=1.0)
ratios = st.lists(st.none() | st.floats(-2, 5), min_size=1, max_size=12)


@given(ratios)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_best_so_far_never_falls(run, ratios):
    best = best_so_far(run(0, ratios), Objective(), REFERENCE)
    assert len(best) == len(ratios)
    assert np.all(np.diff(best) >= 0)
    assert np.all(best >= 0)


def test_the_best_so_far_by_hand(run):
    best = best_so_far(run(0, [1.0, None, 1.5, 1.2, 2.0]), Objective(), REFERENCE)
    assert best.tolist() == pytest.approx([1.0, 1.0, 1.5, 1.5, 2.0])
    assert best_so_far(run(0, [None, None]), Objective(), REFERENCE).tolist() == [0.0, 0.0]


def test_what_did_not_run_to_its_end_does_not_count():
    cancelled = Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason="stopped"))
    trials = (
        trial(0, (100.0, 1.0)),
        replace(trial(1, (900.0, 9.0)), outcome=cancelled, state=TrialState.FAIL),
        replace(trial(2, (900.0, 9.0)), outcome=None, state=TrialState.RUNNING),
        trial(3, None),
        trial(4, (150.0, 1.0), config="3"),
        replace(trial(5, (900.0, 9.0)), outcome=Outcome(pruned="slow"), state=TrialState.PRUNED),
    )
    run = Run(seed=0, trials=trials)
    assert [t.number for t in run.executed] == [0, 3, 4, 5]
    assert (pruned_count(run, 3), pruned_count(run, 4)) == (0, 1)
    assert best_so_far(run, Objective(), REFERENCE)[-1] == best_so_far(run, Objective(), REFERENCE)[-2]
    assert failed_count(run, 3) == 1
    assert duplicate_count(run, 3) == 1
    assert duplicate_count(run, 2) == 0


def test_trials_count_in_the_order_in_which_they_end():
    slow = replace(trial(1, (100.0, 1.0)), finished_at=trial(5, None).finished_at)
    assert [t.number for t in Run(seed=0, trials=(trial(0, (100.0, 1.0)), slow, trial(2, None))).executed] == [0, 2, 1]


def test_one_reference_for_all(run):
    runs = [run(seed, [1.0, 2.0], baseline=baseline) for seed, baseline in enumerate((90.0, 100.0, 140.0))]
    assert common_reference(runs) == REFERENCE


def test_the_reference_without_a_baseline(run):
    assert common_reference([run(0, [None, 1.5]), run(1, [None, None])]).samples_per_second == 150.0
    with pytest.raises(StudyError, match="nothing to compare"):
        common_reference([run(0, [None, None])])
    assert common_reference([Run(seed=0, trials=(trial(0, (100.0, -1.0)),))]).convergence_per_second is None


def test_pauses_are_no_time_of_a_run(run):
    steady = run(0, [1.0, 1.0, 1.0])
    assert elapsed_s(steady).tolist() == [10.0, 20.0, 30.0]
    later = timedelta(hours=9)
    last = steady.trials[2]
    resumed = (
        *steady.trials[:2],
        replace(last, started_at=last.started_at + later, finished_at=last.finished_at + later),
    )
    assert elapsed_s(Run(seed=0, trials=resumed)).tolist() == [10.0, 20.0, 30.0]
    thinking = replace(last, started_at=last.started_at + timedelta(seconds=60), finished_at=last.finished_at)
    assert elapsed_s(Run(seed=0, trials=(*steady.trials[:2], thinking))).tolist() == [10.0, 20.0, 30.0]


def lasting(number, figures, seconds, thought=None):
    made = trial(number, figures)
    return replace(made, outcome=replace(made.outcome, duration_s=seconds), searcher_s=thought)


def test_a_replay_takes_what_its_trials_say_and_what_the_searcher_really_took():
    trials = (lasting(0, (100.0, 1.0), 10.0), lasting(1, None, 5.0, 0.5), lasting(2, (100.0, 1.0), 20.0, 1.5))
    run = Run(seed=0, trials=trials, replay_slots=1)
    assert elapsed_s(run).tolist() == [10.0, 15.5, 37.0]
    assert failed_s(run, 3) == 5.0
    assert searcher_s(run, 3) == 1.0
    assert searcher_s(run, 1) is None


def test_a_replay_of_two_at_once():
    # The baseline alone until 10 s; then 1 (until 40) beside 2 (until 15), after which 3 goes on until 25.
    lengths_s = [10.0, 30.0, 5.0, 10.0]
    trials = [lasting(number, (100.0, 1.0), length_s, 0.0) for number, length_s in enumerate(lengths_s)]
    ends = [
        trials[0],
        *(replace(trials[n], finished_at=trial(place, None).finished_at) for place, n in ((2, 2), (3, 3), (4, 1))),
    ]
    run = Run(seed=0, trials=tuple(sorted(ends, key=lambda t: t.number)), replay_slots=2)
    assert [t.number for t in run.executed] == [0, 2, 3, 1]
    assert elapsed_s(run).tolist() == [10.0, 15.0, 25.0, 40.0]
