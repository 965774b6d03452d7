"""The work per trial does not grow with the trials before it, by counts: statements, SQLite's steps, Python's calls."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import optuna
import pytest
import sqlalchemy

from autotune import storage as storages
from autotune.errors import StorageError
from autotune.storage import studies
from autotune.storage.opening import _newest_revision
from autotune.study import Silence
from tests.autotune.storage.conftest import made, run

EARLY, LATE = (40, 80), (540, 580)
"""Windows of trials in which work is counted: after the first and before the last of each."""
GROWTH = 1.05
"""Allowed from the one to the other; a call for each earlier trial would be 1.1."""


class Work(Silence):
    """Counts what a study does in its windows."""

    def __init__(self, storage):
        self.counts = {}
        self._window, self._done = None, 0
        engine = storage._database._engine
        sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *_: self._count("statements"))
        sqlalchemy.event.listen(engine, "connect", self._watch)
        engine.dispose()

    def trial_finished(self, trial):
        self._done += 1
        for window in (EARLY, LATE):
            if self._done == window[0]:
                self._window = window
                self.counts[window] = Counter()
                sys.setprofile(self._called)
            elif self._done == window[1]:
                sys.setprofile(None)
                self._window = None

    def _called(self, frame, event, argument):
        if event in ("call", "c_call"):
            self._count("calls")

    def _watch(self, connection, record):
        connection.set_progress_handler(lambda: self._count("steps"), 10)

    def _count(self, what):
        if self._window is not None:
            self.counts[self._window][what] += 1


def test_no_trial_costs_more_than_those_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr("autotune.study._HEARTBEAT_S", 1e9)  # it counts time, not trials
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    stored, work = made(storage), Work(storage)
    run(stored, trials=LATE[1], listener=work)
    early, late = work.counts[EARLY], work.counts[LATE]
    for what in ("statements", "steps", "calls"):
        assert 0 < late[what] <= GROWTH * early[what], f"{what}: {early}, {late}"
    assert late["statements"] <= 12 * (LATE[1] - LATE[0])
    storage.close()


def test_a_trial_is_three_transactions(tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    stored = made(storage)
    run(stored, trials=1)
    commits = []
    sqlalchemy.event.listen(storage._database._engine, "commit", commits.append)

    class Counting(Silence):
        def trial_started(self, trial):
            commits.clear()

    run(stored, trials=2, listener=Counting())
    assert len(commits) <= 3  # it ends, the searcher's state, and the controller goes
    storage.close()


def test_reading_takes_a_statement_for_each_batch(tmp_path, monkeypatch):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    run(made(storage), trials=25)
    monkeypatch.setattr(studies, "_BATCH", 10)
    stored, statements = storage.open("s"), []
    sqlalchemy.event.listen(storage._database._engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    whole = stored.trials()
    assert len(statements) == 1 + 3
    statements.clear()
    assert stored.trials() == whole
    assert len(statements) == 1
    storage.close()


def test_a_storage_that_is_there_is_opened_without_alembic(tmp_path):
    storages.connect(f"sqlite:///{tmp_path}/s.db").close()
    code = (
        "import sys; from autotune import storage; "
        f"storage.connect('sqlite:///{tmp_path}/s.db').close(); sys.exit('alembic.script' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_newest_revision_is_alembics_own_answer(tmp_path):
    rdb = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/s.db")
    assert _newest_revision() == rdb.get_head_version() == rdb.get_current_version()
    rdb.remove_session()
    rdb.engine.dispose()


def test_a_storage_of_another_version_is_left_to_optuna_to_refuse(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    storages.connect(url).close()
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    engine.dispose()
    with pytest.raises(StorageError, match="no longer compatible"):
        storages.connect(url)
