"""A study over the simulated evaluator: order, budget, repeats, interruption, resume, and the records it keeps."""

import socket
import time
from pathlib import Path

import optuna
import psutil
import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.errors import SearcherError, SpaceError, StorageError, StudyError
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.objective import Objective
from autotune.runners import InlineRunner
from autotune.searchers.optuna import OptunaSearcher
from autotune.study import Silence, Start, StopRequest, Study
from autotune.trials import Budget, Failure, FailureKind, Outcome, Stage, TrialState

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    "zero_optimization": {"stage": 1},
}


@pytest.fixture
def storage(tmp_path):
    opened = storages.connect(f"sqlite:///{tmp_path}/studies.db")
    yield opened
    opened.close()


@pytest.fixture
def make(storage, tmp_path):
    """Return a function that makes a stored study of a simulated campaign."""

    def made(name="s", **changes):
        data = {"name": "s", "ds_config": DS_CONFIG, "evaluator": "simulated", "hardware": {"ranks": 2}, "trials": 8}
        campaign = campaigns.parse(data | {"folder": str(tmp_path)} | changes, where="test")
        return campaigns.create(campaign, storage, name=name)

    return made


def run(stored, *, trials=None, sampler="tpe", seed=0, stop=None, listener=None):
    with campaigns.study(stored, trials=trials, stop=stop, listener=listener) as study:
        return study.run(OptunaSearcher(study.space, sampler=sampler, seed=seed))


def points(stored):
    return [dict(trial.point) for trial in stored.trials() if trial.counts]


def test_the_users_own_configuration_is_first_and_scores_one(make):
    stored = make()
    assert run(stored) == "the budget of 8 trials is spent"
    trials = stored.trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert [trial.is_baseline for trial in trials] == [True] + [False] * 7
    first = trials[0]
    assert first.ds_config == DS_CONFIG | {"train_batch_size": 16}
    assert first.point["train_micro_batch_size_per_gpu"] == 4
    assert (first.score, first.throughput_ratio, first.convergence_ratio) == (1.0, 1.0, 1.0)


def test_r_can_be_recomputed_from_what_is_recorded(make):
    stored = make()
    run(stored)
    for trial in stored.trials():
        if trial.measurement is None:
            continue
        assert trial.score == pytest.approx(0.5 * trial.throughput_ratio + 0.5 * trial.convergence_ratio)
        base = stored.trials()[0].measurement
        assert trial.throughput_ratio == trial.measurement.samples_per_second / base.samples_per_second


def test_what_is_measured_is_what_is_recorded(make):
    stored = make()
    run(stored)
    for trial in stored.trials():
        assert trial.config_hash
        if trial.measurement is not None:
            assert trial.measurement.effective_config == dict(trial.ds_config)


def test_no_configuration_runs_twice(make):
    stored = make(trials=40, space={"narrow": {"optimizer.params.lr": [3e-4], "precision": ["fp32"]}})
    run(stored)
    assert len({trial.config_hash for trial in stored.trials()}) == 40


def test_optunas_own_tools_read_it(make, storage):
    stored = make()
    run(stored)
    study = optuna.load_study(study_name="s", storage=storage.url)
    assert len(study.trials) == 8
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    best = max((trial for trial in stored.trials() if trial.score is not None), key=lambda trial: trial.score)
    assert study.best_trial.number == best.number
    assert study.best_params == best.point
    ratios = [trial.user_attrs.get("throughput_ratio") for trial in study.trials]
    assert ratios == [trial.throughput_ratio for trial in stored.trials()]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_five_and_five_resumed_are_ten_in_one_go(make, sampler):
    whole, parts = make("whole"), make("parts")
    run(whole, trials=10, sampler=sampler)
    run(parts, trials=5, sampler=sampler)
    run(parts, trials=10, sampler=sampler)
    assert points(parts) == points(whole)
    assert [trial.score for trial in parts.trials()] == [trial.score for trial in whole.trials()]


class Ponderous(OptunaSearcher):
    """A searcher that takes its time: 0.02 s to ask, 0.04 s to tell."""

    def ask(self):
        time.sleep(0.02)
        return super().ask()

    def tell(self, trial):
        time.sleep(0.04)
        super().tell(trial)


def test_what_the_searcher_takes_is_kept_with_the_trial_that_it_proposed(make):
    stored = make()
    with campaigns.study(stored, trials=4) as study:
        study.run(Ponderous(study.space, sampler="random", seed=0))
    baseline, first, *later = stored.trials()
    assert baseline.searcher_s is None
    assert 0.02 <= first.searcher_s < later[0].searcher_s
    assert all(trial.searcher_s >= 0.06 for trial in later)


