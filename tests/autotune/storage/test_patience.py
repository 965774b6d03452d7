"""Patience by a simulated clock: how often it tries, what it tells, and when it ends."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy

from autotune.errors import StorageError
from autotune.storage import PATIENCE_S, patience
from autotune.storage.patience import Patience

URL = "postgresql+psycopg://me:secret@host/studies"


class Clock:
    """Stands in for the module `time`: a sleep passes at once."""

    def __init__(self):
        self.now_s = 1000.0
        self.sleeps_s = []

    def monotonic(self):
        return self.now_s

    def sleep(self, time_s):
        self.sleeps_s.append(time_s)
        self.now_s += time_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    return clock


class Attempts:
    """Fails so many times, then answers."""

    def __init__(self, failures, error=None):
        self.failures = failures
        self.error = error or outage()
        self.made = []

    def __call__(self, again):
        self.made.append(again)
        if len(self.made) <= self.failures:
            raise self.error
        return "answer"


def outage(*, connection_lost=False):
    cause = sqlite3.OperationalError("database is locked\nand more")
    return sqlalchemy.exc.OperationalError("SELECT 1", {}, cause, connection_invalidated=connection_lost)


def waiting(tell):
    patient = Patience(URL)
    patient.hold_on(tell, advice="go on: autotune resume s")
    return patient


def test_a_controller_waits_with_growing_pauses_and_tells_once_and_once_again(clock):
    told = []
    attempts = Attempts(8)
    assert waiting(told.append).run(attempts) == "answer"
    assert attempts.made == [False] + [True] * 8
    assert clock.sleeps_s == [0.0, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert told == [
        "the storage does not answer (database is locked); trying again for up to 120 s",
        "the storage answers again, after 20 s",
    ]


def test_what_succeeds_at_the_second_attempt_is_not_worth_a_word(clock):
    told = []
    assert waiting(told.append).run(Attempts(1)) == "answer"
    assert told == []


def test_patience_ends_in_one_clear_error(clock):
    told = []
    patient = waiting(told.append)
    with pytest.raises(StorageError) as caught:
        patient.run(Attempts(10**6))
    assert str(caught.value) == (
        "storage: postgresql+psycopg://me:***@host/studies has not answered for 120 s: database is locked; "
        "go on: autotune resume s"
    )
    assert sum(clock.sleeps_s) == pytest.approx(PATIENCE_S)
    assert len(told) == 1


def test_what_is_left_to_do_after_that_is_tried_once_only_until_one_succeeds(clock):
    patient = waiting([].append)
    with pytest.raises(StorageError):
        patient.run(Attempts(10**6))
    ended_s, attempts = clock.now_s, Attempts(1)
    with pytest.raises(StorageError):
        patient.run(attempts)
    assert (clock.now_s, len(attempts.made)) == (ended_s, 1)
    assert patient.run(Attempts(0)) == "answer"
    assert patient.run(Attempts(5)) == "answer"


def test_a_reader_does_not_wait(clock):
    attempts = Attempts(1)
    with pytest.raises(StorageError, match=r"host/studies does not answer: database is locked; see that the server"):
        Patience(URL).run(attempts)
    assert (attempts.made, clock.sleeps_s) == ([False], [])


def test_a_reader_whose_idle_connection_is_gone_asks_again_at_once(clock):
    attempts = Attempts(1, outage(connection_lost=True))
    assert Patience(URL).run(attempts) == "answer"
    assert attempts.made == [False, True]
    with pytest.raises(StorageError):
        Patience(URL).run(Attempts(2, outage(connection_lost=True)))
    assert sum(clock.sleeps_s) == 0


def test_a_wrong_statement_is_no_outage(clock):
    wrong = sqlalchemy.exc.ProgrammingError("SELEKT", {}, sqlite3.Error("syntax"))
    attempts = Attempts(1, wrong)
    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        waiting([].append).run(attempts)
    assert len(attempts.made) == 1


def test_who_interrupts_the_wait_does_not_wait_again(clock, monkeypatch):
    patient = waiting([].append)

    def interrupted(time_s):
        if time_s > 1:
            raise KeyboardInterrupt
        clock.now_s += time_s

    monkeypatch.setattr(clock, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        patient.run(Attempts(10**6))
    attempts = Attempts(1)
    with pytest.raises(StorageError):
        patient.run(attempts)
    assert len(attempts.made) == 1


def test_without_a_listener_the_log_hears_of_it(clock, caplog):
    assert waiting(None).run(Attempts(2)) == "answer"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
