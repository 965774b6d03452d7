"""Studies in a storage, and the trials of one."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import optuna
import sqlalchemy

from autotune.errors import StudyError
from autotune.objective import Score
from autotune.space import SearchSpace
from autotune.storage import records, tables
from autotune.storage.patience import Patience
from autotune.storage.urls import command, shown
from autotune.trials import Outcome, Trial, TrialRequest, TrialState

_BATCH = 2000
"""Trials that are read at once."""
_Answer = TypeVar("_Answer")


class Database:
    """Runs transactions, with patience."""

    def __init__(self, engine: sqlalchemy.Engine, url: str) -> None:
        self._engine = engine
        self.url = url
        self.patience = Patience(url)

    def run(self, work: Callable[[sqlalchemy.Connection], _Answer]) -> _Answer:
        """Do work that may be done twice, in one transaction.

        Raises:
            StorageError: when the storage does not answer.
        """
        return self.run_once(lambda connection, _again: work(connection))

    def run_once(self, work: Callable[[sqlalchemy.Connection, bool], _Answer]) -> _Answer:
        """Do work in one transaction.

        Args:
            work: gets a connection, and whether it is tried again: it may have been done already then.

        Raises:
            StorageError: when the storage does not answer.
        """

        def attempt(again: bool) -> _Answer:  # noqa: FBT001 (as `Patience.run` calls it)
            with self._engine.begin() as connection:
                return work(connection, again)

        return self.patience.run(attempt)

    def close(self) -> None:
        """Give back the connections."""
        self._engine.dispose()


class Storage:
    """An open storage: studies by name."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = database.url

    def names(self) -> list[str]:
        """Return the names of the studies that autotune made, oldest first."""
        return self._database.run(lambda connection: tables.study_names(connection, prefix=records.PREFIX))

    def create(self, name: str, attributes: Mapping[str, Any]) -> StoredStudy:
        """Make a study.

        Raises:
            StudyError: when there is one of that name.
        """
        token = uuid.uuid4().hex
        kept = {records.TOKEN: token} | {records.PREFIX + key: value for key, value in attributes.items()}

        def work(connection: sqlalchemy.Connection, again: bool) -> int | None:  # noqa: FBT001
            known = tables.study_id(connection, name)
            if known is None:
                return tables.add_study(connection, name, kept)
            ours = again and tables.study_attribute(connection, known, records.TOKEN) == token
            return known if ours else None

        try:
            study_id = self._database.run_once(work)
        except sqlalchemy.exc.IntegrityError:  # another process made it between the two statements
            study_id = None
        if study_id is None:
            raise StudyError(
                f"study {name!r} exists already in {shown(self.url)}; go on with it "
                f"({command('resume', name, url=self.url)}), or choose another name (--study)"
            )
        return StoredStudy(self._database, study_id, name)

    def open(self, name: str) -> StoredStudy:
        """Return a study.

        Raises:
            StudyError: when there is none of that name.
        """
        study_id = self._database.run(lambda connection: tables.study_id(connection, name))
        if study_id is None:
            names = ", ".join(self.names()) or "none yet"
            raise StudyError(f"study {name!r} is not in {shown(self.url)}; there: {names}")
        return StoredStudy(self._database, study_id, name)

    def close(self) -> None:
        """Give back the connection."""
        self._database.close()


