"""The storage: Optuna studies by URL, the only durable state. What autotune adds are user attributes.

Any Optuna tool reads it (`optuna-dashboard sqlite:///autotune.db`). Of a study: `autotune:...` attributes hold what
is needed to go on with it. Of a trial: parameters by DeepSpeed's dotted keys, the value R, `throughput_ratio`,
`convergence_ratio`, `failure`, `pruned`, and under `autotune:...` the whole configuration and outcome.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial

from autotune import file_systems
from autotune.errors import StorageError, StudyError
from autotune.file_systems import Mount
from autotune.objective import Score
from autotune.space import Dimension, Float, Integer, SearchSpace
from autotune.trials import Outcome, Trial, TrialRequest, TrialState, Value

DEFAULT_URL = "sqlite:///autotune.db"
_PREFIX = "autotune:"
_VARIABLE = "AUTOTUNE_STORAGE"
"""Environment variable that stands in for --storage (`autotune.cli.options.STORAGE_VARIABLE`)."""
_SQLITE_WAIT_S = 60.0
"""How long a reader or the writer waits for SQLite's lock."""
NETWORK_VARIABLE = "AUTOTUNE_SQLITE_ON_NETWORK"
"""Environment variable that, set to 1, allows a SQLite file on a network file system."""
_ATTEMPTS, _AGAIN_S = 20, 0.1
_TELLING = (
    "SELECT study_id, study_name FROM studies LIMIT 0",
    "SELECT trial_id, number, study_id, state FROM trials LIMIT 0",
)
"""What a foreign table of the same name has no answer to."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


def connect(url: str, *, mounts: Sequence[Mount] | None = None) -> Storage:
    """Open a storage, making its tables if they are missing.

    Args:
        url: any that Optuna takes.
        mounts: what is mounted; this machine's own by default.

    Raises:
        StorageError: when the database can't be reached, is not an Optuna storage, or is a SQLite file on a network
            file system.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mount = check_place(url, mounts=mounts)
    parsed, file = sqlalchemy.engine.make_url(url), file_of(url)
    is_local = mount is None or not mount.is_network
    try:
        with _one_at_a_time(file):
            if file is not None and not file.exists():
                _make_whole(parsed, file, write_ahead=is_local)
            rdb = _opened(url, write_ahead=None if file is None else is_local)
        return Storage(optuna.storages.get_storage(rdb), rdb, url)
    except (
        sqlalchemy.exc.SQLAlchemyError,
        sqlite3.Error,
        RuntimeError,
        ImportError,
        OSError,
        ValueError,  # a NUL in a path, a query argument of the wrong type
    ) as error:
        first_line = str(error).strip().splitlines()[0]
        raise StorageError(
            f"storage: can't open {parsed.render_as_string(hide_password=True)}: {first_line}; "
            f"check that the folder or server exists and may be written, and that the database is Optuna's"
        ) from error


def check_place(url: str, *, mounts: Sequence[Mount] | None = None) -> Mount | None:
    """Return the mount that a SQLite storage lies on; None for others.

    Args:
        url: of the storage.
        mounts: what is mounted; this machine's own by default.

    Raises:
        StorageError: when the URL is none, or its file is on a network file system and the user doesn't insist.
    """
    file = file_of(url)
    if file is None:
        return None
    mount = file_systems.mount_of(file, file_systems.mounts() if mounts is None else mounts)
    if mount is not None and mount.is_network and os.environ.get(NETWORK_VARIABLE, "0") in ("", "0"):
        raise StorageError(
            f"storage: got {shown(url)}, and {mount.point} is a network file system ({mount.kind}): SQLite's locks "
            f"don't hold there and the file can break; give a path on a local disk "
            f"(--storage sqlite:////tmp/{file.name}) or PostgreSQL (--storage postgresql+psycopg://USER@HOST/NAME), "
            f"or set {NETWORK_VARIABLE}=1 if only this machine uses it"
        )
    return mount


def file_of(url: str) -> Path | None:
    """Return the file of a SQLite storage; None for a server, for memory, and for SQLite's own `file:` names.

    Raises:
        StorageError: when it is no URL.
    """
    try:
        parsed = sqlalchemy.engine.make_url(url)
    except sqlalchemy.exc.ArgumentError as error:
        raise StorageError(f"storage: got {url!r}; give a URL such as {DEFAULT_URL}") from error
    database = parsed.database
    if parsed.get_backend_name() != "sqlite" or not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(database)


def shown(url: str) -> str:
    """Return a storage URL as it may be printed: without its password."""
    try:
        parsed = sqlalchemy.engine.make_url(url)
        hidden = {name: "***" for name in parsed.query if "password" in name.lower()}
        return parsed.update_query_dict(hidden).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url


def option(url: str) -> str:
    """Return what a command of autotune's needs to find this storage; nothing for the one it finds itself."""
    return "" if url in (DEFAULT_URL, os.environ.get(_VARIABLE)) else f" --storage {shlex.quote(shown(url))}"


