"""Optuna's tables: the statements by which autotune reads and writes them.

Optuna's own calls would do, but for three things. `create_new_trial` tries a commit whose answer was lost again by
itself, and leaves a second trial behind. Each attribute is a transaction, ten of them a trial, so that a trial can be
half written. And each new trial counts all before it, each reader builds several objects for every attribute.

The tables and their columns are Optuna's (`optuna.storages._rdb.models`), so they are those of the version that is
installed; that they hold what Optuna itself would have written is tested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy import Connection, bindparam, delete, insert, select, update

_STUDIES: sqlalchemy.Table = models.StudyModel.__table__
_DIRECTIONS: sqlalchemy.Table = models.StudyDirectionModel.__table__
_STUDY_ATTRIBUTES: sqlalchemy.Table = models.StudyUserAttributeModel.__table__
_TRIALS: sqlalchemy.Table = models.TrialModel.__table__
_TRIAL_ATTRIBUTES: sqlalchemy.Table = models.TrialUserAttributeModel.__table__
_PARAMETERS: sqlalchemy.Table = models.TrialParamModel.__table__
_VALUES: sqlalchemy.Table = models.TrialValueModel.__table__

USED = (_STUDIES, _DIRECTIONS, _STUDY_ATTRIBUTES, _TRIALS, _TRIAL_ATTRIBUTES, _PARAMETERS, _VALUES)

# Statements are built once: building one takes longer than SQLite takes to carry it out.
_IS_STUDY = _TRIALS.c.study_id == bindparam("study")
_IS_TRIAL = _TRIALS.c.trial_id == bindparam("trial")
_IS_STUDY_ATTRIBUTE = (
    _STUDY_ATTRIBUTES.c.study_id == bindparam("study"),
    _STUDY_ATTRIBUTES.c.key == bindparam("name"),
)
_ROW = select(_TRIALS.c.trial_id, _TRIALS.c.number, _TRIALS.c.state).where(_IS_STUDY).order_by(_TRIALS.c.trial_id)

_STUDY_NAMES = (
    select(_STUDIES.c.study_name)
    .where(
        _STUDIES.c.study_id.in_(
            select(_STUDY_ATTRIBUTES.c.study_id).where(
                _STUDY_ATTRIBUTES.c.key.startswith(bindparam("prefix"), autoescape=False)
            )
        )
    )
    .order_by(_STUDIES.c.study_id)
)
_STUDY_ID = select(_STUDIES.c.study_id).where(_STUDIES.c.study_name == bindparam("name"))
_STUDY_LOCK = select(_STUDIES.c.study_id).where(_STUDIES.c.study_id == bindparam("study")).with_for_update()
_STUDY_ATTRIBUTE = select(_STUDY_ATTRIBUTES.c.value_json).where(*_IS_STUDY_ATTRIBUTE)
_SET_STUDY_ATTRIBUTE = update(_STUDY_ATTRIBUTES).where(*_IS_STUDY_ATTRIBUTE).values(value_json=bindparam("text"))
_SWAP_STUDY_ATTRIBUTE = _SET_STUDY_ATTRIBUTE.where(_STUDY_ATTRIBUTES.c.value_json == bindparam("old"))
_NUMBER_BEFORE = (
    select(_TRIALS.c.number)
    .where(_IS_STUDY, _TRIALS.c.trial_id < bindparam("trial"))
    .order_by(_TRIALS.c.trial_id.desc())
    .limit(1)
)
_SET_NUMBER = update(_TRIALS).where(_IS_TRIAL).values(number=bindparam("its_number"))
_TRIAL_WITH = _ROW.where(
    _TRIALS.c.trial_id.in_(
        select(_TRIAL_ATTRIBUTES.c.trial_id).where(
            _TRIAL_ATTRIBUTES.c.trial_id > bindparam("after"),
            _TRIAL_ATTRIBUTES.c.key == bindparam("name"),
            _TRIAL_ATTRIBUTES.c.value_json == bindparam("text"),
        )
    )
)
_TRIAL = _ROW.where(_TRIALS.c.number == bindparam("its_number"))
_FINISH = update(_TRIALS).where(_IS_TRIAL, _TRIALS.c.state == TrialState.RUNNING)
_REMOVE_ATTRIBUTES = delete(_TRIAL_ATTRIBUTES).where(
    _TRIAL_ATTRIBUTES.c.trial_id == bindparam("trial"), _TRIAL_ATTRIBUTES.c.key.in_(bindparam("names", expanding=True))
)
_ATTRIBUTES_OF_TRIAL = select(_TRIAL_ATTRIBUTES.c.key, _TRIAL_ATTRIBUTES.c.value_json).where(
    _TRIAL_ATTRIBUTES.c.trial_id == bindparam("trial")
)
_ATTRIBUTES_OF_TRIALS = (
    select(_TRIAL_ATTRIBUTES.c.trial_id, _TRIAL_ATTRIBUTES.c.key, _TRIAL_ATTRIBUTES.c.value_json)
    .join(_TRIALS, _TRIALS.c.trial_id == _TRIAL_ATTRIBUTES.c.trial_id)
    .where(
        _IS_STUDY,
        _TRIALS.c.trial_id.between(bindparam("since"), bindparam("until")),
        _TRIAL_ATTRIBUTES.c.key.in_(bindparam("names", expanding=True)),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a trial, as Optuna keeps it."""

    name: str
    value: float
    """In the distribution's inner form: the index of a category, the number itself elsewhere."""
    distribution_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial without its attributes."""

    trial_id: int
    number: int
    state: TrialState


def study_names(connection: Connection, *, prefix: str) -> list[str]:
    """Return the studies that have an attribute whose key begins so, oldest first."""
    return list(connection.scalars(_STUDY_NAMES, {"prefix": prefix}))


def study_id(connection: Connection, name: str) -> int | None:
    """Return the key of a study; None when there is none of that name."""
    return connection.scalar(_STUDY_ID, {"name": name})


def add_study(connection: Connection, name: str, attributes: Mapping[str, Any]) -> int:
    """Make a study that maximizes, and return its key."""
    added = _key_of(connection.execute(insert(_STUDIES), {"study_name": name}))
    direction = {"study_id": added, "objective": 0, "direction": StudyDirection.MAXIMIZE}
    connection.execute(insert(_DIRECTIONS), direction)
    rows = [{"study_id": added, "key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]
    connection.execute(insert(_STUDY_ATTRIBUTES), rows)
    return added


def study_attribute(connection: Connection, study: int, key: str) -> Any:
    """Return a study's attribute; None when there is none."""
    text = connection.scalar(_STUDY_ATTRIBUTE, {"study": study, "name": key})
    return None if text is None else json.loads(text)