def test_resuming_a_finished_study_runs_nothing(make):
    stored = make()
    run(stored)
    assert run(stored) == "the budget of 8 trials is spent"
    assert len(stored.trials()) == 8


class Vanishing:
    """A listener that ends the controller the hard way, as far as the storage can tell."""

    def __init__(self, at):
        self.at = at

    def note(self, text):
        pass

    def trial_started(self, trial):
        if trial.number == self.at:
            raise KeyboardInterrupt

    def trial_finished(self, trial):
        pass

    def waiting(self):
        pass


def test_a_trial_in_flight_is_run_again_and_does_not_count(make, storage):
    whole, broken = make("whole"), make("broken")
    run(whole)
    study = campaigns.study(broken, listener=Vanishing(at=3))
    study.__enter__()
    with pytest.raises(KeyboardInterrupt):
        study.run(OptunaSearcher(study.space, sampler="tpe", seed=0))
    assert broken.trials()[3].state is TrialState.RUNNING
    broken.set_attribute("controller", None)

    again = storage.open("broken")
    run(again)
    lost = again.trials()[3]
    assert lost.failure.kind is FailureKind.CANCELLED
    assert lost.failure.reason == "the controller ended before the trial did"
    assert not lost.counts
    assert len(again.trials()) == 9
    assert points(again) == points(whole)


def test_an_outcome_that_an_older_version_kept_without_its_state_counts(make, storage):
    stored = make()
    run(stored, trials=1)
    study = campaigns.study(stored, trials=3)
    request = study.request(study.space.decode([0] * 12))
    number = stored.start_trial(request, study.space, is_baseline=False)
    outcome = SimulatedEvaluator().evaluate(request, hosts=[], progress=lambda _: None, cancelled=lambda: False)
    older = optuna.storages.RDBStorage(storage.url)
    trial_id = older.get_trial_id_from_study_id_trial_number(older.get_study_id_from_name("s"), number)
    older.set_trial_user_attr(trial_id, "autotune:finished_at", "2026-01-01T00:00:00+00:00")
    older.set_trial_user_attr(trial_id, "autotune:outcome", outcome.to_json())
    older.remove_session()
    older.engine.dispose()

    again = storage.open("s")
    run(again, trials=3)
    assert again.trials()[number].state is TrialState.COMPLETE
    assert again.trials()[number].score is not None
    assert len(again.trials()) == 3


def test_one_controller_at_a_time(make):
    stored = make()
    with campaigns.study(stored), pytest.raises(StudyError, match=r"is being run by process \d+ on .*autotune stop s"):
        campaigns.study(stored).__enter__()
    run(stored)


def test_of_two_that_take_control_at_once_one_is_refused(make, storage):
    stored = make()
    first = {"host": "here", "pid": 1}
    assert stored.swap_attribute("controller", old=None, new=first)
    assert not storage.open("s").swap_attribute("controller", old=None, new={"host": "there", "pid": 2})
    assert stored.attribute("controller") == first
    assert stored.swap_attribute("controller", old=first, new=None)
    assert storage.open("s").swap_attribute("controller", old=None, new={"host": "there", "pid": 2})


def test_a_controller_that_was_taken_for_dead_notices_and_stops(make, monkeypatch):
    monkeypatch.setattr("autotune.study._HEARTBEAT_S", 0.0)
    stored = make()
    usurper = {"host": "elsewhere", "pid": 1, "created_at": 0, "heartbeat_at": time.time()}

    class Usurped(Silence):
        def trial_finished(self, trial):
            if trial.number == 2:
                stored.set_attribute("controller", usurper)

    with pytest.raises(StudyError, match=r"'s' is run by another process now.*autotune status s"):
        run(stored, listener=Usurped())
    assert stored.attribute("controller") == usurper
    assert len(points(stored)) == 3


def test_a_dead_controller_does_not_block(make):
    stored = make()
    stored.set_attribute(
        "controller", {"host": "elsewhere", "pid": 1, "created_at": 0, "heartbeat_at": time.time() - 120}
    )
    run(stored, trials=2)
    stored.set_attribute(
        "controller",
        {"host": socket.gethostname(), "pid": 1, "created_at": 0, "heartbeat_at": time.time()},
    )
    run(stored, trials=3)
    assert psutil.pid_exists(1)
    stored.set_attribute("controller", {"host": "elsewhere", "pid": 1, "created_at": 0, "heartbeat_at": time.time()})
    with pytest.raises(StudyError, match="on elsewhere"):
        run(stored, trials=4)