class Storage:
    """An open storage: studies by name."""

    def __init__(self, optuna_storage: BaseStorage, rdb: RDBStorage, url: str) -> None:
        self._storage = optuna_storage
        self._rdb = rdb
        self.url = url

    def names(self) -> list[str]:
        """Return the names of the studies that autotune made, oldest first."""
        return [
            study.study_name
            for study in self._storage.get_all_studies()
            if any(key.startswith(_PREFIX) for key in study.user_attrs)
        ]

    def create(self, name: str, attributes: Mapping[str, Any]) -> StoredStudy:
        """Make a study.

        Raises:
            StudyError: when there is one of that name.
        """
        try:
            study_id = self._storage.create_new_study([StudyDirection.MAXIMIZE], name)
        except optuna.exceptions.DuplicatedStudyError as error:
            raise StudyError(
                f"study {name!r} exists already in {shown(self.url)}; go on with it "
                f"(autotune resume {name}{option(self.url)}), or choose another name (--study)"
            ) from error
        study = StoredStudy(self._storage, study_id, name, url=self.url)
        for key, value in attributes.items():
            study.set_attribute(key, value)
        return study

    def open(self, name: str) -> StoredStudy:
        """Return a study.

        Raises:
            StudyError: when there is none of that name.
        """
        try:
            return StoredStudy(self._storage, self._storage.get_study_id_from_name(name), name, url=self.url)
        except KeyError as error:
            names = ", ".join(self.names()) or "none yet"
            raise StudyError(f"study {name!r} is not in {shown(self.url)}; there: {names}") from error

    def close(self) -> None:
        """Give back the connection."""
        self._storage.remove_session()
        self._rdb.engine.dispose()


class StoredStudy:
    """One study in the storage: its attributes and its trials. Only the controller calls what writes."""

    def __init__(self, storage: BaseStorage, study_id: int, name: str, *, url: str) -> None:
        self._storage = storage
        self._study_id = study_id
        self.url = url
        self._finished: dict[int, Trial] = {}
        self.name = name

    def attribute(self, key: str) -> Any:
        """Return what `set_attribute` kept; None when there is nothing."""
        return self._storage.get_study_user_attrs(self._study_id).get(_PREFIX + key)

    def set_attribute(self, key: str, value: Any) -> None:
        """Keep JSON data with the study."""
        self._storage.set_study_user_attr(self._study_id, _PREFIX + key, value)

    def trials(self) -> list[Trial]:
        """Return every trial, by number (those that another tool put into the study are left out)."""
        trials = []
        for frozen in self._storage.get_all_trials(self._study_id, deepcopy=False):
            trial = self._finished.get(frozen.number) or _trial_of(frozen)
            if trial is None:
                continue
            if trial.state is not TrialState.RUNNING:
                self._finished[trial.number] = trial
            trials.append(trial)
        return trials

    def trial(self, number: int) -> Trial:
        """Return one trial.

        Raises:
            StudyError: when there is none of that number.
        """
        try:
            trial = _trial_of(self._storage.get_trial(self._id(number)))
        except KeyError as error:
            raise StudyError(f"study {self.name!r} has no trial {number}") from error
        if trial is None:
            raise StudyError(f"trial {number} of study {self.name!r} was not written by autotune")
        return trial

    def start_trial(self, request: TrialRequest, space: SearchSpace, *, is_baseline: bool) -> int:
        """Record a trial as RUNNING and return its number (the request's own number is not looked at)."""
        distributions = {
            name: _distribution(space[name]) for name, value in request.point.items() if _fits(space[name], value)
        }
        template = create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params={name: request.point[name] for name in distributions},
            distributions=distributions,
            user_attrs={
                _PREFIX + "point": dict(request.point),
                _PREFIX + "ds_config": dict(request.ds_config),
                _PREFIX + "activation_checkpointing": request.activation_checkpointing,
                _PREFIX + "config_hash": request.config_hash,
                _PREFIX + "is_baseline": is_baseline,
                _PREFIX + "started_at": datetime.now(UTC).isoformat(),
            },
        )
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=template)
        return self._storage.get_trial_number_from_id(trial_id)

    def record_outcome(self, number: int, outcome: Outcome) -> None:
        """Keep what came of a trial; from here on it can't be lost, even if `finish_trial` is never reached."""
        self._set(number, _PREFIX + "finished_at", datetime.now(UTC).isoformat())
        self._set(number, _PREFIX + "outcome", outcome.to_json())

    def finish_trial(self, number: int, outcome: Outcome, score: Score | None) -> Trial:
        """Give a trial its final state and value."""
        if outcome.failure is not None:
            self._set(number, "failure", f"{outcome.failure.kind}: {outcome.failure.reason}")
        if outcome.pruned is not None:
            self._set(number, "pruned", outcome.pruned)
        if score is not None:
            self._set(number, _PREFIX + "score", asdict(score))
            self._set(number, "throughput_ratio", score.throughput_ratio)
            self._set(number, "convergence_ratio", score.convergence_ratio)
        state = optuna.trial.TrialState[outcome.state.value]
        trial_id = self._id(number)
        self._storage.set_trial_state_values(trial_id, state, [score.value] if score else None)
        return self.trial(number)

    def _set(self, number: int, key: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._id(number), key, value)

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)