def set_study_attribute(connection: Connection, study: int, key: str, value: Any) -> None:
    """Keep an attribute of a study."""
    text = json.dumps(value)
    if not connection.execute(_SET_STUDY_ATTRIBUTE, {"study": study, "name": key, "text": text}).rowcount:
        connection.execute(insert(_STUDY_ATTRIBUTES), {"study_id": study, "key": key, "value_json": text})


def swap_study_attribute(connection: Connection, study: int, key: str, *, old: Any, new: Any) -> bool:
    """Give an attribute that is `old` (None: or missing) the value `new`; whether it was so."""
    wanted = {"study": study, "name": key, "text": json.dumps(new), "old": json.dumps(old)}
    if connection.execute(_SWAP_STUDY_ATTRIBUTE, wanted).rowcount:
        return True
    if old is not None or study_attribute(connection, study, key) is not None:
        return False
    connection.execute(insert(_STUDY_ATTRIBUTES), {"study_id": study, "key": key, "value_json": json.dumps(new)})
    return True


def add_trial(
    connection: Connection,
    study: int,
    *,
    parameters: Sequence[Parameter],
    attributes: Mapping[str, str],
    started_at: datetime,
) -> TrialRow:
    """Make a RUNNING trial.

    Args:
        connection: in a transaction.
        study: the study's key.
        parameters: shown by Optuna's tools.
        attributes: JSON text by key.
        started_at: local time.
    """
    connection.execute(_STUDY_LOCK, {"study": study})  # Optuna's own: the number is taken from the trial before
    values = _columns(study_id=study, state=TrialState.RUNNING, datetime_start=started_at)
    trial_id = _key_of(connection.execute(insert(_TRIALS), values))
    before = connection.scalar(_NUMBER_BEFORE, {"study": study, "trial": trial_id})
    number = 0 if before is None else before + 1
    connection.execute(_SET_NUMBER, {"trial": trial_id, "its_number": number})
    if parameters:
        rows = [
            {
                "trial_id": trial_id,
                "param_name": parameter.name,
                "param_value": parameter.value,
                "distribution_json": parameter.distribution_json,
            }
            for parameter in parameters
        ]
        connection.execute(insert(_PARAMETERS), rows)
    _add_attributes(connection, trial_id, attributes)
    return TrialRow(trial_id=trial_id, number=number, state=TrialState.RUNNING)