def test_a_stop_ends_after_the_running_trial(make):
    stored = make()
    stop = StopRequest()
    stop()
    assert run(stored, stop=stop) == "stopped as asked"
    assert stored.trials() == []
    run(stored, trials=2)
    assert len(stored.trials()) == 2


def test_the_environments_door_answers_repeats_from_the_record(make):
    stored = make(trials=3)
    with campaigns.study(stored) as study:
        point = study.space.decode([1, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0])
        trial = study.evaluate(point)
        assert trial.number == 1
        assert study.history[0].is_baseline
        assert study.evaluate(point) == trial
        with pytest.raises(SpaceError):
            study.evaluate({**point, "zero_optimization.stage": 7})
        study.evaluate(study.space.decode([0] * 12))
        with pytest.raises(StudyError, match="the budget of 3 trials is spent"):
            study.evaluate(study.space.decode([2] + [0] * 11))
        assert len(study.history) == 3


class Stuck:
    """A searcher that breaks its law."""

    def __init__(self, space):
        self.point = space.decode([0] * 12)

    def ask(self):
        return self.point

    def tell(self, trial):
        pass

    def state(self):
        return {}

    def restore(self, state, history):
        pass


def test_a_searcher_that_only_repeats_itself_is_stopped(make):
    stored = make()
    with campaigns.study(stored) as study, pytest.raises(SearcherError, match="Stuck proposed 101 known points"):
        study.run(Stuck(study.space))
    assert len(stored.trials()) == 2


class Failing:
    """An evaluator whose first trials fail."""

    ranks = 0

    def __init__(self, failures):
        self.left = failures

    def prepare(self, ds_configs, progress):
        assert len(ds_configs) > 10
        progress("ready")

    def evaluate(self, request, *, hosts, progress, cancelled, should_prune):
        if self.left:
            self.left -= 1
            return Outcome(failure=Failure(kind=FailureKind.OUT_OF_MEMORY, reason="made up"))
        return SimulatedEvaluator(memory_bytes=1e15).evaluate(
            request, hosts=hosts, progress=progress, cancelled=cancelled
        )


def built(stored, evaluator, **budget):
    campaign = campaigns.campaign_of(stored)
    hardware = campaigns.recorded_hardware(stored)
    space = campaigns.space_of(campaign, hardware)
    config, _ = campaigns.start_config(campaign, hardware)
    return Study(
        stored=stored,
        space=space,
        start=Start.of(config, space),
        objective=Objective(),
        runner=InlineRunner(evaluator),
        budget=Budget(**budget),
        trial_budget=4,
        world_size=2,
    )


def test_where_the_baseline_fails_the_first_trial_that_runs_is_the_reference(make):
    stored = make()
    with built(stored, Failing(2), seconds=5.0) as study:
        study.run(OptunaSearcher(study.space, seed=0))
    trials = stored.trials()
    assert [trial.state for trial in trials[:3]] == [TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE]
    assert trials[0].score is None
    assert trials[2].score == 1.0


class Broken(Failing):
    """An evaluator that never gets as far as a first step."""

    kind = FailureKind.CRASH

    def evaluate(self, request, **rest):
        return Outcome(failure=Failure(kind=self.kind, reason="no module named x", stage=Stage.INITIALIZE))


def test_a_broken_workload_does_not_burn_the_budget(make):
    stored = make()
    for executed in (3, 4):  # a resumed run tries again: the cause may have been mended
        with built(stored, Broken(0), seconds=5.0) as study:
            ended = study.run(OptunaSearcher(study.space, seed=0))
        assert len(stored.trials()) == executed
    with built(make("again"), Broken(0), seconds=5.0) as study:
        ended = study.run(OptunaSearcher(study.space, seed=0))
    assert ended.startswith("all 3 trials of this run failed alike before their first step: no module named x; mend")


def test_configurations_that_do_not_fit_are_no_broken_workload(make, monkeypatch):
    monkeypatch.setattr(Broken, "kind", FailureKind.OUT_OF_MEMORY)
    stored = make()
    with built(stored, Broken(0), seconds=5.0) as study:
        assert study.run(OptunaSearcher(study.space, seed=0)) == "the budget of 4 trials is spent"


