"""Real outages, and answers that are lost on their way: no trial is lost, none is made or counted twice."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import storage as storages
from autotune.errors import StorageError, StudyError
from autotune.storage import opening, patience
from autotune.study import Silence
from autotune.trials import TrialState
from tests.autotune.storage.conftest import made, run

TRIALS = 4


class Notes(Silence):
    """A listener that keeps the notes."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class Faults:
    """Breaks commits by plan, again and again, in the border between SQLAlchemy and the driver.

    "before": it is not carried out; "after": it is, but the answer is lost; "": all is well.
    """

    def __init__(self, storage):
        dialect = storage._database._engine.dialect
        self.plan = itertools.repeat("")
        self.lost = 0
        commit = dialect.do_commit
        error = dialect.loaded_dbapi.OperationalError

        def broken(connection):
            fault = next(self.plan)
            if fault == "before":
                raise error("the connection broke before the commit")
            commit(connection)
            if fault == "after":
                self.lost += 1
                raise error("the connection broke, and the answer is lost")

        dialect.do_commit = broken


@pytest.fixture
def impatient_pauses(monkeypatch):
    monkeypatch.setattr(patience, "_PAUSES_S", (0.0,))


def whole(stored, trials=TRIALS):
    """Return what a study measured, after checking that it is complete and holds nothing twice."""
    found = stored.trials()
    assert [trial.number for trial in found] == list(range(trials))
    assert all(trial.counts and trial.state is not TrialState.RUNNING for trial in found)
    return [(trial.point, trial.score, trial.failure) for trial in found]


def test_commits_that_break_before_or_after_leave_the_study_as_it_would_have_been(tmp_path, impatient_pauses):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    faults = Faults(storage)
    run(made(storage, "reference"), trials=TRIALS)  # a controller, so that the storage is waited for from here on
    reference = whole(storage.open("reference"))

    @settings(max_examples=10, deadline=None)
    @given(plan=st.lists(st.sampled_from(["", "before", "after"]), min_size=1, max_size=9))
    def check(plan):
        stored = made(storage, f"s{len(storage.names())}")
        faults.plan = itertools.cycle([*plan, ""])
        run(stored, trials=TRIALS)
        faults.plan = itertools.repeat("")
        again = storage.open(stored.name)
        assert whole(again) == reference
        assert again.attribute("controller") is None

    check()
    storage.close()


def test_each_answer_that_can_be_lost_is_lost_once(storage, impatient_pauses):
    faults = Faults(storage)
    run(made(storage, "reference"), trials=TRIALS)  # a controller, so that the storage is waited for from here on
    stored = made(storage)
    faults.plan = itertools.cycle(["after", ""])
    run(stored, trials=TRIALS)
    assert faults.lost >= 3 * TRIALS
    assert whole(storage.open("s")) == whole(storage.open("reference"))


def test_a_study_whose_making_was_answered_by_silence_is_made_once(storage, impatient_pauses):
    faults = Faults(storage)
    run(made(storage, "first"), trials=1)
    faults.plan = iter(["after", *[""] * 9])
    made(storage, "second")
    assert storage.names() == ["first", "second"]
    with pytest.raises(StudyError, match="'second' exists already"):
        made(storage, "second")


class Locked:
    """Another writer that holds SQLite's lock for a while, from the first trial on."""

    def __init__(self, path, time_s):
        self._path, self._time_s = path, time_s
        self._holds = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self):
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        self._holds.set()
        time.sleep(self._time_s)
        connection.execute("COMMIT")
        connection.close()

    def begin(self):
        self._thread.start()
        assert self._holds.wait(10)

    def end(self):
        self._thread.join()


class LockingAt(Notes):
    """Lets the other writer in while a trial runs."""

    def __init__(self, number, lock):
        super().__init__()
        self._number, self._lock = number, lock

    def trial_started(self, trial):
        if trial.number == self._number:
            self._lock.begin()


@pytest.mark.parametrize("time_s", [2.0, pytest.param(12.0, marks=pytest.mark.slow)])
def test_a_sqlite_file_that_another_writer_locks_is_waited_for(tmp_path, monkeypatch, time_s):
    monkeypatch.setattr(opening, "_SQLITE_WAIT_S", 0.2)
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    lock = Locked(tmp_path / "s.db", time_s)
    stored, listener = made(storage), LockingAt(2, lock)
    begun_s = time.monotonic()
    run(stored, trials=TRIALS, listener=listener)
    lock.end()
    assert time.monotonic() - begun_s >= time_s
    whole(storage.open("s"))
    first, last = listener.notes
    assert first == "the storage does not answer (database is locked); trying again for up to 120 s"
    assert last.startswith("the storage answers again, after ")
    storage.close()


def test_after_the_patience_one_error_and_a_resume_that_lacks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_SQLITE_WAIT_S", 0.1)
    monkeypatch.setattr(patience, "PATIENCE_S", 1.0)
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    run(made(storage, "reference"), trials=TRIALS)
    lock = Locked(tmp_path / "s.db", 3.0)
    listener = LockingAt(2, lock)
    with pytest.raises(
        StorageError, match=r"has not answered for 1 s: database is locked; .*autotune resume s"
    ) as caught:
        run(made(storage), trials=TRIALS, listener=listener)
    assert "s.db" in str(caught.value)
    lock.end()
    storage.close()

    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    stored = storage.open("s")
    assert [trial.state.value for trial in stored.trials()][-1] == "RUNNING"
    stored.set_attribute("controller", None)  # as if its process had ended
    run(stored, trials=TRIALS)
    found = [trial for trial in storage.open("s").trials() if trial.counts]
    reference = storage.open("reference").trials()
    assert [(trial.point, trial.score) for trial in found] == [(trial.point, trial.score) for trial in reference]
    assert len(storage.open("s").trials()) == TRIALS + 1
    storage.close()


def test_a_reader_is_not_held_up_by_a_writer(tmp_path, monkeypatch):
    storage = storages.connect(f"sqlite:///{tmp_path}/s.db")
    run(made(storage), trials=2)
    lock = Locked(tmp_path / "s.db", 1.0)
    lock.begin()
    begun_s = time.monotonic()
    assert len(storage.open("s").trials()) == 2
    assert time.monotonic() - begun_s < 1.0
    lock.end()
    storage.close()