def trial_with(connection: Connection, study: int, *, key: str, text: str, after: int) -> TrialRow | None:
    """Return the trial that has an attribute of this JSON text, of those with a greater key than `after`."""
    wanted = {"study": study, "after": after, "name": key, "text": text}
    return next(iter(_rows(connection, _TRIAL_WITH, wanted)), None)


def finish_trial(
    connection: Connection,
    trial_id: int,
    *,
    state: TrialState,
    value: float | None,
    attributes: Mapping[str, str],
    replaced: Sequence[str],
    finished_at: datetime,
) -> bool:
    """Give a RUNNING trial its final state, value and attributes; whether it was RUNNING.

    Args:
        connection: in a transaction.
        trial_id: the trial's key.
        state: a final one.
        value: R; None where there is none.
        attributes: JSON text by key.
        replaced: keys among them that the trial has already.
        finished_at: local time.
    """
    changes = _columns(state=state, datetime_complete=finished_at)
    if not connection.execute(_FINISH.values(changes), {"trial": trial_id}).rowcount:
        return False
    if replaced:
        connection.execute(_REMOVE_ATTRIBUTES, {"trial": trial_id, "names": replaced})
    _add_attributes(connection, trial_id, attributes)
    if value is not None:
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        row = {"trial_id": trial_id, "objective": 0, "value": stored, "value_type": kind}
        connection.execute(insert(_VALUES), row)
    return True


def trials(connection: Connection, study: int) -> list[TrialRow]:
    """Return a study's trials, by number."""
    return _rows(connection, _ROW, {"study": study})


def trial(connection: Connection, study: int, number: int) -> TrialRow | None:
    """Return one trial of a study."""
    return next(iter(_rows(connection, _TRIAL, {"study": study, "its_number": number})), None)


def attributes_of_trial(connection: Connection, trial_id: int) -> dict[str, str]:
    """Return a trial's attributes: JSON text by key."""
    return {key: text for key, text in connection.execute(_ATTRIBUTES_OF_TRIAL, {"trial": trial_id})}  # noqa: C416


def attributes_of_trials(
    connection: Connection, study: int, *, keys: Sequence[str], since: int, until: int
) -> list[tuple[int, str, str]]:
    """Return (trial's key, attribute's key, JSON text) of the trials from one key to another, both included."""
    wanted = {"study": study, "since": since, "until": until, "names": keys}
    return [(trial_id, key, text) for trial_id, key, text in connection.execute(_ATTRIBUTES_OF_TRIALS, wanted)]


def _rows(connection: Connection, found: sqlalchemy.Select[Any], wanted: Mapping[str, Any]) -> list[TrialRow]:
    return [
        TrialRow(trial_id=trial_id, number=number, state=state)
        for trial_id, number, state in connection.execute(found, wanted)
    ]


def _key_of(inserted: sqlalchemy.CursorResult[Any]) -> int:
    return int(next(iter(inserted.inserted_primary_key or ())))


def _add_attributes(connection: Connection, trial_id: int, attributes: Mapping[str, str]) -> None:
    rows = [{"trial_id": trial_id, "key": key, "value_json": text} for key, text in attributes.items()]
    connection.execute(insert(_TRIAL_ATTRIBUTES), rows)


def _columns(**attributes: Any) -> dict[str, Any]:
    """Return the columns of a trial as Optuna's model fills them: its times are local or UTC, by its version."""
    trial = models.TrialModel(**attributes)
    filled: dict[str, Any] = sqlalchemy.inspect(trial).dict
    columns = sqlalchemy.inspect(models.TrialModel).column_attrs
    return {attribute.columns[0].name: filled[attribute.key] for attribute in columns if attribute.key in filled}