class Noting(Failing):
    """Keeps what it was asked."""

    def __init__(self):
        super().__init__(0)
        self.asked = []

    def evaluate(self, request, **rest):
        self.asked.append(request.convergence_at_s)
        return super().evaluate(request, **rest)


def test_losses_are_compared_at_equal_training_time(make):
    evaluator = Noting()
    with built(make("seconds"), evaluator, seconds=5.0) as study:
        study.run(OptunaSearcher(study.space, seed=0))
    assert evaluator.asked == [5.0] * 4

    evaluator, stored = Noting(), make("steps")
    with built(stored, evaluator, steps=20) as study:
        study.run(OptunaSearcher(study.space, seed=0))
    assert evaluator.asked == [None] + [stored.trials()[0].measurement.convergence_time_s] * 3


def test_a_baseline_outside_the_space_is_measured_all_the_same(make):
    stored = make(space={"narrow": {"train_micro_batch_size_per_gpu": [1, 2]}})
    run(stored)
    assert stored.trials()[0].point == {}
    assert stored.trials()[0].ds_config["train_micro_batch_size_per_gpu"] == 4
    assert len(stored.trials()) == 8


def test_a_small_space_ends_the_study_before_its_budget(make):
    changes = {"base": "empty", "add": [{"name": "gradient_clipping", "type": "float", "levels": [0.5, 1.0, 2.0]}]}
    stored = make(space=changes)
    assert "all 3 points of the space have been tried" in run(stored)
    assert len(stored.trials()) == 3


def test_remeasuring_leaves_no_trial(make):
    stored = make()
    run(stored)
    with campaigns.study(stored) as study:
        for trial in [trial for trial in stored.trials() if trial.measurement]:
            outcome = study.remeasure(trial)
            again, first = outcome.measurement, trial.outcome.measurement
            assert again.step_time_s != first.step_time_s
            assert again.step_time_s == pytest.approx(first.step_time_s, rel=0.2)
            assert again.effective_config == first.effective_config
    assert len(stored.trials()) == 8


def test_studies_are_found_by_name(make, storage):
    make("a")
    make("b")
    assert storage.names() == ["a", "b"]
    with pytest.raises(StudyError, match=r"study 'c' is not in .*; there: a, b"):
        storage.open("c")
    with pytest.raises(StudyError, match="study 'a' exists already"):
        make("a")


def test_a_storage_that_cannot_be_opened_says_so(tmp_path):
    for url, complaint in (
        ("nonsense", "give a URL such as sqlite:///autotune.db"),
        (f"sqlite:///{tmp_path}/no/such/folder/x.db", "check that the folder or server exists"),
        (f"sqlite:///{tmp_path}/a\0b.db", "embedded null byte"),
        (f"sqlite:///{tmp_path}/x.db?timeout=soon", "could not convert string to float"),
    ):
        with pytest.raises(StorageError, match=complaint):
            storages.connect(url)
    assert not Path(tmp_path / "no").exists()


def test_a_storage_in_memory_serves_a_script(make, tmp_path):
    opened = storages.connect("sqlite:///:memory:")
    data = {"name": "s", "ds_config": DS_CONFIG, "evaluator": "simulated", "hardware": {"ranks": 2}, "trials": 3}
    stored = campaigns.create(campaigns.parse(data, where="test"), opened, name="s")
    run(stored)
    assert len(stored.trials()) == 3
    opened.close()


def test_a_stop_is_heard_before_remeasuring(make):
    stored, stop = make(), StopRequest()
    run(stored)
    with campaigns.study(stored, stop=stop) as study:
        stop()
        assert study.remeasure(stored.trials()[0]) is None


def test_trials_that_end_while_another_is_measured_again_are_kept_and_told(make, monkeypatch):
    stored, told, again = make(), [], []
    with campaigns.study(stored) as study:
        monkeypatch.setattr(study, "_runner", InlineRunner(study._runner._evaluator, slots=2))
        searcher = OptunaSearcher(study.space, sampler="random", seed=0)
        tell = searcher.tell
        monkeypatch.setattr(searcher, "tell", lambda trial: told.append(trial.number) or tell(trial))

        def between():
            if study._open and len(study.history) in (3, 5):
                again.append((study.remeasure(study.baseline), len(study.history)))

        study.run(searcher, between=between)
    assert again
    first = study.baseline.measurement.step_time_s
    for outcome, _ in again:
        assert outcome.measurement.step_time_s == pytest.approx(first, rel=0.2)
        assert outcome.measurement.step_time_s != first
    assert sorted(told) == [trial.number for trial in stored.trials()]
    assert len(stored.trials()) == 8
