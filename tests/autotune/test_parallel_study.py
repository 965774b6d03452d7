"""Studies with several trials under way, in simulated time: budget, repeats, stops, failures, resume."""

import pytest

from autotune.errors import SearcherError, SpaceError, StudyError
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.objective import Objective
from autotune.runners import InlineRunner
from autotune.searchers.optuna import OptunaSearcher
from autotune.storage import connect
from autotune.study import Silence, Start, StopRequest, Study
from autotune.testing.searchers import SMALL_SPACE, SPACE
from autotune.trials import Budget, Failure, FailureKind, Outcome, TrialState

START = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "train_batch_size": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}
SLOTS = [1, 4, 16]


class Watch(Silence):
    """Counts what is under way, and calls a hook when so many trials have started or finished."""

    def __init__(self, *, at_start=None, at_finish=None, hook=None):
        self.open = self.most = self.started = 0
        self.finished = []
        self.at_start, self.at_finish, self.hook = at_start, at_finish, hook

    def trial_started(self, trial):
        self.open += 1
        self.started += 1
        self.most = max(self.most, self.open)
        if self.started == self.at_start:
            self.hook()

    def trial_finished(self, trial):
        self.open -= 1
        self.finished.append(trial.number)
        if len(self.finished) == self.at_finish:
            self.hook()


@pytest.fixture
def make():
    """Return a function that makes a study, or opens it again; trials of equal steps take unequal time."""
    storage = connect("sqlite:///:memory:")

    def made(name="s", *, slots, trials=24, space=SPACE, evaluator=None, listener=None, stop=None):
        stored = storage.open(name) if name in storage.names() else storage.create(name, {})
        return Study(
            stored=stored,
            space=space,
            start=Start.of(START, space),
            objective=Objective(),
            runner=InlineRunner(evaluator or SimulatedEvaluator(workload_seed=3), slots=slots),
            budget=Budget(steps=20),
            trial_budget=trials,
            world_size=2,
            listener=listener,
            stop=stop,
        ), stored

    yield made
    storage.close()


def search(study, sampler="tpe"):
    with study:
        return study.run(OptunaSearcher(study.space, sampler=sampler, seed=1))


def counted(stored):
    return [trial for trial in stored.trials() if trial.counts]


def hashes(trials):
    return [trial.config_hash for trial in trials]


@pytest.mark.parametrize(("slots", "sampler"), [(1, "tpe"), (4, "tpe"), (16, "tpe"), (4, "cmaes"), (16, "random")])
def test_the_budget_is_spent_exactly_without_repeats_and_the_same_by_seed(make, slots, sampler):
    records = []
    for name in ("one", "two"):
        watch = Watch()
        study, stored = make(name, slots=slots, listener=watch)
        assert search(study, sampler) == "the budget of 24 trials is spent"
        trials = stored.trials()
        assert len(trials) == 24
        assert len(set(hashes(trials))) == 24
        assert all(trial.state is not TrialState.RUNNING for trial in trials)
        assert watch.most == slots
        records.append(([(trial.number, trial.point, trial.score) for trial in trials], watch.finished))
    assert records[0] == records[1]
    in_order = records[0][1] == sorted(records[0][1])
    assert in_order == (slots == 1)  # else the test shows nothing of results out of order


@pytest.mark.parametrize("slots", SLOTS)
def test_a_stop_lets_what_runs_end_and_a_resume_spends_the_rest(make, slots):
    stop = StopRequest()
    study, stored = make(slots=slots, stop=stop, listener=Watch(at_finish=7, hook=stop))
    assert search(study) == "stopped as asked"
    begun = counted(stored)
    assert len(begun) == len(stored.trials()) == 7 + slots - 1
    assert search(make(slots=slots)[0]) == "the budget of 24 trials is spent"
    assert counted(stored)[: len(begun)] == begun
    assert len(stored.trials()) == 24
    assert len(set(hashes(stored.trials()))) == 24


@pytest.mark.parametrize(("slots", "sampler"), [(1, "tpe"), (4, "cmaes"), (16, "tpe")])
def test_a_stop_at_once_cancels_what_runs_and_a_resume_runs_it_again_first(make, slots, sampler):
    stop = StopRequest()

    def twice():
        stop()
        stop()

    study, stored = make(slots=slots, stop=stop, listener=Watch(at_start=18, hook=twice))
    search(study, sampler)
    cancelled = [trial for trial in stored.trials() if not trial.counts]
    assert len(cancelled) == slots
    assert {trial.failure.kind for trial in cancelled} == {FailureKind.CANCELLED}
    done = len(counted(stored))
    search(make(slots=slots)[0], sampler)
    assert len(counted(stored)) == 24
    assert len(set(hashes(counted(stored)))) == 24
    again = counted(stored)[done : done + slots]
    assert hashes(again) == hashes(cancelled)


@pytest.mark.parametrize(("slots", "sampler"), [(4, "tpe"), (4, "cmaes"), (16, "tpe")])
def test_trials_that_ended_with_their_controller_run_again_and_the_study_goes_on(make, slots, sampler):
    def die():
        raise KeyboardInterrupt

    study, stored = make(slots=slots, listener=Watch(at_start=18, hook=die))
    study.__enter__()
    with pytest.raises(KeyboardInterrupt):
        study.run(OptunaSearcher(SPACE, sampler=sampler, seed=1))
    running = [trial for trial in stored.trials() if trial.state is TrialState.RUNNING]
    assert len(running) == slots
    stored.set_attribute("controller", None)
    resumed, stored = make(slots=slots)
    search(resumed, sampler)
    assert len(counted(stored)) == 24
    assert len(set(hashes(counted(stored)))) == 24
    again = [trial for trial in stored.trials() if trial.number > running[-1].number][:slots]
    assert hashes(again) == hashes(running)