def _trial_of(frozen: FrozenTrial) -> Trial | None:
    """Read a trial; None for one that another tool put into the study."""
    attributes = {
        key.removeprefix(_PREFIX): value for key, value in frozen.user_attrs.items() if key.startswith(_PREFIX)
    }
    if "ds_config" not in attributes:
        return None
    outcome = attributes.get("outcome")
    score = attributes.get("score") or {}
    finished = attributes.get("finished_at")
    return Trial(
        number=frozen.number,
        state=TrialState(frozen.state.name),
        is_baseline=attributes["is_baseline"],
        point=attributes["point"],
        ds_config=attributes["ds_config"],
        activation_checkpointing=attributes["activation_checkpointing"],
        config_hash=attributes["config_hash"],
        outcome=Outcome.from_json(outcome) if outcome else None,
        throughput_ratio=score.get("throughput_ratio"),
        convergence_ratio=score.get("convergence_ratio"),
        score=score.get("value"),
        started_at=datetime.fromisoformat(attributes["started_at"]),
        finished_at=datetime.fromisoformat(finished) if finished else None,
    )


def _fits(dimension: Dimension, value: Value) -> bool:
    """Whether Optuna can show a value under the dimension's distribution (a baseline may lie outside the space)."""
    if not dimension.is_ordered:
        return value in dimension.levels
    return not isinstance(value, bool | str) and float(dimension.levels[0]) <= value <= float(dimension.levels[-1])


def _distribution(dimension: Dimension) -> BaseDistribution:
    """Return the distribution under which Optuna's tools show a dimension."""
    if isinstance(dimension, Integer):
        return IntDistribution(int(dimension.levels[0]), int(dimension.levels[-1]), log=dimension.log)
    if isinstance(dimension, Float):
        return FloatDistribution(float(dimension.levels[0]), float(dimension.levels[-1]), log=dimension.log)
    return CategoricalDistribution(dimension.levels)


def _opened(url: str, *, write_ahead: bool | None) -> RDBStorage:
    """Open Optuna's storage, and see that its tables are Optuna's.

    Args:
        url: of the database.
        write_ahead: whether SQLite's write-ahead mode is used; None where it is no SQLite file.
    """
    arguments = {} if write_ahead is None else {"connect_args": {"timeout": _SQLITE_WAIT_S}}
    for attempt in range(_ATTEMPTS):
        try:
            rdb = RDBStorage(url, engine_kwargs=arguments)
            break
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError) as error:
            # Another Optuna tool makes the tables at this moment, without our lock.
            made = isinstance(error, sqlalchemy.exc.IntegrityError) or "already exists" in str(error)
            if not made or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_AGAIN_S)
    if write_ahead is not None:
        sqlalchemy.event.listen(rdb.engine, "connect", _write_ahead if write_ahead else _roll_back)
        rdb.engine.dispose()
    with rdb.engine.connect() as connection:
        for statement in _TELLING:
            connection.execute(sqlalchemy.text(statement))
    return rdb


def _make_whole(url: sqlalchemy.engine.URL, file: Path, *, write_ahead: bool) -> None:
    """Make the tables in a neighbour that takes the file's place: nobody ever sees a file with half of its tables.

    Optuna itself fails where two make the tables of one file (optuna#820), and its readers make them too.
    """
    with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=f".{file.name}-") as folder:
        neighbour = Path(folder) / file.name
        rdb = RDBStorage(url.set(database=str(neighbour)).render_as_string(hide_password=False))
        rdb.remove_session()
        rdb.engine.dispose()
        if write_ahead:  # kept in the file; a change of mode later would find it locked by readers
            with closing(sqlite3.connect(neighbour)) as connection:
                _write_ahead(connection, None)
        try:
            os.link(neighbour, file)
        except FileExistsError:
            pass  # another tool was quicker
        except OSError:  # a file system without links
            if not file.exists():
                neighbour.rename(file)


def _write_ahead(connection: Any, _: object) -> None:
    """Let readers read while the controller writes, and spare a disk flush per statement.

    In SQLite's write-ahead mode with synchronous = NORMAL a commit survives the death of the process; only a power
    failure can take the last ones (https://sqlite.org/pragma.html#pragma_synchronous).
    """
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _roll_back(connection: Any, _: object) -> None:
    """Write-ahead mode needs memory that all processes share, which a network file system doesn't give.

    https://sqlite.org/wal.html, "WAL does not work over a network filesystem".
    """
    connection.execute("PRAGMA journal_mode = DELETE")


@contextmanager
def _one_at_a_time(file: Path | None) -> Iterator[None]:
    """Let one process at a time make the tables of a SQLite file (optuna#820: others fail meanwhile)."""
    if file is None:
        yield
        return
    with Path(f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
