"""Studies by name in the storage that the command line gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.errors import StorageError, StudyError
from autotune.objective import Objective
from autotune.report.rescoring import rescored
from autotune.report.summary import StudySummary
from autotune.storage import DEFAULT_URL, Storage
from autotune.trials import Trial


@contextmanager
def opened(url: str | None, *, must_exist: bool = True) -> Iterator[Storage]:
    """Open the storage, and close it afterwards.

    Args:
        url: the default one when None.
        must_exist: refuse a SQLite file that is missing, instead of making it.

    Raises:
        StorageError: when it can't be opened.
    """
    chosen = url or DEFAULT_URL
    if must_exist:
        _refuse_missing_file(chosen)
    storage = storages.connect(chosen)
    try:
        yield storage
    finally:
        storage.close()


def summary_of(storage: Storage, name: str, *, alpha: float | None = None, beta: float | None = None) -> StudySummary:
    """Return a study's summary, under other weights of R where they are given.

    Raises:
        StudyError: when there is no such study.
        CampaignError: when the weights can't be used.
    """
    summary = campaigns.summary(storage.open(name))
    if alpha is None and beta is None:
        return summary
    return rescored(summary, weights(summary.objective, alpha=alpha, beta=beta))


def weights(objective: Objective, *, alpha: float | None, beta: float | None) -> Objective:
    """Return the objective with other weights; one that is given alone leaves the rest to 1 to the other."""
    if alpha is None and beta is None:
        return objective
    if beta is None:
        return Objective(alpha=alpha or 0.0, beta=max(0.0, 1.0 - (alpha or 0.0)))
    return Objective(alpha=max(0.0, 1.0 - beta) if alpha is None else alpha, beta=beta)


def trial_of(summary: StudySummary, number: int) -> Trial:
    """Return a trial by its number.

    Raises:
        StudyError: when there is none.
    """
    for trial in summary.trials:
        if trial.number == number:
            return trial
    numbers = f"0 to {summary.trials[-1].number}" if summary.trials else "none yet"
    raise StudyError(f"study {summary.name!r} has no trial {number}; it has {numbers}")


def _refuse_missing_file(url: str) -> None:
    try:
        parsed = make_url(url)
    except ArgumentError:
        return  # told by connect, which knows the rule
    if parsed.get_backend_name() == "sqlite" and parsed.database and not os.path.exists(parsed.database):
        raise StorageError(
            f"storage: got {url!r}, and there is no file {parsed.database} here; "
            f"go to the folder of your studies, give --storage, or start one: "
            f"{storages.command('launch', 'CAMPAIGN.yaml', url=url)}"
        )