class StoredStudy:
    """One study in the storage: its attributes and its trials. Only the controller calls what writes."""

    def __init__(self, database: Database, study_id: int, name: str) -> None:
        self._database = database
        self._study_id = study_id
        self._finished: dict[int, Trial] = {}
        self._running: dict[int, tuple[tables.TrialRow, Mapping[str, str]]] = {}
        """Rows and attributes of the trials that were started here, by number."""
        self._last_id = 0
        """Key of the last trial that was started here."""
        self.url = database.url
        self.name = name

    def hold_on(self, tell: Callable[[str], None] | None) -> None:
        """From now on wait for a storage that does not answer, as a controller must.

        Args:
            tell: hears of it; None: a warning in the log.
        """
        advice = f"what was recorded is kept: mend it, then go on ({command('resume', self.name, url=self.url)})"
        self._database.patience.hold_on(tell, advice=advice)

    def attribute(self, key: str) -> Any:
        """Return what `set_attribute` kept; None when there is nothing."""
        return self._database.run(
            lambda connection: tables.study_attribute(connection, self._study_id, records.PREFIX + key)
        )

    def set_attribute(self, key: str, value: Any) -> None:
        """Keep JSON data with the study."""
        self._database.run(
            lambda connection: tables.set_study_attribute(connection, self._study_id, records.PREFIX + key, value)
        )

    def swap_attribute(self, key: str, *, old: Any, new: Any) -> bool:
        """Keep `new` where there is `old` (None: or nothing); whether there was, so that of two only one succeeds."""

        def work(connection: sqlalchemy.Connection, again: bool) -> bool:  # noqa: FBT001
            key_ = records.PREFIX + key
            if tables.swap_study_attribute(connection, self._study_id, key_, old=old, new=new):
                return True
            return again and tables.study_attribute(connection, self._study_id, key_) == new

        try:
            return self._database.run_once(work)
        except sqlalchemy.exc.IntegrityError:  # another process was quicker, where there was nothing
            return False

    def trials(self) -> list[Trial]:
        """Return every trial, by number (those that another tool put into the study are left out)."""
        return self._database.run(self._read_trials)

    def trial(self, number: int) -> Trial:
        """Return one trial.

        Raises:
            StudyError: when there is none of that number.
        """
        if number in self._finished:
            return self._finished[number]
        trial = records.trial_of(*(self._running.get(number) or self._found(number)))
        if trial is None:
            raise StudyError(f"trial {number} of study {self.name!r} was not written by autotune")
        return trial

    def start_trial(
        self, request: TrialRequest, space: SearchSpace, *, is_baseline: bool, searcher_s: float | None = None
    ) -> int:
        """Record a trial as RUNNING and return its number (the request's own number is not looked at)."""
        token = uuid.uuid4().hex
        attributes = records.of_request(request, is_baseline=is_baseline, token=token, searcher_s=searcher_s)
        parameters = records.parameters_of(request, space)

        def work(connection: sqlalchemy.Connection, again: bool) -> tables.TrialRow:  # noqa: FBT001
            made = again and tables.trial_with(
                connection, self._study_id, key=records.TOKEN, text=attributes[records.TOKEN], after=self._last_id
            )
            return made or tables.add_trial(
                connection, self._study_id, parameters=parameters, attributes=attributes, started_at=_now()
            )

        row = self._database.run_once(work)
        self._last_id = row.trial_id
        self._running[row.number] = row, attributes
        return row.number

    def finish_trial(self, number: int, outcome: Outcome, score: Score | None) -> Trial:
        """Record what came of a RUNNING trial, its final state and its value, all at once or not at all.

        Raises:
            StudyError: when it is not RUNNING, or there is none of that number.
        """
        row, begun = self._running.get(number) or self._found(number)
        attributes = records.of_result(outcome, score)
        state = optuna.trial.TrialState[outcome.state.value]

        def work(connection: sqlalchemy.Connection, again: bool) -> bool:  # noqa: FBT001
            is_ours = tables.finish_trial(
                connection,
                row.trial_id,
                state=state,
                value=score.value if score else None,
                attributes=attributes,
                # A version before this one kept the outcome first, and the state in a transaction after it.
                replaced=[key for key in attributes if key in begun],
                finished_at=_now(),
            )
            if is_ours or not again:
                return is_ours
            return attributes.items() <= tables.attributes_of_trial(connection, row.trial_id).items()

        if not self._database.run_once(work):
            raise StudyError(
                f"trial {number} of study {self.name!r} is not running any more: another process ended it; "
                f"see who runs the study: {command('status', self.name, url=self.url)}"
            )
        self._running.pop(number, None)
        trial = records.trial_of(replace(row, state=state), {**begun, **attributes})
        if trial is None:
            raise StudyError(f"trial {number} of study {self.name!r} was not written by autotune")
        self._finished[number] = trial
        return trial

    def _read_trials(self, connection: sqlalchemy.Connection) -> list[Trial]:
        # The states first: a trial that ends meanwhile is taken for RUNNING, and read again the next time.
        rows = tables.trials(connection, self._study_id)
        unknown = [row for row in rows if row.number not in self._finished]
        running: dict[int, Trial] = {}
        with _no_collection() if len(unknown) > _BATCH else nullcontext():
            for begin in range(0, len(unknown), _BATCH):
                batch = unknown[begin : begin + _BATCH]
                attributes = tables.attributes_of_trials(
                    connection,
                    self._study_id,
                    keys=records.READ,
                    since=batch[0].trial_id,
                    until=batch[-1].trial_id,
                )
                for trial in records.trials_of(batch, attributes):
                    (running if trial.state is TrialState.RUNNING else self._finished)[trial.number] = trial
        trials = (self._finished.get(row.number) or running.get(row.number) for row in rows)
        return [trial for trial in trials if trial is not None]

    def _found(self, number: int) -> tuple[tables.TrialRow, dict[str, str]]:
        """Return a trial's row and attributes.

        Raises:
            StudyError: when there is none of that number.
        """

        def work(connection: sqlalchemy.Connection) -> tuple[tables.TrialRow, dict[str, str]] | None:
            row = tables.trial(connection, self._study_id, number)
            return None if row is None else (row, tables.attributes_of_trial(connection, row.trial_id))

        found = self._database.run(work)
        if found is None:
            raise StudyError(f"study {self.name!r} has no trial {number}")
        return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking again and again over what is read, then or later: none is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 (Optuna's trials begin and end in local time)
