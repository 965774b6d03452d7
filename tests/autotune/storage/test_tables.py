"""What autotune writes into Optuna's tables is what Optuna itself would have written, and Optuna reads it."""

from __future__ import annotations

import optuna
import pytest
import sqlalchemy

from autotune import storage as storages
from autotune.errors import StorageError
from autotune.trials import TrialState
from tests.autotune.storage.conftest import made, run

CONTENT = {
    "studies": "SELECT study_name FROM studies",
    "study_directions": "SELECT objective, direction FROM study_directions",
    "trials": "SELECT number, state, datetime_start, datetime_complete FROM trials ORDER BY number",
    "trial_params": "SELECT number, param_name, param_value, distribution_json FROM trial_params JOIN trials "
    "USING (trial_id) ORDER BY number, param_name",
    "trial_values": "SELECT number, objective, value, value_type FROM trial_values JOIN trials USING (trial_id) "
    "ORDER BY number",
    "trial_user_attributes": "SELECT number, key, value_json FROM trial_user_attributes JOIN trials USING (trial_id) "
    "ORDER BY number, key",
}


def content(url):
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        rows = {name: [tuple(row) for row in connection.exec_driver_sql(query)] for name, query in CONTENT.items()}
    engine.dispose()
    return rows


def closed(rdb):
    rdb.remove_session()
    rdb.engine.dispose()


def test_optuna_would_have_written_the_same(storage, tmp_path):
    run(made(storage), trials=12)
    mine = optuna.storages.RDBStorage(storage.url)
    theirs = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/theirs.db")
    copy = optuna.create_study(storage=theirs, study_name="s", direction="maximize")
    for trial in optuna.load_study(storage=mine, study_name="s").trials:
        copy.add_trial(trial)
    closed(mine)
    closed(theirs)
    written, expected = content(storage.url), content(f"sqlite:///{tmp_path}/theirs.db")
    assert {row[1] for row in written["trials"]} == {"COMPLETE", "FAIL"}
    for row in (*written["trials"], *expected["trials"]):
        assert row[2] <= row[3]
    for name, rows in expected.items():
        assert [tuple(map(str, row)) for row in written[name]] == [tuple(map(str, row)) for row in rows], name


def test_optuna_adds_a_trial_to_a_running_study_and_numbers_stay_whole(storage):
    stored = made(storage)
    run(stored, trials=3)
    rdb = optuna.storages.RDBStorage(storage.url)
    study = optuna.load_study(storage=rdb, study_name="s")
    study.enqueue_trial({"zero_optimization.stage": 0})
    run(stored, trials=5)
    assert [trial.number for trial in stored.trials()] == [0, 1, 2, 4, 5]
    assert [trial.number for trial in storage.open("s").trials()] == [0, 1, 2, 4, 5]
    assert [trial.number for trial in study.get_trials()] == list(range(6))
    assert study.trials[3].state is optuna.trial.TrialState.WAITING
    closed(rdb)


def test_what_is_returned_is_what_is_read(storage):
    stored = made(storage)
    run(stored, trials=8)
    run(made(storage, "other"), trials=2)  # their keys lie between those of the first
    run(stored, trials=10)
    again = storage.open("s")
    assert again.trials() == stored.trials()
    assert [again.trial(number) for number in range(10)] == stored.trials()
    assert [storage.open("s").trial(number) for number in range(10)] == stored.trials()


def test_a_reader_sees_a_running_study_go_on(storage):
    stored, reader = made(storage), storage.open("s")
    run(stored, trials=2)
    assert len(reader.trials()) == 2

    class Looking:
        def note(self, text): ...
        def waiting(self): ...

        def trial_started(self, trial):
            assert [seen.state for seen in reader.trials()][-1] is TrialState.RUNNING
            assert reader.trials()[-1] == trial

        def trial_finished(self, trial):
            assert reader.trials()[-1] == trial

    run(stored, trials=5, listener=Looking())
    assert reader.trials() == stored.trials()


def test_a_table_of_another_tool_is_told_of_when_it_is_opened(tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE trial_params (name TEXT)")
    engine.dispose()
    with pytest.raises(StorageError, match="that the database is Optuna's"):
        storages.connect(f"sqlite:///{tmp_path}/x.db")