@pytest.mark.parametrize("slots", [4, 16])
def test_failures_count_and_are_learnt_from(make, slots):
    study, stored = make(slots=slots, evaluator=SimulatedEvaluator(memory_bytes=12e9))
    search(study)
    trials = stored.trials()
    failed = [trial for trial in trials if trial.failure is not None]
    assert 5 < len(failed) < 20
    assert len(trials) == len(set(hashes(trials))) == 24


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "cmaes"])
@pytest.mark.parametrize("slots", [2, 16])
def test_a_small_space_is_run_whole_and_then_the_study_ends(make, slots, sampler):
    study, stored = make(slots=slots, space=SMALL_SPACE)
    assert "all 3 points of the space have been tried" in search(study, sampler)
    assert len(set(hashes(stored.trials()))) == len(stored.trials()) == 3


class FailingFirst(SimulatedEvaluator):
    """Fails the trials numbered below `failing`."""

    failing = 3

    def evaluate(self, request, **rest):
        if request.number < self.failing:
            return Outcome(failure=Failure(kind=FailureKind.OUT_OF_MEMORY, reason="made up"))
        return super().evaluate(request, **rest)


def test_trials_run_one_at_a_time_until_one_is_the_reference(make):
    watch = Watch()
    study, stored = make(slots=4, trials=12, evaluator=FailingFirst(), listener=watch)
    search(study)
    assert watch.finished[:4] == [0, 1, 2, 3]
    assert watch.most == 4
    trials = stored.trials()
    assert [trial.score for trial in trials[:4]] == [None, None, None, 1.0]
    reference = trials[3].measurement
    measured = [trial for trial in trials[4:] if trial.measurement is not None]
    assert len(measured) > 4
    for trial in measured:
        assert trial.throughput_ratio == trial.measurement.samples_per_second / reference.samples_per_second
        assert trial.measurement.convergence_time_s == reference.convergence_time_s


class Forgetful:
    """A searcher that breaks its law: it proposes each point three times in a row."""

    def __init__(self, space):
        self.points = [point for point in space.points() for _ in range(3)]

    def ask(self):
        return self.points.pop(0)

    def tell(self, trial):
        pass

    def state(self):
        return {}

    def restore(self, state, history):
        pass


def test_a_searcher_that_proposes_what_is_open_gets_no_second_trial_of_it(make):
    study, stored = make(slots=4, trials=10)
    with study:
        assert study.run(Forgetful(SPACE)) == "the budget of 10 trials is spent"
    assert len(set(hashes(stored.trials()))) == 10
    study, stored = make("stuck", slots=4)
    stuck = Forgetful(SPACE)
    stuck.points = [SPACE.decode([1, 1, 1, 1, 0])] * 200
    with study, pytest.raises(SearcherError, match="Forgetful proposed 101 known points"):
        study.run(stuck)
    assert len(stored.trials()) == 2


def a_batch(count, first=0):
    """Return points other than the starting configuration."""
    return [point for point in SPACE.points() if point["zero_optimization.stage"] == 1][first : first + count]


@pytest.mark.parametrize("slots", SLOTS)
def test_a_batch_runs_each_new_point_once_and_answers_in_order(make, slots):
    watch = Watch()
    study, stored = make(slots=slots, listener=watch)
    with study:
        known = study.evaluate(a_batch(1)[0])
        points = [*a_batch(9), *a_batch(3, first=4), study.baseline.point]
        trials = study.evaluate_all(points)
        assert [trial.point for trial in trials] == [dict(point) for point in points]
        assert trials[0] == known
        assert trials[9:12] == trials[4:7]
        assert trials[12] == study.baseline
        assert len(stored.trials()) == 10
        assert watch.most == min(slots, 8)
        assert study.evaluate_all(points) == trials
        assert study.evaluate_all([]) == []


@pytest.mark.parametrize("slots", SLOTS)
def test_a_batch_never_exceeds_the_budget(make, slots):
    study, stored = make(slots=slots, trials=8)
    with study:
        trials = study.evaluate_all(a_batch(10))
        assert [trial is None for trial in trials] == [False] * 7 + [True] * 3
        assert len(stored.trials()) == 8
        assert study.evaluate_all(a_batch(10)) == trials
        with pytest.raises(StudyError, match="no further trial: the budget of 8 trials is spent"):
            study.evaluate(a_batch(1, first=7)[0])


@pytest.mark.parametrize(("wishes", "counting"), [(1, 6), (2, 3)])
def test_a_stop_ends_a_batch(make, wishes, counting):
    """After the second trial of the batch is done: four run and may end, or are cancelled."""
    stop = StopRequest()
    watch = Watch(at_finish=3, hook=lambda: [stop() for _ in range(wishes)])
    study, stored = make(slots=4, stop=stop, listener=watch)
    with study:
        trials = study.evaluate_all(a_batch(20))
        assert len(trials) == 20
        ran = [trial for trial in trials if trial is not None]
        assert len(ran) == 5
        assert sum(trial.counts for trial in ran) == counting - 1
        assert len(counted(stored)) == counting
        assert study.evaluate_all(a_batch(2, first=30)) == [None, None]


def test_a_batch_with_a_point_outside_the_space_runs_nothing(make):
    study, stored = make(slots=4)
    with study, pytest.raises(SpaceError):
        study.evaluate_all([*a_batch(2), {"zero_optimization.stage": 9}])
    assert stored.trials() == []
